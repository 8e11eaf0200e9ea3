"""SQL without a JVM: DuckDB over the tables and views of a namespace, in Spark's SQL or DuckDB's.

All tables are read up to one watermark. DuckDB gets them as Arrow datasets, so it needs no extension. It reads and
writes no files except spill files in a folder of its own, unless the caller allows more.
"""

from __future__ import annotations

import errno
import re
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lakemq.tables.specs.messages import FINAL_MESSAGES, INBOX, MESSAGES
from lakemq.tables.storage.native_calls import NATIVE_CALLS, Workers
from lakemq.tables.storage.object_stores.files import Files
from lakemq.tables.storage.parquet import BASE_BYTES, TooLargeUnpacked, open_bounded_parquet

from ...namespace.data_file import ParquetFooter, read_footer
from ...namespace.extras import needs
from ...namespace.store_errors import store_errors
from ...protocol.errors import InvalidRequest, LakeMQError, StorageError, TableDamaged
from ..arguments import parse_text
from . import SqlDialect

if TYPE_CHECKING:
    import duckdb

    from lakemq.tables.storage.delta.commits import StoredFile
    from lakemq.tables.storage.delta.store import TableHandle

    from ...namespace.namespace import Namespace
    from ...namespace.step_reader import Snapshot


_BATCH_ROWS = 10_000

LiveReaders = Mapping[str, "Callable[[], pa.Table]"]
"""Name of a live table -> reads its rows as of now."""

NOT_LIVE: LiveReaders = {}

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # an unknown name must be an error, and must not resolve to a Python variable
    "python_enable_replacements": "false",
}

# Names of DuckDB's own databases and schemas.
_RESERVED_NAMES = ("memory", "temp", "system", "main", "pg_catalog", "information_schema")

# Functions in the views' Spark SQL that DuckDB has under other names.
_MACROS = (
    "CREATE MACRO timestamp_millis(ms) AS make_timestamptz(ms * 1000)",
    # epoch_ms and a cast of epoch round up
    "CREATE MACRO unix_millis(moment) AS epoch_us(moment) // 1000",
    "CREATE MACRO unix_seconds(moment) AS epoch_us(moment) // 1000000",
    "CREATE MACRO day_of_week(day) AS dayofweek(day) + 1",
    "CREATE MACRO day_from_monday(day) AS isodow(day) - 1",
    "CREATE MACRO from_first(start) AS CASE WHEN start = 0 THEN 1 ELSE start END",
    # bytes that are not UTF-8 are shown as DuckDB shows bytes; a time without its zone, as in Spark
    "CREATE MACRO as_text"
    " (x BLOB) AS coalesce(TRY(decode(x)), CAST(x AS VARCHAR)),"
    " (x) AS CASE WHEN typeof(x) = 'TIMESTAMP WITH TIME ZONE' THEN replace(CAST(x AS VARCHAR), '+00', '')"
    " ELSE CAST(x AS VARCHAR) END",
    # DuckDB rounds fractions, and takes texts such as 1.9, 1_000 and 0x10; the prefix makes their cast fail
    "CREATE MACRO as_whole"
    " (x VARCHAR) AS CASE WHEN regexp_full_match(x, '\\s*[+-]?[0-9]+\\s*') THEN x ELSE 'not whole: ' || x END,"
    " (x TIMESTAMPTZ) AS unix_seconds(x), (x BOOLEAN) AS x, (x) AS trunc(x)",
    "CREATE MACRO length_of (x BLOB) AS octet_length(x), (x) AS length(x)",
    "CREATE MACRO get_json_object(json, path) AS TRY(json_extract_string(as_text(json), path))",
    "CREATE MACRO explode_outer(list) AS unnest(CASE WHEN len(list) > 0 THEN list ELSE [NULL] END)",
    "CREATE MACRO array_size(list) AS len(list)",
)


@NATIVE_CALLS.guard
def run_query(
    namespace: Namespace,
    text: str,
    allow_files: bool = False,
    dialect: SqlDialect = SqlDialect.duckdb,
    as_of: int | datetime | None = None,
    snapshot: Snapshot | None = None,
    live: LiveReaders = NOT_LIVE,
) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    """Run statements, and return the column names and rows of the last one.

    as_of, snapshot: read the tables as of this step or time, or this snapshot; by default as of now. allow_files: allow
    statements to use files, extensions and DuckDB's settings. live: the live tables that they may name.

    Raises duckdb.Error, StepTooOld, InvalidRequest, StorageError, TableDamaged.
    """
    from ...namespace.step_reader import take_snapshot

    snapshot = snapshot or take_snapshot(namespace.store, as_of)
    connection, text = _prepare(namespace, text, allow_files, dialect, snapshot, live)
    with _explain_merges(namespace, snapshot), _explain_errors(text, allow_files, connection):
        result = connection.execute(text)
    if result is None:
        raise _build_no_statement_error(text)
    names = _number_duplicates([name for name, *_ in result.description or ()])
    return names, _fetch_rows(result, text, namespace, snapshot)


