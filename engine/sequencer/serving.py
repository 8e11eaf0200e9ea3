"""Keeping a sequencer going: lead or stand by, step, rest; end with the step finished and the lease handed over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..clock import Clock
from ..config import EngineConfig
from ..protocol.errors import NotLeader, StorageError
from .sequencer import Sequencer, StepReport

log = logging.getLogger("lakemq.serve")

STANDBY_MS = 200
SHORTEST_RETRY_MS = 200
LONGEST_RETRY_MS = 5_000


def serve(sequencer: Sequencer, config: EngineConfig, clock: Clock, stopped: Callable[[], bool]) -> None:
    """Until `stopped`: lead when possible, step at most every engine.tick.ms, rest longer while nothing happens.

    What the store fails with (no space left, gone for a while) is logged and tried again, ever more seldom: requests
    wait meanwhile. Only when it fails from the very beginning is it raised.
    """
    pace, retry_ms, has_worked = _Pace(config), SHORTEST_RETRY_MS, False
    try:
        while not stopped():
            try:
                rest_ms = _lead_and_step(sequencer, pace, clock)
            except NotLeader as lost:
                log.warning("%s stands by: %s", sequencer.name, lost)
                continue
            except Exception as error:
                if not has_worked:
                    raise
                log.error("%s goes on in %d ms: %s", sequencer.name, retry_ms, error, exc_info=not _is_known(error))
                clock.sleep(retry_ms)
                retry_ms = min(2 * retry_ms, LONGEST_RETRY_MS)
                continue
            has_worked, retry_ms = True, SHORTEST_RETRY_MS
            clock.sleep(rest_ms)
    finally:
        _resign(sequencer)


def _lead_and_step(sequencer: Sequencer, pace: _Pace, clock: Clock) -> float:
    """How long to rest afterwards, in ms."""
    if not sequencer.leads:
        if not sequencer.try_lead():
            return STANDBY_MS
        log.info("%s leads with epoch %d", sequencer.name, sequencer.state.leader_epoch)
    started_ms = clock.steady_ms()
    report = sequencer.step()
    return pace.after(report, clock.steady_ms() - started_ms)


class _Pace:
    """How long to rest between two steps."""

    def __init__(self, config: EngineConfig) -> None:
        self._tick_ms, self._idle_ms = config.ms("engine.tick.ms"), config.ms("engine.idle.ms")
        self._rest_ms = 1.0

    def after(self, report: StepReport, took_ms: float) -> float:
        """Milliseconds to rest after the step reported."""
        if report.letters:
            self._rest_ms = 1.0
            return 0.0 if report.backlog else max(0.0, self._tick_ms - took_ms)
        # the first requests after a pause should not wait: rest longer only little by little
        self._rest_ms = min(self._idle_ms, self._rest_ms * 1.02 + 0.01)
        return self._rest_ms


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
    """Step until no letter waits, then hand the lease over; returns the number of letters decided.

    Raises NotLeader when another sequencer leads for longer than `wait_ms`, and what the store fails with.
    """
    deadline_ms, letters = clock.steady_ms() + wait_ms, 0
    try:
        while True:
            if not sequencer.try_lead():
                if clock.steady_ms() > deadline_ms:
                    raise NotLeader("Another sequencer leads.", found=sequencer.state.leader)
                clock.sleep(min(STANDBY_MS, wait_ms))
                continue
            try:
                report = sequencer.step()
            except NotLeader:
                continue  # overtaken: it may be ours again, before the deadline
            letters += report.letters
            if report.letters == 0:
                return letters
            clock.sleep(config.ms("engine.tick.ms"))
    finally:
        sequencer.resign()


class Serving:
    """A sequencer in a thread of this process; a context manager.

    error: what ended it before its time, such as a full disk at the very beginning; logged when it happens.
    """

    def __init__(self, sequencer: Sequencer, config: EngineConfig, clock: Clock) -> None:
        self.error: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(sequencer, config, clock), name="lakemq-sequencer", daemon=True
        )
        self._thread.start()

    def _run(self, sequencer: Sequencer, config: EngineConfig, clock: Clock) -> None:
        try:
            serve(sequencer, config, clock, self._stop.is_set)
        except Exception as error:
            self.error = error
            log.error("%s has ended: %s: %s", sequencer.name, type(error).__name__, error)

    def close(self) -> None:
        """Finish the step, hand over the lease."""
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
