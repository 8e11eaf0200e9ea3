"""Wait for the next step: until the file system or the leader reports one, or else by polling.

Both only shorten the wait. What the waiter's owner then reads, it reads from the store, by the rules of `StepFollower`.
So a wrong, late or missing hint cannot show a step that was not decided, nor hide one for longer than the time that
`find_line_look_ms` returns.

The file system comes first, where it tells of new files: it takes nothing from the leader. The line is for stores and
systems that tell nothing. There each look costs a request, or a wake-up.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from lakemq.tables.storage.object_stores.inotify import Watch

from ...namespace.clock import Clock
from ...namespace.folder_waiter import FolderWaiter
from ..requests.direct_line import FollowLine

LEAST_LINE_LOOK_MS, MOST_LINE_LOOK_MS = 5_000, 12_000
"""Bounds of the time between two looks while a line is open. A reader that has not looked for 15 s loads its tables
again (`fetch.log_reader`), which takes many requests; so it looks before that."""

WATCHED_LOOK_MS = 1_000
"""Longest wait where the system tells of new steps. More looks would cost an idle reader more than all else."""

_SLICE_MS = 20.0
"""How often a wait on a line looks whether its owner has another reason to look."""

_CLOSE_S = 1.0


def find_line_look_ms(lease_ms: int) -> int:
    """Return the time between two looks while a line is open: the lease, within bounds.

    A leader that ends closes its lines. One that is stopped cannot do this, nor tell that another sequencer decides,
    but no other one leads before the lease has passed. If a look finds a step that nobody told of, the line is dropped.
    """
    return min(max(lease_ms, LEAST_LINE_LOOK_MS), MOST_LINE_LOOK_MS)


class StepWaiter:
    """Waits for steps. Its owner calls `reset`, looks, and calls `wait` only if it found nothing.

    It serves one thread at a time. Another one that comes meanwhile sleeps instead of waiting.
    """

    def __init__(
        self,
        watch: Callable[[], Watch | None],
        clock: Clock,
        line: FollowLine,
        read_step: Callable[[], int],
        read_lease_ms: Callable[[], int],
        news: threading.Event,
        longest_ms: int | None = None,
    ) -> None:
        """Create a waiter.

        Args:
            watch: returns a new watch of the folder of steps; None: the system cannot watch it.
            line: to the leader, for this waiter alone.
            read_step: returns the last step that was read, without looking for newer ones.
            read_lease_ms: returns the time for which a leader leads, as of that step.
            news: set by others when there is another reason to look, such as an answer. The waiter clears it.
            longest_ms: how long to wait at most while the line is open. None: until it is time to look again.
        """
        self._folder, self._clock, self._line = FolderWaiter(watch, clock, news), clock, line
        self._read_step, self._read_lease_ms, self._news = read_step, read_lease_ms, news
        self._longest_ms = longest_ms
        self._busy = threading.Lock()
        self._thread_id = 0
        """The thread that has called `reset` last. What it has noted is of no use to another one."""
        self._step = 0
        self._looked_ms = clock.steady_ms()
        self._waited_long = False
        weakref.finalize(self, _close_all, self._folder, line)

    def reset(self) -> None:
        """Prepare for a look: a step that is decided from now on ends the next wait."""
        if self._busy.acquire(blocking=False):
            try:
                self._thread_id = threading.get_ident()
                # The number may be older than what the look then finds. Then the leader's hint comes at once.
                self._step = self._read_step()
                self._looked_ms = self._clock.steady_ms()
                self._folder.reset()
            finally:
                self._busy.release()

    def needs_look(self) -> bool:
        """Return whether a step or other news may have come since the last `reset`.

        It is False for at most the time of `find_line_look_ms`, and only while the leader owes a hint: this waiter has
        asked for one on its line, and none has come. On a disk that tells of new files it is always True: a look costs
        little there.
        """
        if self._thread_id != threading.get_ident() or not self._busy.acquire(blocking=False):
            return True
        try:
            if self._folder.has_watch:
                return True
            if self._news.is_set() or not self._line.owes_hint():
                self._waited_long = False
                return True
            self._waited_long = self._clock.steady_ms() - self._looked_ms >= self._find_look_ms()
            return self._waited_long
        finally:
            self._busy.release()

    def note_arrival(self) -> None:
        """Note that the look found something."""
        self._folder.note_arrival()
        if self._waited_long and self._busy.acquire(blocking=False):
            try:
                self._line.close()
            finally:
                self._busy.release()
        self._waited_long = False

    def wait(self, poll_ms: float, most_ms: float | None = None) -> None:
        """Wait for the next step, or for other news.

        Args:
            poll_ms: how long to wait if nothing tells of steps.
            most_ms: how long to wait at most. Without it, the owner waits for steps alone, and looks less often.
        """
        if self._thread_id != threading.get_ident() or not self._busy.acquire(blocking=False):
            self._clock.sleep(poll_ms if most_ms is None else min(poll_ms, most_ms))
            return
        try:
            if self._folder.has_watch or not self._line.await_step(self._step, most_ms):
                self._folder.wait(poll_ms, WATCHED_LOOK_MS if most_ms is None else min(most_ms, WATCHED_LOOK_MS))
            else:
                self._wait_on_line(most_ms)
        finally:
            self._busy.release()

    def _wait_on_line(self, most_ms: float | None) -> None:
        self._waited_long = False
        longest_ms = self._find_look_ms() if self._longest_ms is None else self._longest_ms
        wait_ms = longest_ms if most_ms is None else min(most_ms, longest_ms)
        deadline_ms = self._clock.steady_ms() + wait_ms
        while (left_ms := deadline_ms - self._clock.steady_ms()) > 0:
            if self._line.wait_for_hint(min(_SLICE_MS, left_ms)) or self._news.is_set():
                return
        self._waited_long = wait_ms >= longest_ms

    def _find_look_ms(self) -> int:
        return find_line_look_ms(self._read_lease_ms())

    def close(self) -> None:
        """Stop watching. A wait in another thread ends first."""
        self._news.set()
        # In a forked child a thread that does not exist there may hold the lock.
        if self._busy.acquire(timeout=_CLOSE_S):
            try:
                _close_all(self._folder, self._line)
            finally:
                self._busy.release()


def _close_all(folder: FolderWaiter, line: FollowLine) -> None:
    folder.close()
    line.close()
