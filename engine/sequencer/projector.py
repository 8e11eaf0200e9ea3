"""Projecting: what was decided is written to the tables people query, `messages` first, the watermark last.

Killed anywhere, it goes on: every commit notes the last step the table holds, and nothing up to that step is written
again. What is written was decided, hence is right even when a projector does so whose sequencer does not lead any more;
of two that write to a table, one finds that the other was there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.messages import MESSAGES
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.specs.watermarks import WATERMARKS
from lakemq.tables.storage.commits import CommitConflict
from lakemq.tables.storage.store import Store, TableHandle

from ..maintenance.housekeeping import Housekeeping
from ..maintenance.trimming import Living, living
from ..namespace import crash
from ..namespace.data_file import registered
from ..protocol.errors import NotLeader
from ..protocol.projection import JournaledRows, files_added, project, rows_journaled, watermark
from ..protocol.values.journal import Step
from ..protocol.values.log import DataFile
from ..protocol.values.state import State
from .journaled_rows import write_journaled_rows


@dataclass(frozen=True)
class Projection:
    """The rows of one pass, computed from the state at `step` and safe to write while the state moves on."""

    step: int
    files: list[DataFile]
    journaled: list[JournaledRows]
    tables: dict[str, pa.Table]
    watermark: pa.Table
    now: Living


def plan_projection(state: State, steps: Sequence[Step], floor: int, journal_start: int) -> Projection:
    """What to write so that the tables hold all of `steps`, the last of which is the state's."""
    mark = watermark(state, floor, journal_start)
    return Projection(state.step, files_added(steps), rows_journaled(steps), project(state, steps), mark, living(state))


class Projector:
    """Writes passes, one at a time. A conflict means another sequencer projects: NotLeader."""

    def __init__(self, store: Store, housekeeping: Housekeeping, reached: crash.Reached = crash.nowhere) -> None:
        self._store, self._housekeeping, self._reached = store, housekeeping, reached
        self._handles: dict[str, TableHandle] = {}

    def write(self, work: Projection, look: Callable[[], None]) -> None:
        """Write one pass, then maintain the tables written so far. Raises NotLeader.

        look: whether the journal is still that of the term, else raises NotLeader.
        """
        try:
            data = [MESSAGES.name] if work.files or work.journaled else []
            looked_at = self._housekeeping.tables_to_look_at()
            self._open([*data, *work.tables, WATERMARKS.name, *looked_at], look)
            files = [*work.files, *map(self._written, work.journaled)]
            if files:
                self._register(files, work.step)
                self._reached("projector.messages_registered")
            for name, rows in work.tables.items():
                self._append(name, rows, work.step)
                self._reached("projector.table_appended")
            self._reached("projector.tables_appended")
            self._append(WATERMARKS.name, work.watermark, work.step)
            self._reached("projector.watermark_written")
            self._housekeeping.projected(work.step, work.now)
            for handle in self._handles.values():
                self._housekeeping.maintain(handle)
            if looked_at:
                self._housekeeping.maintain_data_files(self._handles, work.step)
        except CommitConflict as conflict:
            raise NotLeader(f"Projecting up to step {work.step} was overtaken: {conflict}") from conflict

    def _append(self, name: str, rows: pa.Table, step: int) -> None:
        handle = self._handles[name]
        # rows of a changelog bear the step of their pass, so that of them, too, only newer ones are written
        rows = rows.filter(pc.field("step") > handle.last_step())
        if rows.num_rows:
            order = [(key, "ascending") for key in handle.spec.sort_by]
            handle.append_at(handle.version, rows.sort_by(order) if order else rows, step)

    def _written(self, rows: JournaledRows) -> DataFile:
        file = write_journaled_rows(self._store.files, rows)
        self._reached("projector.rows_written")
        return file

    def _register(self, files: Sequence[DataFile], step: int) -> None:
        handle = self._handles[MESSAGES.name]
        if handle.last_step() < step:
            # the same path added again replaces itself: registering is idempotent
            handle.replace_at(handle.version, [registered(file) for file in files], last_step=step)

    def _open(self, names: Iterable[str], look: Callable[[], None]) -> None:
        """Opens those that are not yet: the term's own, or none.

        Of one that was made anew at this path they are there only after our journal has gone; a handle that was opened
        before that commits to no other table.
        """
        opened = {name: self._store.open(BY_NAME[name]) for name in names if name not in self._handles}
        look()
        self._handles |= opened
