"""A term: everything that a sequencer has only while it leads.

When leadership is in doubt, it throws all of it away.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from lakemq.tables.specs.journal import JOURNAL, WatermarkRow
from lakemq.tables.storage.coordination.beats import Beats, OverdueNotes
from lakemq.tables.storage.native_calls import Workers
from lakemq.tables.storage.object_stores.files import Files, LocalFiles
from lakemq.tables.storage.object_stores.object_store import remove_abandoned_times

from ..maintenance.compaction import Compaction
from ..maintenance.dying_messages import find_dying
from ..maintenance.final_files import STALE_MS, FinalFileWriter
from ..maintenance.final_table import FinalTable
from ..maintenance.housekeeping import Housekeeping
from ..maintenance.merging import DataFileMerger
from ..maintenance.retention import find_outgrown, read_live_state
from ..namespace import crash
from ..namespace.clock import Clock
from ..namespace.load import load_state
from ..namespace.namespace import Namespace
from ..namespace.process import new_id, pause_garbage_collection
from ..namespace.progress import Sampler
from ..namespace.step_reader import StepReader, follow_from_watermark
from ..namespace.waiting_rows import read_due_runs
from ..protocol import machine
from ..protocol.rules.timers import ObservedWaits
from ..protocol.values.journal import Step
from ..protocol.values.log import RangesWritten
from ..protocol.values.state import State
from ..protocol.values.topics import Topic
from .assignments import PlugInThreads, TargetAssignments
from .attendance import Attendance, OverdueMembers
from .delay_queue import DelayQueue
from .event_log import EventLog
from .letters.lines import LineServer
from .projector import BackgroundProjection, CurrentPendingFile, Projector
from .searches import DyingSearch, RetentionSearch
from .step_log import StepLog

log = logging.getLogger("lakemq.serve")

# Schedule the writing of messages that become final. A step decides what was written.


_SOON_MS = 20
_MANY_FILES = 50
"""Files that one step decides."""


class Finalizing:
    """The runs of one term. The sequencer's thread calls it; a run writes files in `executor`."""

    def __init__(
        self,
        write: Callable[[Mapping[int, Topic], Callable[[RangesWritten], None]], None],
        executor: Executor,
        clock: Clock,
        interval_ms: int,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        write: takes the topics, writes files, and passes each on when it is written.
        interval_ms: from the beginning of a run to the next. 0: there are none.
        wake: lets the next step begin. A thread calls it when a file is written, and when a run has ended.
        """
        self._write, self._executor, self._clock, self._interval_ms = write, executor, clock, interval_ms
        self._wake = wake
        self._begun_ms = self._due_ms = clock.steady_ms()
        self._running: Future[None] | None = None
        self._written: deque[tuple[float, RangesWritten]] = deque()
        """What a run has passed on, and when: a long run must not wait for its end, when its first files are stale."""

    @property
    def is_working(self) -> bool:
        """Whether a run has files that are not decided yet."""
        return bool(self._written) or (
            self._running is not None and self._clock.steady_ms() < self._begun_ms + STALE_MS
        )

    def due_in_ms(self) -> float | None:
        """Return in how many ms there is work. None: not before `wake`, or never."""
        if self._written:
            return 0
        if self._running is not None:
            return None
        return max(_SOON_MS, self._due_ms - self._clock.steady_ms()) if self._interval_ms else None

    def take_written(self, state: State) -> list[RangesWritten]:
        """Return what the next step must decide, and begin a run when one is due.

        A step decides one file of a topic, so that the steps of its files say in which order they are.
        """
        now_ms = self._clock.steady_ms()
        if self._running is not None and self._running.done():
            self._report_failure(self._running)
            self._running = None
        while self._written and now_ms >= self._written[0][0] + STALE_MS:
            self._written.popleft()
        if self._interval_ms and self._running is None and not self._written and now_ms >= self._due_ms:
            self._begun_ms, self._due_ms = now_ms, now_ms + self._interval_ms
            self._running = self._executor.submit(self._write, state.snapshot().topics, self._put)
            self._running.add_done_callback(lambda _: self._wake())
        batch: dict[int, RangesWritten] = {}
        while self._written and len(batch) < _MANY_FILES and self._written[0][1].topic_id not in batch:
            _, written = self._written.popleft()
            batch[written.topic_id] = written
        return list(batch.values())

    def _put(self, written: RangesWritten) -> None:
        """Take a file from the thread of the run."""
        self._written.append((self._clock.steady_ms(), written))
        self._wake()

    def _report_failure(self, running: Future[None]) -> None:
        error = running.exception()
        if error is not None:  # whatever the store raises: publishing goes on
            is_known = isinstance(error, OSError)
            log.warning("Messages do not become final: %s", error, exc_info=None if is_known else error)


# The time of steps: the store's time when a term begins, then the time that the leader's steady clock has seen pass.
#
# A leader's own clock may be hours off, and may be set while it leads; neither changes the time of a step. Step time
# never goes back. If the last leader's time was ahead of the store's, step time runs at half speed until the store's
# time has caught up.


class StepTime:
    """The time of one term of leadership. Thread-safe."""

    def __init__(self, clock: Clock, store_ms: int, last_ms: int) -> None:
        """store_ms: the store's time now; last_ms: the time of the last step that was decided."""
        self._clock, self._store_ms, self._last_ms = clock, store_ms, last_ms
        self._began_ms = clock.steady_ms()

    def now_ms(self) -> int:
        """Return the time of a step that begins now, in epoch milliseconds."""
        passed_ms = self._clock.steady_ms() - self._began_ms
        return max(self._store_ms + passed_ms, self._last_ms + passed_ms // 2)

    def store_ms(self) -> int:
        """Return the store's time. It is behind the step time if an earlier store's clock was ahead."""
        return self._store_ms + self._clock.steady_ms() - self._began_ms


# The term, and what makes one.


@dataclass
class Term:
    """Everything of one term of leadership.

    Attributes:
        state: the fold of all steps up to the one on which `log` stands.
        namespace_id: of the namespace whose steps these are.
        current_at_ms: when that step was known to be the newest.
        expire_at_ms: when to look next for expired clients and producers. The first time is at the beginning of the
            term, because many terms last only seconds.
        all_seen_at_ms: when the mailbox was last read completely.
        lines: to clients that are connected. None: all letters come through the mailbox.
        failed_due: timers that met an unexpected error, and are left out for the rest of the term.
        recurring_from_ms: the store's time up to which recurring messages are put off, after a fault that may pass.
    """

    state: State
    log: StepLog
    namespace_id: str
    pending_file: CurrentPendingFile
    background: BackgroundProjection
    time: StepTime
    attendance: Attendance
    targets: TargetAssignments
    delay_queue: DelayQueue
    retention: RetentionSearch
    dying_search: DyingSearch
    finalizing: Finalizing
    compaction: Compaction
    current_at_ms: int
    expire_at_ms: int
    all_seen_at_ms: int
    observed_waits: ObservedWaits = field(default_factory=ObservedWaits)
    failed_due: set[machine.DueTimer] = field(default_factory=set)
    recurring_from_ms: int = 0
    lines: LineServer | None = None
    events: EventLog = field(default_factory=EventLog)

    @property
    def is_working(self) -> bool:
        """Whether the next step has work without a letter, or work in another thread is unfinished."""
        looks = self.retention.is_working or self.dying_search.is_working(self.state) or self.is_occurrence_due
        is_computing = self.targets.is_working or looks or self.delay_queue.is_working(self.time.store_ms())
        return is_computing or bool(self.state.list_moving_groups())

    @property
    def is_occurrence_due(self) -> bool:
        """Whether a recurring message is due, and not put off."""
        now_ms = self.time.store_ms()
        return now_ms >= self.recurring_from_ms and self.state.schedules.is_due(now_ms)

    def _next_occurrence_in_ms(self) -> int | None:
        at_ms = self.state.schedules.next_at_ms
        return None if at_ms is None else max(0, max(at_ms, self.recurring_from_ms) - self.time.store_ms())

    def use_lines(self, lines: LineServer | None) -> None:
        """Take letters also from these lines, and tell their followers of steps."""
        self.lines = lines
        if lines is not None:
            lines.followers.note_step(self.state.step)

    def announce_step(self) -> None:
        """Tell the followers on lines of the newest step."""
        if self.lines is not None:
            self.lines.followers.announce()

    def close_lines(self) -> None:
        """Close all lines. Clients put the letters that were not decided into the mailbox."""
        lines, self.lines = self.lines, None
        if lines is not None:
            lines.close()

    def end_threads(self) -> None:
        """End what works for the term in other threads. The term is over, or has failed to begin."""
        self.close_lines()
        self.delay_queue.close()
        self.background.abandon()

    def due_in_ms(self) -> float | None:
        """Return in how many ms there is work without a letter. None: nothing is known."""
        now_ms = self.time.now_ms()
        waiting = (self.state.groups[name] for name in self.state.waiting_groups)
        deadlines = (at_ms - now_ms for group in waiting for at_ms in group.deadlines())
        looks = (
            self.attendance.due_in_ms(self.state),
            self.delay_queue.due_in_ms(self.time.store_ms()),
            self.retention.due_in_ms(),
            self.dying_search.due_in_ms(self.state),
            self.finalizing.due_in_ms(),
            self._next_occurrence_in_ms(),
        )
        return min((delay for delay in (*looks, *deadlines) if delay is not None), default=None)


class TermFactory:
    """Begins terms from what is stored."""

    def __init__(
        self,
        namespace: Namespace,
        clock: Clock,
        new_file_id: Callable[[], int],
        projecting: Executor,
        watching: Executor,
        finalizing: Executor,
        crash_point: crash.CrashPoint,
        wake: Callable[[], None],
    ) -> None:
        """Take executors: projecting writes projections, watching reads and computes for the leader, finalizing writes
        files of final messages. wake: lets the next step begin; any thread may call it.
        """
        self._ns, self._clock, self._new_file_id, self._crash_point = namespace, clock, new_file_id, crash_point
        self._projecting, self._watching, self._finalizing = projecting, watching, finalizing
        self._wake = wake
        self._plug_ins = PlugInThreads()

    def begin(self, step: int | None) -> Term | None:
        """Load the state: the tables at the watermark, then the steps after it.

        Return None if `step`, which the standby read last, is not the newest any more: another sequencer leads.

        Raises:
            StepTooOld, StepsGone: another sequencer has merged tables or removed steps meanwhile.
        """
        with pause_garbage_collection():
            return self._load_term(step)

    def _load_term(self, step: int | None) -> Term | None:
        ns, clock = self._ns, self._clock
        steady_ms = clock.steady_ms()
        namespace_id = ns.store.open(JOURNAL).table_id
        watermark, reader = follow_from_watermark(ns.store, clock.steady_ms, namespace_id)
        tail = reader.read()
        if reader.step != step or ns.store.open(JOURNAL).table_id != namespace_id:
            return None
        return self._build_term(namespace_id, watermark, reader, tail, steady_ms)

    def _build_term(
        self,
        namespace_id: str,
        watermark: WatermarkRow,
        reader: StepReader,
        tail: list[Step],
        steady_ms: int,
    ) -> Term:
        ns, clock = self._ns, self._clock
        state = load_state(ns.store, watermark)
        live = read_live_state(state)
        machine.replay(state, tail)
        step_log = StepLog(
            ns.files, namespace_id, reader.step, reader.identity, new_id, clock.steady_ms, self._crash_point
        )
        store_ms, removing = ns.files.time_ms(), Lock()
        time = StepTime(clock, store_ms, state.now_ms)
        self._watching.submit(_remove_abandoned_times, ns.files, store_ms)
        data_files = DataFileMerger(ns.store, ns.config, clock, self._new_file_id, removing, self._crash_point)
        housekeeping = Housekeeping(
            ns.files, ns.config, clock, watermark, time.now_ms, data_files, self._crash_point, live
        )
        final_table = FinalTable(ns.files, ns.config, clock, self._new_file_id, self._crash_point)
        projector = Projector(ns.store, watermark, housekeeping, final_table, clock.steady_ms, self._crash_point)
        pending_file = CurrentPendingFile(self._new_file_id, ns.config.number("journal.rows.max.bytes"))
        overdue = OverdueMembers(OverdueNotes(ns.files), clock)
        background = BackgroundProjection(
            step_log,
            pending_file,
            housekeeping,
            projector,
            Sampler(state, overdue.list_keys),
            self._projecting,
            clock,
            ns.config,
            tail,
        )
        return Term(
            state,
            step_log,
            namespace_id,
            pending_file,
            background,
            time,
            Attendance(Beats(ns.files), overdue, clock, self._watching),
            TargetAssignments(self._watching, self._plug_ins, ns.config.ms("assignor.timeout.ms") / 1000),
            self._make_delay_queue(state),
            self._make_retention_search(),
            DyingSearch(partial(find_dying, ns.store, self._new_file_id), self._watching, clock, removing),
            self._make_finalizing(),
            final_table.compaction,
            current_at_ms=steady_ms,
            expire_at_ms=steady_ms,
            all_seen_at_ms=steady_ms,
        )

    def _make_delay_queue(self, state: State) -> DelayQueue:
        config = self._ns.config
        return DelayQueue(
            delays=state.delays,
            read=partial(read_due_runs, self._ns.files),
            executor=partial(Workers, 1, "lakemq-due"),
            clock=self._clock,
            ahead_ms=config.ms("delay.load.ahead.ms"),
            max_released=config.number("release.max.ranges"),
            max_held_runs=config.number("delay.load.max.ranges"),
        )

    def _make_finalizing(self) -> Finalizing:
        writer = FinalFileWriter(self._ns.store, self._new_file_id, self._crash_point)
        interval_ms = self._ns.config.ms("final.interval.ms")
        return Finalizing(writer.write, self._finalizing, self._clock, interval_ms, self._wake)

    def _make_retention_search(self) -> RetentionSearch:
        interval_ms = self._ns.config.ms("retention.check.interval.ms")
        return RetentionSearch(partial(find_outgrown, self._ns.store), self._watching, self._clock, interval_ms)


def _remove_abandoned_times(files: Files, now_ms: int) -> None:
    """Remove what killed processes have left of looks at the store's time. On a disk they leave nothing."""
    if isinstance(files, LocalFiles):
        return
    try:
        remove_abandoned_times(files, now_ms)
    except OSError as error:
        log.warning("Objects time-... of killed processes may be left behind: %s", error)
