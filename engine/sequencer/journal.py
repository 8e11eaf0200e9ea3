"""The journal as the sequencer holds it: at one version, moving on with each of its own commits."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.storage.store import CommitConflict, NewFile, Store, StoredFile, TableHandle

from ..protocol.codec import steps_after
from ..protocol.errors import NotLeader
from ..protocol.values.decisions import StepDecisions


class Journal:
    """Compare-and-append of whole steps. Any failed append leaves leadership in doubt: NotLeader."""

    def __init__(self, store: Store) -> None:
        self._handle: TableHandle = store.open(JOURNAL)

    @property
    def version(self) -> int:
        return self._handle.version

    def append(self, step: int, rows: pa.Table) -> None:
        """One commit with all that the step decided, encoded; raises NotLeader when somebody else has committed.

        OSError: the store has failed; the step may have landed or not.
        """
        try:
            self._handle.append_at(self.version, rows)
        except CommitConflict as conflict:
            raise NotLeader(f"Step {step} did not land: {conflict}") from conflict

    def steps_after(self, step: int) -> list[StepDecisions]:
        """All later steps of this version, in order.

        Raises NotLeader for a gap (the journal was cut meanwhile: read the watermark again).
        """
        steps = steps_after(self._handle.read(step=(step + 1, None)), step)
        if steps is None:
            raise NotLeader(f"The journal's steps after {step} have a gap.")
        return steps

    def replace(self, add: Sequence[NewFile], remove: Sequence[StoredFile]) -> None:
        """Swap files for merged ones; a commit like any other, hence raises NotLeader."""
        try:
            self._handle.replace_at(self.version, add, remove)
        except CommitConflict as conflict:
            raise NotLeader(f"The journal was not merged: {conflict}") from conflict

    def renew_handle(self) -> None:
        """Load the handle afresh, which right after a checkpoint makes appends quick again.

        Raises NotLeader unless the newest version is the one it had.
        """
        version = self.version
        self._handle.reopen()
        if self.version != version:
            raise NotLeader("Somebody else has committed to the journal.", found=self.version, expected=version)

    def sync(self) -> None:
        """The newest commit, maybe of a leader that died before it could say so, survives a loss of power."""
        self._handle.log.sync_commit(self.version)
