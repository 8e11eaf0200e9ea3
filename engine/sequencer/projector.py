"""Projection: decided steps become rows of the tables that users query, in a thread of its own.

The order of writes makes a pass safe to repeat:

1. The data files of rows that came in steps, then their names in `messages`. A segment must never point at rows
   that no file holds.
2. All other tables; `journal` last, so that the decisions come after what follows from them.
3. The watermark. Readers trust the tables up to its step only, and read the steps from there.
4. Maintenance: checkpoints, merges, and removals of files and of old steps.

A process may be killed anywhere. Every commit notes the last step that its table holds. The next leader begins at the
watermark and repeats the pass, and drops rows of steps that a table holds already. A projector whose sequencer does
not lead any more still writes decided facts. Of two projectors that write to one table, the second one's commit
conflicts, and it stops. Rows of docs/architecture.md: publish 8, 13.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as NotDone
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from lakemq.tables.specs.journal import ADMIN_LOG, JOURNAL, SAMPLES, VERSIONS, WATERMARKS, WatermarkRow
from lakemq.tables.specs.messages import FINAL_MESSAGES, MESSAGES, SEQUENCERS_FILES, file_stem
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.specs.topics import SEGMENTS, TOPICS
from lakemq.tables.storage.coordination.step_objects import StepsGone, step_name
from lakemq.tables.storage.delta.commits import CommitConflict, NewFile
from lakemq.tables.storage.delta.store import Store, TableHandle
from lakemq.tables.storage.object_stores.files import Files

from ..maintenance.final_table import FinalTable, needs_sync
from ..maintenance.housekeeping import Housekeeping
from ..maintenance.retention import LiveState, read_live_state
from ..namespace import crash
from ..namespace.clock import Clock
from ..namespace.config import EngineConfig
from ..namespace.data_file import (
    JOURNALED,
    DataFileWriter,
    file_name,
    new_data_file,
    read_footer,
    read_journaled_digest,
    to_table_file,
)
from ..namespace.load import check_versions, least_versions, read_watermark
from ..namespace.progress import Sampler
from ..namespace.store_errors import make_damage_error
from ..protocol.codec.steps import decode_step_rows, encode_steps
from ..protocol.errors import FileTruncated, NotLeader, StorageError
from ..protocol.projection import project
from ..protocol.rows.admin_log import build_admin_log
from ..protocol.rows.clients import build_watermark
from ..protocol.rows.log import JournaledRows, collect_journaled_rows, find_added_files
from ..protocol.values.journal import Step, StepBatch, is_renewal
from ..protocol.values.log import DataFile, PendingFile, RangesFinalized
from ..protocol.values.state import State
from ..protocol.values.topics import RecordsDeleted, TopicDeleted
from .step_log import LOOK_BEFORE_MS, StepLog

log = logging.getLogger("lakemq.serve")

# Write message rows that came in steps to their data file. The leader may have changed since.
#
# The rows of small publishes are in the step objects, so that a step is one write. The steps already name the file in
# which these rows will be (the pending file, below). The next pass writes it.
#
# Invariant: the file is a function of the steps alone, so any leader may write it. Until it exists, only steps name it.
# A file that already has its name is accepted only if its digest is the same.


def write_journaled_rows(files: Files, rows: JournaledRows) -> NewFile:
    """Write the data file of these rows durably. Raises FileTruncated: another file has that name; OSError."""
    digest = xxhash.xxh3_128()
    for body in rows.bodies:
        digest.update(body)
    writer: DataFileWriter | None = None
    try:
        with new_data_file(files, rows.file_id, {JOURNALED: digest.hexdigest()}) as writer:
            writer.write(decode_step_rows(rows.bodies))
    except FileExistsError:
        assert writer is not None
        writer.size_bytes = _check(files, rows, digest.hexdigest())
        files.sync([file_name(rows.file_id)])
    return to_table_file(writer)


def _check(files: Files, rows: JournaledRows, digest: str) -> int:
    """Return the size of the file that is there, in bytes. Raises FileTruncated unless it holds these rows."""
    expected, size_bytes = f"{rows.record_count} rows, digest {digest}", 0
    try:
        with files.open_input(file_name(rows.file_id)) as source:
            footer = read_footer(source)
        size_bytes, metadata = footer.size_bytes, footer.parse()
        actual = f"{metadata.num_rows} rows, digest {read_journaled_digest(metadata)}"
    except ValueError as error:
        actual = str(error)
    if actual != expected:
        raise FileTruncated(
            f"Data file {file_stem(rows.file_id)} exists, but does not hold the rows that the steps have.",
            found=actual,
            expected=expected,
        )
    return size_bytes


# A pass: the rows of steps, planned, and written in an order that is safe to repeat.


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


def plan_projection(
    state: State, steps: Sequence[Step], floor: int, sampler: Sampler, is_last: bool = False
) -> Projection:
    """Compute the rows that bring the tables up to the last of `steps`, which is the state's.

    is_last: whether the leader resigns, so that the samples of this minute are due.
    """
    mark, batch = build_watermark(state, floor), StepBatch(steps)
    tables = project(state, batch)
    for name, rows in (
        (SAMPLES.name, sampler.take_rows(state, batch, tables, is_last)),
        (ADMIN_LOG.name, build_admin_log(batch)),
    ):
        if rows.num_rows:
            tables[name] = rows
    projection = Projection(
        state.step,
        find_added_files(batch),
        collect_journaled_rows(batch),
        {**tables, JOURNAL.name: encode_steps(batch)},
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
        final_table: FinalTable,
        steady_ms: Callable[[], int],
        crash_point: crash.CrashPoint = crash.nowhere,
    ) -> None:
        """Write to a namespace.

        Args:
            watermark: the newest one. No table may be older than it says.
            steady_ms: returns a time that only goes forward, and on while the machine sleeps.
        """
        self._store, self._watermark, self._housekeeping = store, watermark, housekeeping
        self._final_table = final_table
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
            if self._is_first and ADMIN_LOG.name not in least_versions(self._watermark):
                check_continuity()  # nothing may be created where the namespace was deleted
                self._store.create(ADMIN_LOG)  # a namespace that an earlier version made lacks it
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
                if self._final_table.maintain(*handles, work.live_state, self._housekeeping.find_settled_step()):
                    self._housekeeping.note_rewrite(SEGMENTS, self._final_table.floor)
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
            is_due = work.changes_finals or TOPICS.name in work.tables or self._final_table.is_due
            return is_due and (needs_sync(work.live_state) or FINAL_MESSAGES.name in self._handles)
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
            rows = rows.sort_by(order) if order else rows
            handle.append_at(handle.version, rows, step, lambda: self._crash_point("projector.table_rows_written"))

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


# The pending file: the data file that will hold the rows of small letters. Steps name it before it exists.
#
# Invariant: a file holds all rows of exactly the steps that name it, in their order, whoever writes it. So an id is
# used from the first step that names it until a pass begins or the term ends. No other term goes on with it.


MAX_BYTES = 16 << 20
"""Most bytes of rows in steps since the last pass began. Leaders and readers hold them in memory, and a new leader
writes them."""

PASS_DUE_BYTES = 8 << 20
"""Bytes of rows in steps after which a pass is due."""


class CurrentPendingFile:
    """The pending file that one term of leadership fills at present."""

    def __init__(self, new_file_id: Callable[[], int], most_step_bytes: int) -> None:
        """new_file_id: returns a random id below SEQUENCERS_FILES; most_step_bytes: of rows in one step."""
        self._new_file_id, self._most_step_bytes = new_file_id, most_step_bytes
        self._file_id: int | None = None
        self._rows = self.size_bytes = 0

    def has_room_for(self, size_bytes: int) -> bool:
        """Return whether the rows of a step may go into its object; else they get a file at once."""
        return size_bytes <= self._most_step_bytes and self.size_bytes + size_bytes <= MAX_BYTES

    def add_rows(self, record_count: int, size_bytes: int) -> tuple[PendingFile, int]:
        """Count rows that will be in the file. Return the file, and the number of the first of these rows in it.

        size_bytes: of the rows as encoded in the step, which for few rows is more than the rows themselves.
        """
        if self._file_id is None:  # random enough that no other file has it
            self._file_id = SEQUENCERS_FILES | self._new_file_id()
        first_row = self._rows
        self._rows += record_count
        self.size_bytes += size_bytes
        return PendingFile(self._file_id, self._rows), first_row

    def close(self) -> None:
        """Begin a new file with the next rows: a pass begins, which writes the rows so far."""
        self._file_id, self._rows, self.size_bytes = None, 0, 0


# Project decided steps in another thread while the sequencer goes on deciding.
#
# Invariant: a step leaves the tail only when the pass that holds it is complete, including its watermark. If a pass
# fails, the next call here raises its error; it is never lost.


LONG_TAIL = 1000
"""Steps after which a pass is due whatever project.interval.ms says.

