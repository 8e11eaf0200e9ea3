"""A term: what a sequencer has only while it leads; thrown away as a whole when leadership is in doubt."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from lakemq.tables.storage.beats import Beats
from lakemq.tables.storage.workers import Workers

from ..maintenance.data_files import DataFiles
from ..maintenance.dying import find_dying
from ..maintenance.housekeeping import Housekeeping
from ..maintenance.retention import outgrown
from ..maintenance.trimming import living
from ..namespace import crash
from ..namespace.clock import Clock
from ..namespace.due_times import read_runs
from ..namespace.load import load_state, read_watermark
from ..namespace.namespace import Namespace
from ..namespace.process import no_collecting
from ..protocol import machine
from ..protocol.rules.patience import Patience
from ..protocol.values.state import State
from .assigning import PlugInThreads
from .attendance import Attendance
from .background import Background
from .dead_letters import DeadLetters
from .journal import Journal
from .pending import Pending
from .projector import Projector
from .retention import Retention
from .slots import Slots
from .step_time import StepTime
from .targets import Targets


@dataclass
class Term:
    """state: the fold of the journal up to the version of `journal`; current_at_ms: when that was known to be the
    newest; expire_at_ms: when to look next for who has expired. A term begins with it: many a one is over in seconds;
    all_seen_at_ms: when no letter was left that had not been looked at; given_up: what was due and met an error nobody
    foresaw.
    """

    state: State
    journal: Journal
    pending: Pending
    background: Background
    time: StepTime
    attendance: Attendance
    targets: Targets
    slots: Slots
    retention: Retention
    dead_letters: DeadLetters
    current_at_ms: int
    expire_at_ms: int
    all_seen_at_ms: int
    patience: Patience = field(default_factory=Patience)
    given_up: set[machine.Due] = field(default_factory=set)

    @property
    def is_working(self) -> bool:
        """Whether the next step goes on, or is to decide of what is computed or looked for beside the steps."""
        looks = self.retention.is_working or self.dead_letters.is_working(self.state)
        is_computing = self.targets.is_working or looks or self.slots.is_working(self.time.store_ms())
        return is_computing or bool(self.state.moving_on())

    def due_in_ms(self) -> float | None:
        """Until there is something to do without a letter; None: nothing is known of."""
        now_ms = self.time.now_ms()
        waiting = (self.state.groups[name] for name in self.state.waiting_groups)
        deadlines = (at_ms - now_ms for group in waiting for at_ms in group.deadlines())
        looks = (
            self.attendance.due_in_ms(self.state),
            self.slots.due_in_ms(self.time.store_ms()),
            self.retention.due_in_ms(),
            self.dead_letters.due_in_ms(self.state),
        )
        return min((one for one in (*looks, *deadlines) if one is not None), default=None)


class Terms:
    """Makes terms of what is stored."""

    def __init__(
        self,
        namespace: Namespace,
        clock: Clock,
        new_file_id: Callable[[], int],
        projecting: Executor,
        watching: Executor,
        reached: crash.Reached,
    ) -> None:
        """projecting, watching: where projections are written, and where the leader looks and computes."""
        self._ns, self._clock, self._new_file_id, self._reached = namespace, clock, new_file_id, reached
        self._projecting, self._watching = projecting, watching
        self._plug_ins = PlugInThreads()

    def begin(self, version: int | None) -> Term | None:
        """The state as stored: projections at the watermark, then the journal's tail; None: the journal is not at this
        version any more. Raises StepTooOld.
        """
        steady_ms = self._clock.steady_ms()
        journal = Journal(self._ns.store, self._reached)
        if journal.version != version:
            return None
        with no_collecting():
            return self._begun(journal, steady_ms)

    def _begun(self, journal: Journal, steady_ms: int) -> Term:
        ns, clock = self._ns, self._clock
        journal.sync()
        watermark = read_watermark(ns.store)
        state = load_state(ns.store, watermark)
        then = living(state)
        tail = journal.steps_after(watermark.step)
        machine.replay(state, tail)
        time, removing = StepTime(clock, ns.files.time_ms(), state.now_ms), Lock()
        data_files = DataFiles(ns.store, ns.config, clock, self._new_file_id, removing, self._reached)
        housekeeping = Housekeeping(ns.files, ns.config, clock, watermark, time.now_ms, data_files, self._reached, then)
        projector = Projector(ns.store, housekeeping, self._reached)
        pending = Pending(ns.files, self._new_file_id, ns.config.number("journal.rows.max.bytes"))
        background = Background(
            ns.store, journal, pending, housekeeping, projector, self._projecting, clock, ns.config, tail
        )
        return Term(
            state,
            journal,
            pending,
            background,
            time,
            Attendance(Beats(ns.files), clock, self._watching),
            Targets(self._watching, self._plug_ins, ns.config.ms("assignor.timeout.ms") / 1000),
            self._slots(state),
            self._retention(),
            DeadLetters(partial(find_dying, ns.store), self._watching, clock, removing),
            current_at_ms=steady_ms,
            expire_at_ms=steady_ms,
            all_seen_at_ms=steady_ms,
        )

    def _slots(self, state: State) -> Slots:
        config = self._ns.config
        ahead_ms, most = config.ms("delay.load.ahead.ms"), config.number("release.max.ranges")
        bounds = ahead_ms, most, config.number("delay.load.max.ranges")
        read = partial(read_runs, self._ns.files)
        return Slots(state.delays, read, partial(Workers, 1, "lakemq-due"), self._clock, *bounds)

    def _retention(self) -> Retention:
        interval_ms = self._ns.config.ms("retention.check.interval.ms")
        return Retention(partial(outgrown, self._ns.store), self._watching, self._clock, interval_ms)
