"""The examples of README, in Python and SQL (DuckDB), and those that continue it: the billing job, the commands."""

import json
import re
from pathlib import Path

import pytest
from unit.pages import CHECKOUT, read_blocks, read_page, run_as_process, run_commands, run_program

import lakemq
from lakemq.engine.client.sql import SqlDialect
from lakemq.engine.client.sql.query import run_query

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder in which the Python examples have run, in a process. Their output is in `out.txt`."""
    folder = tmp_path_factory.mktemp("readme")
    send, consume, _ = read_blocks("README.md", "python")
    (folder / "out.txt").write_text(run_as_process(send + consume, folder))
    return folder


def test_python_examples_print_what_the_readme_says(folder: Path) -> None:
    assert (folder / "out.txt").read_text() == "".join(read_blocks("README.md", "text"))


def test_sql_example_counts_orders_in_duckdb(folder: Path) -> None:
    with lakemq.connect(str(folder / "data/shop")) as mq:
        columns, rows = run_query(mq.namespace, read_blocks("README.md", "sql")[0], dialect=SqlDialect.spark)
        records = [dict(zip(columns, row, strict=True)) for row in rows]
    # 1000 orders of 7 customers in turn: the first six have one more than the seventh
    assert [(row["customer"], row["orders"]) for row in records] == [(f"customer-{n}", 143) for n in range(5)]
    assert [row["newest_order"] for row in records] == [f"order {994 + n}" for n in range(5)]
    assert all(row["last_offset"] - row["first_offset"] >= 142 for row in records)


def test_billing_program_bills_each_order_once_when_run_twice(folder: Path) -> None:
    (program,) = read_blocks("patterns.md", "python billing")
    assert [run_program(program, folder) for _ in range(2)] == ["1000 0\n", "1000 0\n"]


def test_commands_of_setup_publish_and_fetch(tmp_path: Path) -> None:
    (script,) = read_blocks("setup.md", "sh")
    output = "".join(run_commands(script, tmp_path))
    (message,) = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert (message["topic"], message["offset"], message["key"]) == ("clicks", 0, "ann")
    assert json.loads(message["value"]) == {"user": "ann", "page": "/tea"}
    assert output.split()[-2:] == ["messages", "1"]


def test_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    targets = re.findall(r"^make (\w+)", read_page("README.md"), re.MULTILINE)
    makefile = (CHECKOUT / "Makefile").read_text()
    assert targets == ["demo", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
