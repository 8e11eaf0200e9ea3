"""The examples of docs/groups.md, queues.md and dead-letters.md run as they stand and print what the pages say."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.engine.client.sql.dialects import SqlDialect
from lakemq.engine.client.sql.query import run_query
from lakemq.jobs.cli import app

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"


def read_blocks(language: str, page: str = "groups") -> str:
    """Return all blocks of a language on a page, in order, without fragments of Python that have no connection."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return "".join(code for code in blocks if language != "python" or "mq." in code)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder in which the examples have run. Their output is in `groups.txt` and so on."""
    folder = tmp_path_factory.mktemp("groups")
    for page in ("groups", "queues", "dead-letters"):
        code = "\n".join([read_blocks("python", page), "mq.close()"])
        completed = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert completed.returncode == 0, completed.stderr
        (folder / f"{page}.txt").write_text(completed.stdout)
    return folder


@pytest.mark.parametrize("page", ["groups", "queues", "dead-letters"])
def test_the_example_prints_what_the_page_says(folder: Path, page: str) -> None:
    assert (folder / f"{page}.txt").read_text() == read_blocks("text", page)


def parse_lags(lines: list[str]) -> list[int]:
    """Return the column `lag` of the output of `lakemq groups lag`."""
    index = lines[0].split().index("lag")
    return [int(line.split()[index]) for line in lines[1:]]


def test_the_commands_show_the_queue(folder: Path) -> None:
    outputs = {}
    for line in read_blocks("sh", "queues").splitlines():
        _, *arguments = shlex.split(line)
        result = CliRunner().invoke(
            app, [str(folder / argument) if "/" in argument else argument for argument in arguments]
        )
        assert result.exit_code == 0, (line, result.stderr)
        outputs[arguments[3] if arguments[2] == "groups" else arguments[2]] = result.stdout.splitlines()
    assert outputs["describe"][1].split()[:3] == ["ship", "Empty", "queue"]
    assert [line.split()[:4] for line in outputs["assignments"][1:]] == [
        ["ship", "orders", str(partition), "unassigned"] for partition in range(4)
    ]
    assert sum(int(line.split()[1]) for line in outputs["sql"][1:]) == 40
    assert parse_lags(outputs["lag"]) == [0] * 4


def test_the_commands_show_dead_letters(folder: Path) -> None:
    outputs = {}
    for line in read_blocks("sh", "dead-letters").splitlines():
        _, *arguments = shlex.split(line)
        result = CliRunner().invoke(
            app, [str(folder / argument) if "/" in argument else argument for argument in arguments]
        )
        assert result.exit_code == 0, (line, result.stderr)
        outputs[arguments[3] if arguments[2] == "dead-letters" else arguments[2]] = result.stdout
    assert "order without a customer" in outputs["consume"]
    assert [outputs[command].splitlines()[1:] for command in ("list", "show")] == [[], []]
    assert outputs["redrive"].split() == ["messages", "waiting", "without_topic", "0", "0", "0"]
    (row,) = outputs["sql"].splitlines()[1:]
    assert row.split()[:2] == ["ship", "rejected"]
    assert "no such customer" in row


def test_the_commands_show_the_group(folder: Path) -> None:
    outputs = {}
    for line in read_blocks("sh").splitlines():
        name, *arguments = shlex.split(line)
        assert name == "lakemq"
        result = CliRunner().invoke(
            app, [str(folder / argument) if "/" in argument else argument for argument in arguments]
        )
        assert result.exit_code == 0, (line, result.stderr)
        if arguments[2] == "groups":
            view = arguments[3] + "".join(arguments[5:])
        else:
            view = arguments[3].partition("FROM ")[2].split()[0]
        outputs[view] = result.stdout.splitlines()
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


def test_the_query_tells_who_had_a_partition_then(folder: Path) -> None:
    with lakemq.connect(str(folder / "data/fleet")) as mq:

        def run_spark_sql(query: str) -> list[Any]:
            return list(run_query(mq.namespace, query, dialect=SqlDialect.spark)[1])

        ((came, first_owner, second_owner),) = run_spark_sql(
            "SELECT ended_at, from_member, to_member FROM handoffs WHERE reason = 'balance' AND partition = 3"
        )
        for time, owner in ((came, second_owner), (came - timedelta(milliseconds=1), first_owner)):
            (row,) = run_spark_sql(read_blocks("sql").replace("2026-05-01 12:00:00Z", time.isoformat(" ")))
            assert row[0] == owner
            assert row[1] <= time < row[2]
        assert run_spark_sql(read_blocks("sql")) == []
