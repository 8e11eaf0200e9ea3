"""Clocks that tests control, beside `MovableClock` of `lakemq.testing`."""

import threading

from lakemq.testing import MovableClock


class ManualClock:
    """A clock that stands still until a test moves it. `sleep` moves it, too."""

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


class HastyClock(MovableClock):
    """A clock that `sleep` moves without waiting."""

    def sleep(self, ms: float) -> None:
        self.ahead_ms += int(ms)
