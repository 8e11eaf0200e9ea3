"""Keep a sequencer going: lead or stand by, step, rest. At the end, finish the step and hand over the lease.

A watchdog sees to a sequencer that is stuck in a step.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NamedTuple

from ..namespace.at_exit import HOOKS, Stage
from ..namespace.clock import Clock, FolderWaiter
from ..namespace.config import EngineConfig
from ..namespace.process import ProcessBound
from ..protocol.errors import NamespaceError, NotLeader, StorageError, TableDamaged, UnknownServerError
from .sequencer import STANDBY_MS, Sequencer, StepReport
from .step_decider import StepDurations

log = logging.getLogger("lakemq.serve")

# The watchdog: replace a sequencer that is stuck in a step for an unexpected reason.
#
# A stuck sequencer puts no step, so it does not renew its lease. When the lease has run out, another sequencer leads,
# in this process or in another one. If the stuck one ever continues, it cannot put a step, because its name is taken.
# It writes no answer, and ends. A sequencer that puts steps during a long wait, to renew its lease, is not stuck.


CHECKS_PER_TIMEOUT = 20
"""Checks within one timeout. If the whole process was stopped, that counts as one check only."""

MAX_REPLACED = 5
"""After so many replacements, no further sequencer is started: the cause is not an accident."""


RunWorker = Callable[[Callable[[], bool], Callable[[bool], None]], None]
"""Work until the first argument returns True; call the second with True when a step begins and False when it ends."""


class _Worker:
    """A thread, with the number of checks during which it has been in the same step."""

    def __init__(self, run: RunWorker, number: int) -> None:
        self.given_up, self._is_working, self._steps, self._looks = threading.Event(), False, 0, 0
        self._seen = 0, 0
        self.thread = threading.Thread(
            target=run, args=(self.given_up.is_set, self._note_step), name=f"lakemq-sequencer-{number}", daemon=True
        )

    def _note_step(self, is_working: bool) -> None:
        self._is_working, self._steps = is_working, self._steps + 1

    def is_stuck(self, step_number: int) -> bool:
        """Check once more, and return whether the thread has been in the same step for too long.

        step_number: number of the last step that it has begun to put.
        """
        seen = self._steps, step_number
        same = self._is_working and self._seen == seen
        self._looks, self._seen = self._looks + 1 if same else 0, seen
        return self._looks > CHECKS_PER_TIMEOUT and self.thread.is_alive()


class Watchdog:
    """Keeps one worker going."""

    def __init__(
        self,
        run: RunWorker,
        read_step: Callable[[], int],
        renew: Callable[[], None],
        fail: Callable[[str], None],
        timeout_ms: int,
    ) -> None:
        """Watch a worker, which `start` starts.

        Args:
            run: the worker's work.
            read_step: returns the number of the last step that the worker has begun to put.
            renew: called before another worker begins.
            fail: called after too many.
            timeout_ms: how long a worker may go on without putting a step.
        """
        self._run, self._read_step, self._timeout_ms = run, read_step, timeout_ms
        self._renew, self._fail = renew, fail
        self._replaced_count = 0
        self._worker = _Worker(run, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lakemq-watchdog", daemon=True)

    def start(self) -> None:
        self._worker.thread.start()
        self._thread.start()

    def stop(self, ended: threading.Event) -> None:
        """Wait until the worker has ended, no longer than a step may take."""
        if not ended.wait(self._timeout_ms / 1000):
            log.error("%s is stuck, and is left running.", self._worker.thread.name)
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._timeout_ms / 1000 / CHECKS_PER_TIMEOUT):
            if self._worker.is_stuck(self._read_step()):
                if self._replaced_count == MAX_REPLACED:
                    return self._fail(f"{MAX_REPLACED} sequencers of this process are stuck; the log says where.")
                self._replace()

    def _replace(self) -> None:
        stuck = self._worker
        frame = sys._current_frames().get(stuck.thread.ident or 0)
        stack = "".join(traceback.format_stack(frame))
        log.critical("A step takes longer than %d ms; another sequencer takes over from\n%s", self._timeout_ms, stack)
        stuck.given_up.set()
        self._replaced_count += 1
        try:
            self._renew()
        except Exception as error:  # for example, because the connection is being closed
            self._fail(f"A sequencer is stuck, and no other can be made: {error}")
            self._stop.set()
            return
        self._worker = _Worker(self._run, self._replaced_count)
        self._worker.thread.start()


# Keep a sequencer going: lead or stand by, step, rest.


OWN_LETTERS_MS = 5_000
"""How long `Serving.close` goes on deciding requests of its own connection. Usually that is one step."""
EXIT_TIMEOUT_S = 10.0
"""How long the exit may take to hand over the lease: as long as the lease itself by default."""
SHORTEST_RETRY_MS = 200
LONGEST_RETRY_MS = 5_000
_SHORTEST_REST_MS = 1.0
_SHORTEST_WAKEABLE_REST_MS = 5.0
"""Rest after a step with letters, where the next letter ends the rest. If it were shorter, there would be steps without
work between the letters of a busy client. Each costs a third of a step.
"""
_QUICK_LOOKS = 4
"""Number of steps after a letter that look for the next letter without a longer pause. A client that waits for each
answer reads it and puts its next letter within two requests to a store, so one of these steps finds that letter.
"""
_REPORT_FROM_MS = 1_000
"""`step_until_idle` logs the reason of a wait that is longer than this."""


def serve(
    sequencer: Sequencer,
    config: EngineConfig,
    clock: Clock,
    stopped: Callable[[], bool],
    working: Callable[[bool], None] = lambda _: None,
    durations: StepDurations | None = None,
) -> bool:
    """Lead when possible, step at most every engine.tick.ms, and rest longer while nothing comes, until `stopped`.

    Errors of the store (no space left, read-only, gone for a while) are logged. The step is tried again after a pause
    that grows; requests wait meanwhile. A failure that repeats has a stack trace only the first time. An error that
    does not pass by itself, such as a missing file, is raised unless it is the first failure or a step has succeeded.
    That the namespace is gone is raised when the next try finds the same.

    Args:
        stopped: returns whether to end.
        working: called with True when a step begins, with False when it ends.
        durations: counts the steps by how long they take.

    Returns:
        Whether it led at the end and has handed over the lease.
    """
    durations = durations or StepDurations()
    waiter = FolderWaiter(sequencer.watch_letters, clock, sequencer.news)
    pace, retry_ms, pause_ms, has_worked, last_failure = _Pace(config), SHORTEST_RETRY_MS, 0, False, ""
    try:
        while not stopped():
            try:
                working(True)
                try:
                    rest = _lead_and_step(sequencer, pace, clock, waiter, durations)
                finally:
                    working(False)
            except NotLeader as lost:
                log.warning("%s stands by: %s", sequencer.name, lost)
                continue
            except Exception as error:
                # Do not give up after one failure: this process may have been stopped for long while it first read the
                # namespace. The file that it was about to read is gone then, and the next try reads the present ones.
                is_gone = isinstance(error, NamespaceError) and retry_ms > SHORTEST_RETRY_MS
                if is_gone or (last_failure and not has_worked and not _may_pass(error)):
                    raise
                failure = f"{type(error).__name__}: {error}"
                # a failure of the projection repeats although steps succeed between
                pause_ms = max(retry_ms, min(2 * pause_ms, LONGEST_RETRY_MS)) if failure == last_failure else retry_ms
                log.error(
                    "%s has failed, and tries again in %d ms: %s",
                    sequencer.name,
                    pause_ms,
                    error,
                    exc_info=not _is_self_explanatory(error) and failure != last_failure,
                )
                last_failure = failure
                clock.sleep(pause_ms)
                retry_ms = min(2 * retry_ms, LONGEST_RETRY_MS)
                continue
            has_worked, retry_ms = True, SHORTEST_RETRY_MS
            if rest.pause_ms:
                clock.sleep(rest.pause_ms)
            if rest.ms:
                waiter.wait(rest.poll_ms, rest.ms)
    finally:
        waiter.close()
        has_handed_over = _resign(sequencer)
    return has_handed_over


class _Rest(NamedTuple):
    """The rest after a step: pause_ms, which nothing shortens, then ms, which a new letter ends.

    poll_ms: replaces ms where the system does not tell of new letters.
    """

    pause_ms: float = 0.0
    ms: float = 0.0
    poll_ms: float = 0.0


def _lead_and_step(
    sequencer: Sequencer, pace: _Pace, clock: Clock, waiter: FolderWaiter, durations: StepDurations
) -> _Rest:
    if not sequencer.leads:
        if not sequencer.try_lead():
            return _Rest(pause_ms=sequencer.standby_ms)
        state = sequencer.state
        log.info("%s leads with epoch %d", sequencer.name, state.leader_epoch, extra={"step": state.step})
    started_ms = clock.steady_ms()
    waiter.reset()
    report = sequencer.step()
    took_ms = clock.steady_ms() - started_ms
    durations.add(report.step, report.letters, took_ms)
    poll_ms = pace.rest_after_ms(report, took_ms)
    if not report.letters:
        return _Rest(ms=pace.idle_ms(report), poll_ms=poll_ms)
    waiter.note_arrival()
    if report.backlog:
        return _Rest()
    # the step has listed the letters after the reset, so a letter that came later ends the wait at once
    return _Rest(pause_ms=poll_ms, ms=pace.idle_ms(report))


class _Pace:
    """How long to rest between two steps."""

    def __init__(self, config: EngineConfig) -> None:
        self._tick_ms, self._idle_ms = config.ms("engine.tick.ms"), config.ms("engine.idle.ms")
        self._rest_ms, self._wakeable_rest_ms = _SHORTEST_REST_MS, _SHORTEST_WAKEABLE_REST_MS
        self._quick_looks_left = 0

    def rest_after_ms(self, report: StepReport, took_ms: float) -> float:
        """Return how long to rest after the step where new letters are not reported, and lengthen the next rest."""
        if report.letters:
            self._rest_ms, self._wakeable_rest_ms = _SHORTEST_REST_MS, _SHORTEST_WAKEABLE_REST_MS
            self._quick_looks_left = _QUICK_LOOKS
            return 0.0 if report.backlog else max(0.0, self._tick_ms - took_ms)
        # the first requests after a pause should not wait: let the rest grow slowly
        self._rest_ms = min(self._idle_ms, self._rest_ms * 1.02 + 0.01)
        rest_ms = max(self._rest_ms, self._tick_ms - took_ms)
        if self._quick_looks_left:
            self._quick_looks_left -= 1
        else:
            # A step that finds nothing and takes long is a request to a store. Spend at most half of the time on these.
            rest_ms = max(rest_ms, took_ms)
        return _until_due(report, min(self._idle_ms, rest_ms))

    def idle_ms(self, report: StepReport) -> float:
        """Return how long to rest after the step where a new letter ends the rest, and lengthen the next rest.

        It grows fast, because letters need not wait for its end. It begins short, because other work may: it often
        follows soon after a step.
        """
        self._wakeable_rest_ms = min(self._idle_ms, 1.5 * self._wakeable_rest_ms)
        return _until_due(report, self._wakeable_rest_ms)


def _until_due(report: StepReport, rest_ms: float) -> float:
    """Return the rest, cut so that it ends when something is due."""
    if report.working:
        return min(rest_ms, 1.0)
    return rest_ms if report.due_in_ms is None else min(rest_ms, max(1.0, report.due_in_ms))


def _resign(sequencer: Sequencer) -> bool:
    try:
        return sequencer.resign()
    except Exception as error:
        text = "%s could not hand over its lease, which runs out by itself: %s"
        log.error(text, sequencer.name, error, exc_info=not _is_self_explanatory(error))
        return False


def _may_pass(error: Exception) -> bool:
    """Return whether the store may recover without a repair of the namespace or of this process."""
    cause = error.__cause__ if isinstance(error, StorageError) else error
    return isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError | PermissionError)


def _is_self_explanatory(error: Exception) -> bool:
    """Return whether the error's message says everything, so that the log needs no stack trace."""
    return isinstance(error, StorageError | NamespaceError | TableDamaged)


