"""The journal as the sequencer holds it: at one version, moving on with each of its own appends."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lakemq.tables.journal import JOURNAL
from lakemq.tables.store import CommitConflict, NewFile, Store, StoredFile, TableHandle

from .protocol.codec import decode_steps, encode_step
from .protocol.errors import NotLeader
from .protocol.records import StepDecisions


class Journal:
    """Compare-and-append of whole steps. Any failed append leaves leadership in doubt: NotLeader."""

    def __init__(self, store: Store) -> None:
        self._handle: TableHandle = store.open(JOURNAL)
        self._appended = 0

    @property
    def version(self) -> int:
        return self._handle.version

    def refresh(self) -> int:
        """The newest version; a standby watches it move."""
        return self._handle.refresh()

    def append(self, step: StepDecisions) -> None:
        """One commit with all that the step decided; raises NotLeader when somebody else has committed."""
        try:
            self._handle.append_at(self.version, encode_step(step))
        except CommitConflict as conflict:
            raise NotLeader(f"Step {step.step} did not land: {conflict}") from conflict
        self._appended += 1

    def steps_after(self, step: int) -> list[StepDecisions]:
        """All later steps of this version, in order; a gap is a NotLeader (the journal was cut meanwhile)."""
        rows = self._handle.read(step=(step + 1, None))
        steps = decode_steps(rows.sort_by([("step", "ascending"), ("position", "ascending")]))
        expected = list(range(step + 1, step + 1 + len(steps)))
        if [s.step for s in steps] != expected:
            raise NotLeader(
                f"The journal's steps after {step} have a gap.", found=[s.step for s in steps][:3]
            )
        return steps

    def files(self) -> list[StoredFile]:
        return self._handle.files()

    def read_files(self, files: Sequence[StoredFile]) -> pa.Table:
        return self._handle.read(files=files)

    def replace(self, add: Sequence[NewFile], remove: Sequence[StoredFile]) -> None:
        """Swap files for merged ones; a commit like any other, hence raises NotLeader."""
        try:
            self._handle.replace_at(self.version, add, remove)
        except CommitConflict as conflict:
            raise NotLeader(f"The journal was not compacted: {conflict}") from conflict
        self._appended += 1

    def renew_handle(self, after: int) -> bool:
        """Load the handle afresh once it made `after` commits; False when it is not time yet.

        The version must be the one it had: raises NotLeader otherwise.
        """
        if self._appended < after:
            return False
        version = self.version
        self._handle.reopen()
        self._appended = 0
        if self.version != version:
            raise NotLeader(
                "Somebody else has committed to the journal.", found=self.version, expected=version
            )
        return True
