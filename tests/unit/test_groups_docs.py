"""The examples of docs/groups.md, queues.md and dead-letters.md run as they stand and print what the pages say."""

import shlex
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from unit.pages import read_blocks, run_commands, run_program

import lakemq
from lakemq.engine.client.sql import SqlDialect
from lakemq.engine.client.sql.query import run_query

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


def run_page(folder: Path, page: str, group: str) -> dict[str, list[str]]:
    """Run the commands of a page, and return the lines that each prints.

    A command's name is the word after the group of commands, or the command itself. SQL is named by its relation.
    """
    (script,) = read_blocks(f"{page}.md", "sh")
    outputs = {}
    for line, output in zip(script.splitlines(), run_commands(script, folder), strict=True):
        _, _, _, command, *words = shlex.split(line)
        if command == group:
            name = words[0] + ("--state" if "--state" in words else "")
        else:
            name = words[0].partition("FROM ")[2].split()[0] if command == "sql" else command
        outputs[name] = output.splitlines()
    return outputs


def parse_lags(lines: list[str]) -> list[int]:
    """Return the column `lag` of the output of `lakemq groups lag`."""
    index = lines[0].split().index("lag")
    return [int(line.split()[index]) for line in lines[1:]]


def test_commands_of_queues_show_the_queue(folder: Path) -> None:
    outputs = run_page(folder, "queues", "groups")
    assert outputs["describe"][1].split()[:3] == ["ship", "Empty", "queue"]
    assert [line.split()[:4] for line in outputs["assignments"][1:]] == [
        ["ship", "orders", str(partition), "unassigned"] for partition in range(4)
    ]
    assert sum(int(line.split()[1]) for line in outputs["consumer_offsets"][1:]) == 40
    assert parse_lags(outputs["lag"]) == [0] * 4


def test_commands_of_dead_letters_show_them(folder: Path) -> None:
    outputs = run_page(folder, "dead-letters", "dead-letters")
    assert "order without a customer" in "".join(outputs["consume"])
    assert [outputs[command][1:] for command in ("list", "show")] == [[], []]
    assert " ".join(outputs["redrive"]).split() == ["messages", "waiting", "without_topic", "0", "0", "0"]
    (row,) = outputs["dead_lettered"][1:]
    assert row.split()[:2] == ["ship", "rejected"]
    assert "no such customer" in row


def test_commands_of_groups_show_the_group(folder: Path) -> None:
    outputs = run_page(folder, "groups", "groups")
    assert outputs["describe--state"][0].split()[:4] == ["group", "coordinator", "assignor", "state"]
    assert [line.split() for line in outputs["list"][1:]] == [["map", "Empty"]]
    assert outputs["describe"][1].split()[:3] == ["map", "Empty", "cooperative"]
    assert outputs["members"][1:] == []
    assert [line.split()[:4] for line in outputs["assignments"][1:]] == [
        ["map", "positions", str(partition), "unassigned"] for partition in range(4)
    ]
    assert parse_lags(outputs["lag"]) == [0] * 4
    assert outputs["group_assignments"][1].split() == ["unassigned", "4"]
    assert sorted(line.split()[:2] for line in outputs["handoffs"][1:]) == [["positions", "2"], ["positions", "3"]]


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