@NATIVE_CALLS.guard
def query_table(
    namespace: Namespace, text: str, dialect: SqlDialect, snapshot: Snapshot, live: LiveReaders = NOT_LIVE
) -> pa.Table:
    """Run statements, and return the result of the last one. live: the live tables that they may name.

    Raises duckdb.Error, InvalidRequest, StorageError, TableDamaged.
    """
    connection, text = _prepare(namespace, text, False, dialect, snapshot, live)
    with _explain_merges(namespace, snapshot), _explain_errors(text, False, connection):
        result = connection.sql(text)
        if result is None:
            raise _build_no_statement_error(text)
        return result.to_arrow_table().rename_columns(_number_duplicates(result.columns))


def _build_no_statement_error(text: str) -> InvalidRequest:
    return InvalidRequest("There is no statement to run.", found=text[:60], expected="SQL")


class QueryLimits(NamedTuple):
    """Bounds of a query that a stranger wrote. max_rows: the rest of the result is not computed."""

    timeout_s: float
    max_rows: int
    memory_mb: int


class BoundedResult(NamedTuple):
    """The columns and the first rows of a result. is_cut: there are more rows."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    is_cut: bool


@NATIVE_CALLS.guard
def run_bounded_query(
    namespace: Namespace, text: str, limits: QueryLimits, snapshot: Snapshot, live: LiveReaders = NOT_LIVE
) -> BoundedResult:
    """Run statements in Spark's SQL within limits, and return the result of the last one.

    Raises:
        InvalidRequest: the query fails, or needs more time or memory than it may have.
        MissingExtra: the extra `sql` is not installed.
        StorageError, TableDamaged: a file of a table cannot be read.
    """
    with needs("sql"):
        import duckdb

    try:
        connection, text = _prepare(namespace, text, False, SqlDialect.spark, snapshot, live, limits.memory_mb)
        with (
            limit_time(connection, limits.timeout_s),
            _explain_merges(namespace, snapshot),
            _explain_errors(text, False, connection),
        ):
            result = connection.execute(text)
            if result is None:
                raise _build_no_statement_error(text)
            rows = result.fetchmany(limits.max_rows + 1)
    except duckdb.Error as error:
        raise InvalidRequest(f"The query fails: {error}", found=text[:100]) from None
    columns = _number_duplicates([name for name, *_ in result.description or ()])
    return BoundedResult(columns, rows[: limits.max_rows], len(rows) > limits.max_rows)


@contextmanager
def limit_time(connection: duckdb.DuckDBPyConnection, timeout_s: float) -> Iterator[None]:
    """Interrupt what the connection runs in the block after this time. Raises InvalidRequest then."""
    import duckdb

    is_late = threading.Event()  # an interrupt before the query begins has no effect

    def stop() -> None:
        is_late.set()
        connection.interrupt()

    timer = threading.Timer(timeout_s, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    except duckdb.InterruptException:
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()
    if is_late.is_set():
        raise build_timeout_error(timeout_s)


def build_timeout_error(timeout_s: float) -> InvalidRequest:
    """Return the error of a query that ran for longer than it may."""
    return InvalidRequest(f"The query was stopped after {timeout_s:g} s.", expected="a shorter one")


def _prepare(
    namespace: Namespace,
    text: str,
    allow_files: bool,
    dialect: SqlDialect,
    snapshot: Snapshot,
    live: LiveReaders,
    memory_mb: int | None = None,
) -> tuple[duckdb.DuckDBPyConnection, str]:
    """Return a DuckDB that has all that the statements name, and the statements in its dialect."""
    text = parse_text("query", text)
    text = _translate_spark_sql(text) if dialect is SqlDialect.spark else text
    with _explain_merges(namespace, snapshot), store_errors():
        connection = connect_duckdb(namespace, allow_files, snapshot, memory_mb=memory_mb)
        with _explain_errors(text, allow_files, connection):
            _narrow_log_views(connection, namespace, snapshot, text)
    for name in find_live_names(text, live):
        connection.from_arrow(live[name]()).create_view(name)
    if not allow_files:
        with _explain_errors(text, allow_files, connection):
            _refuse_copies(connection, text)
    return connection, text


def find_live_names(text: str, live: LiveReaders) -> list[str]:
    """Return the live tables that a text may name. The others are not read."""
    return [name for name in live if _may_name(text, name)]


def _may_name(text: str, table: str) -> bool:
    return re.search(rf"\b{table}\b", text, re.IGNORECASE) is not None


def _refuse_copies(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    """Refuse statements that write files, because DuckDB may write into its spill folder. Raises duckdb.Error."""
    import duckdb

    kinds = duckdb.StatementType
    for statement in connection.extract_statements(text):
        is_copy = statement.type in (kinds.COPY, kinds.EXPORT, kinds.COPY_DATABASE)
        may_hold_copy = statement.type in (kinds.EXPLAIN, kinds.PREPARE)
        if is_copy or (may_hold_copy and re.search(r"\b(COPY|EXPORT)\b", statement.query, re.IGNORECASE)):
            raise duckdb.PermissionException(
                "COPY and EXPORT are not permitted. (`lakemq sql --allow-files` permits it.)"
            )


@contextmanager
def _explain_merges(namespace: Namespace, snapshot: Snapshot) -> Iterator[None]:
    """Raise a StorageError that says so if an unreadable file was replaced by a merge since the snapshot."""
    try:
        yield
    except (StorageError, TableDamaged) as error:
        for handle in snapshot.handles.values():
            replaced = _list_files(handle) - _list_files(namespace.store.open(handle.spec))
            if gone := next((path for path in replaced if path in str(error.found)), None):
                setting = "merge.grace.ms" if handle.spec.name == "messages" else "reader.grace.ms"
                raise StorageError(
                    f"The query ran for longer than {setting} of the sequencer: it reads a file that a merge has"
                    " replaced, and that was deleted since.",
                    found=f"{handle.spec.name}/{gone}",
                    expected=f"a shorter query, or a larger {setting} where the sequencer runs",
                ) from error
        raise


def _list_files(handle: TableHandle) -> set[str]:
    return {file.path for file in handle.files()}


@contextmanager
def _explain_errors(text: str, allow_files: bool, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Add to an error of DuckDB what a user of LakeMQ can do about it.

    Raises StorageError or TableDamaged if a file of a table cannot be read, and what a signal raised while rows were
    read.
    """
    import duckdb

    try:
        yield
    except duckdb.ParserException as error:
        raise duckdb.ParserException(f"{error}{hint_at_quotes(text)}") from None
    except duckdb.CatalogException as error:
        raise duckdb.CatalogException(f"{error}{_hint_at_topic(str(error), connection)}") from None
    except duckdb.Error as error:
        if end := _END.search(str(error)):
            raise (KeyboardInterrupt if end[1] == "KeyboardInterrupt" else SystemExit(int(end[2] or 0))) from None
        if unreadable := _UNREADABLE.search(str(error)):
            raise _build_read_error(unreadable[1]) from error
        if allow_files or not _NOT_PERMITTED.search(str(error)):
            raise
        raise type(error)(f"{_first_line(error)} (`lakemq sql --allow-files` permits it.)") from None


