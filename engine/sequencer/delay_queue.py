"""The queue of delayed ranges: which rows are due next. It lives in the leader's memory and decides nothing.

A delayed message becomes visible in three stages:

1. A publish adds a range of rows that wait. Its step gives it to `add_new_ranges`. A range that is due soon is queued.
   Every other range is idle, or packed with thousands of others into a block that needs little memory.
2. Before a step, `read_ahead` queues idle ranges that are due soon. If the rows of a range have several due times,
   another thread reads these times from the data file, about `delay.load.ahead.ms` before the first one.
3. In the step, `take_due` returns the rows that are due. The decision releases them: it gives them offsets.

A range is in one of six states, until its last row is released:

    idle ──> packed
      │        │
      ├────────┴── all rows are due at one time ──────> due ──> released
      │                                                  ^
      └──> unread ─────> being read ─────────────────────┘
              ^              │
              └─ unreadable ─┘  for a minute, and passed over meanwhile

Two heaps, both ordered by due time, then by order of publishing: `_due_heap` has ranges whose next due time is known.
`_unread_heap` has ranges whose due times must still be read.

Invariant: rows are released in the order of due times, and at one time in the order of publishing. So rows are released
only if they are due before the first unread range, the first range being read, and every range that may still be idle
(`_complete_until_ms`). A range that cannot be read holds up nothing: it is logged, passed over and tried again.

The queue is not part of the state. `take_due` removes entries before their step has landed. If the step fails, the term
ends, and the next leader builds a new queue from the state.
"""

import heapq
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from itertools import islice
from typing import NamedTuple

from lakemq.tables.specs.messages import file_stem

from ..namespace.clock import Clock
from ..namespace.waiting_rows import DueRun, DueRuns
from ..protocol.values.delays import DelayedRange, RangeKey, RangesDue, WaitingRange
from ..protocol.values.waiting import Delays

log = logging.getLogger("lakemq.serve")

READ_TIMEOUT_MS = 30_000
"""A read of due times that takes longer is given up, and holds up nothing."""
RETRY_MS = 60_000
"""Time until an unreadable range is read again."""
_SOON_MS = 5
"""Time until the next look while due times are being read."""
_MAX_READ = 10_000
"""Ranges that are read at once."""

NEAR_MS = 600_000
"""A range is queued at most this long before its first row is due, and at least half as long."""

PACKED_AT_ONCE = 4096
"""Ranges that become one block. A step takes about 10 ms longer for it."""

_MAX_QUEUED_PER_STEP, _MAX_BLOCKS_PER_STEP = 1000, 16
"""Ranges that one step queues, and blocks that it searches for them. A step takes about 10 ms longer for it."""

_MAX_QUEUE = 100_000
"""Length of the queue above which no ranges are added until the last queued one is due."""

ReadDueTimes = Callable[[Sequence[DelayedRange]], Sequence[DueRuns]]


class _DueEntry(NamedTuple):
    """A range and its next due rows. step, position: order of publishing; upto: as in DueRun."""

    due_ms: int
    step: int
    position: int
    key: RangeKey
    upto: int


class _UnreadEntry(NamedTuple):
    """A range whose rows have several due times that are not read yet."""

    due_ms: int
    step: int
    position: int
    key: RangeKey


class _Reading(NamedTuple):
    """A read in progress. due_ms: when the first row of these ranges is due; until_ms: when the read is given up."""

    keys: list[RangeKey]
    due_ms: int
    until_ms: int
    future: Future[Sequence[DueRuns]]


