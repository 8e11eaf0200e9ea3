"""Delays: rows that wait for their time, as ranges of data files, and what becomes of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from .base import Count, DueMillis, FileId, Number, Record, Request, Result


class DelayStatus(str, Enum):
    """What became of a range, as tables tell it."""

    OPEN = "open"
    """Its transaction has not ended yet."""
    WAITING = "waiting"
    RELEASED = "released"
    CANCELLED = "cancelled"
    RESCHEDULED = "rescheduled"
    """Its last rows wait for another time, as ranges of their own."""
    ABORTED = "aborted"


class RangeKey(NamedTuple):
    """A range that waits; topics that share stored rows have a range each.

    reschedules: how often it was put off or brought forward; 0: as it was published. Others have one row.
    """

    topic_id: int
    file_id: int
    first_row: int
    reschedules: int = 0


class DelayedRanges(msgspec.Struct, frozen=True):
    """Ranges of rows that wait, as columns of equal length; the rows of each are in the order in which they are due.

    first_due_ms, last_due_ms: of its first row and its last, within one hour; footer_hash: as in `segments`;
    has_ttl: whether some of its rows have a time to live of their own, empty where none has; reschedules: empty where
    all are 0.
    """

    topic_id: list[int] = []
    topic: list[str] = []
    partition: list[int] = []
    file_id: list[int] = []
    footer_hash: list[int | None] = []
    first_row: list[int] = []
    record_count: list[int] = []
    first_due_ms: list[int] = []
    last_due_ms: list[int] = []
    min_timestamp_ms: list[int] = []
    max_timestamp_ms: list[int] = []
    has_ttl: list[bool] = []
    reschedules: list[int] = []

    def rows(self) -> list[DelayedRange]:
        columns = [getattr(self, name) for name in DelayedRange._fields]
        n = len(self.topic_id)
        columns[-2:] = self.has_ttl or [False] * n, self.reschedules or [0] * n
        return ranges_of(columns)


class EndedRanges(DelayedRanges, frozen=True):
    """Ranges of which nothing waits any more. The columns are as in WaitingRange; empty where no range has any."""

    released_count: list[int] = []
    cancelled: list[list[int]] = []
    rescheduled: list[list[int]] = []

    def ends(self) -> list[RangeEnd]:
        n = len(self.topic_id)
        nothing: list[list[int]] = [[]] * n
        rows = (self.rows(), self.released_count or [0] * n, self.cancelled or nothing, self.rescheduled or nothing)
        return [RangeEnd(*row) for row in zip(*rows, strict=True)]


class DelayedRange(NamedTuple):
    """One of DelayedRanges."""

    topic_id: int
    topic: str
    partition: int
    file_id: int
    footer_hash: int | None
    first_row: int
    record_count: int
    first_due_ms: int
    last_due_ms: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    has_ttl: bool = False
    reschedules: int = 0

    @property
    def key(self) -> RangeKey:
        return RangeKey(self.topic_id, self.file_id, self.first_row, self.reschedules)


class RangeEnd(NamedTuple):
    """One of EndedRanges."""

    told: DelayedRange
    released_count: int
    cancelled: list[int]
    rescheduled: list[int]


def ranges_of(columns: Sequence[list[Any]]) -> list[DelayedRange]:
    """Columns as ranges. What many of them have in common is one object: they may wait for long, and be a million."""
    same: dict[Any, Any] = {}
    shared = [
        [same.setdefault(one, one) for one in column] if name in _COMMON else column
        for name, column in zip(DelayedRange._fields, columns, strict=True)
    ]
    return [DelayedRange(*row) for row in zip(*shared, strict=True)]


_COMMON = {"topic_id", "topic", "partition", "file_id", "footer_hash", "min_timestamp_ms", "max_timestamp_ms"}


def columns_of(ranges: Sequence[DelayedRange]) -> DelayedRanges:
    """Ranges as columns."""
    return DelayedRanges(*_columns(ranges))


def _columns(ranges: Sequence[DelayedRange]) -> list[list[Any]]:
    columns: list[list[Any]] = [list(column) for column in zip(*ranges, strict=True)]
    columns[-2:] = (column if any(column) else [] for column in columns[-2:])
    return columns


def ended(ends: Sequence[RangeEnd]) -> EndedRanges:
    """Ranges that end now, as columns."""
    if not ends:
        return EndedRanges()
    told, *columns = zip(*ends, strict=True)
    return EndedRanges(*_columns(told), *(list(column) if any(column) else [] for column in columns))


def keys_of(topic_id: list[int], file_id: list[int], first_row: list[int]) -> list[RangeKey]:
    """Keys of several rows, which were columns: hence as they were published."""
    return [RangeKey(*key) for key in zip(topic_id, file_id, first_row, strict=True)]


class RangesDue(msgspec.Struct, frozen=True):
    """What the leader has found to be due, in the order in which it is to be released.

    ranges, due_ms, upto: a range, when its next rows are due, and the number of its rows that are released then.
    pointer_ms: all that is due up to this time is released with these.
    """

    ranges: list[RangeKey]
    due_ms: list[int]
    upto: list[int]
    pointer_ms: int


class CancelOutcome(str, Enum):
    """What became of a row that was to be cancelled."""

    CANCELLED = "cancelled"
    RELEASED = "released"
    RESCHEDULED = "rescheduled"
    """It waits for another time, by another receipt, or did."""
    NOT_FOUND = "not_found"
    """The state has nothing of it: it never waited, or its whole range has ended."""
    WAITING = "waiting"
    """It waits as before: it was to be rescheduled with others that do not."""


class CancelDelays(Request, frozen=True, tag="cancel_delays"):
    """Rows that are not to be delivered, as columns: the range that each is in, and its number within that."""

    topic_id: list[Number]
    file_id: list[FileId]
    first_row: list[Count]
    index: list[Count]
    reschedules: list[Count] = []


class RescheduleDelays(Request, frozen=True, tag="reschedule_delays"):
    """Rows of one message that are to be delivered at other times, all of them or none. due_ms: of each."""

    topic_id: list[Number]
    file_id: list[FileId]
    first_row: list[Count]
    index: list[Count]
    reschedules: list[Count]
    due_ms: list[DueMillis]


class DelaysJudged(Result, frozen=True, tag="delays_judged"):
    """Per row what became of it. reschedules, due_ms: where they wait from now on, if they were rescheduled now."""

    outcomes: list[CancelOutcome]
    reschedules: list[int] = []
    due_ms: list[int] = []


class DelaysCancelled(Record, frozen=True, tag="delays_cancelled"):
    """Rows that wait are not delivered as they were to be.

    topic_id, file_id, first_row, cancelled: ranges of which others wait still, and the numbers of the rows within each;
    done: those of which none does; instead: ranges of the same rows that wait from now on: they were rescheduled;
    producer_id, producer_epoch: of each of these.
    """

    topic_id: list[int] = []
    file_id: list[int] = []
    first_row: list[int] = []
    cancelled: list[list[int]] = []
    done: EndedRanges = msgspec.field(default_factory=EndedRanges)
    instead: DelayedRanges = msgspec.field(default_factory=DelayedRanges)
    producer_id: list[int | None] = []
    producer_epoch: list[int | None] = []


class Delayed(Record, frozen=True, tag="delayed"):
    """Rows were published that wait. transactional_id: they are scheduled when its transaction is committed."""

    ranges: DelayedRanges
    producer_id: int | None = None
    producer_epoch: int | None = None
    transactional_id: str | None = None

    @property
    def subject(self) -> str:
        return ",".join(sorted(set(self.ranges.topic))[:3])


class DelaysReleased(Record, frozen=True, tag="delays_released"):
    """Rows that waited became offsets. The segments travel beside the JSON, as columns.

    topic_id, file_id, first_row, released_count: of ranges that are not done; done: those whose last row it was.
    pointer_ms: all that was due up to this time is released; late_ms: for how long the first of these was due.
    """

    pointer_ms: int
    topic_id: list[int] = []
    file_id: list[int] = []
    first_row: list[int] = []
    released_count: list[int] = []
    done: EndedRanges = msgspec.field(default_factory=EndedRanges)
    late_ms: int = 0


class DelaysSettled(Record, frozen=True, tag="delays_settled"):
    """The transaction that was named by this producer id and epoch has ended: its rows wait, or never will.

    topic_id, file_id, first_row: of ranges that wait from now on; aborted: those that never will.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    topic_id: list[int] = []
    file_id: list[int] = []
    first_row: list[int] = []
    aborted: DelayedRanges = msgspec.field(default_factory=DelayedRanges)

    @property
    def subject(self) -> str:
        return self.transactional_id


