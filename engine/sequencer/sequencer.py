"""The sequencer: take the waiting letters, decide them together, append one step to the log, answer them.

A step goes from letters to answers in this order:

1. Take letters, from lines and from the mailbox, each client's in the order of its numbers (`intake`).
2. Prepare: write the rows that came in letters to a data file, or keep them for the step; read the footers of
   the data files that requests name (`step_decider`). All I/O that a decision needs happens here.
3. Decide (there, too): the pure core turns each request into records and a result, and folds the records into the
   state. Observations of the leader, timers and due messages follow in the same step.
4. Append the step to the log, as one object. The projection gets the step too.
5. Answer each letter: on the line it came on, or by an answer in the mailbox, from which it is then deleted.
6. If it is time, begin to project all steps that have landed, in another thread.

Invariants. A letter is answered only after its step has landed: the step's object is put, and the step before it is
still the one that was read. The state in memory is the fold of all steps. If anything fails on the way, leadership is
in doubt: the sequencer throws the state away and loads it again. A process may be killed anywhere: a letter without a
answer is still in the mailbox, or its client puts it there when the line ends. If it is taken again, its number tells
whether it was decided.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from lakemq.tables.storage.coordination.leader_locks import LeaderLocks
from lakemq.tables.storage.coordination.mailbox import Mailbox
from lakemq.tables.storage.coordination.step_objects import StepsGone
from lakemq.tables.storage.delta.store import Store
from lakemq.tables.storage.native_calls import Workers
from lakemq.tables.storage.object_stores.files import LocalFiles
from lakemq.tables.storage.object_stores.inotify import Watch

from ..namespace import crash
from ..namespace.clock import Clock
from ..namespace.config import build_limits
from ..namespace.line_frames import read_line_settings
from ..namespace.namespace import Namespace
from ..namespace.process import ProcessBound
from ..namespace.step_reader import StepReader, follow_from_watermark
from ..namespace.store_errors import RemovedNamespace, report_damage
from ..protocol import machine
from ..protocol.errors import NotLeader, StepTooOld
from ..protocol.rows.clients import create_state
from ..protocol.rules.clients import decide_resign, decide_take_over, may_lead
from ..protocol.rules.timers import Time
from ..protocol.rules.transactions import has_unobserved_timeout
from ..protocol.values.state import State
from .letters.answers import Answers
from .letters.intake import Intake, ListingPace, Quarantine, StepLetters
from .letters.line_opener import open_term_lines, remove_old_lines
from .step_decider import Observation, StepDecider, StepPreparer
from .term import Term, TermFactory

log = logging.getLogger("lakemq.serve")

# Stand by: follow who leads, and for how long no step came, by this process's own steady clock.
#
# A lease is not a time in a step: clocks of machines differ. A standby waits until it has itself seen no step for a
# whole lease. The leader renews the lease after a third of it. Even a wrong guess does no harm: putting the step of the
# take-over decides who leads (see `step_log`).


class Standby:
    """Follows the heads of steps. If there is no new step, this costs one request, for an object that is missing.

    Attributes:
        state: only the lease; everything else is left out.
        has_seen_life: whether a step came while this process looked, so that its leader is alive.
    """

    def __init__(self, store: Store, clock: Clock, is_dead: Callable[[str], bool] = lambda leader: False) -> None:
        """is_dead: returns whether a leader's process has certainly ended, so that its lease need not run out."""
        self._store, self._clock, self._is_dead = store, clock, is_dead
        self.has_seen_life = False
        self._still_since_ms = clock.steady_ms()
        self._reader: StepReader | None = None
        self.state = State()

    @property
    def step(self) -> int | None:
        """The last step that was seen."""
        return self._reader.step if self._reader else None

    @property
    def lease_left_ms(self) -> int:
        """How long the lease still runs if no step comes."""
        return self._still_since_ms + self.state.lease_ms - self._clock.steady_ms()

    def forget(self) -> None:
        """Start over: what was seen may be wrong. A step counts as just seen."""
        self._reader = None

    def may_lead(self, name: str | None) -> bool:
        """Follow the steps, then return whether `name` may try to take the lease.

        None: as a process that never had it.
        """
        moved = self._follow()
        now_ms = self._clock.steady_ms()
        if moved:
            self._still_since_ms = now_ms
        if may_lead(self.state, name, now_ms - self._still_since_ms):
            return True
        if self._is_dead(self.state.leader):
            log.info("%s has ended without handing over its lease, which is not waited for", self.state.leader)
            return True
        return False

    def _load(self) -> StepReader:
        watermark, reader = follow_from_watermark(self._store, self._clock.steady_ms)
        self.state = create_state(watermark)
        self._read_heads(reader)
        return reader

    def _follow(self) -> bool:
        """Read the new heads. Return whether there were any, or everything had to be loaded."""
        if self._reader is None:
            self._reader = self._load()
            return True
        try:
            moved = self._read_heads(self._reader)
        except StepsGone:
            self._reader = self._load()
            return True
        self.has_seen_life |= moved
        return moved

    def _read_heads(self, reader: StepReader) -> bool:
        heads = reader.read_heads()
        if heads:
            last, state = heads[-1], self.state
            state.step, state.now_ms = last.step, last.decided_at_ms
            state.leader, state.leader_epoch, state.lease_ms = last.leader, last.leader_epoch, last.lease_ms
        return bool(heads)


