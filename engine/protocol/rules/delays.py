"""Delays: rows wait as ranges, and become offsets when they are due. A release points at them; nothing is copied.

Invariant: a row is released once, in a step whose time is not before the one it is due at. What a range has released is
always a number of its rows from the first on, and that number only grows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import DelayQueueFull, InvalidRequest
from ..values.assignments import Place
from ..values.base import Done
from ..values.deciding import Decision, Given
from ..values.delays import (
    CancelDelays,
    CancelOutcome,
    Delayed,
    DelayedRange,
    DelaysCancelled,
    DelaysDropped,
    DelaysJudged,
    DelaysReleased,
    DelaysSettled,
    RangeEnd,
    RangeKey,
    RangesDue,
    RescheduleDelays,
    WaitingRange,
    columns_of,
    ended,
    keys_of,
)
from ..values.journal import JournalEntry
from ..values.log import DataFile, PendingFile, Produce
from ..values.segments import NO_SEGMENTS, Segments, segments
from ..values.state import State
from ..values.topics import TimeToLive, Topic
from .ranges import RangeColumns
from .registries import Folds, Rules
from .timers import Timers


def decide_delayed(
    state: State,
    request: Produce,
    topics: Sequence[Topic],
    ranges: RangeColumns,
    files: Sequence[DataFile | PendingFile],
) -> list[JournalEntry]:
    """What a publish has of rows that wait. ranges: those of it, at least one.

    Raises DelayQueueFull, InvalidRequest.
    """
    _check_room(state, topics, ranges)
    author = request.producer or request.transaction
    columns = (
        ranges.topic_index,
        ranges.partition,
        ranges.file,
        ranges.first_row,
        ranges.record_count,
        ranges.first_due_ms,
        ranges.last_due_ms,
        ranges.min_timestamp_ms,
        ranges.max_timestamp_ms,
        np.full(len(ranges), request.has_ttl),
    )
    told = [
        DelayedRange(
            topics[topic].topic_id,
            topics[topic].topic,
            partition,
            files[file].file_id,
            files[file].footer_hash,
            *rest,
        )
        for topic, partition, file, *rest in zip(*(column.tolist() for column in columns), strict=True)
    ]
    keys = {one.key for one in told}
    if len(keys) < len(told) or not keys.isdisjoint(state.delays.ranges):
        raise InvalidRequest("Rows that wait already cannot be published once more.")
    record = Delayed(
        columns_of(told),
        author.producer_id if author else None,
        author.producer_epoch if author else None,
        request.transaction.transactional_id if request.transaction else None,
    )
    return [JournalEntry(record)]


def _check_room(state: State, topics: Sequence[Topic], ranges: RangeColumns) -> None:
    for index, topic in enumerate(topics):
        most = topic.setting("delay.max.pending")
        if most >= 0:
            waiting = state.delays.pending.get(topic.topic_id, 0)
            more = int(ranges.record_count[ranges.topic_index == index].sum())
            if more and waiting + more > most:
                raise DelayQueueFull(
                    f"{topic.topic} takes no more messages that wait.",
                    found=f"{waiting} wait, {more} more",
                    expected=f"at most {most} (delay.max.pending)",
                )


def decide_release(state: State, request: RangesDue, given: Given) -> Decision:
    """Offsets for what is due; what is not, or was released before, or waits no more, is passed over."""
    spans, late_ms = _spans(state, request)
    if not spans:
        return Decision(Done())
    log, counts = _Log(state), dict[RangeKey, int]()
    for span in spans:
        log.append(span.one, span.first, span.upto)
        counts[span.one.told.key] = span.upto
    done = {key: count for key, count in counts.items() if not state.delays.ranges[key].left_after(count)}
    left = {key: count for key, count in counts.items() if key not in done}
    record = DelaysReleased(
        max(state.delays.pointer_ms, min(request.pointer_ms, state.now_ms)),
        [key.topic_id for key in left],
        [key.file_id for key in left],
        [key.first_row for key in left],
        list(left.values()),
        ended([_end(state.delays.ranges[key], count) for key, count in done.items()]),
        late_ms,
    )
    return Decision(Done(), (JournalEntry(record, log.segments()),))


@dataclass(slots=True)
class _Span:
    """Rows first .. upto of a range, which come one after the other into their partition."""

    place: Place
    one: WaitingRange
    first: int
    upto: int


def _spans(state: State, request: RangesDue) -> tuple[list[_Span], int]:
    """What is released, in order within each partition, and for how long the first of it was due.

    What a partition has of one range and of no other in between is one: after days there may be a million due times,
    and of each partition one range an hour.
    """
    spans, late_ms, now_ms = list[_Span](), 0, state.now_ms
    newest: dict[RangeKey, _Span] = {}
    last: dict[Place, _Span] = {}
    for key, due_ms, upto in zip(request.ranges, request.due_ms, request.upto, strict=True):
        one = state.delays.ranges.get(key)
        if one is None or one.is_open or key.topic_id not in state.topics:
            continue
        span = newest.get(key)
        before = one.released_count if span is None else span.upto
        if not (one.told.first_due_ms <= due_ms <= now_ms and before < upto <= one.told.record_count):
            continue
        late_ms = max(late_ms, now_ms - due_ms)
        if span is not None and last[span.place] is span:
            span.upto = upto
            continue
        place = key.topic_id, _partition(state.topics[key.topic_id], one)
        newest[key] = last[place] = _Span(place, one, before, upto)
        spans.append(newest[key])
    return spans, late_ms


def _partition(topic: Topic, one: WaitingRange) -> int:
    """Where it comes: of fewer partitions than there were when it was published, modulo their count."""
    return one.told.partition % topic.partition_count


def _end(one: WaitingRange, released_count: int, now: Collection[int] = (), rescheduled: bool = False) -> RangeEnd:
    """How it ends, with so many of its rows released. now: rows that wait, and are cancelled or rescheduled."""
    cancelled = sorted({*one.cancelled, *now}) if now else one.cancelled
    moved = sorted({*one.rescheduled, *now}) if now and rescheduled else one.rescheduled
    return RangeEnd(one.told, released_count, list(cancelled), list(moved))


def decide_cancel(state: State, request: CancelDelays, given: Given) -> Decision:
    """Rows that wait will not be delivered. Of the others it is told what became of them. Raises InvalidRequest."""
    rows = _rows(request)
    found = [_outcome(state, *row) for row in rows]
    waiting = [row for row, outcome in zip(rows, found, strict=True) if outcome is CancelOutcome.WAITING]
    judged = DelaysJudged([CancelOutcome.CANCELLED if one is CancelOutcome.WAITING else one for one in found])
    return Decision(judged, (JournalEntry(_cancelled(state, waiting)),) if waiting else ())


def decide_reschedule(state: State, request: RescheduleDelays, given: Given) -> Decision:
    """Rows that wait do so for another time, not before this one; all or, where one does not wait, none.

    Raises InvalidRequest.
    """
    rows = _rows(request)
    if len(request.due_ms) != len(rows) or len(set(rows)) < len(rows):
        raise InvalidRequest("Each row is named once, with its time.", found=f"{len(request.due_ms)} times")
    outcomes = [_outcome(state, *row) for row in rows]
    if {*outcomes} != {CancelOutcome.WAITING}:
        return Decision(DelaysJudged(outcomes))
    due_ms = [max(one, state.now_ms) for one in request.due_ms]
    instead: dict[RangeKey, DelayedRange] = {}
    for row, at_ms in zip(rows, due_ms, strict=True):
        one = _instead(state, instead, *row, at_ms)
        instead[one.key] = one
    record = _cancelled(state, rows, list(instead.values()))
    judged = DelaysJudged([CancelOutcome.RESCHEDULED] * len(rows), [key.reschedules for key in instead], due_ms)
    return Decision(judged, (JournalEntry(record),))


def _rows(request: CancelDelays | RescheduleDelays) -> list[tuple[RangeKey, int]]:
    """The rows of the request: the range of each, and its number in that."""
    reschedules = request.reschedules or [0] * len(request.topic_id)
    columns = (request.topic_id, request.file_id, request.first_row, reschedules, request.index)
    if len({len(column) for column in columns}) != 1:
        raise InvalidRequest("The columns differ in length.", found=[len(column) for column in columns])
    return [(RangeKey(*key), index) for *key, index in zip(*columns, strict=True)]


def _outcome(state: State, key: RangeKey, index: int) -> CancelOutcome:
    one = state.delays.ranges.get(key)
    if one is None or one.is_open or index >= one.told.record_count:
        return CancelOutcome.NOT_FOUND
    return one.outcome_of(index)


def _cancelled(
    state: State, rows: Sequence[tuple[RangeKey, int]], instead: Sequence[DelayedRange] = ()
) -> DelaysCancelled:
    """These rows, all of which wait, do so no more. instead: the ranges that they are from now on, one of each row."""
    fresh: dict[RangeKey, set[int]] = {}
    for key, index in rows:
        fresh.setdefault(key, set()).add(index)
    ranges, moved = state.delays.ranges, bool(instead)
    done = {key for key, mine in fresh.items() if len(mine) == ranges[key].left_count}
    left = {key: sorted(mine) for key, mine in fresh.items() if key not in done}
    ends = [_end(ranges[key], ranges[key].released_count, fresh[key], moved) for key in fresh if key in done]
    return DelaysCancelled(
        [key.topic_id for key in left],
        [key.file_id for key in left],
        [key.first_row for key in left],
        list(left.values()),
        ended(ends),
        columns_of(instead),
        [ranges[key].producer_id for key, _ in rows] if instead else [],
        [ranges[key].producer_epoch for key, _ in rows] if instead else [],
    )


def _instead(state: State, others: Container[RangeKey], key: RangeKey, index: int, due_ms: int) -> DelayedRange:
    """The row as a range of its own, whose key is free: a row may have been published once more, or by two ranges."""
    told = state.delays.ranges[key].told
    place = RangeKey(key.topic_id, key.file_id, key.first_row + index, key.reschedules + 1)
    while place in state.delays.ranges or place in others:
        place = place._replace(reschedules=place.reschedules + 1)
    return told._replace(
        first_row=place.first_row,
        record_count=1,
        first_due_ms=due_ms,
        last_due_ms=due_ms,
        reschedules=place.reschedules,
    )


class _Log:
    """The segments of a release: rows as they come, those that go on in their file as part of the one before."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._ends: dict[tuple[int, int], int] = {}
        self._last: dict[tuple[int, int], dict[str, Any]] = {}
        self._rows: list[dict[str, Any]] = []

    def append(self, one: WaitingRange, first: int, upto: int) -> None:
        """Rows first .. upto of the range, but for those that are cancelled."""
        for index in one.cancelled[bisect_left(one.cancelled, first) : bisect_left(one.cancelled, upto)]:
            self._append(one, first, index)
            first = index + 1
        self._append(one, first, upto)

    def _append(self, one: WaitingRange, first: int, upto: int) -> None:
        if first == upto:
            return
        told, count, topic = one.told, upto - first, self._state.topics[one.told.topic_id]
        partition = _partition(topic, one)
        place, first_row = (told.topic_id, partition), told.first_row + first
        ttl = topic.ttl(told.has_ttl, self._state.now_ms)
        end = self._ends.get(place)
        if end is None:
            end = int(topic.high_watermarks[partition])
        self._ends[place] = end + count
        last = self._last.get(place)
        if last is not None and _goes_on(last, one, first_row, ttl):
            last["record_count"] += count
            last["last_offset"] += count
            last["min_timestamp_ms"] = min(last["min_timestamp_ms"], told.min_timestamp_ms)
            last["max_timestamp_ms"] = max(last["max_timestamp_ms"], told.max_timestamp_ms)
            return
        self._last[place] = {
            "topic_id": told.topic_id,
            "partition": partition,
            "file_partition": told.partition,
            "base_offset": end,
            "record_count": count,
            "last_offset": end + count - 1,
            "file_id": told.file_id,
            "footer_hash": told.footer_hash,
            "first_row": first_row,
            "min_timestamp_ms": told.min_timestamp_ms,
            "max_timestamp_ms": told.max_timestamp_ms,
            "ttl": ttl,
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
        }
        self._rows.append(self._last[place])

    def segments(self) -> Segments:
        if not self._rows:
            return NO_SEGMENTS
        n, now_ms = len(self._rows), self._state.now_ms
        columns = {name: [row[name] for row in self._rows] for name in self._rows[0]}
        columns["ttl_from_ms"], columns["ttl_ms"] = map(list, zip(*columns.pop("ttl"), strict=True))
        topics = {topic_id: self._state.topics[topic_id] for topic_id in set(columns["topic_id"])}
        stamps = {i: one.setting("message.timestamp.type") == "LogAppendTime" for i, one in topics.items()}
        stamped = [stamps[topic_id] for topic_id in columns["topic_id"]]
        for name in ("min_timestamp_ms", "max_timestamp_ms"):
            columns[name] = [now_ms if by_us else ms for ms, by_us in zip(columns[name], stamped, strict=True)]
        return segments(
            n,
            kind=["data"] * n,
            topic=[topics[topic_id].topic for topic_id in columns["topic_id"]],
            append_time_ms=[now_ms if by_us else None for by_us in stamped],
            decided_at_ms=[now_ms] * n,
            transactional=[False] * n,
            origin=["delay"] * n,
            **columns,
        )