class DelaysDropped(Record, frozen=True, tag="delays_dropped"):
    """A topic was deleted, and with it what was to come to it."""

    topic: str
    ranges: EndedRanges

    @property
    def subject(self) -> str:
        return self.topic


@dataclass(slots=True)
class WaitingRange:
    """A range as it is now. step, position: when it was published, and the place in that step.

    released_count: of its rows, from the first on; is_open: its transaction has not ended; cancelled: numbers of rows
    that are passed over, ascending; rescheduled: those of them that wait for another time.
    """

    told: DelayedRange
    step: int
    position: int
    producer_id: int | None
    producer_epoch: int | None
    transactional_id: str | None
    is_open: bool
    released_count: int = 0
    cancelled: Sequence[int] = ()
    rescheduled: Sequence[int] = ()

    @property
    def author(self) -> tuple[int | None, int | None]:
        return self.producer_id, self.producer_epoch

    @property
    def left_count(self) -> int:
        return self.left_after(self.released_count)

    def left_after(self, released_count: int) -> int:
        """How many of its rows wait, once so many are released."""
        if not self.cancelled:
            return self.told.record_count - released_count
        passed_over = len(self.cancelled) - bisect_left(self.cancelled, released_count)
        return self.told.record_count - released_count - passed_over

    def outcome_of(self, index: int) -> CancelOutcome:
        """What has become of this row."""
        return outcome_of(index, self.released_count, self.cancelled, self.rescheduled)


