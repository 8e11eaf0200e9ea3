"""Wait for an object to arrive in a folder: until the system reports one, or else by looking again and again.

inotify shortens the wait, but is never relied on: it reports nothing where other machines write over a network, and it
may lose events. So every wait also has a time limit, after which the caller looks anyway.

The order is what makes it correct. The caller calls `reset`, looks, and calls `wait` only if it found nothing. An
object that arrives after the reset ends the wait at once, also if it arrives before the wait begins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from lakemq.tables.storage.object_stores.inotify import Watch

from .clock import Clock

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
        self._watch: Watch | None = None
        self._misses, self._waited_long, self._was_unannounced = 0, False, False

    @property
    def has_watch(self) -> bool:
        """Whether the system reports arrivals. If not, the caller must look often."""
        return self._watch is not None

    def reset(self) -> None:
        """Prepare for a look: an object that arrives from now on ends the next wait."""
        if self._watch is not None:
            self._count_misses(self._watch)
        if self._watch is None and self._misses < _MAX_MISSES:
            self._watch = self._new_watch()
            if self._watch is not None and self._news is not None:
                self._watch.event = self._news
        if self._watch is not None:
            self._watch.event.clear()
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
        if self._watch is None:
            if self._news is None:
                self._clock.sleep(min(poll_ms, most_ms))
            else:
                self._clock.wait(self._news, min(poll_ms, most_ms))
        elif self._clock.wait(self._watch.event, most_ms):
            self._misses, self._waited_long = 0, False
        else:
            self._waited_long = most_ms >= LOOK_MS

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
