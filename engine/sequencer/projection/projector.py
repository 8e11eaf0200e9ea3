"""Write decided steps to the tables that users query.

The order of writes makes a pass safe to repeat:

1. The data files of rows that came in steps, then their names in `messages`. A segment must never point at rows
   that no file holds.
2. All other tables; `journal` last, so that the decisions come after what follows from them.
3. The watermark. Readers trust the tables up to its step only, and read the steps from there.
4. Maintenance: checkpoints, merges, and removals of files and of old steps.

A process may be killed anywhere. Every commit notes the last step that its table holds. The next leader begins at the
watermark and repeats the pass, and drops rows of steps that a table holds already. A projector whose sequencer does
not lead any more still writes decided facts. Of two projectors that write to one table, the second one's commit
conflicts, and it stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.final_messages import FINAL_MESSAGES
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.messages import MESSAGES
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.specs.segments import SEGMENTS
from lakemq.tables.specs.watermarks import VERSIONS, WATERMARKS, WatermarkRow
from lakemq.tables.storage.coordination.step_objects import StepsGone, step_name
from lakemq.tables.storage.delta.commits import CommitConflict, NewFile
from lakemq.tables.storage.delta.store import Store, TableHandle

from ...maintenance.housekeeping import Housekeeping
from ...maintenance.row_trimming import LiveState, read_live_state
from ...namespace.data_file import to_table_file
from ...namespace.loading.damage import make_damage_error
from ...namespace.loading.load import check_versions, least_versions, read_watermark
from ...namespace.processes import crash
from ...protocol.codec.journal import encode_steps
from ...protocol.errors import NotLeader
from ...protocol.projection import JournaledRows, build_watermark, collect_journaled_rows, find_added_files, project
from ...protocol.values.finals import RangesFinalized
from ...protocol.values.journal import Step, StepBatch
from ...protocol.values.log import DataFile
from ...protocol.values.state import State
from ...protocol.values.topics import RecordsDeleted, TopicDeleted
from ..step_log import LOOK_BEFORE_MS
from .final_sync import needs_sync, sync_final_messages
from .journaled_rows import write_journaled_rows


@dataclass(frozen=True)
class Projection:
    """The rows of one pass, computed from the state at `step`. They stay valid while the state moves on."""

    step: int
    files: list[DataFile]
    journaled: list[JournaledRows]
    tables: dict[str, pa.Table]
    watermark: pa.Table
    live_state: LiveState
    changes_finals: bool


def plan_projection(state: State, steps: Sequence[Step], floor: int) -> Projection:
    """Compute the rows that bring the tables up to the last of `steps`, which is the state's."""
    mark, batch = build_watermark(state, floor), StepBatch(steps)
    projection = Projection(
        state.step,
        find_added_files(batch),
        collect_journaled_rows(batch),
        {**project(state, batch), JOURNAL.name: encode_steps(batch)},
        mark,
        read_live_state(state),
        any(batch.find_entries(RangesFinalized, RecordsDeleted, TopicDeleted)),
    )
    state.changes.clear()  # the rows are computed; if they cannot be written, the term ends
    return projection


