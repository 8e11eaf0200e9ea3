"""Run the examples of README, in Python and SQL (DuckDB), and those that continue it: the billing job, the commands."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lakemq
from lakemq.engine.client.sql.dialects import SqlDialect
from lakemq.engine.client.sql.query import run_query

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]


def read_blocks(language: str, page: str = "README.md") -> list[str]:
    """Return the code blocks of a language on a page, in order."""
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def read_billing_program() -> str:
    """Return the program that continues the Python example."""
    (program,) = read_blocks("python billing", "docs/patterns.md")
    return program


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder in which the Python example has run; its output is in `out.txt`."""
    folder = tmp_path_factory.mktemp("readme")
    completed = subprocess.run(
        [sys.executable, "-c", read_blocks("python")[0]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    (folder / "out.txt").write_text(completed.stdout)
    return folder


def test_the_examples_are_as_short_as_promised() -> None:
    for example in (*read_blocks("python"), *read_blocks("sql")):
        assert len([line for line in example.splitlines() if line]) <= 10


def test_the_python_example_sends_and_fetches(folder: Path) -> None:
    offsets, *messages = (folder / "out.txt").read_text().splitlines()
    ends = ast.literal_eval(offsets)
    assert sum(last + 1 for _, last in ends.values()) == 1000
    assert {topic for topic, _ in ends} == {"orders"}
    assert [line.split()[0] for line in messages] == ["0", "1", "2"]


def test_the_sql_example_answers_in_duckdb(folder: Path) -> None:
    with lakemq.connect(str(folder / "data/shop")) as mq:
        columns, rows = run_query(mq.namespace, read_blocks("sql")[0], dialect=SqlDialect.spark)
        records = [dict(zip(columns, row, strict=True)) for row in rows]
    # 1000 orders of 7 customers in turn: the first six have one more than the seventh
    assert [(row["customer"], row["orders"]) for row in records] == [(f"customer-{n}", 143) for n in range(5)]
    assert [row["newest_order"] for row in records] == [f"order {994 + n}" for n in range(5)]
    assert all(row["last_offset"] - row["first_offset"] >= 142 for row in records)


def test_the_transaction_takes_each_order_once(folder: Path) -> None:
    """The program runs twice. It does not bill again what the first run has committed."""
    code = read_billing_program()
    for _ in range(2):
        completed = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert (completed.stdout, completed.stderr) == ("1000 0\n", "")


def test_the_command_lines_run(tmp_path: Path) -> None:
    (script,) = read_blocks("sh", "docs/setup.md")
    command = f'lakemq() {{ "{sys.executable}" -m lakemq.jobs.cli "$@"; }}\nset -euo pipefail\n{script}'
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LAKEMQ_")}
    completed = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert completed.returncode == 0, completed.stderr
    (fetched,) = [json.loads(line) for line in completed.stdout.splitlines() if line.startswith("{")]
    assert (fetched["topic"], fetched["offset"], fetched["key"]) == ("clicks", 0, "ann")
    assert json.loads(fetched["value"]) == {"user": "ann", "page": "/tea"}
    assert completed.stdout.split()[-2:] == ["messages", "1"]


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"^make (\w+)", readme, re.MULTILINE)
    makefile = (CHECKOUT / "Makefile").read_text()
    assert targets == ["demo", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
