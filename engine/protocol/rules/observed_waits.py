"""Observed waits: how long the leader has itself seen something wait. No clock of another process counts.

After a change of leader everything waits its full time again, at most; nothing ever ends early.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable


class ObservedWaits:
    """The waits that a leader has observed during its term. Times are those of its monotonic clock."""

    def __init__(self) -> None:
        self._since_ms: dict[Hashable, int] = {}

    def observe(self, waiting: Iterable[Hashable], steady_ms: int) -> None:
        """Note what waits now and forget what no longer waits. A key names one wait and is never used again."""
        self._since_ms = {key: self._since_ms.get(key, steady_ms) for key in waiting}

    def waited_ms(self, key: Hashable, steady_ms: int) -> int:
        """Return how long the wait was observed; 0 if it was not observed yet."""
        return steady_ms - self._since_ms.get(key, steady_ms)