class Projector:
    """Writes passes, one at a time. A conflict means that another sequencer projects: NotLeader."""

    def __init__(
        self,
        store: Store,
        watermark: WatermarkRow,
        housekeeping: Housekeeping,
        steady_ms: Callable[[], int],
        crash_point: crash.CrashPoint = crash.nowhere,
    ) -> None:
        """Write to a namespace.

        Args:
            watermark: the newest one. No table may be older than it says.
            steady_ms: returns a time that only goes forward, and on while the machine sleeps.
        """
        self._store, self._watermark, self._housekeeping = store, watermark, housekeeping
        self._steady_ms, self._crash_point = steady_ms, crash_point
        self._handles: dict[str, TableHandle] = {}
        self._checked_at_ms = 0
        self._is_first = True

    def write(self, work: Projection, check_continuity: Callable[[], None]) -> None:
        """Write one pass, then maintain the tables written so far. Raises NotLeader.

        check_continuity: raises NotLeader unless the log of steps still continues from the last step that landed.
        """
        try:
            data = [MESSAGES.name] if work.files or work.journaled else []
            looked_at = self._housekeeping.list_tables_to_open()
            final = [FINAL_MESSAGES.name, SEGMENTS.name] if self._needs_sync(work) else []
            self._open([*data, *work.tables, WATERMARKS.name, *looked_at, *final], check_continuity)
            files = [*map(to_table_file, work.files), *map(self._write_rows_of_steps, work.journaled)]
            if files:
                self._register(files, work.step, check_continuity)
                self._crash_point("projector.messages_registered")
            for name, rows in work.tables.items():
                self._append(name, rows, work.step, check_continuity)
                self._crash_point("projector.table_appended")
            self._crash_point("projector.tables_appended")
            self._append(WATERMARKS.name, self._add_versions(work.watermark), work.step, check_continuity)
            self._crash_point("projector.watermark_written")
            if final:
                handles = self._handles[FINAL_MESSAGES.name], self._handles[SEGMENTS.name]
                sync_final_messages(self._store.files, *handles, work.live_state)
                self._crash_point("projector.final_messages_synced")
            self._is_first = False
            self._housekeeping.note_watermark(work.step, work.live_state)
            for handle in self._handles.values():
                self._housekeeping.maintain(handle)
            if looked_at:
                self._housekeeping.maintain_data_files(self._handles, work.step)
            self._housekeeping.remove_steps()
        except (CommitConflict, StepsGone) as conflict:
            raise NotLeader(f"Projecting up to step {work.step} was overtaken: {conflict}") from conflict

    def _needs_sync(self, work: Projection) -> bool:
        """Return whether files of `final_messages` may have to come or go: also what an earlier leader has left."""
        if not self._is_first:
            return work.changes_finals and (needs_sync(work.live_state) or FINAL_MESSAGES.name in self._handles)
        return needs_sync(work.live_state) or least_versions(self._watermark).get(FINAL_MESSAGES.name, 0) > 0

    def _append(self, name: str, rows: pa.Table, step: int, check_continuity: Callable[[], None]) -> None:
        handle = self._handles[name]
        if handle.last_step() > step:
            self._refuse_later_steps(name, handle.last_step(), step)
        # Drop what a killed pass has written. Rows of a changelog have the last step of their pass: if the repeated
        # pass goes further, they are written once more, and readers take the newest row of a key.
        rows = rows.filter(pc.field("step") > handle.last_step())
        if rows.num_rows:
            self._check_continuity_if_long_ago(check_continuity)
            order = [(key, "ascending") for key in handle.spec.sort_by]
            handle.append_at(handle.version, rows.sort_by(order) if order else rows, step, self._reach_rows_point)

    def _refuse_later_steps(self, name: str, last_step: int, step: int) -> None:
        """Raise CommitConflict if another leader has projected later steps, and otherwise TableDamaged.

        The object of a step stays until a watermark holds the step.
        """
        is_decided = self._store.files.size(step_name(last_step)) is not None
        if is_decided or read_watermark(self._store).step >= last_step:
            raise CommitConflict(f"{name} has steps up to {last_step}")
        raise make_damage_error(self._store, f"{name} has steps up to {last_step}, the log up to {step}")

    def _add_versions(self, watermark: pa.Table) -> pa.Table:
        """Return the watermark with the versions of the tables. One that was not opened keeps its version."""
        versions = least_versions(self._watermark) | {name: handle.version for name, handle in self._handles.items()}
        del versions[WATERMARKS.name]
        rows = [{"table": name, "version": version} for name, version in sorted(versions.items())]
        at = watermark.schema.get_field_index("versions")
        return watermark.set_column(at, "versions", pa.array([rows], VERSIONS))

    def _reach_rows_point(self) -> None:
        self._crash_point("projector.table_rows_written")

    def _write_rows_of_steps(self, rows: JournaledRows) -> NewFile:
        file = write_journaled_rows(self._store.files, rows)
        self._crash_point("projector.rows_written")
        return file

    def _register(self, files: Sequence[NewFile], step: int, check_continuity: Callable[[], None]) -> None:
        handle = self._handles[MESSAGES.name]
        if handle.last_step() < step:
            self._check_continuity_if_long_ago(check_continuity)
            # the same path added again replaces itself: registering is idempotent
            handle.replace_at(handle.version, files, last_step=step)

    def _open(self, names: Iterable[str], check_continuity: Callable[[], None]) -> None:
        """Open the tables that are not open yet: those of this term's namespace, or none.

        If the namespace was created again at this path, its tables appear only after our steps have gone.
        `check_continuity` notices that after opening. A handle that was opened before commits to no other table.
        """
        opened = {name: self._store.open(BY_NAME[name]) for name in names if name not in self._handles}
        check_continuity()
        check_versions(self._store, self._watermark, opened)
        self._checked_at_ms = self._steady_ms()
        self._handles |= opened

    def _check_continuity_if_long_ago(self, check_continuity: Callable[[], None]) -> None:
        """Check that the step log continues, if the last check is long ago: this process may have been stopped since.

        A check per commit would cost requests. The handles notice a take-over after each commit. The check before it
        only avoids that an entry is left behind in the log of a table that was cleaned or recreated meanwhile.
        """
        now_ms = self._steady_ms()
        if now_ms - self._checked_at_ms > LOOK_BEFORE_MS:
            check_continuity()
            self._checked_at_ms = now_ms
