"""SQL over the tables and views that the core in memory would write, in DuckDB."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
from protocol_harness import Harness

from lakemq.engine.client.sql.query import _MACROS
from lakemq.engine.protocol.projection import project
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.views import VIEWS


def project_tables(mq: Harness) -> dict[str, pa.Table]:
    """Return the tables as one pass over all steps writes them."""
    written = project(mq.state, mq.steps)
    return {spec.name: written.get(spec.name, spec.empty()) for spec in TABLES}


def run_sql(rows_by_table: Mapping[str, pa.Table], query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for macro in _MACROS:
            connection.execute(macro)
        for name, rows in rows_by_table.items():
            connection.from_arrow(rows).create_view(name)
        for name, text in VIEWS.items():
            connection.execute(f"CREATE VIEW {name} AS {text.format(database='main')}")
        return connection.execute(query).fetchall()


def time_at(at_ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at_ms)