class DelayQueue:
    """The due ranges of one term of leadership.

    The sequencer's thread calls it; due times are read in another thread.
    """

    def __init__(
        self,
        delays: Delays,
        read: ReadDueTimes,
        executor: Callable[[], Executor],
        clock: Clock,
        ahead_ms: int,
        max_released: int,
        max_held_runs: int,
        near_ms: int = NEAR_MS,
        packed_at_once: int = PACKED_AT_ONCE,
    ) -> None:
        """Create the queue; all ranges that wait now are idle.

        Args:
            delays: the ranges that wait now.
            read: returns the due times of ranges.
            executor: returns a new executor, also when the one before hangs in a read.
            ahead_ms: how long before its first row is due a range is read.
            max_released: ranges that one step releases.
            max_held_runs: due times that are held in memory.
            near_ms: see NEAR_MS.
            packed_at_once: idle ranges that become a block.
        """
        self._read_due_times, self._new_executor, self._clock = read, executor, clock
        self._executor: Executor | None = None
        self._ahead_ms, self._max_released, self._max_held_runs = ahead_ms, max_released, max_held_runs
        self._held_runs_count = 0
        self._due_heap: list[_DueEntry] = []
        self._unread_heap: list[_UnreadEntry] = []
        self._runs: dict[RangeKey, list[DueRun]] = {}
        """Range -> its due times after the one in `_due_heap`, latest first. `_held_runs_count` counts them."""
        self._reading: _Reading | None = None
        self._unreadable: dict[RangeKey, int] = {}
        """Range -> when to read it again."""
        self._packed_at_once, self._near_ms = packed_at_once, max(near_ms, 2 * ahead_ms)
        self._queued_until_ms = 0
        """All ranges whose first row is due before this time are queued."""
        self._window_end_ms = 0
        """The next value of `_queued_until_ms` while ranges are being queued over several steps; otherwise the same."""
        self._has_idle = False
        for key, range_ in delays.ranges.unpacked.items():
            if not range_.is_open:
                delays.ranges.idle[key] = None

    def add_new_ranges(self, delays: Delays) -> None:
        """Add the ranges that have begun to wait in this step."""
        for key in delays.ready:
            if (range_ := delays.ranges.unpacked.get(key)) is not None:
                if range_.published.first_due_ms < self._queued_until_ms:
                    self._queue(key, range_)
                else:
                    delays.ranges.idle[key] = None
                    self._has_idle = True

    def _queue(self, key: RangeKey, range_: WaitingRange) -> None:
        published = range_.published
        if published.first_due_ms == published.last_due_ms:
            heapq.heappush(
                self._due_heap,
                _DueEntry(published.first_due_ms, range_.step, range_.position, key, published.record_count),
            )
        else:
            heapq.heappush(self._unread_heap, _UnreadEntry(published.first_due_ms, range_.step, range_.position, key))

    # -- due ranges ------------------------------------------------------------------------------------

    def take_due(self, delays: Delays, now_ms: int) -> RangesDue | None:
        """Remove and return the ranges that are due at now_ms, at most as many as a step releases.

        None: nothing is due.
        """
        until_ms, entries = min(now_ms, self._complete_until_ms), list[_DueEntry]()
        while self._due_heap and self._due_heap[0].due_ms <= until_ms and len(entries) < self._max_released:
            entry = self._due_heap[0]
            live = delays.ranges.unpacked.get(entry.key)  # what is queued is never packed
            if live is not None:
                entries.append(entry)
            if live is not None and (runs := self._runs.get(entry.key)):
                run = runs.pop()
                self._held_runs_count -= 1
                heapq.heapreplace(self._due_heap, _DueEntry(run.due_ms, live.step, live.position, entry.key, run.upto))
            else:
                heapq.heappop(self._due_heap)
                self._held_runs_count -= len(self._runs.pop(entry.key, ()))
        if not entries:
            return None
        if self._due_heap and self._due_heap[0].due_ms <= until_ms:  # more is due than one step releases
            until_ms = self._due_heap[0].due_ms - 1
        return RangesDue(
            [entry.key for entry in entries],
            [entry.due_ms for entry in entries],
            [entry.upto for entry in entries],
            until_ms,
        )

    @property
    def _complete_until_ms(self) -> int:
        """The time up to which all due rows are known, except those of unreadable ranges."""
        first = [self._unread_heap[0].due_ms] if self._unread_heap else []
        first += [self._reading.due_ms] if self._reading else []
        return min([*first, self._queued_until_ms]) - 1

    def is_due(self, now_ms: int) -> bool:
        """Return whether there is something to release."""
        return bool(self._due_heap) and self._due_heap[0].due_ms <= min(now_ms, self._complete_until_ms)

    def is_working(self, now_ms: int) -> bool:
        """Return whether something can be released now, or may be due although it is not read or not queued yet."""
        return self.is_due(now_ms) or (self._complete_until_ms < now_ms)

    def due_in_ms(self, now_ms: int) -> float | None:
        """Return in how many ms something must be released or read. None: nothing is known to wait."""
        times = [self._due_heap[0].due_ms - now_ms] if self._due_heap and not self._is_first_held_up else []
        if self._reading is not None:
            times.append(_SOON_MS)
        elif self._unread_heap:
            ahead_ms = self._ahead_ms if self._held_runs_count < self._max_held_runs else 0
            times.append(self._unread_heap[0].due_ms - ahead_ms - now_ms)
        if self._window_end_ms > self._queued_until_ms:
            times.append(0)
        elif self._has_idle:
            # a long queue is extended only at the end of its window
            early_ms = 0 if self._is_queue_long(now_ms) else self._near_ms // 2
            times.append(self._queued_until_ms - early_ms - now_ms)
        if self._unreadable:
            times.append(min(self._unreadable.values()) - self._clock.steady_ms())
        return max(0, min(times)) if times else None

    @property
    def _is_first_held_up(self) -> bool:
        return bool(self._due_heap) and self._due_heap[0].due_ms > self._complete_until_ms

    # -- ranges due much later -------------------------------------------------------------------------

    def _queue_idle_soon(self, delays: Delays, now_ms: int) -> None:
        """Queue idle ranges that are due soon, as many as a step has time for.

        Invariant: every range whose first row is due before `_queued_until_ms` is queued. The limit moves on window by
        window. The next one is chosen when less than `_near_ms` / 2 of the one before is left. It ends
        `_near_ms` after now, or after the first idle range if that is overdue. So after a standstill, when very many
        ranges may be due, the earliest window comes first, and the next one is chosen once the queue is short.

        Queueing one window may take several steps. Meanwhile `_window_end_ms` is its end, and `_queued_until_ms`
        stays. The window is complete when no packed range before its end is left. Ranges that are idle but not packed
        are queued in each step.
        """
        ranges = delays.ranges
        self._has_idle = bool(ranges.idle) or bool(ranges.packed)
        if not self._has_idle:
            self._queued_until_ms = self._window_end_ms = max(self._window_end_ms, now_ms + self._near_ms)
            return
        if self._window_end_ms == self._queued_until_ms:
            if self._queued_until_ms >= now_ms + self._near_ms // 2 or self._is_queue_long(now_ms):
                return
            first_ms = max(self._queued_until_ms, ranges.first_idle_ms())
            self._window_end_ms = max(self._queued_until_ms, min(first_ms, now_ms) + self._near_ms)
        for key in ranges.wake(self._window_end_ms - 1, _MAX_QUEUED_PER_STEP, _MAX_BLOCKS_PER_STEP):
            self._queue(key, ranges.unpacked[key])
        if ranges.packed.first_due_ms >= self._window_end_ms:
            self._queued_until_ms = self._window_end_ms

    def _is_queue_long(self, now_ms: int) -> bool:
        """Return whether the queue should become shorter first.

        True only if releases, reads or the passing of time will shorten it.
        """
        is_moving = self.is_due(now_ms) or self._reading is not None or self._queued_until_ms > now_ms
        return is_moving and len(self._due_heap) + len(self._unread_heap) > _MAX_QUEUE

    def pack(self, delays: Delays, projected_step: int) -> None:
        """Pack idle ranges into a block.

        projected_step: later steps are not projected yet, and the projection needs their ranges.
        """
        ranges = delays.ranges
        if len(ranges.idle) >= self._packed_at_once:
            keys = list(islice(ranges.idle, self._packed_at_once))
            if ranges.unpacked[keys[-1]].step <= projected_step:
                ranges.pack(keys)

    # -- reading ----------------------------------------------------------------------------------------

    def read_ahead(self, delays: Delays, now_ms: int) -> None:
        """Take the due times that were read, queue ranges that are due soon, and begin the next read."""
        steady_ms = self._clock.steady_ms()
        if self._reading is not None:
            if self._reading.future.done():
                self._take_times(self._reading, delays)
                self._reading = None
            elif steady_ms > self._reading.until_ms:
                log.error("Due times of %d ranges could not be read in time", len(self._reading.keys))
                self._unreadable |= dict.fromkeys(self._reading.keys, steady_ms + RETRY_MS)
                self._reading = None
                self.close()
        for key in [key for key, again_ms in self._unreadable.items() if again_ms <= steady_ms]:
            del self._unreadable[key]
            if (range_ := delays.ranges.unpacked.get(key)) is not None:
                self._queue(key, range_)
        self._queue_idle_soon(delays, now_ms)
        if self._reading is None:
            self._begin_reading(delays, now_ms, steady_ms)

    def _begin_reading(self, delays: Delays, now_ms: int, steady_ms: int) -> None:
        keys: list[RangeKey] = []
        due_ms, room = (
            self._unread_heap[0].due_ms if self._unread_heap else 0,
            self._max_held_runs - self._held_runs_count,
        )
        while self._unread_heap and self._unread_heap[0].due_ms <= now_ms + self._ahead_ms and len(keys) < _MAX_READ:
            # read due ranges whatever the memory: everything that is due later waits for them
            if room <= 0 and (keys or self._unread_heap[0].due_ms > now_ms):
                break
            if (range_ := delays.ranges.unpacked.get(key := heapq.heappop(self._unread_heap).key)) is not None:
                keys.append(key)
                room -= range_.published.record_count
        if keys:
            ranges = [delays.ranges.unpacked[key].published for key in keys]
            self._executor = self._executor or self._new_executor()
            future = self._executor.submit(self._read_due_times, ranges)
            self._reading = _Reading(keys, due_ms, steady_ms + READ_TIMEOUT_MS, future)

    def close(self) -> None:
        """Give up the read in progress, if any."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _take_times(self, reading: _Reading, delays: Delays) -> None:
        failed = reading.future.exception()
        results: Sequence[DueRuns]
        if failed is None:
            results = reading.future.result()
        else:
            results = [failed if isinstance(failed, Exception) else RuntimeError(repr(failed))] * len(reading.keys)
        for key, runs in zip(reading.keys, results, strict=True):
            live = delays.ranges.unpacked.get(key)
            if live is None:
                continue
            if isinstance(runs, Exception):
                log.warning("Due times of data file %s cannot be read: %s", file_stem(key.file_id), runs)
                self._unreadable[key] = self._clock.steady_ms() + RETRY_MS
                continue
            remaining = [run for run in reversed(runs) if run.upto > live.released_count]
            if remaining:
                first = remaining.pop()
                self._held_runs_count += len(remaining) - len(self._runs.get(key, ()))
                self._runs[key] = remaining
                heapq.heappush(self._due_heap, _DueEntry(first.due_ms, live.step, live.position, key, first.upto))
