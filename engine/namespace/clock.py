"""Clocks, passed as arguments so that tests control time; and waits for objects that arrive in a folder."""

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from lakemq.tables.storage.object_stores.inotify import Watch

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


# Wait for an object to arrive in a folder: until the system reports one, or else by looking again and again.
#
# inotify shortens the wait, but is never relied on: it reports nothing where other machines write over a network, and
# it may lose events. So every wait also has a time limit, after which the caller looks anyway.
#
# The order is what makes it correct. The caller calls `reset`, looks, and calls `wait` only if it found nothing. An
# object that arrives after the reset ends the wait at once, also if it arrives before the wait begins.


LOOK_MS = 250
"""Time between two looks at a folder that is watched, unless the caller says otherwise."""

_MAX_MISSES = 3
"""Looks in a row that found an unreported object. After these, the folder counts as not watchable.

Only looks after a full wait count: an object may arrive at the moment of a look, before its report. And a busy process
gets reports late, so the next look decides whether one was missing.
"""


class FolderWaiter:
    """Waits for objects in one folder; for one thread. Without a watch, it sleeps."""

    def __init__(self, watch: Callable[[], Watch | None], clock: Clock, news: threading.Event | None = None) -> None:
        """Create a waiter.

        Args:
            watch: returns a new watch of the folder. None: there is no folder yet, or the system cannot watch it.
            news: also ends a wait when it is set, for what arrives in another way.
        """
        self._new_watch, self._clock, self._news = watch, clock, news
        self.watch: Watch | None = None
        """None: the system does not report arrivals, so the caller must look often."""
        self._misses, self._waited_long, self._was_unannounced = 0, False, False

    def reset(self) -> None:
        """Prepare for a look: an object that arrives from now on ends the next wait."""
        if self.watch is not None:
            self._count_misses(self.watch)
        if self.watch is None and self._misses < _MAX_MISSES:
            self.watch = self._new_watch()
            if self.watch is not None and self._news is not None:
                self.watch.event = self._news
        if self.watch is not None:
            self.watch.event.clear()
        elif self._news is not None:
            self._news.clear()

    def note_arrival(self) -> None:
        """Note that the look found something."""
        self._was_unannounced = self._waited_long
        self._waited_long = False

    def _count_misses(self, watch: Watch) -> None:
        if self._was_unannounced and not watch.event.is_set():
            self._misses += 1
        self._was_unannounced = False
        if watch.is_over or self._misses >= _MAX_MISSES:
            self.close()

    def wait(self, poll_ms: float, most_ms: float = LOOK_MS) -> None:
        """Wait until an object arrives, at most `most_ms`; without a watch, wait `poll_ms`."""
        if self.watch is None:
            if self._news is None:
                self._clock.sleep(min(poll_ms, most_ms))
            else:
                self._clock.wait(self._news, min(poll_ms, most_ms))
        elif self._clock.wait(self.watch.event, most_ms):
            self._misses, self._waited_long = 0, False
        else:
            self._waited_long = most_ms >= LOOK_MS

    def close(self) -> None:
        if self.watch is not None:
            self.watch.close()
            self.watch = None