def _build_read_error(reason: str) -> LakeMQError:
    if _GONE.search(reason):
        return StorageError("A file that a table needs is gone: put it back.", found=reason)
    if _DAMAGE.search(reason):
        return TableDamaged(
            "A file of a table is damaged.",
            found=reason,
            expected="what LakeMQ wrote: restore the namespace from a backup",
        )
    return StorageError("A file of a table cannot be read.", found=reason)


def _translate_spark_sql(text: str) -> str:
    with needs("sql"):
        import duckdb

        from .spark_sql import NoCounterpart, NotSparkSql, translate_to_duckdb

    try:
        return translate_to_duckdb(text)
    except NoCounterpart as error:
        hint = "`lakemq spark-sql` runs the text in Spark; `lakemq sql --dialect duckdb` takes DuckDB's own SQL."
        raise duckdb.NotImplementedException(f"{error} {hint}") from None
    except NotSparkSql as error:
        raise duckdb.ParserException(
            f"This is not Spark SQL: {error} (`lakemq sql --dialect duckdb` takes DuckDB's SQL.)"
        ) from None


def _narrow_log_views(
    connection: duckdb.DuckDBPyConnection, namespace: Namespace, snapshot: Snapshot, text: str
) -> None:
    """Let the views of the log that a text may name read only the data files that `segments` names.

    `messages` keeps published files for some minutes after their messages have become final. DuckDB would read them,
    because it does not infer from the join which files have no rows of it. A file with another name is one that a
    foreign program has rewritten: it may have rows of any.
    """
    from lakemq.tables.specs.messages import FINAL_FILES, file_stem
    from lakemq.tables.views import LOG_VIEWS

    names = [name for name in LOG_VIEWS if _may_name(text, name)]
    if not names:
        return
    query = f"SELECT DISTINCT file_id FROM segments WHERE kind = 'data' AND file_id < {FINAL_FILES}"
    stems = {file_stem(file_id) for (file_id,) in connection.execute(query).fetchall()}
    stored = {PurePosixPath(file.path).stem: file for file in snapshot.handles[MESSAGES.name].files()}
    files = [file for stem, file in stored.items() if stem in stems or re.fullmatch("[0-9a-f]{16}", stem) is None]
    connection.from_arrow(_open_data_files(namespace, files)).create_view("messages of the log")
    (database,) = connection.execute("SELECT current_schema()").fetchone() or ("",)
    for name in names:
        view = LOG_VIEWS[name].replace("{database}.messages", '"messages of the log"')
        connection.execute(f"CREATE OR REPLACE VIEW {name} AS " + view.format(database=f'"{database}"'))


