"""Queries of strangers, in a process with little memory, time and temporary space."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
from targets import extended_but

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.sql.query import QueryLimits, run_query
from lakemq.engine.client.sql.query_process import run_query_in_process
from lakemq.errors import InvalidRequest

LIMITS = QueryLimits(timeout_s=600.0, max_rows=100, memory_mb=256)


def test_query_in_a_process_returns_the_first_rows_with_long_texts_cut(mq: Connection) -> None:
    query = "SELECT range, repeat('x', 20000) AS text, X'00' AS bytes FROM range(200) ORDER BY 1"
    result = run_query_in_process(mq.namespace, query, LIMITS)
    assert (result.columns, len(result.rows), result.is_cut) == (["range", "text", "bytes"], 100, True)
    assert result.rows[1] == (1, "x" * 5_000, b"\x00")


@pytest.mark.extended
def test_values_without_a_plain_form_come_as_texts(mq: Connection) -> None:
    query = "SELECT CAST(1.50 AS DECIMAL(9, 2)), TIMESTAMP '2030-01-01 12:00:00', array(1, NULL), 1 = 1, NULL"
    (row,) = run_query_in_process(mq.namespace, query, LIMITS).rows
    assert row == ("1.50", datetime(2030, 1, 1, 12, tzinfo=UTC), [1, None], True, None)


LARGE_QUERIES = {
    "rows": "SELECT repeat('x', 50000000) AS text FROM range(1000)",
    "text": "SELECT length(t) FROM (SELECT string_agg(repeat('x', 1000000), '') AS t FROM range(3000))",
    "list": "SELECT array_agg(range) FROM range(300000000)",
    "spill": "SELECT * FROM range(100000000) ORDER BY random()",
}


@pytest.mark.parametrize("kind", extended_but(["rows"], LARGE_QUERIES))
def test_query_that_takes_too_much_is_stopped(mq: Connection, kind: str) -> None:
    with pytest.raises(InvalidRequest, match=r"more than 256 MB|Out of Memory"):
        run_query_in_process(mq.namespace, LARGE_QUERIES[kind], LIMITS)


@pytest.mark.extended
def test_query_that_takes_too_long_is_stopped_and_leaves_no_folder(
    mq: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    endless = "SELECT count(*) FROM range(10000000) a CROSS JOIN range(10000000) b"
    with pytest.raises(InvalidRequest, match=r"stopped after 0\.2 s"):
        run_query_in_process(mq.namespace, endless, LIMITS._replace(timeout_s=0.2))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "statement",
    [
        "COPY (SELECT 1) TO {place}",
        "SET VARIABLE place = {place}; COPY (SELECT 1) TO (getvariable('place'))",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO {place}",
        "PREPARE writing AS COPY (SELECT 1) TO {place}; EXECUTE writing",
        "EXPORT DATABASE {place}",
    ],
)
def test_statement_that_writes_files_is_refused(mq: Connection, statement: str) -> None:
    text = statement.format(place="current_setting('temp_directory') || '/out.csv'" if "SET" in statement else "'out'")
    with pytest.raises(duckdb.PermissionException, match=r"not permitted.*--allow-files"):
        run_query(mq.namespace, text)


@pytest.mark.extended
def test_error_of_the_process_is_that_of_the_query(mq: Connection) -> None:
    with pytest.raises(InvalidRequest, match=r"The query fails.*nosuch"):
        run_query_in_process(mq.namespace, "SELECT * FROM nosuch", LIMITS)