# The sequencer itself.


EXPIRY_INTERVAL_MS = 10_000
STANDBY_MS = 200
"""Shortest time between two looks of a standby."""
MAX_FAILED_TERMS = 3
"""Terms in a row in which no step landed. After these the sequencer waits for its own lease to run out like any other
process. So another one, for which the store may work, can lead.
"""

MAX_BACKLOG_MS = 10_000
"""How long unread letters hold up timeouts. A longer backlog no longer protects a transaction from its timeout."""


@dataclass(frozen=True)
class StepReport:
    """The work of one step, and when the next one is worthwhile.

    Attributes:
        step: number of the newest step. Without work no new one is decided.
        letters: how many letters it took and decided.
        backlog: more letters wait.
        is_watching: something is overdue, but the leader must observe it longer before it counts: the timeout of a
            transaction, or the gap before a letter. Or messages that become final are being written.
        working: work goes on between the steps, or the next step has some: an assignment is being computed or must
            still move, or due messages must still be released.
        due_in_ms: time until members must be checked, a delay of a group ends, or a message is due. None: unknown.
        observation_left_ms: how long members that seem dead must still be watched. 0: no member seems dead.
    """

    step: int
    letters: int
    backlog: bool
    is_watching: bool
    working: bool = False
    due_in_ms: float | None = None
    observation_left_ms: int = 0


