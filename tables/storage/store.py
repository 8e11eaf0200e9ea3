"""The only Delta I/O. Every commit is a compare-and-append: it lands on the version the caller names, or not at all.

Nothing here refreshes and retries: a conflict means that somebody else commits, and who may commit is decided above.
Who was stopped for so long that the log was cleaned under its feet has a conflict too: the entry its handle stands on
must be there before a commit, and be the same one after it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem

from ..specs.spec import SCHEMA_VERSION, VERSION_PROPERTY, TableSpec
from .commits import GROUP_ROWS, CommitConflict, NewFile, StoredFile
from .delta_log import DeltaLog
from .files import Files, LocalFiles
from .follower import Follower
from .log_entry import PROTOCOL

APP_ID = "lakemq"
"""Delta application id under which a projection notes the last step it holds."""

FLOOR_ID = "lakemq-floor"
"""Delta application id under which a merge notes the step below which it forgot what keys were."""

_WRITTEN = WriterProperties(compression="SNAPPY", max_row_group_size=GROUP_ROWS)
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


_ATTEMPTS = 3
"""At opening a table, whose log may be cleaned meanwhile."""


class NotATable(Exception):
    """There is no Delta table here, or one of another product."""


class NewerTable(Exception):
    """The table was written by a newer version."""


class OlderTable(NotATable):
    """The table was written by an older version, and nobody has migrated it."""


class TableHandle:
    """A Delta table as of one version. Appends move it one version on; `reopen` moves it to the newest."""

    def __init__(self, store: Store, spec: TableSpec, table: DeltaTable) -> None:
        self._store, self.spec, self._table = store, spec, table
        self.log = DeltaLog(store.files, spec.name)
        self._stands_on = self.log.identity(self.version)
        self.has_committed = False

    @property
    def version(self) -> int:
        return self._table.version()

    @property
    def table_id(self) -> str:
        """Delta's id of the table: another one after it was dropped and made again."""
        return str(self._table.metadata().id)

    def reopen(self) -> None:
        """Load the newest version. A handle grows slower with every commit since the checkpoint it was loaded from.

        Raises CommitConflict: it is another table by now.
        """
        fresh = self._store.open(self.spec)
        if fresh.table_id != self.table_id:
            raise CommitConflict(f"{self.spec.name}: the table was made anew")
        self._table, self._stands_on = fresh._table, fresh._stands_on

    def renewed(self) -> TableHandle:
        """The same table at its newest version."""
        return self._store.open(self.spec)

    @property
    def stands_on(self) -> str | None:
        """Which object the log's entry of this version was when it was loaded, or committed."""
        return self._stands_on

    def check_protocol(self) -> None:
        """Raises NotATable unless what the table asks of its writers is what LakeMQ does: somebody has changed it."""
        protocol = self._table.protocol()
        found = (protocol.min_reader_version, protocol.min_writer_version)
        if found != PROTOCOL:
            raise NotATable(f"{self.spec.name}: found Delta protocol {found}, expected {PROTOCOL}")

    def last_step(self) -> int:
        """The last step a projection wrote here; 0 before the first. Raises FileNotFoundError: the log was cleaned."""
        return self._noted(APP_ID)

    def floor(self) -> int:
        """Steps below this one cannot be read as of then: a merge kept only what keys were at the floor.

        Raises FileNotFoundError: the log was cleaned.
        """
        return self._noted(FLOOR_ID)

    def _noted(self, app_id: str) -> int:
        try:
            return self._table.transaction_version(app_id) or 0
        except DeltaError as error:  # it looks into the log again, which may have been cleaned since
            raise FileNotFoundError(f"{self.spec.name}: {_first_line(error)}") from error

    def append_at(self, expected_version: int, rows: pa.Table, last_step: int | None = None) -> None:
        """Commit `rows` as version `expected_version` + 1, durably.

        Raises CommitConflict: somebody else was first, nothing was written. OSError: the store has failed, and the
        commit may have landed or not.

        last_step: noted in the same commit as the last step the table holds.
        """

        def write() -> None:
            write_deltalake(
                self._table,
                rows,
                mode="append",
                writer_properties=_WRITTEN,
                commit_properties=_commit(last_step),
                post_commithook_properties=_NO_HOOKS,
            )

        self._commit_at(expected_version, write)

    def replace_at(
        self,
        expected_version: int,
        add: Sequence[NewFile],
        remove: Sequence[StoredFile] = (),
        last_step: int | None = None,
        floor: int | None = None,
        moved: bool = False,
    ) -> None:
        """Commit files that are there already as version `expected_version` + 1. Raises what `append_at` raises.

        With `remove`, the files added hold the same rows as the files removed, or fewer by design. moved: they hold
        rows that the table has already.
        """
        swap, now_ms = moved or bool(remove), self._store.files.time_ms() if remove else 0
        actions: list[AddAction | RemoveAction] = [
            AddAction(f.path, f.size_bytes, {}, f.modified_ms, not swap, json.dumps(dict(f.statistics))) for f in add
        ]
        actions += [RemoveAction(f.path, False, now_ms, f.size_bytes, {}) for f in remove]

        def write() -> None:
            self._table.create_write_transaction(
                actions,
                mode="append",
                schema=self._table.schema(),
                commit_properties=_commit(last_step, floor),
                post_commithook_properties=_NO_HOOKS,
            )
            self._table.update_incremental()

        self._commit_at(expected_version, write)

    def claim(self) -> None:
        """Commit at least once with this handle: who holds one of before cannot commit any more. As `append_at`."""
        if not self.has_committed:
            self.replace_at(self.version, [])

    def _commit_at(self, expected_version: int, write: Callable[[], None]) -> None:
        name = self.spec.name
        if self.version != expected_version:
            raise CommitConflict(f"{name}: the handle is at version {self.version}, not {expected_version}")
        self._check_ground(expected_version)
        try:
            write()
        except CommitFailedError as error:
            raise CommitConflict(f"{name}: {error}") from error
        except DeltaError as error:
            raise OSError(f"{name}: {_first_line(error)}") from error
        if self.version != expected_version + 1:
            raise CommitConflict(f"{name}: version {self.version} appeared after {expected_version}")
        self._check_ground(expected_version)
        self.log.sync_commit(self.version)
        self._stands_on, self.has_committed = self.log.identity(self.version), True

    def _check_ground(self, version: int) -> None:
        """Others that went on may have cleaned the log up to where this handle's next version is free again."""
        if not self.log.has_still(version, self._stands_on):
            raise CommitConflict(f"{self.spec.name}: the log was cleaned beyond version {version}")

    def files(self, **bounds: tuple[Any, Any]) -> list[StoredFile]:
        """The live files that may hold rows within all bounds (column -> lowest, highest; None is no bound)."""
        actions = pa.table(self._table.get_add_actions(flatten=True))
        for column, (low, high) in bounds.items():
            least, most = f"min.{column}", f"max.{column}"
            if least not in actions.column_names:
                continue
            # of a file without statistics nothing is known
            if low is not None:
                actions = actions.filter(pc.fill_null(pc.greater_equal(actions.column(most), low), True))
            if high is not None:
                actions = actions.filter(pc.fill_null(pc.less_equal(actions.column(least), high), True))
        names = [n for n in actions.column_names if n.startswith(("min.", "max."))]
        return [
            StoredFile(r["path"], r["size_bytes"], r["num_records"] or 0, {n: r[n] for n in names})
            for r in actions.to_pylist()
        ]

    def read(
        self,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        files: Sequence[StoredFile] | None = None,
        **bounds: tuple[Any, Any],
    ) -> pa.Table:
        """Rows within all bounds (both ends included) for which `where` holds; columns in the order asked for.

        files: only of these files. Whole files are passed over by their statistics, row groups by theirs.
        """
        chosen = self.files(**bounds) if files is None else files
        names = list(columns) if columns is not None else self.spec.stored_schema.names
        for column, (low, high) in bounds.items():
            for test in (
                None if low is None else pc.field(column) >= low,
                None if high is None else pc.field(column) <= high,
            ):
                if test is not None:
                    where = test if where is None else where & test
        if not chosen:
            return pa.schema([self.spec.stored_schema.field(n) for n in names]).empty_table()
        return self._store.dataset(self.spec, chosen).to_table(columns=names, filter=where, use_threads=len(chosen) > 4)

    def dataset(self, without: Collection[str] = ()) -> ds.Dataset:
        """All live rows as of this version, read when they are scanned; columns of `stored_schema`.

        without: paths of files whose rows are left out.
        """
        return self._store.dataset(self.spec, [file for file in self.files() if file.path not in without])

    def checkpoint(self) -> None:
        """Write a checkpoint of this version, durably, so that loading is quick again."""
        try:
            self._table.create_checkpoint()
        except DeltaError as error:
            raise OSError(f"{self.spec.name}: {_first_line(error)}") from error
        self.log.sync_checkpoint(self.version)

    def expire_log(self) -> int:
        """Remove log entries older than the spec's `log_retention_ms` that a checkpoint covers; how many."""
        return self.log.expire(self.spec.log_retention_ms, self._store.files.time_ms())

    def commits_after(self, version: int) -> list[dict[str, Any]]:
        """commitInfo of every later commit, newest first (operation, engineInfo, timestamp, ...)."""
        return [c for c in self._table.history() if cast(int, c.get("version", 0)) > version]


