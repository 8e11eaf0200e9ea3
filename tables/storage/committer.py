"""Commit to a table again and again, at the cost of two small files each, for its only writer.

A commit of one row by delta-rs costs ten times as much, mostly for features that a single writer does not need.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from .commits import CommitConflict, NewFile, StoredFile, compute_statistics
from .delta_log import DeltaLog
from .log_entry import encode_entry, find_nonce
from .store import Store, TableHandle


def open_committer(store: Store, handle: TableHandle) -> Committer:
    """Open a committer at the handle's version. Raises NotATable if the table needs more than LakeMQ's log entries."""
    handle.check_protocol()
    return Committer(store, handle)


class Committer:
    """Commits to one table, from version to version. Not thread-safe.

    It writes the log entry itself. Invariant: of all that put version N, exactly one succeeds, and it knows.

    Put-if-absent alone is no fence. A process may stop for so long that others commit further and clean the log. Then
    the name of its next version is free again, and its commit would land in the past. So a commit checks, before and
    after the put, that the entry of its current version is still there as the same object. If only the second check
    fails, the commit fails, and the new entry stays: others may have seen it, and no reader begins at so old a version.
    """

    def __init__(self, store: Store, handle: TableHandle) -> None:
        self._files, self._table = store.files, handle.spec.name
        self._log, self._version = DeltaLog(store.files, handle.spec.name), handle.version
        self._entry_identity = handle.entry_identity

    @property
    def version(self) -> int:
        """The newest version. If another process commits too, the next commit here finds out and fails."""
        return self._version

    @property
    def entry_identity(self) -> str | None:
        """Identity of the object that is the log entry of this version."""
        return self._entry_identity

    def write(self, rows: pa.Table) -> NewFile:
        """Write a durable file with these rows, which is not part of the table yet."""
        path = f"part-{uuid.uuid4().hex}.parquet"
        sink = pa.BufferOutputStream()
        # for few rows, encodings and statistics cost more than they save
        pq.write_table(
            rows, sink, compression="snappy", use_dictionary=False, write_statistics=False, store_schema=False
        )
        body = sink.getvalue()
        name = f"{self._table}/{path}"
        self._files.put(name, body)
        return NewFile(path, body.size, self._files.modified_ms(name) or 0, compute_statistics(rows, texts=False))

    def commit(self, add: Sequence[NewFile], remove: Sequence[StoredFile] = ()) -> None:
        """Commit existing files durably as version `version` + 1.

        With `remove`, the added files hold the rows of the removed files, or fewer by design. After an error, open a
        new committer.

        Raises:
            CommitConflict: Another process was first, or may have been; nothing valid was written.
            OSError: The store failed; the commit may have landed or not.
        """
        self._check_ground()
        version, nonce = self._version + 1, uuid.uuid4().hex
        # Removed files age from this time, so it must be now. Otherwise a file's time will do: asking the store for the
        # time costs a write.
        written_at_ms = self._files.time_ms() if remove else max(file.modified_ms for file in add)
        try:
            self._log.put(version, encode_entry(version, add, remove, written_at_ms, nonce))
        except FileExistsError as error:
            self._check_is_own_entry(version, nonce, error)
        self._check_ground()
        self._version, self._entry_identity = version, self._log.identity(version)

    def _check_is_own_entry(self, version: int, nonce: str, exists: FileExistsError) -> None:
        """Check that an existing entry is our own: some stores retry a put that succeeded. Raises CommitConflict."""
        try:
            found_nonce = find_nonce(self._log.read_actions(version))
        except ValueError as error:
            raise OSError(f"{self._table}: version {version} cannot be read: {error}") from error
        if found_nonce != nonce:
            raise CommitConflict(f"{self._table}: version {version} was committed by another process") from exists
        self._log.sync_entry(version)

    def _check_ground(self) -> None:
        if not self._log.has_same_entry(self._version, self._entry_identity):
            raise CommitConflict(f"{self._table}: the log was cleaned beyond version {self._version}")
