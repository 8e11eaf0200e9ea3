"""The time of the steps: the store's when a term begins, and from there on the time that the leader has seen pass.

A leader's own clock may be hours off, and may be set while it leads: neither moves the time of a step. It never goes
back; where it is ahead of the store's, it goes on at half the pace until it is not.
"""

from __future__ import annotations

from ..namespace.clock import Clock


class StepTime:
    """Of one term of leadership. Thread-safe."""

    def __init__(self, clock: Clock, store_ms: int, last_ms: int) -> None:
        """store_ms: the store's time now; last_ms: the time of the last step that was decided."""
        self._clock, self._store_ms, self._last_ms = clock, store_ms, last_ms
        self._began_ms = clock.steady_ms()

    def now_ms(self) -> int:
        """Epoch milliseconds."""
        passed_ms = self._clock.steady_ms() - self._began_ms
        return max(self._store_ms + passed_ms, self._last_ms + passed_ms // 2)

    def store_ms(self) -> int:
        """The store's, which is behind the time of the steps where that came from a store whose clock was ahead."""
        return self._store_ms + self._clock.steady_ms() - self._began_ms
