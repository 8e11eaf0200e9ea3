"""The only Delta I/O. Every commit is a compare-and-append: it lands on the version that the caller names, or fails.

A commit is one object, the log entry of the next version, which is put if its name is free. delta-rs loads tables and
writes checkpoints. Nothing here refreshes and retries. A conflict means that another process commits,
and the layers above decide who may. A process that was stopped while others cleaned the log gets a conflict, too: the
log entry of its version must be the same object after a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import Any, cast
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from ...specs.messages import INBOX
from ...specs.registry import TABLES
from ...specs.spec import SCHEMA_VERSION, VERSION_PROPERTY, TableSpec
from ..native_calls import NATIVE_CALLS
from ..object_stores.files import Files, LocalFiles, arrow_filesystem
from ..object_stores.objects import check_name
from ..object_stores.store_options import DELTA_DEFAULTS, hide_secrets
from ..parquet import open_parquet
from .commits import CommitConflict, NewFile, StoredFile, write_rows
from .delta_log import (
    CREATION,
    ENGINE,
    OPERATION,
    DeltaLog,
    WriterProtocol,
    encode_creation,
    encode_entry,
    read_clock_ms,
    writer_protocol,
)

# Changelogs: append-only tables in which the newest row of a key is its state.


def select_newest(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the row with the highest step per key, in order of step; of equal steps, the later row."""
    if rows.num_rows == 0:
        return rows
    ordered = _in_order(rows)
    numbered = ordered.select(list(keys)).append_column("row", pa.array(np.arange(ordered.num_rows)))
    last = numbered.group_by(list(keys)).aggregate([("row", "max")])
    if last.num_rows == ordered.num_rows:  # large tables are merged and mostly unique: avoid copying all rows
        return ordered
    return ordered.take(pa.array(np.sort(last.column("row_max").to_numpy())))


def _in_order(rows: pa.Table) -> pa.Table:
    """Sort the rows by step, stably."""
    steps = rows.column("step").to_numpy()
    return rows if (steps[1:] >= steps[:-1]).all() else rows.take(pa.array(np.argsort(steps, kind="stable")))


# Find the rows that a commit of a Delta table inserted, so that each of them is processed once.


Action = dict[str, Any]

_OF_OLD_ROWS = ("RESTORE", "CLONE")
"""Operations that add rows which an earlier commit has inserted."""


@dataclass(frozen=True)
class Insertion:
    """The files that a commit inserted: their names below the namespace, and their size in bytes."""

    version: int
    files: tuple[str, ...]
    size_bytes: int


def read_insertion(files: Files, spec: TableSpec, version: int) -> Insertion:
    """Return the files that commit `version` inserted; none if it restored, moved or rewrote rows.

    Where a table was made before it only took new rows, UPDATE, DELETE and MERGE rewrite rows that were inserted
    before, and INSERT OVERWRITE inserts new ones.

    Raises FileNotFoundError if the log no longer holds the commit.
    """
    actions = DeltaLog(files, spec.name).read_actions(version)
    operation = next((action["commitInfo"].get("operation") for action in actions if "commitInfo" in action), "")
    is_rewrite = operation != "WRITE" and any(_of(actions, "remove"))
    added = [] if is_rewrite or operation in _OF_OLD_ROWS else list(_of(actions, "add"))
    names = tuple(f"{spec.name}/{unquote(add['path'])}" for add in added)
    return Insertion(version, names, sum(add["size"] for add in added))


def _of(actions: list[Action], kind: str) -> Iterator[Action]:
    return (action[kind] for action in actions if kind in action and action[kind].get("dataChange", True))


# Datasets of Parquet files whose pages are verified, and which file is damaged if a read of them fails.


_VERIFYING = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)


Bounds = Mapping[str, tuple[Any, Any]]
"""Column -> lowest and highest value, both inclusive. None: unbounded."""


class DamagedFile(ValueError):
    """The bytes of a file can be read, but are not what was written."""