The tail is in memory, and a new leader replays it.
"""


MAX_TAIL = 10_000
"""Steps that may wait for a pass. More would take too much memory, and too long to replay."""

RENEWALS_INTERVAL_MS = 60_000
"""Least time between two passes while steps only renew the lease. On a store a pass costs requests."""

_TURN_S = 0.1


class BackgroundProjection:
    """The projection of one term. The sequencer's thread calls it; passes run in `executor`, one at a time."""

    def __init__(
        self,
        step_log: StepLog,
        pending_file: CurrentPendingFile,
        housekeeping: Housekeeping,
        projector: Projector,
        sampler: Sampler,
        executor: Executor,
        clock: Clock,
        config: EngineConfig,
        tail: Sequence[Step],
    ) -> None:
        """tail: the steps that landed after the last watermark, in order."""
        self._log, self._pending_file = step_log, pending_file
        self._housekeeping, self._projector, self.sampler = housekeeping, projector, sampler
        self._executor, self._clock, self._config = executor, clock, config
        self._tail = list(tail)
        self._running: Future[None] | None = None
        self._steps_in_pass = 0
        self.planned_step = 0
        """The last step whose rows are computed. They are written, or being written."""
        # Steps that an earlier leader has left wait for no interval: they may have waited for this leader for long.
        self._begun_at_ms = clock.steady_ms() - (config.ms("project.interval.ms") if self._tail else 0)

    def add_step(self, step: Step) -> None:
        """Add a step that has landed."""
        self._tail.append(step)

    def finish_if_done(self) -> None:
        """Finish the running pass if it has ended. Raises what it failed with, NotLeader."""
        if self._running is not None and self._running.done():
            self._finish_pass()

    def project_if_due(self, state: State, give_sign_of_life: Callable[[], None]) -> None:
        """Begin a pass if one is due and none is running.

        If passes are slower than steps, the steps wait, so that the tail stays bounded.

        Args:
            state: the fold up to the last step that landed.
            give_sign_of_life: renews the lease if that is due. It is called repeatedly during that wait.

        Raises:
            StorageError: a pass does not end within step.timeout.ms.
        """
        if self._running is not None and len(self._tail) >= MAX_TAIL:
            self._wait_for_pass(self._running, give_sign_of_life)
            self._finish_pass()
        if self._running is None and self._is_due():
            self._begin_pass(state)

    def _wait_for_pass(self, running: Future[None], give_sign_of_life: Callable[[], None]) -> None:
        timeout_ms = self._config.ms("step.timeout.ms")
        deadline_ms = self._clock.steady_ms() + timeout_ms
        while True:
            try:
                running.exception(_TURN_S)
            except NotDone:
                if self._clock.steady_ms() > deadline_ms:
                    raise StorageError(
                        f"A projection did not end in {timeout_ms} ms.", found=f"{len(self._tail)} steps wait"
                    ) from None
                give_sign_of_life()
            else:
                return

    def drain(self, state: State) -> None:
        """Project all steps that have landed, and wait for it.

        Raises what a pass failed with, NotLeader; StorageError if a pass does not end within step.timeout.ms.
        """
        while self._tail or self._running is not None:
            running = self._begin_pass(state, is_last=True) if self._running is None else self._running
            self._wait_for_pass(running, lambda: None)
            self._finish_pass()

    def abandon(self) -> None:
        """Wait for the running pass, if any, but no longer than step.timeout.ms.

        Its rows were decided, so they are right whoever leads now.
        """
        running, self._running = self._running, None
        if running is None:
            return
        try:
            self._wait_for_pass(running, lambda: None)
        except StorageError as late:
            log.error("Projecting goes on in its thread: %s", late)
            return
        error = running.exception()
        if error is not None and not isinstance(error, NotLeader):
            log.error("Projecting has failed: %s", error, exc_info=None if isinstance(error, OSError) else error)

    def _is_due(self) -> bool:
        since_ms = self._clock.steady_ms() - self._begun_at_ms
        interval_ms = self._config.ms("project.interval.ms")
        is_long = len(self._tail) >= LONG_TAIL or self._pending_file.size_bytes >= PASS_DUE_BYTES
        if not self._tail or (since_ms < RENEWALS_INTERVAL_MS and all(map(is_renewal, self._tail))):
            return False
        return since_ms >= interval_ms or is_long

    def _begin_pass(self, state: State, is_last: bool = False) -> Future[None]:
        self._steps_in_pass = len(self._tail)
        self._pending_file.close()
        self._begun_at_ms = self._clock.steady_ms()
        work = plan_projection(state, self._tail, self._housekeeping.floor, self.sampler, is_last)
        self.planned_step = work.step
        self._running = self._executor.submit(self._projector.write, work, self._log.check_continuity)
        return self._running

    def _finish_pass(self) -> None:
        assert self._running is not None
        running, self._running = self._running, None
        running.result()
        del self._tail[: self._steps_in_pass]
