"""Waiting for an object to come into a folder: until the system tells of one, else by looking again and again.

Invariant: nothing is waited for longer than a look takes to come round, whatever is told. Who waits clears the bell,
looks, and waits only if there was nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from lakemq.tables.storage.inotify import Watch

from .clock import Clock

LOOK_MS = 250
"""Between two looks at a folder that is told of, where nobody says otherwise."""

_MISSES = 3
"""Looks in a row that found what nothing had told of: the folder is deaf, as where others write over a network. Each is
after a long wait, since what comes in the moment of a look is found before it is told of; and a busy process is told
late, so that each is judged by the next look."""


class Bell:
    """Of one folder; for one thread. Without a watch it is a sleep."""

    def __init__(self, watch: Callable[[], Watch | None], clock: Clock) -> None:
        """watch: a new one of the folder; None: it is not there yet, or not told of."""
        self._new_watch, self._clock = watch, clock
        self._watch: Watch | None = None
        self._misses, self._waited_long, self._was_untold = 0, False, False

    @property
    def rings(self) -> bool:
        """Else there is nothing to do but to look often."""
        return self._watch is not None

    def clear(self) -> None:
        """Before a look: what comes from here on rings."""
        if self._watch is not None:
            self._judge(self._watch)
        if self._watch is None and self._misses < _MISSES:
            self._watch = self._new_watch()
        if self._watch is not None:
            self._watch.event.clear()

    def found(self) -> None:
        """The look found something."""
        self._was_untold = self._waited_long
        self._waited_long = False

    def _judge(self, watch: Watch) -> None:
        if self._was_untold and not watch.event.is_set():
            self._misses += 1
        self._was_untold = False
        if watch.is_over or self._misses >= _MISSES:
            self.close()

    def wait(self, poll_ms: float, most_ms: float = LOOK_MS) -> None:
        """Until it rings, or for `most_ms`; where it is deaf, for `poll_ms`."""
        if self._watch is None:
            self._clock.sleep(min(poll_ms, most_ms))
        elif self._clock.wait(self._watch.event, most_ms):
            self._misses, self._waited_long = 0, False
        else:
            self._waited_long = most_ms >= LOOK_MS

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
