"""Patience: how long the leader has itself seen something wait. No clock of another process counts.

A change of leader gives all that waits at most its time once more; nothing is ever ended early.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable


class Patience:
    """Of one term of leadership. Times are those of the leader's clock that only goes forward."""

    def __init__(self) -> None:
        self._since_ms: dict[Hashable, int] = {}

    def look(self, waiting: Iterable[Hashable], steady_ms: int) -> None:
        """What waits now is seen to wait; a key names one wait for ever."""
        self._since_ms = {key: self._since_ms.get(key, steady_ms) for key in waiting}

    def waited_ms(self, key: Hashable, steady_ms: int) -> int:
        """0 for what was not seen yet."""
        return steady_ms - self._since_ms.get(key, steady_ms)
