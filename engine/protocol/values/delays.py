"""Delayed messages: rows that wait for their time, as ranges of data files."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from .base import Count, DueMillis, FileId, Number, Record, Request, Result, TransactionRecord, Transitions


class DelayStatus(StrEnum):
    """The states of a range, as tables show them."""

    OPEN = "open"
    """Its transaction has not ended yet."""
    WAITING = "waiting"
    RELEASED = "released"
    CANCELLED = "cancelled"
    RESCHEDULED = "rescheduled"
    """Its last rows wait for another time, as ranges of their own."""
    ABORTED = "aborted"


class DelayEvent(StrEnum):
    """The events that change the state of a range."""

    COMMIT = "commit"
    ABORT = "abort"
    RELEASE_SOME = "release some rows"
    RELEASE = "release the last row"
    CANCEL_SOME = "cancel some rows"
    CANCEL = "cancel the last row"
    RESCHEDULE = "reschedule the last row"
    DELETE_TOPIC = "delete topic"


DELAY_TRANSITIONS = Transitions(
    "A range of delayed messages",
    (DelayStatus.OPEN, DelayStatus.WAITING),
    {
        DelayEvent.COMMIT: ({DelayStatus.OPEN}, DelayStatus.WAITING),
        DelayEvent.ABORT: ({DelayStatus.OPEN}, DelayStatus.ABORTED),
        DelayEvent.RELEASE_SOME: ({DelayStatus.WAITING}, DelayStatus.WAITING),
        DelayEvent.RELEASE: ({DelayStatus.WAITING}, DelayStatus.RELEASED),
        DelayEvent.CANCEL_SOME: ({DelayStatus.WAITING}, DelayStatus.WAITING),
        DelayEvent.CANCEL: ({DelayStatus.WAITING}, DelayStatus.CANCELLED),
        DelayEvent.RESCHEDULE: ({DelayStatus.WAITING}, DelayStatus.RESCHEDULED),
        DelayEvent.DELETE_TOPIC: ({DelayStatus.OPEN, DelayStatus.WAITING}, DelayStatus.CANCELLED),
    },
)


class RangeKey(NamedTuple):
    """The key of a range of delayed rows. Topics that share stored rows have a range each.

    reschedules: how often the row was rescheduled; 0: as it was published. Ranges that were rescheduled have one row.
    """

    topic_id: int
    file_id: int
    first_row: int
    reschedules: int = 0


class DelayedRanges(msgspec.Struct, frozen=True):
    """Ranges of delayed rows as columns of equal length. The rows of each range are in the order of their due times.

    first_due_ms, last_due_ms: due times of its first and last row, within one hour. footer_hash: as in `segments`.
    has_ttl: whether some rows have a time to live of their own; empty if none has. reschedules: empty if all are 0.
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

    def to_ranges(self) -> list[DelayedRange]:
        columns = [getattr(self, name) for name in DelayedRange._fields]
        n = len(self.topic_id)
        columns[-2:] = self.has_ttl or [False] * n, self.reschedules or [0] * n
        return columns_to_ranges(columns)


class EndedRanges(DelayedRanges, frozen=True):
    """Ranges without waiting rows. The columns are as in WaitingRange; a column is empty if no range has a value."""

    released_count: list[int] = []
    cancelled: list[list[int]] = []
    rescheduled: list[list[int]] = []

    def to_ends(self) -> list[RangeEnd]:
        n = len(self.topic_id)
        nothing: list[list[int]] = [[]] * n
        rows = (
            self.to_ranges(),
            self.released_count or [0] * n,
            self.cancelled or nothing,
            self.rescheduled or nothing,
        )
        return [RangeEnd(*row) for row in zip(*rows, strict=True)]


class DelayedRange(NamedTuple):
    """A row of DelayedRanges."""

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
    """A row of EndedRanges."""

    published: DelayedRange
    released_count: int
    cancelled: list[int]
    rescheduled: list[int]


