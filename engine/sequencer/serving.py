"""Keeping a sequencer going: lead or stand by, step, rest; end with the step finished and the lease handed over."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from ..namespace.bell import Bell
from ..namespace.clock import Clock
from ..namespace.config import EngineConfig
from ..protocol.errors import NotLeader, StorageError, UnknownServerError
from .sequencer import Sequencer, StepReport
from .watchdog import Watchdog

log = logging.getLogger("lakemq.serve")

STANDBY_MS = 200
SHORTEST_RETRY_MS = 200
LONGEST_RETRY_MS = 5_000
_SHORTEST_REST_MS = 1.0


def serve(
    sequencer: Sequencer,
    config: EngineConfig,
    clock: Clock,
    stopped: Callable[[], bool],
    working: Callable[[bool], None] = lambda _: None,
) -> None:
    """Until `stopped`: lead when possible, step at most every engine.tick.ms, rest longer while nothing comes.

    What the store fails with (no space left, gone for a while) is logged and tried again, ever more seldom: requests
    wait meanwhile. Only when it fails twice from the very beginning is it raised. working: told when a step begins and
    ends.
    """
    bell = Bell(sequencer.watch_letters, clock)
    pace, retry_ms, has_worked, has_failed = _Pace(config), SHORTEST_RETRY_MS, False, False
    try:
        while not stopped():
            try:
                working(True)
                try:
                    rest = _lead_and_step(sequencer, pace, clock, bell)
                finally:
                    working(False)
            except NotLeader as lost:
                log.warning("%s stands by: %s", sequencer.name, lost)
                continue
            except Exception as error:
                # the first look may have been begun long ago, by a process that was stopped since: what it was about
                # to read is gone, and what there is now it has not looked at
                if has_failed and not has_worked:
                    raise
                has_failed = True
                log.error("%s goes on in %d ms: %s", sequencer.name, retry_ms, error, exc_info=not _is_known(error))
                clock.sleep(retry_ms)
                retry_ms = min(2 * retry_ms, LONGEST_RETRY_MS)
                continue
            has_worked, retry_ms = True, SHORTEST_RETRY_MS
            if rest.ends_with_letter:
                bell.wait(rest.poll_ms, rest.ms)
            else:
                clock.sleep(rest.ms)
    finally:
        bell.close()
        _resign(sequencer)


class _Rest(NamedTuple):
    """After a step. poll_ms: where no letter can end it."""

    ms: float
    ends_with_letter: bool = False
    poll_ms: float = 0.0


def _lead_and_step(sequencer: Sequencer, pace: _Pace, clock: Clock, bell: Bell) -> _Rest:
    if not sequencer.leads:
        if not sequencer.try_lead():
            return _Rest(STANDBY_MS)
        state = sequencer.state
        log.info("%s leads with epoch %d", sequencer.name, state.leader_epoch, extra={"step": state.step})
    started_ms = clock.steady_ms()
    bell.clear()
    report = sequencer.step()
    poll_ms = pace.after(report, clock.steady_ms() - started_ms)
    if report.letters:
        bell.found()
        return _Rest(poll_ms)
    return _Rest(pace.idle_ms(report), True, poll_ms)


class _Pace:
    """How long to rest between two steps."""

    def __init__(self, config: EngineConfig) -> None:
        self._tick_ms, self._idle_ms = config.ms("engine.tick.ms"), config.ms("engine.idle.ms")
        self._rest_ms = self._told_rest_ms = _SHORTEST_REST_MS

    def after(self, report: StepReport, took_ms: float) -> float:
        """Milliseconds to rest after the step reported."""
        if report.letters:
            self._rest_ms = self._told_rest_ms = _SHORTEST_REST_MS
            return 0.0 if report.backlog else max(0.0, self._tick_ms - took_ms)
        # the first requests after a pause should not wait: rest longer only little by little
        self._rest_ms = min(self._idle_ms, self._rest_ms * 1.02 + 0.01)
        return _until_due(report, self._rest_ms)

    def idle_ms(self, report: StepReport) -> float:
        """The same where a letter ends the rest. What else is due soon after a step should not wait for long either."""
        self._told_rest_ms = min(self._idle_ms, 1.5 * self._told_rest_ms)
        return _until_due(report, self._told_rest_ms)


def _until_due(report: StepReport, rest_ms: float) -> float:
    """The rest, or what is left of it before something is to be looked at."""
    if report.working:
        return min(rest_ms, 1.0)
    return rest_ms if report.due_in_ms is None else min(rest_ms, max(1.0, report.due_in_ms))


def _resign(sequencer: Sequencer) -> None:
    try:
        sequencer.resign()
    except Exception as error:
        text = "%s could not hand over its lease, which runs out by itself: %s"
        log.error(text, sequencer.name, error, exc_info=not _is_known(error))


def _is_known(error: Exception) -> bool:
    """Its message says all there is to say."""
    return isinstance(error, StorageError)


def step_until_idle(sequencer: Sequencer, config: EngineConfig, clock: Clock, wait_ms: int) -> int:
    """Step until no letter waits and nothing is overdue, then hand the lease over; the number of letters decided.

    What is overdue takes up to a transaction's timeout, or request.gap.ms: only who leads for as long sees it pass.

    Raises NotLeader when another sequencer leads for longer than `wait_ms`, and what the store fails with.
    """
    deadline_ms, letters, pace, has_led = clock.steady_ms() + wait_ms, 0, _Pace(config), False
    try:
        while True:
            if not sequencer.try_lead():
                if clock.steady_ms() > deadline_ms:
                    raise NotLeader("Another sequencer leads.", found=sequencer.state.leader)
                clock.sleep(min(STANDBY_MS, wait_ms))
                continue
            if not has_led:
                sequencer.look_for_old()
                has_led = True
            begun_ms = clock.steady_ms()
            try:
                report = sequencer.step()
            except NotLeader:
                continue  # overtaken: it may be ours again, before the deadline
            letters += report.letters
            if report.letters == 0 and not (report.backlog or report.patience or report.working):
                return letters
            clock.sleep(pace.after(report, clock.steady_ms() - begun_ms))
    finally:
        sequencer.resign()


class Serving:
    """A sequencer in a thread of this process; a context manager. One that is stuck is given up for another.

    error: what ended it before its time, such as a full disk at the very beginning; logged when it happens.
    """

    def __init__(self, make: Callable[[], Sequencer], config: EngineConfig, clock: Clock) -> None:
        """make: a sequencer that is new."""
        self.error: Exception | None = None
        self._pid = os.getpid()
        self._make, self._config, self._clock = make, config, clock
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._sequencer = make()
        # what a step waits for has its end before this
        self._watchdog = Watchdog(self._run, self._renewed, self._given_up, 2 * config.ms("step.timeout.ms"))
        self._watchdog.start()

    @property
    def sequencer(self) -> Sequencer:
        """The one that works now."""
        return self._sequencer

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended by itself, which `error` tells about."""
        return self._ended.wait(timeout_s)

    def _renewed(self) -> None:
        self._sequencer = self._make()

    def _given_up(self, reason: str) -> None:
        self.error = StorageError(reason)
        self._ended.set()

    def _run(self, given_up: Callable[[], bool], working: Callable[[bool], None]) -> None:
        sequencer = self._sequencer
        try:
            serve(sequencer, self._config, self._clock, lambda: self._stop.is_set() or given_up(), working)
        except BaseException as error:  # pyo3's panics are none of Exception's
            if not given_up():
                self.error = error if isinstance(error, Exception) else UnknownServerError(found=repr(error))
            log.error("%s has ended: %s: %s", sequencer.name, type(error).__name__, error)
        finally:
            if not given_up():
                self._ended.set()

    def close(self) -> None:
        """Finish the step, hand over the lease. One that is stuck is left to itself after twice step.timeout.ms.

        In a forked child there is nothing to be ended.
        """
        if os.getpid() != self._pid:
            return
        self._stop.set()
        self._watchdog.stop(self._ended)

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
