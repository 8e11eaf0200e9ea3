"""The journal as the sequencer sees it: at one version, which moves with each of its own commits. This is the fence.

How the fence works. The journal is a Delta table, and a commit creates the log entry of exactly one version, if it is
not there yet. A leader commits only to the version after its own last one. So of two sequencers that both believe to
lead, one creates the next version; the other finds it taken, gets NotLeader and throws its state away. A leader that
was stopped for an hour and goes on is fenced in the same way: a new leader's take-over is a commit, too. No clock and
no lock takes part; the lease only decides who may try.

Replies are written after the commit. So a fenced leader never answers for a step that the others do not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.storage.commits import CommitConflict, NewFile, StoredFile
from lakemq.tables.storage.committer import Committer, open_committer
from lakemq.tables.storage.delta_log import DeltaLog
from lakemq.tables.storage.store import Store, TableHandle

from ..maintenance.housekeeping import JOURNAL_COLUMNS_KEPT
from ..namespace import crash
from ..protocol.codec.journal import decode_steps_after
from ..protocol.errors import NotLeader
from ..protocol.values.journal import Step

_MAX_CACHED_FILES, _MAX_CACHED_BYTES = 2_000, 32 << 10
"""Number and size of files whose rows stay in memory until they are merged. Reading them back costs 2 ms per file."""


class Journal:
    """Appends whole steps by compare-and-set. After any failed append, leadership is in doubt, and the term must end.

    Attributes:
        table_id: Delta's id of the table, which identifies the namespace.
        files: the live files of the table at its version. Only the leader removes files, so they live until `replace`.
    """

    def __init__(self, store: Store, reached: crash.Reached = crash.nowhere) -> None:
        self._log, self._reached = DeltaLog(store.files, JOURNAL.name), reached
        self._opened: TableHandle = store.open(JOURNAL)
        self._committer: Committer = open_committer(store, self._opened)
        self.table_id = self._opened.table_id
        self.files: tuple[StoredFile, ...] = tuple(self._opened.files())
        self._cached_rows: dict[str, pa.Table] = {}

    @property
    def version(self) -> int:
        return self._committer.version

    def append(self, step: int, rows: pa.Table) -> None:
        """Commit the encoded records of one step.

        Raises:
            NotLeader: another sequencer has committed this version.
            OSError: the store failed. The step may have landed or not.
        """
        file = self._committer.write(rows)
        self._reached("sequencer.step_written")
        self._commit(f"Step {step} did not land", [file])
        if len(self._cached_rows) < _MAX_CACHED_FILES and file.size_bytes <= _MAX_CACHED_BYTES:
            self._cached_rows[file.path] = rows.select(JOURNAL_COLUMNS_KEPT)

    def replace(self, add: Sequence[NewFile], remove: Sequence[StoredFile]) -> None:
        """Swap files for merged ones. This is a commit like any other, hence raises NotLeader."""
        self._commit("The journal was not merged", add, remove)

    def _commit(self, failed: str, add: Sequence[NewFile], remove: Sequence[StoredFile] = ()) -> None:
        try:
            self._committer.commit(add, remove)
        except CommitConflict as conflict:
            raise NotLeader(f"{failed}: {conflict}") from conflict
        gone = {file.path for file in remove}
        for path in gone:
            self._cached_rows.pop(path, None)
        stay = self.files if not gone else (file for file in self.files if file.path not in gone)
        self.files = (*stay, *(file.to_stored_file() for file in add))

    def copy_cached_rows(self) -> dict[str, pa.Table]:
        """Return the rows of small appended files that are not merged yet, by path, without message rows."""
        return dict(self._cached_rows)

    def read_steps_after(self, step: int) -> list[Step]:
        """Return all later steps of the version at which the journal was opened, in order.

        Raises NotLeader for a gap: the journal was cut meanwhile, so the watermark must be read again.
        """
        steps = decode_steps_after(self._opened.read(step=(step + 1, None)), step)
        if steps is None:
            raise NotLeader(f"The journal's steps after {step} have a gap.")
        return steps

    def make_continuity_check(self) -> Callable[[], None]:
        """Return a function that raises NotLeader unless the journal still goes on from the present version.

        Any thread may call it. The check fails if other leaders have gone on for so long that the log was cleaned, or
        if the namespace was deleted, created again or restored. It does not fail for a newer version alone.
        """
        version, stands_on = self._committer.version, self._committer.entry_identity

        def look() -> None:
            if not self._log.has_same_entry(version, stands_on):
                raise NotLeader(f"The journal does not continue from version {version}: it was replaced or cleaned up.")

        return look

    def sync(self) -> None:
        """Make the newest commit survive a loss of power. The leader that wrote it may have died before it did this."""
        self._log.sync_commit(self.version)
