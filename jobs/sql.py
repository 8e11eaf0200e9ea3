"""SQL without a JVM: DuckDB over the Delta tables of a namespace, with the views Spark has, in Spark's SQL or DuckDB's.

All projections are read up to one watermark. The tables come to DuckDB as Arrow datasets: it loads no extension, and
reads and writes no file but those it spills to, in a folder of its own, unless it is allowed to.
"""

from __future__ import annotations

import re
import tempfile
import weakref
from collections.abc import Collection, Iterator
from datetime import datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from lakemq.engine.client import arguments
from lakemq.engine.namespace.extras import needs
from lakemq.errors import InvalidRequest
from lakemq.jobs.dialects import Dialect
from lakemq.jobs.interrupts import interrupts

if TYPE_CHECKING:
    import duckdb

    from lakemq.engine.namespace.namespace import Namespace
    from lakemq.engine.namespace.snapshot import Snapshot
    from lakemq.jobs.ranges import Range
    from lakemq.jobs.spark_sql import Translated

_BATCH_ROWS = 10_000

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # a name that is no table must be an error, not a variable of ours
    "python_enable_replacements": "false",
}

# Databases and schemas of DuckDB's own.
_TAKEN = ("memory", "temp", "system", "main", "pg_catalog", "information_schema")

# What the views' Spark SQL calls and DuckDB names otherwise.
_MACROS = (
    "CREATE MACRO timestamp_millis(ms) AS make_timestamptz(ms * 1000)",
    "CREATE MACRO unix_millis(time) AS epoch_ms(time)",
    # what is no UTF-8 is shown as DuckDB shows bytes, and a time without its zone, as Spark does
    "CREATE MACRO as_text"
    " (x BLOB) AS coalesce(TRY(decode(x)), CAST(x AS VARCHAR)),"
    " (x) AS CASE WHEN typeof(x) = 'TIMESTAMP WITH TIME ZONE' THEN replace(CAST(x AS VARCHAR), '+00', '')"
    " ELSE CAST(x AS VARCHAR) END",
    "CREATE MACRO length_of (x BLOB) AS octet_length(x), (x) AS length(x)",
    "CREATE MACRO get_json_object(json, path) AS TRY(json_extract_string(as_text(json), path))",
    "CREATE MACRO explode_outer(list) AS unnest(CASE WHEN len(list) > 0 THEN list ELSE [NULL] END)",
    "CREATE MACRO array_size(list) AS len(list)",
)


def run_query(
    namespace: Namespace,
    text: str,
    allow_files: bool = False,
    dialect: Dialect = Dialect.duckdb,
    as_of: int | datetime | None = None,
) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    """Column names and rows of the last statement, as of now, or of a step or time.

    allow_files: the statements may do with files, extensions and DuckDB's settings whatever this user may. Raises
    duckdb.Error, StepTooOld, InvalidRequest.
    """
    with needs("sql"):
        import duckdb

    from lakemq.engine.namespace.snapshot import take_snapshot

    text = arguments.text("query", text)
    text, ranges = _translated(text) if dialect is Dialect.spark else (text, ())
    snapshot = take_snapshot(namespace.store, as_of)
    connection = connected(namespace, allow_files, snapshot)
    for one in ranges:
        _add_range(connection, namespace, snapshot, one)
    try:
        result = connection.execute(text)
    except duckdb.ParserException as error:
        raise duckdb.ParserException(f"{error}{_quoting(text)}") from None
    except duckdb.Error as error:
        if allow_files or not _CLOSED.search(str(error)):
            raise
        raise type(error)(f"{_first_line(error)} (--allow-files opens it.)") from None
    if result is None:
        raise InvalidRequest("There is no statement to run.", found=text[:60], expected="SQL")
    columns = [name for name, *_ in result.description or ()]
    return _distinct(columns), _rows(result)


