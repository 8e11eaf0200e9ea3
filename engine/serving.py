"""Keeping a sequencer going: lead or stand by, step, rest; end with the step finished and the lease handed over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from .clock import Clock
from .config import EngineConfig
from .protocol.errors import NotLeader
from .sequencer import Sequencer

log = logging.getLogger("lakemq.serve")

STANDBY_MS = 200


def serve(sequencer: Sequencer, config: EngineConfig, clock: Clock, stopped: Callable[[], bool]) -> None:
    """Until `stopped`: lead when possible, step at most every engine.tick.ms, rest longer while nothing happens."""
    tick_ms, idle_ms = config.ms("engine.tick.ms"), config.ms("engine.idle.ms")
    rest_ms = 1.0
    try:
        while not stopped():
            if not sequencer.leads:
                if not sequencer.try_lead():
                    clock.sleep(STANDBY_MS)
                    continue
                log.info("%s leads with epoch %d", sequencer.name, sequencer.state.leader_epoch)
            started_ms = clock.steady_ms()
            try:
                report = sequencer.step()
            except NotLeader as lost:
                log.warning("%s stands by: %s", sequencer.name, lost)
                continue
            if report.letters:
                rest_ms = 1.0
                if not report.backlog:
                    clock.sleep(max(0, tick_ms - (clock.steady_ms() - started_ms)))
            else:
                # the first requests after a pause should not wait: rest longer only little by little
                rest_ms = min(idle_ms, rest_ms * 1.02 + 0.01)
                clock.sleep(rest_ms)
    finally:
        sequencer.resign()


def step_until_idle(sequencer: Sequencer, config: EngineConfig, clock: Clock, wait_ms: int) -> int:
    """Step until no letter waits, then hand the lease over; returns the number of letters decided.

    Raises NotLeader when another sequencer leads for longer than `wait_ms`.
    """
    deadline_ms, letters = clock.steady_ms() + wait_ms, 0
    try:
        while True:
            if not sequencer.try_lead():
                if clock.steady_ms() > deadline_ms:
                    raise NotLeader("Another sequencer leads.", found=sequencer.state.leader)
                clock.sleep(min(STANDBY_MS, wait_ms))
                continue
            report = sequencer.step()
            letters += report.letters
            if report.letters == 0:
                return letters
            clock.sleep(config.ms("engine.tick.ms"))
    finally:
        sequencer.resign()


class Serving:
    """A sequencer in a thread of this process; a context manager.

    error: what ended it before its time, such as a full disk; logged when it happens.
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