def columns_to_ranges(columns: Sequence[list[Any]]) -> list[DelayedRange]:
    """Return columns as ranges. Equal values share one object, because a million ranges may wait for long."""
    same: dict[Any, Any] = {}
    shared = [
        [same.setdefault(value, value) for value in column] if name in _SHARED_COLUMNS else column
        for name, column in zip(DelayedRange._fields, columns, strict=True)
    ]
    return [DelayedRange(*row) for row in zip(*shared, strict=True)]


_SHARED_COLUMNS = {"topic_id", "topic", "partition", "file_id", "footer_hash", "min_timestamp_ms", "max_timestamp_ms"}


def ranges_to_columns(ranges: Sequence[DelayedRange]) -> DelayedRanges:
    """Return ranges as columns."""
    return DelayedRanges(*_to_columns(ranges))


def _to_columns(ranges: Sequence[DelayedRange]) -> list[list[Any]]:
    columns: list[list[Any]] = [list(column) for column in zip(*ranges, strict=True)]
    columns[-2:] = (column if any(column) else [] for column in columns[-2:])
    return columns


def ends_to_columns(ends: Sequence[RangeEnd]) -> EndedRanges:
    """Return ranges that end as columns."""
    if not ends:
        return EndedRanges()
    published, *columns = zip(*ends, strict=True)
    return EndedRanges(*_to_columns(published), *(list(column) if any(column) else [] for column in columns))


def columns_to_keys(topic_id: list[int], file_id: list[int], first_row: list[int]) -> list[RangeKey]:
    """Return the keys of ranges that were never rescheduled, from their columns."""
    return [RangeKey(*key) for key in zip(topic_id, file_id, first_row, strict=True)]


class RangesDue(msgspec.Struct, frozen=True):
    """Rows that the leader has found to be due, in the order of their release.

    ranges, due_ms, upto: a range, the due time of its next rows, and the number of its rows that are released by then.
    pointer_ms: everything that is due up to this time is released with these.
    """

    ranges: list[RangeKey]
    due_ms: list[int]
    upto: list[int]
    pointer_ms: int


class CancelOutcome(StrEnum):
    """The result for a row that was to be cancelled or rescheduled."""

    CANCELLED = "cancelled"
    RELEASED = "released"
    RESCHEDULED = "rescheduled"
    """It waits, or waited, for another time under another receipt."""
    NOT_FOUND = "not_found"
    """The state does not have it: it never waited, or its whole range has ended."""
    WAITING = "waiting"
    """It waits as before, because other rows of the same request cannot be rescheduled."""


class CancelDelays(Request, frozen=True, tag="cancel_delays"):  # Decided by `rules/delays.py`.
    """Cancel rows. The columns give the range of each row and its index in the range."""

    topic_id: list[Number]
    file_id: list[FileId]
    first_row: list[Count]
    index: list[Count]
    reschedules: list[Count] = []


class RescheduleDelays(Request, frozen=True, tag="reschedule_delays"):  # Decided by `rules/delays.py`.
    """Give rows of one message other due times, all of them or none. due_ms: one per row."""

    topic_id: list[Number]
    file_id: list[FileId]
    first_row: list[Count]
    index: list[Count]
    reschedules: list[Count]
    due_ms: list[DueMillis]


class DelaysJudged(Result, frozen=True, tag="delays_judged"):
    """The outcome for each row. reschedules, due_ms: the new key and time of rows that this request rescheduled."""

    outcomes: list[CancelOutcome]
    reschedules: list[int] = []
    due_ms: list[int] = []


class DelaysCancelled(Record, frozen=True, tag="delays_cancelled"):
    """Rows are cancelled or rescheduled.

    topic_id, file_id, first_row, cancelled: ranges in which other rows still wait, and the cancelled indexes of each.
    done: ranges without waiting rows. instead: the ranges that replace rescheduled rows, with their producer_id and
    producer_epoch.
    """

    topic_id: list[int] = []
    file_id: list[int] = []
    first_row: list[int] = []
    cancelled: list[list[int]] = []
    done: EndedRanges = msgspec.field(default_factory=EndedRanges)
    instead: DelayedRanges = msgspec.field(default_factory=DelayedRanges)
    producer_id: list[int | None] = []
    producer_epoch: list[int | None] = []

    @property
    def is_reschedule(self) -> bool:
        return bool(self.producer_id)