def outcome_of(index: int, released_count: int, cancelled: Sequence[int], rescheduled: Sequence[int]) -> CancelOutcome:
    """What has become of a row of a range. The others are as in WaitingRange."""
    if cancelled:  # what is rescheduled is among them
        if _has(rescheduled, index):
            return CancelOutcome.RESCHEDULED
        if _has(cancelled, index):
            return CancelOutcome.CANCELLED
    return CancelOutcome.RELEASED if index < released_count else CancelOutcome.WAITING


def _has(ascending: Sequence[int], number: int) -> bool:
    at = bisect_left(ascending, number)
    return at < len(ascending) and ascending[at] == number


@dataclass
class Delays:
    """All that waits. pointer_ms: what was due up to this time is released.

    pending: topic_id -> number of rows; open: (producer_id, producer_epoch), which name a transaction -> its ranges.
    ready: ranges that have begun to wait in this step, for whoever looks out for when they are due; published: how
    many were published in it.
    """

    pointer_ms: int = 0
    ranges: dict[RangeKey, WaitingRange] = field(default_factory=dict)
    pending: dict[int, int] = field(default_factory=dict)
    open: dict[tuple[int | None, int | None], dict[RangeKey, None]] = field(default_factory=dict)
    ready: list[RangeKey] = field(default_factory=list)
    published: int = 0

    def add(self, one: WaitingRange) -> None:
        """A range that is not there yet."""
        key = one.told.key
        self.ranges[key] = one
        self._count(one.told.topic_id, one.left_count)
        if one.is_open:
            self.open.setdefault(one.author, {})[key] = None
        else:
            self.ready.append(key)

    def remove(self, key: RangeKey) -> None:
        """It waits no more, if it did."""
        one = self.ranges.pop(key, None)
        if one is not None:
            self._count(one.told.topic_id, -one.left_count)
            if one.is_open and (mine := self.open.get(one.author)) is not None:
                mine.pop(key, None)
                if not mine:
                    del self.open[one.author]

    def settle(self, key: RangeKey) -> None:
        """Its transaction is committed: it waits from now on."""
        one = self.ranges.get(key)
        if one is not None:
            one.is_open, one.transactional_id = False, None
            self.ready.append(key)

    def release(self, key: RangeKey, released_count: int) -> None:
        """So many of its rows are in the log; with the last one it is gone."""
        one = self.ranges.get(key)
        if one is None:
            return
        self._count(one.told.topic_id, one.left_after(released_count) - one.left_count)
        one.released_count = released_count
        if not one.left_count:
            del self.ranges[key]

    def cancel(self, key: RangeKey, rows: list[int], rescheduled: bool = False) -> None:
        """These of its rows wait no more; others do."""
        one = self.ranges.get(key)
        if one is not None:
            before = one.left_count
            one.cancelled = sorted({*one.cancelled, *rows}) if one.cancelled else rows
            if rescheduled:
                one.rescheduled = sorted({*one.rescheduled, *rows})
            self._count(one.told.topic_id, one.left_count - before)

    def begin_step(self) -> None:
        self.ready.clear()
        self.published = 0

    def _count(self, topic_id: int, more: int) -> None:
        left = self.pending.get(topic_id, 0) + more
        if left:
            self.pending[topic_id] = left
        else:
            self.pending.pop(topic_id, None)


REQUESTS = (CancelDelays, RescheduleDelays)
RESULTS = (DelaysJudged,)
RECORDS = (Delayed, DelaysCancelled, DelaysReleased, DelaysSettled, DelaysDropped)