def wait_to_lead(sequencer: Sequencer, clock: Clock, deadline_ms: float | None) -> None:
    """Return when `sequencer` leads.

    Args:
        deadline_ms: how long to wait while another sequencer leads, by the steady clock. None: wait only as long as it
            decides nothing and does not renew its lease. If it has died, its lease then runs out, or need not be waited
            for where its process is known to have ended.

    Raises:
        NotLeader: another one leads.
        StorageError: the store cannot be read or written.
    """
    is_reported = False
    while not sequencer.try_lead():
        waited_enough = sequencer.has_seen_life if deadline_ms is None else clock.steady_ms() >= deadline_ms
        if waited_enough:
            raise NotLeader("Another sequencer leads.", found=sequencer.state.leader)
        left_ms = math.inf if deadline_ms is None else deadline_ms - clock.steady_ms()
        if not is_reported:
            is_reported = True
            log.warning(
                "%s waits for %s, which leads: until that decides or renews something, and for at most %d ms",
                *(sequencer.name, sequencer.state.leader, min(left_ms, sequencer.lease_left_ms)),
            )
        clock.sleep(max(1.0, min(STANDBY_MS, left_ms)))


def step_until_idle(sequencer: Sequencer, config: EngineConfig, clock: Clock, wait_ms: int | None) -> int:
    """Step until no letter waits and nothing is overdue, then hand over the lease.

    Overdue work may take up to a transaction's timeout, or request.gap.ms, because a timeout counts only while this
    sequencer leads. A group member that seems dead is watched for some seconds. Then its partitions are free.

    Args:
        wait_ms: how long to wait while another sequencer leads. None: only until it decides or renews something.

    Returns:
        The number of letters decided.

    Raises:
        NotLeader: another sequencer leads for longer than wait_ms.
        StorageError: the store failed.
    """
    deadline_ms = None if wait_ms is None else clock.steady_ms() + wait_ms
    letters, pace, has_led, has_reported = 0, _Pace(config), False, False
    try:
        while True:
            wait_to_lead(sequencer, clock, deadline_ms)
            if not has_led:
                sequencer.make_retention_due()
                has_led = True
            begun_ms = clock.steady_ms()
            try:
                report = sequencer.step()
            except NotLeader:
                continue  # another sequencer took over. This one may lead again before the deadline
            letters += report.letters
            is_busy = report.backlog or report.is_watching or report.working or report.observation_left_ms
            if report.letters == 0 and not is_busy:
                return letters
            if report.observation_left_ms > _REPORT_FROM_MS and not has_reported:
                has_reported = True
                log.info(
                    "%s waits up to %d ms to see whether silent members of groups are dead",
                    sequencer.name,
                    report.observation_left_ms,
                )
            clock.sleep(pace.rest_after_ms(report, clock.steady_ms() - begun_ms))
    finally:
        sequencer.resign()


