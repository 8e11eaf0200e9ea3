"""The examples of docs/groups.md, queues.md and dead-letters.md run as they stand and print what the pages say."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from unit.pages import read_blocks, run_commands, run_program

import lakemq
from lakemq.engine.client.consume.options import CONSUMER
from lakemq.engine.client.sql import SqlDialect
from lakemq.engine.client.sql.query import run_query
from lakemq.engine.protocol.parameters import GROUP
from lakemq.engine.sequencer import attendance

pytestmark = pytest.mark.slow

PAGES = {"groups": ["groups.md", "groups-reference.md"], "queues": ["queues.md"], "dead-letters": ["dead-letters.md"]}
"""The pages of each guide."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder in which the examples have run. Their output is in `groups.txt` and so on."""
    folder = tmp_path_factory.mktemp("groups")
    for guide, pages in PAGES.items():
        # fragments of Python have no connection
        blocks = [block for page in pages for block in read_blocks(page, "python") if "mq." in block]
        (folder / f"{guide}.txt").write_text(run_program("\n".join([*blocks, "mq.close()"]), folder))
    return folder


def test_examples_print_what_their_pages_say(folder: Path) -> None:
    expected = {
        guide: "".join(text for page in pages for text in read_blocks(page, "text")) for guide, pages in PAGES.items()
    }
    assert {guide: (folder / f"{guide}.txt").read_text() for guide in PAGES} == expected


@pytest.mark.parametrize("page", ["queues.md", "dead-letters.md", "groups.md"])
def test_commands_of_a_page_run_after_its_examples(folder: Path, page: str) -> None:
    (script,) = read_blocks(page, "sh")
    assert any(run_commands(script, folder))


def test_query_of_groups_names_the_owner_of_a_partition_at_a_time(folder: Path) -> None:
    (query,) = read_blocks("groups-reference.md", "sql")
    with lakemq.connect(str(folder / "data/fleet")) as mq:

        def run_spark_sql(query: str) -> list[Any]:
            return list(run_query(mq.namespace, query, dialect=SqlDialect.spark)[1])

        ((came, first_owner, second_owner),) = run_spark_sql(
            "SELECT ended_at, from_member, to_member FROM handoffs WHERE reason = 'balance' AND partition = 3"
        )
        for time, owner in ((came, second_owner), (came - timedelta(milliseconds=1), first_owner)):
            (row,) = run_spark_sql(query.replace("2026-05-01 12:00:00Z", time.isoformat(" ")))
            assert row[0] == owner
            assert row[1] <= time < row[2]
        assert run_spark_sql(query) == []


PAGE = Path(__file__).parents[2] / "docs/groups-reference.md"


def read_table() -> dict[str, list[str]]:
    """Return the table of the page: where the consumer was killed -> the cells beside it."""
    text = PAGE.read_text(encoding="utf-8").partition("### When a consumer is killed")[2]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows[2:6]}


def find_seconds(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"(\d+) s\b", text)]


def test_waits_of_the_page_follow_from_the_defaults() -> None:
    table, session_s = read_table(), CONSUMER["session_timeout_ms"].default // 1000
    delay_s = GROUP["rebalance.delay.ms"].default // 1000
    watch_s = (attendance.MAX_READ_GAP_MS + 2 * CONSUMER["heartbeat_interval_ms"].default) // 1000
    assert GROUP["scheduled.rebalance.max.delay.ms"].default == 0
    initial_s = GROUP["group.initial.rebalance.delay.ms"].default // 1000
    here, elsewhere, stopped, static = (table[row] for row in list(table))
    assert [find_seconds(cell) for cell in here] == [[1, initial_s], [1, 1 + delay_s]]
    assert [find_seconds(cell) for cell in elsewhere] == [[session_s], [session_s + delay_s]]
    assert [find_seconds(cell) for cell in stopped] == [[session_s, watch_s], [delay_s]]
    assert [find_seconds(cell) for cell in static] == [[0, session_s], [0, session_s + delay_s]]
