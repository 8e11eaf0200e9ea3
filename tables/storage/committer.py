"""Committing to one table at the price of two small files, again and again, for whoever is its only writer.

An engine's commit of one row costs ten times as much, most of it for what a single writer has no use for. Where a store
cannot put what is not there yet without asking first, the engine commits nevertheless.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from .commits import CommitConflict, NewFile, StoredFile, statistics_of
from .delta_log import DeltaLog
from .log_entry import encoded, nonce_of
from .objects import Files
from .store import Store, TableHandle

_RENEW_AFTER = 50
"""Commits of a handle after which it is loaded anew: it grows slower with each."""


class Committer(Protocol):
    """Of one table, at one version; its commits move it on. Not thread-safe.

    version: the newest version, unless somebody else commits too, which the next commit finds out.
    """

    @property
    def version(self) -> int: ...

    @property
    def stands_on(self) -> str | None:
        """Which object the log's entry of this version is."""

    def write(self, rows: pa.Table) -> NewFile:
        """A file of the table with these rows, durable, and no part of the table yet."""

    def commit(self, add: Sequence[NewFile], remove: Sequence[StoredFile] = ()) -> None:
        """Commit files that are there as version `version` + 1, durably.

        With `remove`, the files added hold the same rows as the files removed, or fewer by design.

        Raises CommitConflict: somebody else was first, or went on so far that nobody can tell: nothing that counts was
        written. OSError: the store has failed, and the commit may have landed or not. After either, open another one.
        """


def open_committer(store: Store, handle: TableHandle) -> Committer:
    """Commits after the handle's version. Raises NotATable where entries as LakeMQ writes them are not enough."""
    handle.check_protocol()
    return PutCommitter(store, handle) if store.files.puts_if_absent else EngineCommitter(store, handle)


class _Writer:
    """Writes the files of a table."""

    def __init__(self, files: Files, table: str) -> None:
        self._files, self._table = files, table

    def write(self, rows: pa.Table) -> NewFile:
        path = f"part-{uuid.uuid4().hex}.parquet"
        sink = pa.BufferOutputStream()
        # few rows: what makes many small, or quick to pass over, only costs here
        pq.write_table(
            rows, sink, compression="snappy", use_dictionary=False, write_statistics=False, store_schema=False
        )
        body = sink.getvalue()
        name = f"{self._table}/{path}"
        self._files.put(name, body)
        return NewFile(path, body.size, self._files.modified_ms(name) or 0, statistics_of(rows, texts=False))


class PutCommitter(_Writer):
    """Puts the log's entry itself. Invariant: of all who put version N, one succeeds, and knows that it did.

    Put-if-absent is no fence once a log is cleaned: the entry this one stands on must be there before a commit, and be
    the same one after it. What could be seen is never taken back.
    """

    def __init__(self, store: Store, handle: TableHandle) -> None:
        super().__init__(store.files, handle.spec.name)
        self._log, self._version = DeltaLog(store.files, handle.spec.name), handle.version
        self._stands_on = handle.stands_on

    @property
    def version(self) -> int:
        return self._version

    @property
    def stands_on(self) -> str | None:
        return self._stands_on

    def commit(self, add: Sequence[NewFile], remove: Sequence[StoredFile] = ()) -> None:
        self._check_ground()
        version, nonce = self._version + 1, uuid.uuid4().hex
        written_at_ms = self._files.time_ms() if remove else max(file.modified_ms for file in add)
        try:
            self._log.put(version, encoded(version, add, remove, written_at_ms, nonce))
        except FileExistsError as error:
            self._recognise(version, nonce, error)
        self._check_ground()
        self._version, self._stands_on = version, self._log.identity(version)

    def _recognise(self, version: int, nonce: str, exists: FileExistsError) -> None:
        """An entry is there: ours, if the store has put it and then asked to put it again."""
        try:
            found = nonce_of(self._log.actions(version))
        except ValueError as error:
            raise OSError(f"{self._table}: version {version} cannot be read: {error}") from error
        if found != nonce:
            raise CommitConflict(f"{self._table}: version {version} is somebody else's") from exists
        self._log.sync_entry(version)

    def _check_ground(self) -> None:
        if not self._log.has_still(self._version, self._stands_on):
            raise CommitConflict(f"{self._table}: the log was cleaned beyond version {self._version}")


class EngineCommitter(_Writer):
    """Has delta-rs put the entry."""

    def __init__(self, store: Store, handle: TableHandle) -> None:
        super().__init__(store.files, handle.spec.name)
        self._handle, self._since_renewed = handle, 0

    @property
    def version(self) -> int:
        return self._handle.version

    @property
    def stands_on(self) -> str | None:
        return self._handle.stands_on

    def commit(self, add: Sequence[NewFile], remove: Sequence[StoredFile] = ()) -> None:
        self._handle.replace_at(self.version, add, remove)
        self._since_renewed += 1
        if self._since_renewed >= _RENEW_AFTER:
            version, self._since_renewed = self.version, 0
            self._handle.reopen()
            if self.version != version:
                raise CommitConflict(f"{self._table}: version {self.version} appeared after {version}")