def _goes_on(last: dict[str, Any], one: WaitingRange, first_row: int, ttl: TimeToLive) -> bool:
    return (
        last["first_row"] + last["record_count"] == first_row
        and (last["file_id"], last["file_partition"]) == (one.told.file_id, one.told.partition)
        and (last["producer_id"], last["producer_epoch"]) == one.author
        and last["ttl"] == ttl
    )


# -- what ends beside it ----------------------------------------------------------------------------------


def decide_settled(
    state: State, transactional_id: str, producer_id: int, producer_epoch: int, committed: bool
) -> list[JournalEntry]:
    """What a transaction has published to wait does so with its commit, and is dropped with its abort."""
    keys = state.delays.open.get((producer_id, producer_epoch), {})
    there = [state.delays.ranges[key].told for key in keys]
    if not there:
        return []
    told, name = columns_of(there), (transactional_id, producer_id, producer_epoch)
    if committed:
        return [JournalEntry(DelaysSettled(*name, told.topic_id, told.file_id, told.first_row))]
    return [JournalEntry(DelaysSettled(*name, aborted=told))]


def decide_dropped(state: State, topic: Topic) -> list[JournalEntry]:
    """What was to come to a topic that is deleted never will."""
    if topic.topic_id not in state.delays.pending:
        return []
    there = [one for key, one in state.delays.ranges.items() if key.topic_id == topic.topic_id]
    return [JournalEntry(DelaysDropped(topic.topic, ended([_end(one, one.released_count) for one in there])))]


