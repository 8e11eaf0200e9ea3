"""`lakemq sql` reads only files that may hold rows of a query of the log, and answers as if it read all."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from unit.served import until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.sql import SqlDialect
from lakemq.engine.client.sql.query import run_query
from lakemq.engine.client.sql.spark_sql import translate_to_duckdb
from lakemq.engine.namespace.data_file import file_name
from lakemq.engine.namespace.load import read_watermark
from lakemq.errors import TableDamaged

pytestmark = [pytest.mark.slow, pytest.mark.extended]

FILES, ROWS = 20, 50
"""One file per publish. Its rows go to two partitions."""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A topic `t` of two partitions in many files, and one file of a topic `other`; all of it is projected."""
    path = tmp_path_factory.mktemp("many") / "mq"
    with lakemq.connect(path, create=True, config={"inline.max.bytes": 0}) as mq, mq.serving():
        for topic in ("t", "other"):
            mq.topics.create(topic, 2)
        for nth in range(FILES):
            mq.publish(
                "t", pa.table({"value": [f"{nth} {row}" for row in range(2 * ROWS)], "partition": [0, 1] * ROWS})
            )
        mq.publish("other", pa.table({"value": ["there"]}))
        until(lambda: read_watermark(mq.namespace.store).step == mq.state().step)
    with lakemq.connect(path) as mq:
        yield mq


def run_query_text(mq: Connection, query: str) -> list[tuple[object, ...]]:
    return list(run_query(mq.namespace, query, dialect=SqlDialect.spark)[1])


def count_read_rows(mq: Connection, query: str) -> int:
    """Return how many rows of `messages` the query reads, by the plan that was run."""
    ((_, plan),) = run_query_text(mq, f"EXPLAIN (ANALYZE, FORMAT json) {query}")
    (scan,) = [
        scan for scan in find_scans(json.loads(str(plan))["operator"]) if "row" in scan["extra_info"]["Projections"]
    ]
    return int(scan["intermediate_rows"])


def find_scans(nodes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for node in nodes:
        if node["type"] == "TABLE_SCAN":
            yield node
        yield from find_scans(node.get("children", []))


FILE = 2 * ROWS
ALL = FILES * FILE + 1

READ = [
    ("SELECT offset, value FROM log WHERE topic = 't' AND partition = 1 AND offset BETWEEN 120 AND 130", FILE),
    ("SELECT offset, value FROM log WHERE topic = 't' AND partition = 1 AND offset >= 149 AND 151 > offset", 2 * FILE),
    ("SELECT value FROM log_committed l WHERE l.topic = 't' AND (l.partition = 0 AND l.offset < 40 + 10)", FILE),
    ("SELECT value FROM LOG WHERE `offset` > 948 AND topic = 't'", 2 * FILE),
    ("SELECT count(value) AS n FROM log WHERE topic = 'other'", 1),
    ("WITH l AS (SELECT * FROM log WHERE offset = 1 AND topic = 't') SELECT l.value FROM l", FILE),
    ("SELECT value FROM log WHERE offset IN (3, 999)", 2 * FILE),
    # these conditions give no bounds
    ("SELECT value FROM log WHERE topic = 't' OR offset = 3", ALL),
    ("SELECT value FROM log WHERE NOT offset = 3", ALL),
    ("SELECT value FROM log WHERE offset IN (SELECT 3)", ALL),
    ("WITH x AS (SELECT 3 AS o) SELECT log.value FROM log, x WHERE log.offset = 3", ALL),
    ("SELECT l.b, value FROM log AS l(offset, b, partition) WHERE l.partition = 3", ALL),
]


@pytest.mark.parametrize(("query", "expected"), READ)
def test_query_does_not_read_files_without_its_rows(many: Connection, query: str, expected: int) -> None:
    assert count_read_rows(many, query) == expected
    # the same if no file is left out: DuckDB gets the text unchanged
    whole = re.sub(r'"range \d+"\.', "", translate_to_duckdb(query).text)
    assert sorted(run_query_text(many, query)) == sorted(run_query(many.namespace, whole)[1])


def test_query_with_a_range_ignores_damaged_other_files(many: Connection, tmp_path: Path) -> None:
    path = Path(shutil.copytree(many.namespace.path, tmp_path / "mq", ignore=shutil.ignore_patterns("*.sock")))
    query = "SELECT count(value) FROM log WHERE topic = 't'"
    replace_log_views = f"{query} AND partition = 0 AND offset >= 60 AND offset < 70"
    statement = "SELECT file_id FROM segments WHERE partition = 0 AND base_offset = 50"
    ((file_id,),) = run_query_text(many, statement)
    for file in (path / "messages").glob("*.parquet"):
        if file.name != Path(file_name(file_id)).name:  # type: ignore[arg-type]
            file.write_bytes(b"")
    with lakemq.connect(path) as mq:
        assert run_query_text(mq, replace_log_views) == [(10,)]
        with pytest.raises(TableDamaged, match="Parquet"):
            run_query_text(mq, query)


@pytest.mark.parametrize(
    "query",
    [
        "WITH log AS (SELECT 7 AS offset) SELECT n FROM (SELECT offset AS n FROM log WHERE offset = 7)",
        "CREATE TEMP TABLE log AS SELECT 7 AS offset; SELECT offset AS n FROM log WHERE offset = 7",
    ],
)
def test_table_named_log_is_not_taken_for_the_view(many: Connection, query: str) -> None:
    assert run_query_text(many, query) == [(7,)]


def test_two_ranges_of_one_query_do_not_mix(many: Connection) -> None:
    part = "SELECT offset, value FROM log WHERE topic = 't' AND partition = 0 AND offset = {}"
    query = " UNION ALL ".join(part.format(offset) for offset in (3, 777))
    assert sorted(run_query_text(many, query)) == [(3, b"0 6"), (777, b"15 54")]
    assert run_query_text(many, f"{part.format(3)}; {part.format(777)}") == [(777, b"15 54")]
    assert len(run_query_text(many, f"EXPLAIN {query}")) == 1
