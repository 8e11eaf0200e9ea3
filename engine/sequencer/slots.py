"""Slots: which rows that wait are due next. What is known of it here is read, never decided, and lost with the term.

Invariant: what is given to be released is given in the order of due times, and at one time in the order of publishing.
So nothing is given while a range is being read that may hold what is due before it. A range that cannot be read stops
nobody: it is told of, passed over, and tried again.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import NamedTuple

from lakemq.tables.specs.messages import file_stem

from ..namespace.clock import Clock
from ..namespace.due_times import Run, Runs
from ..protocol.values.delays import DelayedRange, Delays, RangeKey, RangesDue, WaitingRange

log = logging.getLogger("lakemq.serve")

READ_TIMEOUT_MS = 30_000
"""After which what is read holds up nothing any more."""
RETRY_MS = 60_000
_SOON_MS = 5
_MOST_READ = 10_000
"""Ranges that are read at once."""

Read = Callable[[Sequence[DelayedRange]], Sequence[Runs]]


class _Next(NamedTuple):
    """What is due next of a range. step, position: of its publishing; upto: as in Run."""

    due_ms: int
    step: int
    position: int
    key: RangeKey
    upto: int


class _Unread(NamedTuple):
    """A range whose rows are due at several times that are not known yet."""

    due_ms: int
    step: int
    position: int
    key: RangeKey


class _Reading(NamedTuple):
    keys: list[RangeKey]
    due_ms: int
    until_ms: int
    future: Future[Sequence[Runs]]


class Slots:
    """Of one term of leadership; called by the sequencer's thread, and reads in another one."""

    def __init__(
        self,
        delays: Delays,
        read: Read,
        executor: Callable[[], Executor],
        clock: Clock,
        ahead_ms: int,
        most: int,
        most_held: int,
    ) -> None:
        """delays: those that wait now; executor: a new one, when one hangs with what it reads; ahead_ms: how long
        before the first of its rows is due a range is read; most: ranges that a step releases; most_held: due times
        that are known ahead.
        """
        self._read, self._new_executor, self._clock = read, executor, clock
        self._executor: Executor | None = None
        self._ahead_ms, self._most, self._most_held = ahead_ms, most, most_held
        self._held = 0
        self._next: list[_Next] = []
        self._unread: list[_Unread] = []
        self._runs: dict[RangeKey, list[Run]] = {}
        """Those after the next one, the last first; so many as `_held` says."""
        self._reading: _Reading | None = None
        self._stuck: dict[RangeKey, int] = {}
        """When to try again."""
        for key, one in delays.ranges.items():
            if not one.is_open:
                self._add(key, one)

    def look(self, delays: Delays) -> None:
        """Take in what has begun to wait in this step."""
        for key in delays.ready:
            if (one := delays.ranges.get(key)) is not None:
                self._add(key, one)

    def _add(self, key: RangeKey, one: WaitingRange) -> None:
        told = one.told
        if told.first_due_ms == told.last_due_ms:
            heapq.heappush(self._next, _Next(told.first_due_ms, one.step, one.position, key, told.record_count))
        else:
            heapq.heappush(self._unread, _Unread(told.first_due_ms, one.step, one.position, key))

    # -- what is due ------------------------------------------------------------------------------------

    def due(self, delays: Delays, now_ms: int) -> RangesDue | None:
        """What is to be released by now, or the first of it; it is not given again."""
        until_ms, found = min(now_ms, self._known_until_ms), list[_Next]()
        while self._next and self._next[0].due_ms <= until_ms and len(found) < self._most:
            one = self._next[0]
            live = delays.ranges.get(one.key)
            if live is not None:
                found.append(one)
            if live is not None and (runs := self._runs.get(one.key)):
                run = runs.pop()
                self._held -= 1
                heapq.heapreplace(self._next, _Next(run.due_ms, live.step, live.position, one.key, run.upto))
            else:
                heapq.heappop(self._next)
                self._held -= len(self._runs.pop(one.key, ()))
        if not found:
            return None
        if self._next and self._next[0].due_ms <= until_ms:
            until_ms = self._next[0].due_ms - 1
        return RangesDue(
            [one.key for one in found], [one.due_ms for one in found], [one.upto for one in found], until_ms
        )

    @property
    def _known_until_ms(self) -> int:
        """All that is due up to this time is known, but for what cannot be read."""
        first = [self._unread[0].due_ms] if self._unread else []
        first += [self._reading.due_ms] if self._reading else []
        return min(first, default=2**62) - 1

    def is_due(self, now_ms: int) -> bool:
        """Whether there is something to be released."""
        return bool(self._next) and self._next[0].due_ms <= min(now_ms, self._known_until_ms)

    def is_working(self, now_ms: int) -> bool:
        """Whether there is, or will be once it is read."""
        return self.is_due(now_ms) or (self._known_until_ms < now_ms)

    def due_in_ms(self, now_ms: int) -> float | None:
        """Until something is to be released, or read; None: nothing is known to wait."""
        times = [self._next[0].due_ms - now_ms] if self._next and not self._is_held_up else []
        if self._reading is not None:
            times.append(_SOON_MS)
        elif self._unread:
            ahead_ms = self._ahead_ms if self._held < self._most_held else 0
            times.append(self._unread[0].due_ms - ahead_ms - now_ms)
        if self._stuck:
            times.append(min(self._stuck.values()) - self._clock.steady_ms())
        return max(0, min(times)) if times else None

    @property
    def _is_held_up(self) -> bool:
        return bool(self._next) and self._next[0].due_ms > self._known_until_ms

    # -- reading ----------------------------------------------------------------------------------------

    def read_ahead(self, delays: Delays, now_ms: int) -> None:
        """Take what was read, and begin to read what is due soon."""
        steady_ms = self._clock.steady_ms()
        if self._reading is not None:
            if self._reading.future.done():
                self._take(self._reading, delays)
                self._reading = None
            elif steady_ms > self._reading.until_ms:
                log.error("Due times of %d ranges could not be read in time", len(self._reading.keys))
                self._stuck |= dict.fromkeys(self._reading.keys, steady_ms + RETRY_MS)
                self._reading = None
                self.close()
        for key in [key for key, again_ms in self._stuck.items() if again_ms <= steady_ms]:
            del self._stuck[key]
            if (one := delays.ranges.get(key)) is not None:
                self._add(key, one)
        if self._reading is None:
            self._begin(delays, now_ms, steady_ms)

    def _begin(self, delays: Delays, now_ms: int, steady_ms: int) -> None:
        keys: list[RangeKey] = []
        due_ms, room = self._unread[0].due_ms if self._unread else 0, self._most_held - self._held
        while self._unread and self._unread[0].due_ms <= now_ms + self._ahead_ms and len(keys) < _MOST_READ:
            # what is due is read whatever is held: all that is due later waits for it
            if room <= 0 and (keys or self._unread[0].due_ms > now_ms):
                break
            if (one := delays.ranges.get(key := heapq.heappop(self._unread).key)) is not None:
                keys.append(key)
                room -= one.told.record_count
        if keys:
            told = [delays.ranges[key].told for key in keys]
            self._executor = self._executor or self._new_executor()
            future = self._executor.submit(self._read, told)
            self._reading = _Reading(keys, due_ms, steady_ms + READ_TIMEOUT_MS, future)

    def close(self) -> None:
        """What still hangs is left to itself."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _take(self, reading: _Reading, delays: Delays) -> None:
        failed = reading.future.exception()
        results: Sequence[Runs]
        if failed is None:
            results = reading.future.result()
        else:
            results = [failed if isinstance(failed, Exception) else RuntimeError(repr(failed))] * len(reading.keys)
        for key, runs in zip(reading.keys, results, strict=True):
            live = delays.ranges.get(key)
            if live is None:
                continue
            if isinstance(runs, Exception):
                log.warning("Due times of data file %s cannot be read: %s", file_stem(key.file_id), runs)
                self._stuck[key] = self._clock.steady_ms() + RETRY_MS
                continue
            left = [run for run in reversed(runs) if run.upto > live.released_count]
            if left:
                first = left.pop()
                self._held += len(left) - len(self._runs.get(key, ()))
                self._runs[key] = left
                heapq.heappush(self._next, _Next(first.due_ms, live.step, live.position, key, first.upto))
