"""Clocks, passed as arguments so that tests control time."""

from __future__ import annotations

import threading
import time
from typing import Protocol

# CLOCK_BOOTTIME goes on while the machine sleeps, CLOCK_MONOTONIC does not
_STEADY = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return epoch milliseconds, which may jump."""

    def steady_ms(self) -> int:
        """Return milliseconds that only go forward, from any origin."""

    def sleep(self, ms: float) -> None: ...

    def wait(self, event: threading.Event, ms: float) -> bool:
        """Wait until the event is set, at most for ms. Return whether it is set."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        if _STEADY is None:
            return time.monotonic_ns() // 1_000_000
        return time.clock_gettime_ns(_STEADY) // 1_000_000

    def sleep(self, ms: float) -> None:
        time.sleep(ms / 1000)

    def wait(self, event: threading.Event, ms: float) -> bool:
        return event.wait(ms / 1000)


class Stopwatch:
    """Measures the time since it was made, also over a sleep of the machine.

    The steady clock counts a sleep only where the system has CLOCK_BOOTTIME, and not in a virtual machine that was
    paused. The wall clock counts it once it is right again, but may be put back or ahead. So the longer time counts.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._begun = clock, (clock.steady_ms(), clock.now_ms())

    def elapsed_ms(self) -> int:
        steady_ms, now_ms = self._begun
        return max(self._clock.steady_ms() - steady_ms, self._clock.now_ms() - now_ms)
