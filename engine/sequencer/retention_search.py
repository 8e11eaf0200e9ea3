"""Schedule the leader's search for messages that retention deletes. A step decides what the search has found.

A search reads tables in another thread, and writes nothing. It works with the topics as they were when it began. The
step that decides checks what has changed since.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future

from ..namespace.processes.clock import Clock
from ..protocol.values.state import State
from ..protocol.values.topics import LogOutgrown, Topic

log = logging.getLogger("lakemq.serve")

MAX_TOPICS_PER_STEP = 50
"""Topics that one step decides. With a thousand groups that each have committed offsets of forty partitions, it takes
about 0.1 s to count what they lose.
"""
LOOK_TIMEOUT_MS = 60_000
"""Time after which `is_working` ignores a search that has not ended."""
_SOON_MS = 5

FindOutgrown = Callable[[Mapping[int, Topic], int], list[LogOutgrown]]
"""Topics and the present time -> what retention deletes."""


class RetentionSearch:
    """The searches of one term. The sequencer's thread calls it; a search runs in `executor`."""

    def __init__(self, look: FindOutgrown, executor: Executor, clock: Clock, interval_ms: int) -> None:
        """The first search begins after one interval: a new leader has more urgent work."""
        self._find, self._executor, self._clock, self._interval_ms = look, executor, clock, interval_ms
        self._due_ms = clock.steady_ms() + interval_ms
        self._given_up_ms = 0
        self._running: Future[list[LogOutgrown]] | None = None
        self._found: deque[LogOutgrown] = deque()

    def make_due(self) -> None:
        """Begin a search with the next step. A run of a few steps would otherwise never reach one."""
        self._due_ms = self._clock.steady_ms()

    @property
    def is_working(self) -> bool:
        """Whether a search runs, or its findings are not decided yet."""
        is_looking = self._running is not None and self._clock.steady_ms() < self._given_up_ms
        return is_looking or bool(self._found)

    def due_in_ms(self) -> float:
        """Return in how many ms there is work."""
        if self.is_working:
            return _SOON_MS
        return max(_SOON_MS, self._due_ms - self._clock.steady_ms())

    def take_outgrown(self, state: State, now_ms: int) -> list[LogOutgrown]:
        """Return what the next step must decide, and begin a search when one is due.

        now_ms: no later than the time of any coming step, and no later than the store's.
        """
        if self._running is not None and self._running.done():
            running, self._running = self._running, None
            self._take_result(running)
        steady_ms = self._clock.steady_ms()
        if self._running is None and not self._found and steady_ms >= self._due_ms:
            self._due_ms, self._given_up_ms = steady_ms + self._interval_ms, steady_ms + LOOK_TIMEOUT_MS
            self._running = self._executor.submit(self._find, state.snapshot().topics, now_ms)
        return [self._found.popleft() for _ in range(min(MAX_TOPICS_PER_STEP, len(self._found)))]

    def _take_result(self, running: Future[list[LogOutgrown]]) -> None:
        error = running.exception()
        if error is None:
            self._found.extend(running.result())
        else:  # whatever the store raises: an unreadable table deletes nothing
            is_known = isinstance(error, OSError)
            log.warning("Old messages could not be looked for: %s", error, exc_info=None if is_known else error)