def name_file(spec: TableSpec, file: StoredFile) -> str:
    """Return the name of a table's file below the namespace. Raises DamagedFile: the log names one of another place."""
    try:
        return f"{spec.name}/{check_name(unquote(file.path))}"
    except ValueError:
        raise DamagedFile(f"The log of {spec.name} names {file.path}, which is no file in its folder.") from None


def open_dataset(files: Mapping[str, Mapping[str, Any]], schema: pa.Schema, filesystem: object) -> ds.Dataset:
    """Return a dataset of these files. Its reads raise OSError or ArrowException if they meet a damaged page.

    files: name -> values of the columns that the file lacks, since its table is partitioned by them.
    """
    if not any(files.values()):
        return ds.dataset(list(files), schema=schema, format=_VERIFYING, filesystem=filesystem)
    fragments = [
        _VERIFYING.make_fragment(name, filesystem, reduce(and_, (pc.field(n) == value for n, value in values.items())))
        for name, values in files.items()
    ]
    return ds.FileSystemDataset(fragments, schema, _VERIFYING)


def make_filter(bounds: Bounds, where: pc.Expression | None = None) -> pc.Expression | None:
    """Return the filter of rows within all bounds for which `where` holds. None: all rows."""
    tests = [] if where is None else [where]
    for name, (low, high) in bounds.items():
        tests += [] if low is None else [pc.field(name) >= low]
        tests += [] if high is None else [pc.field(name) <= high]
    return reduce(and_, tests) if tests else None


@contextmanager
def report_damaged_file(files: Files, names: Sequence[str]) -> Iterator[None]:
    """Raise DamagedFile if a read of these files fails in the block because of what is in one of them.

    Other errors pass, such as those of a store that fails.
    """
    try:
        yield
    except (FileNotFoundError, pa.ArrowMemoryError, pa.ArrowCancelled):
        raise
    except (OSError, pa.ArrowException) as error:
        for name in names:
            with files.open_input(name) as source:
                content = source.read()
            try:
                open_parquet(pa.BufferReader(content)).read()
            except (OSError, pa.ArrowException) as cause:
                raise DamagedFile(f"{name} is damaged: {' '.join(str(cause).split())}") from error
        raise


# The store, and handles of its tables.


APP_ID = "lakemq"
"""Delta application id under which a projection stores its last step."""

FLOOR_ID = "lakemq-floor"
"""Delta application id under which a merge stores its floor: it dropped the states of keys before that step."""

UNDONE_ID = "lakemq-undone"
"""Delta application id under which a repair stores up to which version it has undone foreign commits."""

_ATTEMPTS = 3
"""Attempts to open a table, since its log may be cleaned meanwhile."""


class NotATable(Exception):
    """There is no Delta table here, or it is not LakeMQ's."""


class NewerTable(Exception):
    """A newer version of LakeMQ wrote the table."""


class OlderTable(NotATable):
    """An older version of LakeMQ wrote the table, and it was not migrated."""


class MissingTable(NotATable):
    """There is no table of this name, though a namespace of this version has one."""

    def __init__(self, spec: TableSpec) -> None:
        cure = ". lakemq fsck --repair makes it, and a leader where an earlier version has made the namespace"
        super().__init__(f"{spec.name}: there is no such table{'' if spec.is_needed else cure}")
        self.is_needed = spec.is_needed


