"""The time of steps: the store's time when a term begins, then the time that the leader's steady clock has seen pass.

A leader's own clock may be hours off, and may be set while it leads; neither changes the time of a step. Step time
never goes back. If the last leader's time was ahead of the store's, step time runs at half speed until the store's
time has caught up.
"""

from __future__ import annotations

from ..namespace.processes.clock import Clock


class StepTime:
    """The time of one term of leadership. Thread-safe."""

    def __init__(self, clock: Clock, store_ms: int, last_ms: int) -> None:
        """store_ms: the store's time now; last_ms: the time of the last step that was decided."""
        self._clock, self._store_ms, self._last_ms = clock, store_ms, last_ms
        self._began_ms = clock.steady_ms()

    def now_ms(self) -> int:
        """Return the time of a step that begins now, in epoch milliseconds."""
        passed_ms = self._clock.steady_ms() - self._began_ms
        return max(self._store_ms + passed_ms, self._last_ms + passed_ms // 2)

    def store_ms(self) -> int:
        """Return the store's time. It is behind the step time if an earlier store's clock was ahead."""
        return self._store_ms + self._clock.steady_ms() - self._began_ms