def _translated(text: str) -> Translated:
    with needs("sql"):
        import duckdb

        from lakemq.jobs.spark_sql import NotSparkSql, in_duckdbs

    try:
        return in_duckdbs(text)
    except NotSparkSql as error:
        raise duckdb.ParserException(f"It is no SQL of Spark's: {error} (--dialect duckdb takes DuckDB's.)") from None


def _add_range(connection: duckdb.DuckDBPyConnection, namespace: Namespace, snapshot: Snapshot, asked: Range) -> None:
    """The view that the range stands for, in its schema: as it is, over those files that may hold what is asked."""
    from lakemq.tables.specs.messages import MESSAGES, file_stem
    from lakemq.tables.views import VIEWS

    found = f"SELECT DISTINCT file_id FROM segments WHERE kind = 'data' AND {asked.condition}"
    stems = {file_stem(file_id) for (file_id,) in connection.execute(found).fetchall()}
    files = [file for file in snapshot.handles[MESSAGES.name].files() if PurePosixPath(file.path).stem in stems]
    rows = f"messages of {asked.schema}"
    connection.from_arrow(namespace.store.dataset(MESSAGES, files)).create_view(rows)
    (database,) = connection.execute("SELECT current_schema()").fetchone() or ("",)
    view = VIEWS[asked.view].replace("{database}.messages", f'"{rows}"').format(database=f'"{database}"')
    connection.execute(f'CREATE SCHEMA "{asked.schema}"')
    connection.execute(f'CREATE VIEW "{asked.schema}"."{asked.view}" AS {view}')


def _quoting(text: str) -> str:
    return ' (Is it the reserved word "offset"? Quote it.)' if re.search(r"(?<!\")\boffset\b", text, re.I) else ""


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def connected(
    namespace: Namespace,
    allow_files: bool = False,
    snapshot: Snapshot | None = None,
    without: Collection[str] = (),
) -> duckdb.DuckDBPyConnection:
    """A DuckDB in memory in whose current schema are all tables and views, as of one watermark. Raises StepTooOld.

    without: data files of `messages` whose rows are left out.
    """
    with needs("sql"):
        import duckdb

    from lakemq.engine.namespace.snapshot import take_snapshot
    from lakemq.tables.specs.registry import TABLES
    from lakemq.tables.storage.catalog import database_name, is_projection
    from lakemq.tables.views import VIEWS

    name = database_name(namespace.path)
    database = f'"mq_{name}"' if name in _TAKEN else f'"{name}"'  # it may be a word of SQL, such as order
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    interrupts(connection)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {database}")
    connection.execute(f"USE {database}")
    for macro in _MACROS:
        connection.execute(macro)
    watermark, handles = snapshot or take_snapshot(namespace.store)
    for spec in TABLES:
        rows = connection.from_arrow(handles[spec.name].dataset(without))
        if is_projection(spec) and "step" in spec.stored_schema.names:
            rows = rows.filter(f"step <= {watermark.step}")
        rows.create_view(spec.name)
    for name, query in VIEWS.items():
        connection.execute(f"CREATE VIEW {database}.{name} AS {query.format(database=database)}")
    if not allow_files:
        _close(connection)
    return connection


def _close(connection: duckdb.DuckDBPyConnection) -> None:
    """What its statements can reach are the tables and views, and memory; nothing can be set any more."""
    # wherever it spills it may read and write: not in the working folder
    spill = tempfile.TemporaryDirectory(prefix="lakemq-sql-")
    weakref.finalize(connection, spill.cleanup)
    connection.execute("SET temp_directory = $folder", {"folder": spill.name})
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


# What DuckDB says of a file, an extension or a setting that is closed to it.
_CLOSED = re.compile(r"disabled by configuration|disabled through configuration|configuration has been locked")


def _rows(result: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    while rows := result.fetchmany(_BATCH_ROWS):
        yield from rows


def _distinct(columns: list[str]) -> list[str]:
    """The names, those that come again with a number."""
    seen: dict[str, int] = {}
    for name in columns:
        number, new = 0, name
        while new in seen:
            number = seen[name] = seen[name] + 1
            new = f"{name}_{number}"
        seen[new] = 0
    return list(seen)
