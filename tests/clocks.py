"""Clocks that tests own."""

from __future__ import annotations

import threading

from lakemq.engine.namespace.clock import SystemClock


class ManualClock:
    """Stands still unless told; who sleeps moves it."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def steady_ms(self) -> int:
        return self.ms

    def sleep(self, ms: float) -> None:
        self.ms += int(ms)

    def wait(self, event: threading.Event, ms: float) -> bool:
        self.sleep(ms)
        return event.is_set()


class AheadClock(SystemClock):
    """The machine's clocks, so many milliseconds ahead."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def steady_ms(self) -> int:
        return super().steady_ms() + self.ahead_ms


class HastyClock(AheadClock):
    """Who sleeps moves it, and waits for nothing."""

    def sleep(self, ms: float) -> None:
        self.ahead_ms += int(ms)