class TableHandle:
    """A Delta table at one version. A commit moves it to the next version, `reopen` to the newest."""

    def __init__(self, store: Store, spec: TableSpec, table: DeltaTable) -> None:
        self._store, self.spec, self._table = store, spec, table
        self.log = DeltaLog(store.files, spec.name)
        self.version = table.version()
        self._entry_identity = self.log.identity(self.version)
        self.has_committed = False
        self._notes: dict[str, int] = {}
        """Delta's `txn` actions that were read or committed: application id -> version."""

    @property
    def table_id(self) -> str:
        """Delta's id of the table, which changes if the table is dropped and recreated."""
        return str(self._table.metadata().id)

    def reopen(self) -> None:
        """Load the newest version. A handle gets slower with every commit since its checkpoint.

        Raises CommitConflict if the table was recreated.
        """
        fresh = self._store.open(self.spec)
        if fresh.table_id != self.table_id:
            raise CommitConflict(f"{self.spec.name}: the table was recreated")
        if fresh.version != self.version:
            self._notes.clear()
        self._table, self.version, self._entry_identity = fresh._table, fresh.version, fresh._entry_identity

    def open_newest(self) -> TableHandle:
        """Open the same table at its newest version."""
        return self._store.open(self.spec)

    def last_step(self) -> int:
        """Return the last step that a projection wrote; 0 before the first. Raises FileNotFoundError (log cleaned)."""
        return self._transaction_version(APP_ID)

    def floor(self) -> int:
        """Return the earliest step whose state can be read: a merge dropped the states of keys before it.

        Raises FileNotFoundError: the log was cleaned.
        """
        return self._transaction_version(FLOOR_ID)

    def undone_version(self) -> int:
        """Return the version up to which foreign commits were undone. Raises FileNotFoundError: the log was cleaned."""
        return self._transaction_version(UNDONE_ID)

    @NATIVE_CALLS.guard
    def _transaction_version(self, app_id: str) -> int:
        if app_id not in self._notes:
            try:
                self._notes[app_id] = self._table.transaction_version(app_id) or 0
            except DeltaError as error:  # delta-rs reads the log again, which may have been cleaned
                text, cause = self._store.explain(error)
                raise FileNotFoundError(f"{self.spec.name}: {text}") from cause
        return self._notes[app_id]

    def append_at(
        self,
        expected_version: int,
        rows: pa.Table,
        last_step: int | None = None,
        on_rows_written: Callable[[], None] = lambda: None,
    ) -> None:
        """Commit `rows` durably as version `expected_version` + 1.

        On a store this takes three requests: the rows are put, the log entry is put, and the entry before it is
        looked at.

        Args:
            last_step: stored in the same commit as the table's last step.
            on_rows_written: called when the file with the rows is there, before a commit names it.

        Raises:
            CommitConflict: Another process was first; nothing was committed.
            OSError: The store failed; the commit may have landed or not.
        """
        self._check_version(expected_version)
        rows, now_ms, notes = rows.cast(self.spec.stored_schema), read_clock_ms(), _name_notes(last_step)
        file = write_rows(self._store.files, self.spec.name, rows, now_ms)
        on_rows_written()
        self._commit_at(expected_version, encode_entry([file], [], notes, False, now_ms), notes)

    def replace_at(
        self,
        expected_version: int,
        add: Sequence[NewFile],
        remove: Sequence[StoredFile] = (),
        last_step: int | None = None,
        floor: int | None = None,
        moved: bool = False,
        undone: int | None = None,
    ) -> None:
        """Commit existing files as version `expected_version` + 1. Raises what `append_at` raises.

        The files are durable already. With `remove`, the added files hold the rows of the removed files, or fewer by
        design. moved: the added files hold rows that the table has already. undone: the version up to which foreign
        commits have no effect from here on.
        """
        self._check_version(expected_version)
        notes = _name_notes(last_step, floor, undone)
        if remove or moved:  # a merge takes long, so others may have cleaned the log meanwhile
            self._check_continuity(expected_version)
        now_ms = self._store.files.time_ms() if remove else read_clock_ms()
        self._commit_at(expected_version, encode_entry(add, remove, notes, moved or bool(remove), now_ms), notes)

    def claim(self) -> None:
        """Make an empty commit unless this handle has committed, so that older ones cannot. Raises as `append_at`."""
        if not self.has_committed:
            self.replace_at(self.version, [])

    def _check_version(self, expected_version: int) -> None:
        if self.version != expected_version:
            raise CommitConflict(f"{self.spec.name}: the handle is at version {self.version}, not {expected_version}")
        stored, expected = self._table.protocol(), writer_protocol(self.spec)
        protocol = WriterProtocol(stored.min_writer_version, frozenset(stored.writer_features or ()))
        if protocol != expected:
            raise OSError(
                f"{self.spec.name}: found {protocol}, expected {expected}. Another program has changed it, so LakeMQ"
                " cannot write to this table. Restore the namespace from a backup."
            )

    def _commit_at(self, expected_version: int, entry: bytes, notes: Mapping[str, int]) -> None:
        """Put the entry of version `expected_version` + 1, which holds these notes, if its name is free.

        The check afterwards is the fence against a handle that was stopped for long: the name of an entry that was
        cleaned away is free again. If the entry before is gone, the new entry counts for no reader, because every
        reader begins at a later checkpoint.
        """
        version = expected_version + 1
        identity = self.log.put_entry(version, entry)
        try:
            self._check_continuity(expected_version)
        except CommitConflict:
            self.log.remove_if_newest(version, identity)
            raise
        self.version, self._entry_identity, self.has_committed = version, identity, True
        self._notes |= notes

    def _check_continuity(self, version: int) -> None:
        """Raise CommitConflict if others have cleaned the log past this version: the next name may be free again."""
        if not self.log.has_same_entry(version, self._entry_identity):
            raise CommitConflict(f"{self.spec.name}: the log was cleaned beyond version {version}")

    def _load_own_commits(self) -> DeltaTable:
        """Return delta-rs's table at this version. It learns of the handle's own commits only here.

        Raises CommitConflict if another process has committed since.
        """
        if self._table.version() != self.version:
            self._call_delta(self._table.update_incremental)
            if (version := self._table.version()) != self.version:
                raise CommitConflict(f"{self.spec.name}: version {version} appeared after {self.version}")
        return self._table

    @NATIVE_CALLS.guard
    def _call_delta(self, work: Callable[[], None]) -> None:
        try:
            work()
        except DeltaError as error:
            text, cause = self._store.explain(error)
            raise OSError(f"{self.spec.name}: {text}") from cause

    @NATIVE_CALLS.guard
    def files(self, **bounds: tuple[Any, Any]) -> list[StoredFile]:
        """Return the live files that may hold rows within all bounds (column -> lowest, highest; None: unbounded)."""
        actions = pa.table(self._load_own_commits().get_add_actions(flatten=True))
        for column, (low, high) in bounds.items():
            least, most = f"min.{column}", f"max.{column}"
            if least not in actions.column_names:
                continue
            # a file without statistics may hold any row
            if low is not None:
                actions = actions.filter(pc.fill_null(pc.greater_equal(actions.column(most), low), True))
            if high is not None:
                actions = actions.filter(pc.fill_null(pc.less_equal(actions.column(least), high), True))
        names = [n for n in actions.column_names if n.startswith(("min.", "max."))]
        within = {name: f"partition.{name}" for name in self.spec.partitioned_by if actions.num_rows}
        return [
            StoredFile(
                r["path"],
                r["size_bytes"],
                r["num_records"] or 0,
                {n: r[n] for n in names},
                {name: r[column] for name, column in within.items()},
                r["modification_time"],
            )
            for r in actions.to_pylist()
        ]

    @NATIVE_CALLS.guard
    def read(
        self,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        files: Sequence[StoredFile] | None = None,
        **bounds: tuple[Any, Any],
    ) -> pa.Table:
        """Read the rows within all bounds (inclusive) for which `where` holds, with `columns` in the given order.

        files: read only these files. Statistics skip whole files, and row groups within them.
        """
        chosen = self.files(**bounds) if files is None else files
        names = list(columns) if columns is not None else self.spec.stored_schema.names
        if not chosen:
            return pa.schema([self.spec.stored_schema.field(n) for n in names]).empty_table()
        dataset, within = self._store.dataset(self.spec, chosen), make_filter(bounds, where)
        with report_damaged_file(self._store.files, dataset.files):
            return dataset.to_table(columns=names, filter=within, use_threads=len(chosen) > 4)

    def dataset(self) -> ds.Dataset:
        """Return a dataset of all live rows at this version, with the columns of `stored_schema`."""
        return self._store.dataset(self.spec, self.files())

    def checkpoint(self) -> None:
        """Write a durable checkpoint of this version, so that loading is fast again."""
        self._call_delta(self._load_own_commits().create_checkpoint)
        self.log.sync_checkpoint(self.version)

    def expire_log(self, retention_ms: int | None = None) -> int:
        """Delete log entries that a checkpoint has covered for so long; by default for the spec's `log_retention_ms`.

        Returns their number.
        """
        log_retention_ms = self.spec.log_retention_ms if retention_ms is None else retention_ms
        return self.log.expire(log_retention_ms, self._store.files.time_ms())

    @NATIVE_CALLS.guard
    def commits_after(self, version: int) -> list[dict[str, Any]]:
        """Return commitInfo (operation, engineInfo, timestamp, ...) of every later commit, newest first."""
        with self._store.hide_secrets_in_errors():
            return [c for c in self._load_own_commits().history() if cast(int, c.get("version", 0)) > version]