class Serving(ProcessBound):
    """A sequencer in a thread of this process; a context manager. If it gets stuck, another one replaces it.

    Without a call of `close`, it closes when the interpreter ends, after the producers of this process.

    Attributes:
        error: what ended it early, such as a disk that was full at the very beginning. It is logged when it happens.
        durations: counts the steps of this object's sequencers by how long they took.
        has_handed_over: whether it led when it ended, and has given the lease back. False until then.
    """

    def __init__(
        self,
        make: Callable[[], Sequencer],
        config: EngineConfig,
        clock: Clock,
        own_waited_ms: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Start it.

        Args:
            make: returns a new sequencer.
            own_waited_ms: returns for how long the oldest unanswered request of its own connection has waited. None:
                there is none. `close` answers the requests that were made before it.
        """
        self.error: Exception | None = None
        self.durations = StepDurations()
        self.has_handed_over = False
        self._pid = os.getpid()
        self._make, self._config, self._clock = make, config, clock
        self._own_waited_ms = own_waited_ms
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._sequencer = make()
        self._watchdog = Watchdog(
            self._run,
            lambda: self._sequencer.state.step,
            self._make_next_sequencer,
            self._fail,
            # A failing step waits twice at most: for what it prepares, and for the projection. Both end before this.
            3 * config.ms("step.timeout.ms"),
        )
        self._watchdog.start()
        name = f"The sequencer {self._sequencer.name}"
        self._exit_hook = HOOKS.add(Stage.SERVING, name, self.close, EXIT_TIMEOUT_S)

    @property
    def sequencer(self) -> Sequencer:
        """The sequencer that works now."""
        return self._sequencer

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended by itself, and return whether it has. `error` says why."""
        return self._ended.wait(timeout_s)

    def _make_next_sequencer(self) -> None:
        self._sequencer = self._make()

    def _fail(self, reason: str) -> None:
        self.error = StorageError(reason)
        self._ended.set()

    def _run(self, given_up: Callable[[], bool], working: Callable[[bool], None]) -> None:
        sequencer = self._sequencer

        def is_stopped() -> bool:
            return self._stop.is_set() or given_up()

        try:
            has_handed_over = serve(sequencer, self._config, self._clock, is_stopped, working, self.durations)
            if not given_up():
                self.has_handed_over = has_handed_over
        except BaseException as error:  # pyo3's panics do not derive from Exception
            if not given_up():
                self.error = error if isinstance(error, Exception) else UnknownServerError(found=repr(error))
            log.error("%s has ended: %s: %s", sequencer.name, type(error).__name__, error)
        finally:
            if not given_up():
                self._ended.set()

    def close(self) -> None:
        """Answer the requests of its own connection, finish the step, hand over the lease.

        A stuck sequencer is left alone after three times step.timeout.ms. In a forked child there is nothing to end.
        """
        if os.getpid() != self._pid:
            return
        if not self._stop.is_set():
            self._answer_own_letters()
        self._stop.set()
        self._watchdog.stop(self._ended)
        self._exit_hook.cancel()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._stop.is_set()

    def _answer_own_letters(self) -> None:
        """Wait, at most OWN_LETTERS_MS, until the requests that its own connection has made so far are answered."""
        begun_ms = self._clock.steady_ms()
        while not self._ended.wait(0.002):
            waited_ms, passed_ms = self._own_waited_ms(), self._clock.steady_ms() - begun_ms
            if waited_ms is None or waited_ms < passed_ms or passed_ms > OWN_LETTERS_MS:
                return
            sequencer = self._sequencer
            if not sequencer.leads and sequencer.state.leader not in ("", sequencer.name):
                return  # the leader answers

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
