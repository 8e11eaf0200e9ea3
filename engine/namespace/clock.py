"""Clocks, passed as arguments so that tests control time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

log = logging.getLogger("lakemq.clock")

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


class _Look(NamedTuple):
    """A look at the store's clock.

    ahead_ms: of the own clock, 0 if it may be right. counts_ms: how long the look counts.
    """

    own_ms: int
    steady_ms: int
    ahead_ms: int
    counts_ms: int


class StoreClock:
    """The machine's clock, with the store's time where the machine's is wrong.

    The sequencer decides by the store's time. So a delay that begins at the time of a wrong clock ends at a wrong time,
    and retention deletes messages that a slow clock has stamped. The first use, and one after an hour or after the
    machine's clock was set, asks the store. In between the machine's clock counts.
    """

    RIGHT_MS = 2_000
    """How far a clock that is called right may be off. Some stores give whole seconds."""
    LOOK_MS = 3_600_000
    RETRY_MS = 60_000
    """When a store is asked again that has not answered."""
    _JUMP_MS = 1_000

    def __init__(self, clock: Clock, read_store_ms: Callable[[], int]) -> None:
        """read_store_ms: returns the store's time; its OSError means that the machine's clock is used meanwhile."""
        self._clock, self._read_store_ms = clock, read_store_ms
        self._look: _Look | None = None
        self.steady_ms, self.sleep, self.wait = clock.steady_ms, clock.sleep, clock.wait

    def now_ms(self) -> int:
        own_ms, steady_ms, look = self._clock.now_ms(), self._clock.steady_ms(), self._look
        if look is not None:
            passed_ms = steady_ms - look.steady_ms
            is_set = abs(own_ms - look.own_ms - passed_ms) > self._JUMP_MS
        if look is None or is_set or passed_ms > look.counts_ms:
            look = self._look = self._ask(own_ms, steady_ms)
        return self._clock.now_ms() - look.ahead_ms

    def _ask(self, own_ms: int, steady_ms: int) -> _Look:
        try:
            store_ms = self._read_store_ms()
        except OSError as error:  # a publish meets the same, and says so
            log.debug("The store's time cannot be read: %s", error)
            return _Look(own_ms, steady_ms, 0, self.RETRY_MS)
        took_ms = self._clock.steady_ms() - steady_ms
        # The store read its clock some time between. The latest of these times is taken: a delay never ends early.
        ahead_ms = own_ms - store_ms
        if -took_ms - self.RIGHT_MS <= ahead_ms <= self.RIGHT_MS:
            return _Look(own_ms, steady_ms, 0, self.LOOK_MS)
        log.warning(
            "The clock of this machine is %.0f s %s that of the store. Messages get the store's time, and their delays"
            " begin at it. Set the clock.",
            abs(ahead_ms) / 1000,
            "ahead of" if ahead_ms > 0 else "behind",
        )
        whole_second = 999 if store_ms % 1000 == 0 else 0
        return _Look(own_ms, steady_ms, ahead_ms - whole_second, self.LOOK_MS)


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
