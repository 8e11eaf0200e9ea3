"""SQL without a JVM: DuckDB over the Delta tables of a namespace, with the views Spark has.

All projections are read up to one watermark. DuckDB loads no extension: the tables come to it as Arrow datasets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

    from lakemq.engine.namespace import Namespace
    from lakemq.tables.store import TableHandle

_BATCH_ROWS = 10_000
_ATTEMPTS = 20

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # a name that is no table must be an error, not a variable of ours
    "python_enable_replacements": "false",
}

# What the views' Spark SQL calls and DuckDB names otherwise.
_MACROS = (
    "CREATE MACRO timestamp_millis(ms) AS make_timestamptz(ms * 1000)",
    "CREATE MACRO unix_millis(time) AS epoch_ms(time)",
)


def run_query(namespace: Namespace, text: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    """Column names and rows of the last statement. Raises duckdb.Error, StepTooOld."""
    import duckdb

    connection = connected(namespace)
    try:
        result = connection.execute(text)
    except duckdb.ParserException as error:
        hint = ' (Is it the reserved word "offset"? Quote it.)' if re.search(r"(?<!\")\boffset\b", text, re.I) else ""
        raise duckdb.ParserException(f"{error}{hint}") from None
    columns = [name for name, *_ in result.description or ()]
    return _distinct(columns), _rows(result)


def connected(namespace: Namespace) -> duckdb.DuckDBPyConnection:
    """A DuckDB in memory in whose current schema are all tables and views, as of one watermark. Raises StepTooOld."""
    import duckdb

    from lakemq.tables.catalog import database_name
    from lakemq.tables.registry import TABLES
    from lakemq.tables.views import VIEWS

    database = database_name(namespace.path)
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {database}")
    connection.execute(f"USE {database}")
    for macro in _MACROS:
        connection.execute(macro)
    step, handles = _snapshot(namespace)
    for spec in TABLES:
        rows = connection.from_arrow(handles[spec.name].dataset())
        if _is_projection(spec.name) and "step" in spec.stored_schema.names:
            rows = rows.filter(f"step <= {step}")
        rows.create_view(spec.name)
    for name, query in VIEWS.items():
        connection.execute(f"CREATE VIEW {database}.{name} AS {query.format(database=database)}")
    return connection


def _snapshot(namespace: Namespace) -> tuple[int, dict[str, TableHandle]]:
    """The watermark's step, and handles of all tables from which nothing of that step was forgotten.

    The segments are opened before the messages: every row that a segment points at is then there.
    """
    from lakemq.engine.errors import StepTooOld
    from lakemq.engine.recovery import read_watermark
    from lakemq.tables.registry import TABLES

    for _ in range(_ATTEMPTS):
        step = read_watermark(namespace.store).step
        handles = {spec.name: namespace.store.open(spec) for spec in sorted(TABLES, key=lambda s: s.name == "messages")}
        if all(handle.floor() <= step for handle in handles.values()):
            return step, handles
    raise StepTooOld("The tables are merged faster than they can be opened.")


def _is_projection(name: str) -> bool:
    return name not in ("journal", "watermarks")


def _rows(result: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    while rows := result.fetchmany(_BATCH_ROWS):
        yield from rows


def _distinct(columns: list[str]) -> list[str]:
    """The names, those that come again with a number."""
    seen: dict[str, int] = {}
    distinct = []
    for name in columns:
        count = seen.get(name, 0)
        seen[name] = count + 1
        distinct.append(f"{name}_{count}" if count else name)
    return distinct