def _open_inbox(namespace: Namespace) -> ds.Dataset:
    """Return the rows of `inbox`. Others write it too: if it cannot be read, only queries that read it fail."""
    try:
        with store_errors():
            return namespace.store.open(INBOX).dataset()
    except LakeMQError as error:
        return UnreadableRows(INBOX.stored_schema, error.found or str(error))


def _open_data_files(namespace: Namespace, files: Iterable[StoredFile]) -> DataFileRows:

    return DataFileRows(namespace.files, [f"messages/{unquote(file.path)}" for file in files])


def hint_at_quotes(text: str) -> str:
    """Return a sentence if a text holds a reserved word that is a column; empty if not."""
    return ' (Is it the reserved word "offset"? Quote it.)' if re.search(r"(?<!\")\boffset\b", text, re.I) else ""


def _hint_at_topic(error: str, connection: duckdb.DuckDBPyConnection) -> str:
    name = _UNKNOWN_TABLE.search(error)
    if name is None or not connection.execute("SELECT 1 FROM topics WHERE topic = ?", [name[1]]).fetchall():
        return ""
    return f"\n{name[1]} is a topic. Read it with: FROM log_committed WHERE topic = '{name[1]}'"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def connect_duckdb(
    namespace: Namespace,
    allow_files: bool = False,
    snapshot: Snapshot | None = None,
    without: Collection[str] = (),
    memory_mb: int | None = None,
) -> duckdb.DuckDBPyConnection:
    """Return an in-memory DuckDB whose current schema has all tables and views, as of one watermark.

    without: paths of data files of `messages` or `final_messages` whose rows are left out. memory_mb: the most memory
    that DuckDB takes, and the most temporary space.

    Raises StepTooOld.
    """
    with needs("sql"):
        import duckdb

    from lakemq.tables.specs.registry import TABLES
    from lakemq.tables.storage.delta.catalog import database_name, is_projection
    from lakemq.tables.views import VIEWS

    from ...namespace.step_reader import take_snapshot

    name = database_name(namespace.path)
    # quoted: it may be a reserved word, such as order
    database = f'"mq_{name}"' if name in _RESERVED_NAMES else f'"{name}"'
    bound: dict[str, str] = {} if memory_mb is None else {"memory_limit": f"{memory_mb}MB"}
    connection = duckdb.connect(":memory:", config={**_SETTINGS, **bound})
    NATIVE_CALLS.add_interruptible(connection)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {database}")
    connection.execute(f"USE {database}")
    for macro in _MACROS:
        connection.execute(macro)
    watermark, handles = snapshot or take_snapshot(namespace.store)
    for spec in TABLES:
        if spec is INBOX:
            rows = connection.from_arrow(_open_inbox(namespace))
        elif spec is MESSAGES:
            files = [file for file in handles[spec.name].files() if file.path not in without]
            rows = connection.from_arrow(_open_data_files(namespace, files))
        elif spec is FINAL_MESSAGES:
            files = [file for file in handles[spec.name].files() if unquote(file.path) not in without]
            rows = connection.from_arrow(namespace.store.dataset(spec, files))
        else:
            rows = connection.from_arrow(handles[spec.name].dataset())
        if is_projection(spec) and "step" in spec.stored_schema.names:
            rows = rows.filter(f"step <= {watermark.step}")
        rows.create_view(spec.name)
    for name, query in VIEWS.items():
        connection.execute(f"CREATE VIEW {database}.{name} AS {query.format(database=database)}")
    if not allow_files:
        _restrict(connection, memory_mb)
    return connection