class Store:
    """The Delta tables of a namespace."""

    def __init__(self, files: Files, storage_options: Mapping[str, str] | None = None) -> None:
        self.files = files
        self._options = dict(storage_options or {})
        if not isinstance(files, LocalFiles):
            self._options = {**DELTA_DEFAULTS, **self._options}
        self.filesystem = arrow_filesystem(files)

    def uri(self, spec: TableSpec) -> str:
        return self.files.uri(spec.name)

    def create(self, spec: TableSpec) -> None:
        """Create the empty table unless it exists. Raises OSError if the store refuses."""
        log = DeltaLog(self.files, spec.name)
        if not log.has_versions():
            with suppress(CommitConflict):  # another process has created it meanwhile
                log.put_entry(0, encode_creation(spec, read_clock_ms()))
        # also for an existing table: its creator may have been killed before this
        if log.identity(0) is not None:
            log.sync_commit(0)
            self.files.sync_folder(spec.name)

    def explain(self, error: BaseException, whole: bool = False) -> tuple[str, BaseException | None]:
        """Return the text of an error without secrets, and the error itself unless it shows them.

        whole: all lines. Otherwise the first one.
        """
        message = str(error)
        text = hide_secrets(message, self._options)
        shown = text if whole else text.partition("\n")[0]
        return shown or type(error).__name__, error if text == message else None

    @contextmanager
    def hide_secrets_in_errors(self) -> Iterator[None]:
        """Replace an error of delta-rs that shows secrets by an OSError without them. Other errors pass."""
        try:
            yield
        except (DeltaError, OSError) as error:
            text, cause = self.explain(error, whole=True)
            if cause is not None:
                raise
            raise OSError(text) from None

    def exists(self, spec: TableSpec) -> bool:
        """Return whether the table is there. Raises OSError: the store failed."""
        # not by delta-rs: it would wait longer for a store that does not answer, and hold the GIL meanwhile
        return DeltaLog(self.files, spec.name).has_versions()

    def open(self, spec: TableSpec) -> TableHandle:
        """Open the table at its newest version. Raises NotATable, OlderTable, NewerTable."""
        table, stored, configuration = self._load(spec)
        version = configuration.get(VERSION_PROPERTY)
        if version is None or not str(version).isdigit():
            raise NotATable(f"{spec.name}: a Delta table, but not LakeMQ's ({VERSION_PROPERTY} is not set)")
        if int(version) > SCHEMA_VERSION:
            raise NewerTable(f"{spec.name}: schema version {version}, this LakeMQ supports {SCHEMA_VERSION}")
        if int(version) < SCHEMA_VERSION:
            raise OlderTable(f"{spec.name}: schema version {version}, this LakeMQ needs {SCHEMA_VERSION}")
        missing = [n for n in spec.stored_schema.names if n not in stored.names]
        if missing:
            raise OlderTable(f"{spec.name}: columns {missing} are missing")
        return TableHandle(self, spec, table)

    @NATIVE_CALLS.guard
    def open_version(self, spec: TableSpec, version: int) -> TableHandle:
        """Open the table at an older version. Raises FileNotFoundError if its log was cleaned."""
        try:
            return TableHandle(self, spec, DeltaTable(self.uri(spec), version, storage_options=self._options))
        except (DeltaError, OSError) as error:
            text, cause = self.explain(error)
            raise FileNotFoundError(f"{spec.name}, version {version}: {text}") from cause

    @NATIVE_CALLS.guard
    def _load(self, spec: TableSpec) -> tuple[DeltaTable, pa.Schema, dict[str, Any]]:
        """Load a table with its schema and its configuration.

        Log entries may expire between listing and reading them. Then this tries again.
        """
        failed: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                table = DeltaTable(self.uri(spec), storage_options=self._options)
                return table, pa.schema(table.schema()), dict(table.metadata().configuration)
            except TableNotFoundError as error:
                if not self.exists(spec):  # else this user may not read it
                    raise MissingTable(spec) from error
                text, cause = self.explain(error)
                raise NotATable(f"{spec.name}: {text}") from cause
            except (DeltaError, OSError) as error:
                failed = error
                with suppress(OSError):
                    DeltaLog(self.files, spec.name).drop_stale_pointer()
        assert failed is not None
        text, cause = self.explain(failed)
        raise NotATable(f"{spec.name}: {text}") from cause

    def dataset(self, spec: TableSpec, files: Sequence[StoredFile]) -> ds.Dataset:
        """Return a dataset of these files of the table, with the columns of `stored_schema`."""
        if not files:
            return ds.dataset(spec.empty())
        paths = {name_file(spec, file): file.partition_values for file in files}
        return open_dataset(paths, spec.stored_schema, self.filesystem)