class Delayed(Record, frozen=True, tag="delayed"):
    """Delayed rows were published. transactional_id: they wait from the commit of this transaction on."""

    ranges: DelayedRanges
    producer_id: int | None = None
    producer_epoch: int | None = None
    transactional_id: str | None = None

    @property
    def subject(self) -> str:
        return ",".join(sorted(set(self.ranges.topic))[:3])


class DelaysReleased(Record, frozen=True, tag="delays_released"):
    """Delayed rows got offsets. The segments travel beside the JSON, as columns.

    topic_id, file_id, first_row, released_count: ranges with more rows to release. done: ranges whose last row is
    released. pointer_ms: everything that was due up to this time is released. late_ms: how late the first of these rows
    is.
    """

    pointer_ms: int
    topic_id: list[int] = []
    file_id: list[int] = []
    first_row: list[int] = []
    released_count: list[int] = []
    done: EndedRanges = msgspec.field(default_factory=EndedRanges)
    late_ms: int = 0


class DelaysSettled(TransactionRecord, frozen=True, tag="delays_settled"):
    """The transaction with this producer id and epoch has ended: its rows wait from now on, or are dropped.

    topic_id, file_id, first_row: ranges that wait. aborted: ranges that are dropped.
    """

    producer_id: int
    producer_epoch: int
    topic_id: list[int] = []
    file_id: list[int] = []
    first_row: list[int] = []
    aborted: DelayedRanges = msgspec.field(default_factory=DelayedRanges)


class DelaysDropped(Record, frozen=True, tag="delays_dropped"):
    """A topic was deleted together with its delayed rows."""

    topic: str
    ranges: EndedRanges

    @property
    def subject(self) -> str:
        return self.topic


@dataclass(slots=True)
class WaitingRange:
    """The present state of a range.

    step, position: when it was published, and its place within that step. released_count: how many of its first rows
    are released. is_open: its transaction has not ended. cancelled: ascending indexes of rows that are skipped.
    rescheduled: those of them that wait for another time.
    """

    published: DelayedRange
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
    def status(self) -> DelayStatus:
        return DelayStatus.OPEN if self.is_open else DelayStatus.WAITING

    @property
    def waiting_count(self) -> int:
        return self.count_waiting_after(self.released_count)

    def count_waiting_after(self, released_count: int) -> int:
        """Return how many rows wait once this many are released."""
        if not self.cancelled:
            return self.published.record_count - released_count
        return self.published.record_count - released_count - count_cancelled_after(self.cancelled, released_count)

    def find_outcome(self, index: int) -> CancelOutcome:
        """Return the outcome for a row."""
        return find_outcome(index, self.released_count, self.cancelled, self.rescheduled)


def count_cancelled_after(cancelled: Sequence[int], released_count: int) -> int:
    """Return how many rows are cancelled among those that are not released. cancelled: ascending indexes."""
    return len(cancelled) - bisect_left(cancelled, released_count)


def find_outcome(
    index: int, released_count: int, cancelled: Sequence[int], rescheduled: Sequence[int]
) -> CancelOutcome:
    """Return the outcome for a row of a range. The other parameters are as in WaitingRange."""
    if cancelled:  # rescheduled rows are among the cancelled ones
        if _contains(rescheduled, index):
            return CancelOutcome.RESCHEDULED
        if _contains(cancelled, index):
            return CancelOutcome.CANCELLED
    return CancelOutcome.RELEASED if index < released_count else CancelOutcome.WAITING


def _contains(ascending: Sequence[int], number: int) -> bool:
    at = bisect_left(ascending, number)
    return at < len(ascending) and ascending[at] == number


REQUESTS = (CancelDelays, RescheduleDelays)
RESULTS = (DelaysJudged,)
RECORDS = (Delayed, DelaysCancelled, DelaysReleased, DelaysSettled, DelaysDropped)
