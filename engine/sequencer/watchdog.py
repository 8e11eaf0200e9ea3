"""The watchdog: whoever is stuck in a step, for a reason nobody thought of, is told of and replaced.

The one that is stuck gives no signs of life: its lease runs out, and another of this process, or of any, leads.
Should it go on one day, the journal has moved: it can commit nothing, answers nobody, and ends.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable

log = logging.getLogger("lakemq.serve")

LOOKS = 20
"""Times it looks within a timeout. A process that was stopped as a whole counts as one look."""

MOST_GIVEN_UP = 5
"""After so many it is not a mishap any more: no further one is started."""


Run = Callable[[Callable[[], bool], Callable[[bool], None]], None]
"""Work until it is given up, which the first argument tells; the second is told when a step begins and ends."""


class _Worker:
    """One thread, and for how many looks it has been in the same step."""

    def __init__(self, run: Run, number: int) -> None:
        self.given_up, self._is_working, self._steps, self._seen, self._looks = threading.Event(), False, 0, 0, 0
        self.thread = threading.Thread(
            target=run, args=(self.given_up.is_set, self._working), name=f"lakemq-sequencer-{number}", daemon=True
        )

    def _working(self, is_working: bool) -> None:
        self._is_working, self._steps = is_working, self._steps + 1

    def is_stuck(self) -> bool:
        """One more look at it."""
        same = self._is_working and self._seen == self._steps
        self._looks, self._seen = self._looks + 1 if same else 0, self._steps
        return self._looks > LOOKS and self.thread.is_alive()


class Watchdog:
    """Keeps one worker going."""

    def __init__(self, run: Run, renew: Callable[[], None], fail: Callable[[str], None], timeout_ms: int) -> None:
        """renew: called before another worker begins; fail: too many were stuck; timeout_ms: longest time of a step."""
        self._run, self._renew, self._fail, self._timeout_ms = run, renew, fail, timeout_ms
        self._given_up = 0
        self._worker = _Worker(run, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lakemq-watchdog", daemon=True)

    def start(self) -> None:
        self._worker.thread.start()
        self._thread.start()

    def stop(self, ended: threading.Event) -> None:
        """Wait until the worker has `ended`, no longer than a step may take."""
        if not ended.wait(self._timeout_ms / 1000):
            log.error("%s is stuck and left to itself", self._worker.thread.name)
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._timeout_ms / 1000 / LOOKS):
            if self._worker.is_stuck():
                if self._given_up == MOST_GIVEN_UP:
                    return self._fail(f"{MOST_GIVEN_UP} sequencers of this process are stuck; the log says where.")
                self._replace()

    def _replace(self) -> None:
        stuck = self._worker
        frame = sys._current_frames().get(stuck.thread.ident or 0)
        stack = "".join(traceback.format_stack(frame))
        log.critical("A step takes longer than %d ms; another sequencer takes over from\n%s", self._timeout_ms, stack)
        stuck.given_up.set()
        self._given_up += 1
        try:
            self._renew()
        except Exception as error:  # it is being closed, say
            self._fail(f"A sequencer is stuck, and no other can be made: {error}")
            self._stop.set()
            return
        self._worker = _Worker(self._run, self._given_up)
        self._worker.thread.start()