def _name_notes(last_step: int | None, floor: int | None = None, undone: int | None = None) -> dict[str, int]:
    notes = {APP_ID: last_step, FLOOR_ID: floor, UNDONE_ID: undone}
    return {app_id: value for app_id, value in notes.items() if value is not None}


# Find commits of other writers to tables that only LakeMQ should write.


_OUR_OPERATIONS = (OPERATION, CREATION)
"""LakeMQ's own operations in the tables' history. Anything else is foreign."""

_MAINTENANCE = ("OPTIMIZE", "VACUUM", "SET TBLPROPERTIES")


@dataclass(frozen=True)
class ForeignCommit:
    """A commit of another writer.

    description: operation, writer and time. keeps_rows: it was maintenance.
    """

    table: str
    version: int
    description: str
    keeps_rows: bool

    def __str__(self) -> str:
        return f"{self.table} version {self.version}: {self.description}"


def find_foreign_commits(store: Store) -> Iterator[ForeignCommit]:
    """Yield foreign commits as far back as the logs go, without `inbox` and tables that cannot be opened."""
    for spec in TABLES:
        if spec.name != INBOX.name:
            with suppress(NotATable, NewerTable):
                yield from list_foreign_commits(store.open(spec))


def list_foreign_commits(handle: TableHandle) -> list[ForeignCommit]:
    """Return the foreign commits to a table that no repair has undone, the newest first."""
    commits = ((commit, _describe_foreign(commit)) for commit in handle.commits_after(handle.undone_version() or -1))
    return [
        ForeignCommit(handle.spec.name, int(commit["version"]), text, text.startswith(_MAINTENANCE))
        for commit, text in commits
        if text
    ]


def _describe_foreign(commit: Mapping[str, Any]) -> str:
    """Describe a commit, its writer and time; empty if it is LakeMQ's own."""
    engine, operation = str(commit.get("engineInfo")), str(commit.get("operation"))
    mode = str((commit.get("operationParameters") or {}).get("mode", ""))
    if engine.startswith(ENGINE) and operation in _OUR_OPERATIONS:
        return ""
    at = datetime.fromtimestamp(int(commit.get("timestamp", 0)) / 1000, UTC)
    when = at.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return f"{operation}{f' ({mode})' if mode else ''} by {engine} at {when}Z"
