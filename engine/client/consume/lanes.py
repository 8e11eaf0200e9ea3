"""The lanes of a worker: messages that wait for a thread, by their keys."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter

from ..fetch.fetch_result import Message, Row

_OFFSET = Message._fields.index("offset")
_get_key = itemgetter(Message._fields.index("key"))

_LANES_PER_THREAD = 8
"""Keys share a lane if their hashes do. More lanes would share less, and cost more when handlers are fast."""


class Lane(deque[Row]):
    """Messages that are handled one after the other. The thread that has it takes from the left without a lock."""

    is_taken = False
    """Whether it is among the ready ones, or a thread has it."""


class Lanes:
    """All lanes. One thread, the poller, puts messages into them. Others take a lane, and put it back.

    Invariant: a lane is ready, or one thread has it, or it is empty.

    Attributes:
        lock: guards which lanes are ready. The caller holds it for `take` and `put_back`.
        ready: lanes with messages that no thread has, in turn.
        is_closed: whether no more lanes are taken.
    """

    def __init__(self, thread_count: int, stop: threading.Event) -> None:
        """stop: no more lanes are taken when it is set."""
        self.lock = threading.Lock()
        self.ready: deque[Lane] = deque()
        self._lanes = [Lane() for _ in range(_LANES_PER_THREAD * thread_count)]
        self._has_work, self._has_room = threading.Condition(self.lock), threading.Condition(self.lock)
        self._thread_count = self._low = thread_count
        """low: with so many ready lanes or fewer, there is room."""
        self._is_stop_set, self.is_closed = stop.is_set, False
        self._put_count = self._taken_count = 0

    # -- for the poller ---------------------------------------------------------------------------------

    def count_waiting(self) -> int:
        return sum(map(len, self._lanes))

    def count_taken(self) -> int:
        """Return how many messages have left the lanes so far."""
        return self._put_count - self.count_waiting()

    def list_waiting(self) -> Iterator[Row]:
        return chain.from_iterable(self._lanes)

    def put(self, rows: Sequence[Row]) -> None:
        """Put messages into the lanes of their keys; those without a key into any."""
        lanes = self._lanes
        with self.lock:
            for row, key in zip(rows, map(_get_key, rows), strict=True):
                lanes[hash(row[_OFFSET] if key is None else key) % len(lanes)].append(row)
            for lane in lanes:
                if lane and not lane.is_taken:
                    lane.is_taken = True
                    self.ready.append(lane)
            self._put_count += len(rows)
            self._low = max(self._thread_count, len(self.ready) // 2)
            self._has_work.notify(len(self.ready))

    def wait_for_room(self, most: int, timeout_ms: int) -> bool:
        """Return whether few lanes are ready, and fewer than `most` messages wait. If not, wait first."""
        with self.lock:
            if len(self.ready) <= self._low and self.count_waiting() < most:
                return True
            self._has_room.wait(timeout_ms / 1000)
            return False

    def close(self) -> None:
        """Let `take` return None, also to those that wait in it."""
        with self.lock:
            self.is_closed = True
            self._has_work.notify_all()

    def is_idle(self) -> bool:
        """Return whether no thread has a lane, and none is ready."""
        return not (self._taken_count or self.ready)

    # -- for the threads --------------------------------------------------------------------------------

    def take(self) -> Lane | None:
        """Wait for a lane with messages, and return it; None when the lanes are closed. The lock is held."""
        while not self.is_closed and (self._is_stop_set() or not self.ready):
            self._has_work.wait()  # `close` ends it
        if len(self.ready) <= self._low or self.is_closed:
            self._has_room.notify()
        if self.is_closed:
            return None
        self._taken_count += 1
        return self.ready.popleft()

    def put_back(self, lane: Lane) -> None:
        """Make a lane ready if it has messages left. The lock is held."""
        self._taken_count -= 1
        if lane:
            self.ready.append(lane)
            self._has_work.notify()
        else:
            lane.is_taken = False
