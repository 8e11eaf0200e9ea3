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
def test_programs_of_a_page_print_its_outputs(tmp_path: Path, page: str) -> None:
    assert run_program(join_python(page), tmp_path) == "".join(read_blocks(page, "text"))
    assert len(read_blocks(page, "text")) == OUTPUTS[page]
    scripts = read_blocks(page, "sh")
    assert bool(scripts) == (page in CHECKS)
    if scripts:
        CHECKS[page](scripts[0], tmp_path)


def check_commands_of_the_tutorial(script: str, folder: Path) -> None:
    output = "".join(run_commands(script, folder))
    names = ("departures", "departures.dlq", "reminders", "totals", "display", "punctuality", "add-up")
    assert [name for name in names if not re.search(rf"\b{re.escape(name)}\b", output)] == []
    assert re.search(r"topic_created\s+4\b", output)


def check_commands_of_schemas(script: str, folder: Path) -> None:
    fields = [{"name": "order", "type": "long"}, {"name": "amount", "type": "double"}]
    (folder / "payment.avsc").write_text(json.dumps({"type": "record", "name": "Payment", "fields": fields}))
    (folder / "refunds.jsonl").write_text('{"order": 7, "amount": 1.5}')
    output = "".join(run_commands(script, folder))
    assert re.search(r"\bavro\b", output), output
    assert "Payment" in output
    assert '{"order":7,"amount":1.5}' in output


def check_query_of_delays(script: str, folder: Path) -> None:
    (output,) = run_commands(script, folder)
    assert output.split()[3:] == ["unpaid", "waiting", "1"]


def check_commands_of_schedules(script: str, folder: Path) -> None:
    created, listed = run_commands(script, folder)
    assert "30 * * * *" in created
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["daily", "hourly"]


def check_query_of_ttl(script: str, folder: Path) -> None:
    (output,) = run_commands(script, folder)
    assert output.lower().split()[2:] == ["0", "false", "1", "true", "2", "false"]


CHECKS = {
    "tutorial.md": check_commands_of_the_tutorial,
    "schemas.md": check_commands_of_schemas,
    "delays.md": check_query_of_delays,
    "schedules.md": check_commands_of_schedules,
    "ttl.md": check_query_of_ttl,
}


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
