"""The journal as the sequencer holds it: at one version, moving on with each of its own commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.storage.commits import CommitConflict, NewFile, StoredFile
from lakemq.tables.storage.committer import Committer, open_committer
from lakemq.tables.storage.delta_log import DeltaLog
from lakemq.tables.storage.store import Store, TableHandle

from ..maintenance.housekeeping import JOURNAL_KEPT
from ..namespace import crash
from ..protocol.codec.journal import steps_after
from ..protocol.errors import NotLeader
from ..protocol.values.journal import Step

_MOST_KEPT, _MOST_KEPT_BYTES = 2_000, 32 << 10
"""Files, and the size of each, whose rows stay in memory until they are merged: reading them back costs 2 ms a file."""


class Journal:
    """Compare-and-append of whole steps. Any failed append leaves leadership in doubt: NotLeader.

    table_id: by which the namespace is known. files: the live files of the table at its version; nobody else removes
    any, so that they stay live until `replace`.
    """

    def __init__(self, store: Store, reached: crash.Reached = crash.nowhere) -> None:
        self._log, self._reached = DeltaLog(store.files, JOURNAL.name), reached
        self._opened: TableHandle = store.open(JOURNAL)
        self._committer: Committer = open_committer(store, self._opened)
        self.table_id = self._opened.table_id
        self.files: tuple[StoredFile, ...] = tuple(self._opened.files())
        self._kept: dict[str, pa.Table] = {}

    @property
    def version(self) -> int:
        return self._committer.version

    def append(self, step: int, rows: pa.Table) -> None:
        """One commit with all that the step decided, encoded; raises NotLeader when somebody else has committed.

        OSError: the store has failed; the step may have landed or not.
        """
        file = self._committer.write(rows)
        self._reached("sequencer.step_written")
        self._commit(f"Step {step} did not land", [file])
        if len(self._kept) < _MOST_KEPT and file.size_bytes <= _MOST_KEPT_BYTES:
            self._kept[file.path] = rows.select(JOURNAL_KEPT)

    def replace(self, add: Sequence[NewFile], remove: Sequence[StoredFile]) -> None:
        """Swap files for merged ones; a commit like any other, hence raises NotLeader."""
        self._commit("The journal was not merged", add, remove)

    def _commit(self, failed: str, add: Sequence[NewFile], remove: Sequence[StoredFile] = ()) -> None:
        try:
            self._committer.commit(add, remove)
        except CommitConflict as conflict:
            raise NotLeader(f"{failed}: {conflict}") from conflict
        gone = {file.path for file in remove}
        for path in gone:
            self._kept.pop(path, None)
        stay = self.files if not gone else (file for file in self.files if file.path not in gone)
        self.files = (*stay, *(file.stored() for file in add))

    def kept(self) -> dict[str, pa.Table]:
        """What this one has appended and nobody has merged yet, by the path of its file, without rows of messages.

        Most of it, that is, and none of steps that are large.
        """
        return dict(self._kept)

    def steps_after(self, step: int) -> list[Step]:
        """All later steps of the version at which this was opened, in order.

        Raises NotLeader for a gap (the journal was cut meanwhile: read the watermark again).
        """
        steps = steps_after(self._opened.read(step=(step + 1, None)), step)
        if steps is None:
            raise NotLeader(f"The journal's steps after {step} have a gap.")
        return steps

    def lookout(self) -> Callable[[], None]:
        """Looks, in any thread, whether the journal still goes on from the version of now: raises NotLeader if not.

        So it is where others went on for long, and where the namespace was deleted, made anew or restored.
        """
        version, stands_on = self._committer.version, self._committer.stands_on

        def look() -> None:
            if not self._log.has_still(version, stands_on):
                raise NotLeader(
                    f"The journal does not go on from version {version}: it is another one, or was cleaned."
                )

        return look

    def sync(self) -> None:
        """The newest commit, maybe of a leader that died before it could say so, survives a loss of power."""
        self._log.sync_commit(self.version)
