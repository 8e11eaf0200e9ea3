"""The watchdog: replace a sequencer that is stuck in a step for an unexpected reason.

A stuck sequencer puts no step, so it does not renew its lease. When the lease has run out, another sequencer leads, in
this process or in another one. If the stuck one ever continues, it cannot put a step, because its name is taken. It
writes no reply, and ends. A sequencer that puts steps during a long wait, to renew its lease, is not stuck.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable

log = logging.getLogger("lakemq.serve")

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