class Sequencer(ProcessBound):
    """Decides requests while it leads. A namespace may have several sequencers; at most one of them leads.

    Not thread-safe: one thread calls `try_lead`, `step` and `resign`.
    """

    def __init__(
        self,
        namespace: Namespace,
        name: str,
        clock: Clock,
        new_file_id: Callable[[], int],
        crash_point: crash.CrashPoint = crash.nowhere,
        background: Executor | None = None,
        locks: LeaderLocks | None = None,
        has_lines: bool = False,
    ) -> None:
        """Create a sequencer that does not lead yet.

        Args:
            new_file_id: returns a random id for a data file.
            background: writes projections. By default the sequencer has threads of its own.
            locks: tell which leaders' processes have ended. Without them, a lease that is not renewed must run out.
            has_lines: whether clients may connect to it while it leads. `news` is set when a letter came on a line,
                and when messages that become final are written.
        """
        self.news = threading.Event()
        self._has_lines = has_lines
        self._line_settings = read_line_settings(namespace.config) if has_lines else None
        self._ns, self.name, self._clock, self._crash_point = namespace, name, clock, crash_point
        self._owns_executor = background is None
        self._executor = background or Workers(1, "lakemq-projector")
        # not the namespace's mailbox: this one remembers its listing
        self._mailbox = Mailbox(namespace.files)
        # on a disk, listing costs next to nothing
        pace = None if isinstance(namespace.files, LocalFiles) else ListingPace(clock)
        self._intake = Intake(self._mailbox, namespace.config, clock, pace)
        timeout_ms, max_age_ms = map(namespace.config.ms, ("step.timeout.ms", "publish.max.duration.ms"))
        self._preparer = StepPreparer(namespace.files, new_file_id, timeout_ms, max_age_ms)
        # a thread of its own: sweeping may take long, and must not hold up projections
        self._sweeper = background or Workers(1, "lakemq-sweeper")
        self._answers = Answers(self._mailbox, self._intake, clock, self._sweeper, crash_point)
        # threads that read heartbeats, search tables and compute assignments, while steps go on
        self._observers = background or Workers(2, "lakemq-watch")
        self._finalizer = background or Workers(1, "lakemq-final")
        self._term_factory = TermFactory(
            namespace, clock, new_file_id, self._executor, self._observers, self._finalizer, crash_point, self.news.set
        )
        self._limits = build_limits(namespace.config)
        quarantine = Quarantine(namespace.files, self._mailbox)
        self._decider = StepDecider(self._preparer, quarantine, self._limits, clock, crash_point)
        self._locks = locks or LeaderLocks(None)
        self._standby = Standby(namespace.store, clock, self._locks.is_dead)
        self._removal = RemovedNamespace(namespace.files)
        self._term: Term | None = None
        self._failures = 0

    @property
    def leads(self) -> bool:
        return self._term is not None

    @property
    def state(self) -> State:
        """The state that it decides on. For a standby it only says who leads."""
        term = self._term  # another thread may read this while the sequencer steps down
        return term.state if term else self._standby.state

    @property
    def compaction_due_since_ms(self) -> int | None:
        """Since when a topic waits for its compaction, in time of steps; None: none does, or it does not lead."""
        term = self._term
        return term.compaction.due_since_ms if term else None

    @property
    def standby_ms(self) -> int:
        """How long to rest between two looks while another one leads.

        On an object store each look is a request. There are four in a lease there, and one when it has run out. So a
        step is seen a quarter of a lease after it was put, at most, and nothing else delays the take-over.
        """
        if isinstance(self._ns.files, LocalFiles):
            return STANDBY_MS
        return max(STANDBY_MS, min(self._standby.state.lease_ms // 4, self._standby.lease_left_ms + 1))

    @property
    def has_seen_life(self) -> bool:
        """Whether another leader has decided something, or renewed its lease, while this one stood by."""
        return self._standby.has_seen_life

    def watch_letters(self) -> Watch | None:
        """Return a watch on new letters. None: the mailbox has no folder yet, or the system cannot watch it."""
        return self._mailbox.watch_letters()

    @property
    def lease_left_ms(self) -> int:
        """How long the lease of the leader still runs if it puts no step."""
        return self._standby.lease_left_ms

    def try_lead(self) -> bool:
        """Take the lease if it is free, or its own, or its holder has died or has put no step for a whole lease.

        After MAX_FAILED_TERMS failed terms in a row, the lease does not count as its own: another process may do
        better.

        Returns:
            Whether this sequencer leads.

        Raises:
            StorageError: the store failed. Try again later.
            NamespaceError: the namespace is gone.
        """
        if self._term is not None:
            return True
        try:
            with self._removal.explain_errors():
                name = self.name if self._failures < MAX_FAILED_TERMS else None
                self._term = self._take_over() if self._standby.may_lead(name) else None
        except (NotLeader, StepTooOld, StepsGone):
            self._standby.forget()
        except BaseException:
            self._standby.forget()
            raise
        return self.leads

    def _take_over(self) -> Term | None:
        """Begin a term. Return None if another sequencer has put a step meanwhile.

        Raises:
            NotLeader: another sequencer put its step first.
            StepTooOld, StepsGone: another sequencer has merged the tables or removed steps meanwhile.
        """
        with report_damage(self._ns.store):
            term = self._term_factory.begin(self._standby.step)
        if term is not None:
            try:
                self._open_term(term)
            except BaseException:
                term.end_threads()
                raise
        return term

    def _open_term(self, term: Term) -> None:
        """Take the lease, and open the lines.

        The take-over is itself a step: it names the new leader and a higher epoch. It fences the leader before: the
        name of that one's next step is taken now, so it fails and steps down.
        """
        lease_ms = self._ns.config.ms("lease.ms")
        # hold the lock before a step names this leader: a standby that reads the name then finds the lock
        self._locks.hold(self.name)
        self._decider.decide(term, StepLetters(), [decide_take_over(term.state, self.name, lease_ms)])
        files, epoch, settings = self._ns.files, term.state.leader_epoch, self._line_settings
        self._removal.note_term(term.namespace_id, epoch)
        self._crash_point("sequencer.elected")
        self._locks.remove_dead()
        remove_old_lines(files, epoch)
        if self._has_lines:
            lines = open_term_lines(
                files, term.namespace_id, epoch, lease_ms, term.current_at_ms, self.news, self._clock, settings
            )
            term.use_lines(lines)

    def _step_down(self) -> None:
        term, self._term = self._term, None
        self._standby.forget()
        if term is not None:
            term.end_threads()

    def resign(self) -> bool:
        """Project all decided steps and give the lease back, so that the next leader need not wait for it to run out.

        The sequencer is unusable afterwards.

        Returns:
            Whether it led until now, and has given the lease back.

        Raises:
            StorageError, NamespaceError: as `step`. The lease runs out by itself.
        """
        try:
            # NotLeader: another sequencer has the lease already
            with suppress(NotLeader), self._removal.explain_errors():
                if self._term is not None:
                    self._hand_over(self._term)
                    return True
            return False
        finally:
            self._step_down()
            self._locks.release()
            self._preparer.close()
            if self._owns_executor:
                for executor in (self._executor, self._sweeper, self._observers, self._finalizer):
                    executor.shutdown(wait=False, cancel_futures=True)

    def _hand_over(self, term: Term) -> None:
        # first let clients put their letters into the mailbox: the next leader decides them
        term.close_lines()
        # Give the lease back last, so that the next leader does not meet our projector. The leader before may still
        # project its last step, and the next one this leader's. Neither ends a term: only the log says who leads.
        with suppress(NotLeader):
            term.background.drain(term.state)
        self._decider.decide(term, StepLetters(), [decide_resign(term.state)])
        self._crash_point("sequencer.resigned")
        with suppress(NotLeader):
            term.background.drain(term.state)

    def make_retention_due(self) -> None:
        """Let the next step look for messages that retention deletes, if this sequencer leads."""
        if self._term is not None:
            self._term.retention.make_due()

    def step(self) -> StepReport:
        """Decide the waiting letters and everything that is due.

        Returns:
            What the step did.

        Raises:
            NotLeader: another sequencer has taken over.
            StorageError, NamespaceError: the store failed, or the namespace is gone.

        After an error this sequencer does not lead any more, and no wrong answer was written. It may try to lead again.
        """
        term = self._term
        if term is None:
            raise NotLeader("This sequencer does not lead.", found=self.state.leader)
        began_ms, before = self._clock.steady_ms(), term.state.step
        try:
            with self._removal.explain_errors():
                report = self._step(term)
        except BaseException as error:
            self._failures += not isinstance(error, NotLeader)
            self._step_down()
            raise
        self._failures = 0
        if report.step > before:
            term.background.sampler.took_ms.append(self._clock.steady_ms() - began_ms)
        return report

    def _step(self, term: Term) -> StepReport:
        term.background.finish_if_done()
        drained_at_ms = self._clock.steady_ms() if term.lines is None else term.lines.take_drain()
        lines = None if term.lines is None else term.lines.table
        letters = self._intake.take_letters(
            term.state, term.namespace_id, lambda: self._decider.give_sign_of_life(term), lines
        )
        self._crash_point("sequencer.letters_taken")
        due = self._find_due(term, letters, drained_at_ms)
        renewal = self._decider.build_renewal_if_due(term)
        now_ms = term.time.store_ms()
        outgrown = term.retention.take_outgrown(term.state, min(now_ms, term.time.now_ms()))
        findings = term.dying_search.take_findings(term.state)
        observations: list[Observation] = [
            *term.targets.take_targets(),
            *term.attendance.find_silent_members(term.state),
            *outgrown,
            *findings,
            *term.finalizing.take_written(term.state),
        ]
        term.delay_queue.read_ahead(term.state.delays, now_ms)
        has_work = letters.taken or renewal or due or observations or term.state.list_moving_groups()
        recurring = self._decider.find_recurring(term)
        is_due = bool(has_work or recurring) or term.delay_queue.is_due(now_ms)
        entries = self._decider.decide(term, letters, renewal, due, observations, recurring) if is_due else []
        term.targets.start_missing(term.state)
        # No client waits for a projection, so the answers come first.
        pace = partial(self._decider.yield_between_signs_of_life, term)
        self._answers.send(term.state, lines, letters, entries, pace, term.announce_step)
        self._log_step(term, letters)
        self._answers.sweep_if_due(term.state)
        term.background.project_if_due(term.state, lambda: self._decider.give_sign_of_life(term))
        term.delay_queue.pack(term.state.delays, term.background.planned_step)
        time = self._decider.make_time(term, term.time.now_ms())
        return StepReport(
            step=term.state.step,
            letters=len(letters.taken),
            backlog=letters.backlog,
            is_watching=letters.gaps or has_unobserved_timeout(term.state, time) or term.finalizing.is_working,
            working=term.is_working,
            due_in_ms=term.due_in_ms(),
            observation_left_ms=term.attendance.observation_left_ms(term.state),
        )

    def _find_due(self, term: Term, letters: StepLetters, drained_at_ms: int | None) -> list[machine.DueTimer]:
        """Return the timers that this step must decide.

        drained_at_ms: everything that had arrived on lines by this time was read. None: unread letters may be there.
        """
        steady_ms = self._clock.steady_ms()
        all_seen = not (letters.repeated or letters.backlog)
        if all_seen and not letters.is_mailbox_skipped:
            term.all_seen_at_ms = steady_ms
        elif not all_seen and steady_ms - term.all_seen_at_ms < MAX_BACKLOG_MS:
            return []  # let nothing time out while a letter that was sent in time may be waiting
        # forget no client while one of its decided letters is undeleted: the letter would be decided again
        expire = steady_ms >= term.expire_at_ms and all_seen and not letters.undeleted
        # Judge timers as of the drain, however long a step takes: a pause of this process after the drain must not
        # let a deadline pass before letters that were sent in time.
        age_ms = 0 if drained_at_ms is None else steady_ms - drained_at_ms
        time = Time(term.time.now_ms() - age_ms, steady_ms - age_ms, self._limits, term.observed_waits)
        due = machine.find_due(term.state, time, expire)
        due = [timer for timer in due if timer not in term.failed_due]
        if due and term.lines is not None and (drained_at_ms is None or letters.is_mailbox_skipped):
            # the next step comes when the drain has ended, lists the mailbox, and decides them
            term.lines.request_drain()
            self._intake.request_listing()
            return []
        if expire:
            term.expire_at_ms = steady_ms + EXPIRY_INTERVAL_MS
        return due

    def _log_step(self, term: Term, letters: StepLetters) -> None:
        if letters.taken and log.isEnabledFor(logging.DEBUG):
            requests = [f"{opened.name.client_id}/{opened.name.number}" for opened in letters.taken]
            fields = {"step": term.state.step, "letters": len(requests), "requests": requests}
            log.debug("step %d decided %d letters", term.state.step, len(requests), extra=fields)