def _restrict(connection: duckdb.DuckDBPyConnection, spill_mb: int | None) -> None:
    """Restrict statements to the tables and views, and lock all settings. spill_mb: the most temporary space."""
    # DuckDB may read and write its spill folder, so this must not be the working folder
    spill = tempfile.TemporaryDirectory(prefix="lakemq-sql-")
    weakref.finalize(connection, spill.cleanup)
    connection.execute("SET temp_directory = $folder", {"folder": spill.name})
    if spill_mb is not None:
        connection.execute(f"SET max_temp_directory_size = '{spill_mb}MB'")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


# DuckDB's messages about a file, an extension or a setting that is not permitted.
_NOT_PERMITTED = re.compile(r"disabled by configuration|disabled through configuration|configuration has been locked")


_UNKNOWN_TABLE = re.compile(r"Table with name (\S+) does not exist")

_UNREADABLE = re.compile(
    r"reading the Arrow source failed: (?:\w*Error: )?(.*?)(?:\.? Detail: Python exception: .*)?$", re.DOTALL
)
"""DuckDB's message about an error of the datasets that it reads."""
_END = re.compile(r"Python exception: .*\n(KeyboardInterrupt|SystemExit)(?:: (\d+))?\s*$", re.DOTALL)
"""DuckDB's message if a signal ended the thread that read rows: a batch is read by Python code."""
_GONE = re.compile(r"No such file|FileNotFoundError")
_DAMAGE = re.compile(
    r" is damaged: |page integrity|(?<!\.)parquet|corrupt|deserializ|decompress|unexpected end", re.IGNORECASE
)
"""Arrow's messages about the content of a file. Its other errors come from the store."""


def _fetch_rows(
    result: duckdb.DuckDBPyConnection, text: str, namespace: Namespace, snapshot: Snapshot
) -> Iterator[tuple[Any, ...]]:
    fetch = NATIVE_CALLS.guard(result.fetchmany)
    with _explain_merges(namespace, snapshot), _explain_errors(text, True, result):
        while rows := fetch(_BATCH_ROWS):
            yield from rows


def _number_duplicates(columns: list[str]) -> list[str]:
    """Return the names, with numbers appended to repeated ones."""
    counts: dict[str, int] = {}
    for name in columns:
        number, new = 0, name
        while new in counts:
            number = counts[name] = counts[name] + 1
            new = f"{name}_{number}"
        counts[new] = 0
    return list(counts)


# Rows of data files for DuckDB, read with the bounds of a fetch.
#
# Arrow's scanner has no bound. It also reads files that Python opens in threads of its own, which may wait for each
# other and for the interpreter's lock. Here the thread that wants rows reads them, and threads of Python open files
# ahead.


_FILE_BATCH_ROWS = 1 << 16
_OPENED_AHEAD = 8


class DataFileRows(ds.Dataset):
    """The rows of data files, for `DuckDBPyConnection.from_arrow`.

    Attributes:
        schema: that of `messages`.
    """

    schema = MESSAGES.stored_schema

    def __init__(self, files: Files, names: Sequence[str]) -> None:
        """names: of the data files."""
        # not the constructor of `Dataset`, which refuses. DuckDB calls only these methods
        self._files, self._names, self._thread = files, names, threading.current_thread()

    def scanner(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None) -> _Scanner:
        """Return what reads these columns, or all, of the rows for which the filter holds."""
        shown = self.schema.names if columns is None else columns
        return _Scanner(self._files, self._names, shown, filter, self._thread)