class Store:
    """The Delta tables of a namespace."""

    def __init__(self, files: Files, storage_options: Mapping[str, str] | None = None) -> None:
        self.files = files
        self._options = dict(storage_options or {})
        self.filesystem = arrow_filesystem(files)

    def uri(self, spec: TableSpec) -> str:
        return self.files.uri(spec.name)

    def create(self, spec: TableSpec) -> None:
        """Create the empty table unless it is there. OSError: the store refuses."""
        log = DeltaLog(self.files, spec.name)
        if not self.exists(spec):
            try:
                DeltaTable.create(
                    self.uri(spec),
                    schema=spec.stored_schema,
                    mode="ignore",
                    name=spec.name,
                    description=spec.comment,
                    configuration=spec.configuration,
                    storage_options=self._options,
                    raise_if_key_not_exists=False,
                )
            except DeltaError as error:
                raise OSError(" ".join(str(error).split())) from error
        # also one that is there: who made it may have been killed before this
        if log.identity(0) is not None:
            log.sync_commit(0)
            self.files.sync_folder(spec.name)

    def exists(self, spec: TableSpec) -> bool:
        return DeltaTable.is_deltatable(self.uri(spec), self._options)

    def open(self, spec: TableSpec) -> TableHandle:
        """The table at its newest version. Raises NotATable, OlderTable, NewerTable."""
        table, stored, configuration = self._opened(spec)
        version = configuration.get(VERSION_PROPERTY)
        if version is None or not str(version).isdigit():
            raise NotATable(f"{spec.name}: a Delta table, but none of LakeMQ's ({VERSION_PROPERTY} is not set)")
        if int(version) > SCHEMA_VERSION:
            raise NewerTable(f"{spec.name}: schema version {version}, this LakeMQ knows {SCHEMA_VERSION}")
        if int(version) < SCHEMA_VERSION:
            raise OlderTable(f"{spec.name}: schema version {version}, this LakeMQ needs {SCHEMA_VERSION}")
        missing = [n for n in spec.stored_schema.names if n not in stored.names]
        if missing:
            raise NotATable(f"{spec.name}: columns {missing} are missing")
        return TableHandle(self, spec, table)

    def _opened(self, spec: TableSpec) -> tuple[DeltaTable, pa.Schema, dict[str, Any]]:
        """With its columns and its configuration.

        Entries of its log may be expired between looking for them and reading them: then it is looked at again.
        """
        failed: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                table = DeltaTable(self.uri(spec), storage_options=self._options)
                return table, pa.schema(table.schema()), dict(table.metadata().configuration)
            except TableNotFoundError as error:
                raise NotATable(f"{spec.name}: {_first_line(error)}") from error
            except (DeltaError, OSError) as error:
                failed = error
        assert failed is not None
        raise NotATable(f"{spec.name}: {_first_line(failed)}") from failed

    def dataset(self, spec: TableSpec, files: Sequence[StoredFile]) -> ds.Dataset:
        """The rows of these files of the table, read when they are scanned; columns of `stored_schema`."""
        if not files:
            return ds.dataset(spec.empty())
        paths = [f"{spec.name}/{unquote(f.path)}" for f in files]
        return ds.dataset(paths, schema=spec.stored_schema, format="parquet", filesystem=self.filesystem)

    def follow(self, handle: TableHandle, without: Collection[str] = ()) -> Follower:
        """Reads commit by commit what comes after the handle's version. without: columns that are not read."""
        return Follower(self.files, handle.spec, handle.version, without)


def _commit(last_step: int | None, floor: int | None = None) -> CommitProperties:
    noted = {APP_ID: last_step, FLOOR_ID: floor}
    transactions = [Transaction(app, step) for app, step in noted.items() if step is not None]
    return CommitProperties(max_commit_retries=0, app_transactions=transactions or None)


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def arrow_filesystem(files: Files) -> FileSystem:
    """The files of a namespace as pyarrow reads them, paths counted from the root."""
    if isinstance(files, LocalFiles):
        return SubTreeFileSystem(files.root, LocalFileSystem())
    return files.filesystem  # type: ignore[attr-defined]
