"""Retention: when the leader looks for what is too old or too much. What a look has found is decided in a step.

A look reads tables beside the steps, and writes nothing. It is made with the topics as they were when it began: what
has changed since, the step that decides looks at.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future

from ..namespace.clock import Clock
from ..protocol.values.state import State
from ..protocol.values.topics import LogOutgrown, Topic

log = logging.getLogger("lakemq.serve")

MOST_TOPICS = 50
"""That one step decides of: where a thousand groups have each come to forty of the partitions, and count what they
lose, it takes about 0.1 s.
"""
LOOK_TIMEOUT_MS = 60_000
"""After which nobody waits for a look any more."""
_SOON_MS = 5

Look = Callable[[Mapping[int, Topic], int], list[LogOutgrown]]
"""topics, now_ms -> what is outgrown."""


class Retention:
    """Of one term of leadership; called by the sequencer's thread, and looks in one of `executor`."""

    def __init__(self, look: Look, executor: Executor, clock: Clock, interval_ms: int) -> None:
        """The first look is after an interval: a leader that has just come has other things to do."""
        self._look, self._executor, self._clock, self._interval_ms = look, executor, clock, interval_ms
        self._due_ms = clock.steady_ms() + interval_ms
        self._given_up_ms = 0
        self._running: Future[list[LogOutgrown]] | None = None
        self._found: deque[LogOutgrown] = deque()

    def make_due(self) -> None:
        """Look with the next step: who leads but for a moment would not come to it."""
        self._due_ms = self._clock.steady_ms()

    @property
    def is_working(self) -> bool:
        """Whether something is being looked for, or was found and is not decided yet."""
        is_looking = self._running is not None and self._clock.steady_ms() < self._given_up_ms
        return is_looking or bool(self._found)

    def due_in_ms(self) -> float:
        """Until there is something to do."""
        if self.is_working:
            return _SOON_MS
        return max(_SOON_MS, self._due_ms - self._clock.steady_ms())

    def outgrown(self, state: State, now_ms: int) -> list[LogOutgrown]:
        """What the next step is to decide of; begins the next look when it is time.

        now_ms: not after the time of any step to come, nor the store's.
        """
        if self._running is not None and self._running.done():
            running, self._running = self._running, None
            self._take(running)
        steady_ms = self._clock.steady_ms()
        if self._running is None and not self._found and steady_ms >= self._due_ms:
            self._due_ms, self._given_up_ms = steady_ms + self._interval_ms, steady_ms + LOOK_TIMEOUT_MS
            self._running = self._executor.submit(self._look, state.snapshot().topics, now_ms)
        return [self._found.popleft() for _ in range(min(MOST_TOPICS, len(self._found)))]

    def _take(self, running: Future[list[LogOutgrown]]) -> None:
        error = running.exception()
        if error is None:
            self._found.extend(running.result())
        else:  # nothing is deleted because the leader cannot read, whatever its store raises
            is_known = isinstance(error, OSError)
            log.warning("Old messages could not be looked for: %s", error, exc_info=None if is_known else error)