class UnreadableRows(ds.Dataset):
    """A table that cannot be read, for `DuckDBPyConnection.from_arrow`: a query that reads it gets the reason."""

    def __init__(self, schema: pa.Schema, reason: str) -> None:
        self._schema, self._reason = schema, reason

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None) -> UnreadableRows:
        """Return what reads these columns, or all."""
        return self if columns is None else UnreadableRows(pa.schema(map(self.schema.field, columns)), self._reason)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader whose reads raise OSError."""
        return pa.RecordBatchReader.from_batches(self.schema, self._fail())

    def _fail(self) -> Iterator[pa.RecordBatch]:
        raise OSError(self._reason)
        yield  # makes it a generator, so that the first read raises


class _Scanner:
    """Reads data files one after the other."""

    def __init__(
        self,
        files: Files,
        names: Sequence[str],
        columns: Sequence[str],
        where: pc.Expression | None,
        thread: threading.Thread,
    ) -> None:
        """thread: which runs the query. DuckDB reads in threads of its own, and looks for an interrupt between rows."""
        self._files, self._names, self._where, self._thread = files, names, where, thread
        self._shown = pa.schema([MESSAGES.stored_schema.field(name) for name in columns])
        self._read_columns = [name for name in MESSAGES.stored_schema.names if name in columns or self._filters(name)]

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows in batches. Reads raise OSError, which names the file."""
        return pa.RecordBatchReader.from_batches(self._shown, self._yield_batches())

    def _filters(self, column: str) -> bool:
        """Return whether the filter needs the column. Arrow tells only by failing without it."""
        if self._where is None:
            return False
        schema = MESSAGES.stored_schema
        try:
            schema.remove(schema.get_field_index(column)).empty_table().filter(self._where)
        except pa.ArrowInvalid:
            return True
        return False

    def _yield_batches(self) -> Iterator[pa.RecordBatch]:
        for name, opening in self._open_ahead():
            try:
                source, footer = opening.result()
                with source:
                    for rows in self._read_file(source, footer):
                        if NATIVE_CALLS.has_ended_for(self._thread):
                            raise OSError(errno.EINTR, "The interpreter ends")
                        yield from rows.to_batches()
            except (OSError, ValueError, pa.ArrowException) as error:
                if isinstance(error, pa.ArrowMemoryError) or getattr(error, "errno", None) is not None:
                    raise  # of this machine or the store
                raise OSError(f"{name} is damaged: {' '.join(str(error).split())}") from error

    def _open_ahead(self) -> Iterator[tuple[str, Future[tuple[pa.NativeFile, ParquetFooter]]]]:
        """Yield each file while the next ones are opened, because a store takes its time to answer."""
        with Workers(_OPENED_AHEAD, "lakemq-sql") as pool:
            openings = deque[tuple[str, "Future[tuple[pa.NativeFile, ParquetFooter]]"]]()
            for name in self._names:
                openings.append((name, pool.submit(self._open, name)))
                if len(openings) > _OPENED_AHEAD:
                    yield openings.popleft()
            yield from openings

    def _open(self, name: str) -> tuple[pa.NativeFile, ParquetFooter]:
        source = self._files.open_input(name)
        return source, read_footer(source)

    def _read_file(self, source: pa.NativeFile, footer: ParquetFooter) -> Iterator[pa.Table]:
        metadata = footer.parse()
        if not metadata.schema.to_arrow_schema().equals(MESSAGES.stored_schema):
            raise ValueError("no file of message rows")
        if not (groups := self._find_groups(footer.content)):
            return
        file = open_bounded_parquet(source, metadata)
        for group in groups:
            for batch in file.iter_batches(_FILE_BATCH_ROWS, [group], self._read_columns):
                rows = _unpack_dictionaries(pa.Table.from_batches([batch]))
                if self._where is not None:
                    rows = rows.filter(self._where)
                yield rows.select(self._shown.names).cast(self._shown)

    def _find_groups(self, footer: bytes) -> list[int]:
        """Return the row groups that may have rows for which the filter holds, by their statistics."""
        fragment = ds.ParquetFileFormat().make_fragment(pa.py_buffer(footer))
        if self._where is not None:
            fragment = fragment.subset(filter=self._where, schema=MESSAGES.stored_schema)
        return [group.id for group in fragment.row_groups]


def _unpack_dictionaries(rows: pa.Table) -> pa.Table:
    """Return a batch of rows with names as texts. Raises TooLargeUnpacked."""
    if "topic" not in rows.column_names:
        return rows
    index, names = rows.column_names.index("topic"), rows.column("topic")
    longest = max((pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0 for chunk in names.chunks), default=0)
    if longest * rows.num_rows > BASE_BYTES:
        raise TooLargeUnpacked(
            f"names of {longest} bytes would unpack to {longest * rows.num_rows}; at most {BASE_BYTES} are read"
        )
    return rows.set_column(index, "topic", names.cast(pa.string()))
