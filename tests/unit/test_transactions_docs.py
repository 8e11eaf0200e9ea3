"""The examples of docs/transactions.md without Spark run as they stand and print what the page says."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.pages import join_python, read_blocks, read_page, run_commands, run_program

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.sql import SqlDialect
from lakemq.engine.client.sql.query import run_query
from lakemq.errors import ProducerFenced

pytestmark = pytest.mark.slow

PAGE = "transactions.md"


def find_blocks_with_output(language: str) -> list[tuple[str, str]]:
    """Return the code blocks of a language that are followed by their output."""
    blocks = rf"^```{language}\n([^`]*)^```$\n\n```text\n([^`]*)^```$"
    return re.findall(blocks, read_page(PAGE), re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder in which the Python examples have run. Their output is in `out.txt`."""
    folder = tmp_path_factory.mktemp("transactions")
    (folder / "out.txt").write_text(run_program(join_python(PAGE), folder))
    return folder


@pytest.fixture(scope="module")
def bank(folder: Path) -> Iterator[Connection]:
    with lakemq.connect(str(folder / "data/bank")) as mq:
        yield mq


def test_python_examples_print_what_the_page_says(folder: Path) -> None:
    examples = find_blocks_with_output("python")
    assert len(examples) == len(read_blocks(PAGE, "python"))
    assert (folder / "out.txt").read_text() == "".join(text for _, text in examples)


def test_queries_return_what_the_page_says(bank: Connection) -> None:
    outputs = dict(find_blocks_with_output("sql"))
    assert len(outputs) == 2
    for query in read_blocks(PAGE, "sql"):
        columns, rows = run_query(bank.namespace, query, dialect=SqlDialect.spark)
        cells = [[str(cell) for cell in row] for row in rows]
        if query in outputs:
            assert [columns, *cells] == [line.split() for line in outputs[query].splitlines()], query
        else:
            assert cells == [], query  # no transaction is left open


def test_commands_find_and_abort_a_transaction_that_another_client_left_open(folder: Path, bank: Connection) -> None:
    with bank.serving(), lakemq.connect(str(folder / "data/bank")) as ended_connection:
        producer = ended_connection.producer("teller-9")
        producer.begin_transaction()
        producer.send("transfers", key="ann", value="ann bob 1", partition=0)
        producer.flush()
        (script,) = read_blocks(PAGE, "sh")
        lines = "".join(run_commands(script, folder)).splitlines()
        assert [line.split()[:2] for line in lines if line.startswith("teller-9")] == [
            ["teller-9", "Ongoing"],
            ["teller-9", "Ongoing"],
            ["teller-9", "true"],
        ]
        assert bank.transactions.find_hanging(0) == []
        with pytest.raises(ProducerFenced):
            producer.abort_transaction()
