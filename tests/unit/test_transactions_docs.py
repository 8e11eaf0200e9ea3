"""The examples of docs/transactions.md without Spark run as they stand and print what the page says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.sql.dialects import SqlDialect
from lakemq.engine.client.sql.query import run_query
from lakemq.errors import all_errors
from lakemq.jobs.cli import app

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs/transactions.md").read_text(encoding="utf-8")


def read_blocks(language: str) -> list[str]:
    """Return the code blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def find_blocks_with_output(language: str) -> list[tuple[str, str]]:
    """Return the code blocks of a language that are followed by their output."""
    return re.findall(rf"^```{language}\n([^`]*)^```$\n\n```text\n([^`]*)^```$", PAGE, re.MULTILINE)


def run(folder: Path, line: str) -> str:
    """Run a command line in the folder, and return its output."""
    name, *arguments = shlex.split(line)
    assert name == "lakemq"
    result = CliRunner().invoke(
        app, [str(folder / argument) if "/" in argument else argument for argument in arguments]
    )
    assert result.exit_code == 0, (line, result.stderr)
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder in which the Python examples have run. Their output is in `out.txt`."""
    folder = tmp_path_factory.mktemp("transactions")
    code = "\n".join([*read_blocks("python"), "mq.close()"])
    completed = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert completed.returncode == 0, completed.stderr
    (folder / "out.txt").write_text(completed.stdout)
    return folder


@pytest.fixture(scope="module")
def bank(folder: Path) -> Iterator[Connection]:
    with lakemq.connect(str(folder / "data/bank")) as mq:
        yield mq


def test_the_python_examples_print_what_the_page_says(folder: Path) -> None:
    examples = find_blocks_with_output("python")
    assert len(examples) == len(read_blocks("python"))
    assert (folder / "out.txt").read_text() == "".join(text for _, text in examples)


def test_the_queries_find_what_the_page_says(bank: Connection) -> None:
    outputs = dict(find_blocks_with_output("sql"))
    assert len(outputs) == 2
    for query in read_blocks("sql"):
        columns, rows = run_query(bank.namespace, query, dialect=SqlDialect.spark)
        cells = [[str(cell) for cell in row] for row in rows]
        if query in outputs:
            assert [columns, *cells] == [line.split() for line in outputs[query].splitlines()], query
        else:
            assert cells == [], query  # no transaction is left open


def test_the_commands_run_while_a_process_that_went_away_has_a_transaction_open(folder: Path, bank: Connection) -> None:
    ended_connection = lakemq.connect(str(folder / "data/bank"))  # never closed, so nothing is aborted
    with bank.serving():
        producer = ended_connection.producer("teller-9")
        producer.begin_transaction()
        producer.send("transfers", key="ann", value="ann bob 1", partition=0)
        producer.flush()
        (script,) = read_blocks("sh")
        output = "".join(run(folder, line) for line in script.splitlines())
        assert [line.split()[:2] for line in output.splitlines() if line.startswith("teller-9")] == [
            ["teller-9", "Ongoing"],
            ["teller-9", "Ongoing"],
            ["teller-9", "true"],
        ]
        assert bank.transactions.find_hanging(0) == []


def test_the_errors_that_the_page_explains_are_there() -> None:
    names = {
        name for line in PAGE.splitlines() if line.startswith("| `") for name in re.findall(r"`([A-Z_]{8,})`", line)
    }
    assert "TRANSACTION_ABORTABLE" in names
    assert names <= {error.name for error in all_errors()}
