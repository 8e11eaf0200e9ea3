"""The programs and commands of tutorial and guides run as they stand, and print what the pages say."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from targets import extended_but
from unit.pages import join_python, read_blocks, read_page, run_as_process, run_commands, run_program

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.sql import SqlDialect
from lakemq.engine.client.sql.query import run_query

pytestmark = pytest.mark.slow

OUTPUTS = {
    "index.md": 2,
    "tutorial.md": 8,
    "producers.md": 5,
    "from-kafka.md": 2,
    "from-solace.md": 1,
    "schemas.md": 4,
    "operations-reference.md": 0,
    "delays.md": 1,
    "schedules.md": 1,
    "ttl.md": 1,
}
"""Pages, with their numbers of outputs."""


@pytest.mark.parametrize("page", extended_but(["index.md", "producers.md", "from-kafka.md"], OUTPUTS))
def test_programs_of_a_page_print_its_outputs_and_its_commands_run(tmp_path: Path, page: str) -> None:
    assert run_program(join_python(page), tmp_path) == "".join(read_blocks(page, "text"))
    assert len(read_blocks(page, "text")) == OUTPUTS[page]
    schema = {"type": "record", "name": "Payment", "fields": [{"name": "order", "type": "long"}]}
    (tmp_path / "payment.avsc").write_text(json.dumps(schema))
    (tmp_path / "refunds.jsonl").write_text('{"order": 7}')
    for script in read_blocks(page, "sh"):
        run_commands(script, tmp_path)


def test_commands_of_operations_print_the_lines_of_the_page(tmp_path: Path) -> None:
    (script,), (lines,) = read_blocks("operations.md", "sh"), read_blocks("operations.md", "text")
    printed = "".join(run_commands(script, tmp_path)).splitlines()
    assert [line for line in lines.splitlines() if line not in printed] == []


def test_program_of_tracing_prints_its_output(tmp_path: Path) -> None:
    """It sets the tracer of its process, so it has one of its own."""
    assert [run_as_process(join_python("tracing.md"), tmp_path)] == read_blocks("tracing.md", "text")


def test_first_program_of_asyncio_prints_its_output(tmp_path: Path) -> None:
    assert [run_program(read_blocks("asyncio.md", "python")[0], tmp_path)] == read_blocks("asyncio.md", "text")


# -- concepts and SQL -----------------------------------------------------------------------------------


def test_example_of_concepts_prints_and_leaves_what_the_page_shows(tmp_path: Path) -> None:
    page = read_page("concepts.md")
    (program,) = read_blocks("concepts.md", "python")
    assert f"prints `{run_program(program, tmp_path).strip()}`" in page
    queries = re.findall(r"^```sql\n(.*?)^```$\n\n```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(queries) == page.count("```sql") == 4
    with lakemq.connect(str(tmp_path / "data/mq")) as mq:
        for query, printed in queries:
            columns, rows = run_query(mq.namespace, query, dialect=SqlDialect.spark)
            cells = [columns, *([str(cell) for cell in row] for row in rows)]
            assert cells == [line.split() for line in printed.splitlines()], query
        check_example_of_sql_from_python(mq)


def check_example_of_sql_from_python(mq: Connection) -> None:
    """The program of sql.md counts messages in the namespace of concepts.md."""
    page = read_page("sql.md")
    block, *_ = re.findall(r"^```python\n(.*?)^```$", page[page.index("## Without a JVM") :], re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"mq": mq}
    exec(block, names)
    assert names["messages"]
    assert names["messages"] == {topic: sum(mq.end_offsets(topic).values()) for topic in names["messages"]}


# -- patterns -------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_programs_of_patterns_print_their_outputs(tmp_path: Path) -> None:
    assert run_program(join_python("patterns.md"), tmp_path) == "".join(read_blocks("patterns.md", "text"))
    assert len(read_blocks("patterns.md", "text")) == 4