# -- folding ----------------------------------------------------------------------------------------------


def evolve_delayed(state: State, record: Delayed, segments: Segments) -> None:
    for told in record.ranges.rows():
        _add(state, told, record.producer_id, record.producer_epoch, record.transactional_id)


def _add(
    state: State,
    told: DelayedRange,
    producer_id: int | None,
    producer_epoch: int | None,
    transactional_id: str | None = None,
) -> None:
    is_open, place = transactional_id is not None, (state.step, state.delays.published)
    state.delays.published += 1
    state.delays.add(WaitingRange(told, *place, producer_id, producer_epoch, transactional_id, is_open))


def evolve_released(state: State, record: DelaysReleased, segments: Segments) -> None:
    state.append(segments)
    state.delays.pointer_ms = record.pointer_ms
    keys = keys_of(record.topic_id, record.file_id, record.first_row)
    for key, count in zip(keys, record.released_count, strict=True):
        state.delays.release(key, count)
    for told in record.done.rows():
        state.delays.remove(told.key)


def evolve_cancelled(state: State, record: DelaysCancelled, segments: Segments) -> None:
    keys = keys_of(record.topic_id, record.file_id, record.first_row)
    for key, rows in zip(keys, record.cancelled, strict=True):
        state.delays.cancel(key, rows, bool(record.producer_id))
    for told in record.done.rows():
        state.delays.remove(told.key)
    authors = zip(record.producer_id, record.producer_epoch, strict=True)
    for told, author in zip(record.instead.rows(), authors, strict=True):
        _add(state, told, *author)


def evolve_settled(state: State, record: DelaysSettled, segments: Segments) -> None:
    for told in record.aborted.rows():
        state.delays.remove(told.key)
    state.delays.open.pop((record.producer_id, record.producer_epoch), None)
    for key in keys_of(record.topic_id, record.file_id, record.first_row):
        state.delays.settle(key)


def evolve_dropped(state: State, record: DelaysDropped, segments: Segments) -> None:
    for told in record.ranges.rows():
        state.delays.remove(told.key)


DECIDE: Rules = {RangesDue: decide_release, CancelDelays: decide_cancel, RescheduleDelays: decide_reschedule}
EVOLVE: Folds = {
    Delayed: evolve_delayed,
    DelaysCancelled: evolve_cancelled,
    DelaysReleased: evolve_released,
    DelaysSettled: evolve_settled,
    DelaysDropped: evolve_dropped,
}
TIMERS: Timers = ()
