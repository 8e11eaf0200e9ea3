"""Delayed messages: rows wait as ranges, and get offsets when they are due.

Invariant: a row is released once, in a step whose time is not before its due time. The released rows of a range are
always its first ones, and their number only grows.
"""

from bisect import bisect_left
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import DelayQueueFull, InvalidRequest
from ..values.assignments import TopicIdPartition
from ..values.base import Done
from ..values.decision import Decision, DecisionInputs
from ..values.delays import (
    CancelDelays,
    CancelOutcome,
    Delayed,
    DelayedRange,
    DelayEvent,
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
    columns_to_keys,
    ends_to_columns,
    ranges_to_columns,
)
from ..values.journal import JournalEntry
from ..values.log import DataFile, PendingFile, Produce
from ..values.segments import NO_SEGMENTS, Segments, build_segments
from ..values.state import State
from ..values.topics import TimeToLive, Topic
from .timers import Folds, Rules, Timers
from .units import RangeColumns

# Release delayed messages: give offsets to rows that are due. A release points at the rows and copies none.


def decide_release(state: State, request: RangesDue, inputs: DecisionInputs) -> Decision:
    """Give offsets to rows that are due. Rows that are not due, or were released or cancelled before, are skipped."""
    spans, late_ms = _plan_release(state, request)
    if not spans:
        return Decision(Done())
    log, counts = _ReleaseSegments(state), dict[RangeKey, int]()
    for span in spans:
        log.append(span.range_, span.first, span.upto)
        counts[span.range_.published.key] = span.upto
    finished = {key: count for key, count in counts.items() if not state.delays.ranges[key].count_waiting_after(count)}
    unfinished = {key: count for key, count in counts.items() if key not in finished}
    record = DelaysReleased(
        max(state.delays.pointer_ms, min(request.pointer_ms, state.now_ms)),
        [key.topic_id for key in unfinished],
        [key.file_id for key in unfinished],
        [key.first_row for key in unfinished],
        list(unfinished.values()),
        ends_to_columns([build_range_end(state.delays.ranges[key], count) for key, count in finished.items()]),
        late_ms,
    )
    return Decision(Done(), (JournalEntry(record, log.segments()),))


@dataclass(slots=True)
class _ReleaseSpan:
    """Rows first to upto (exclusive) of a range, which enter their partition one after another."""

    topic_partition: TopicIdPartition
    range_: WaitingRange
    first: int
    upto: int


def _plan_release(state: State, request: RangesDue) -> tuple[list[_ReleaseSpan], int]:
    """Return the spans to release, in order within each partition, and how late the first of them is.

    Neighbouring rows of a range become one span if no other range comes between them in the partition. This matters
    after days of standstill: a range of a data file holds the due times of an hour, so a million due times that have
    passed become far fewer spans, and far fewer segments.
    """
    spans, late_ms, now_ms = list[_ReleaseSpan](), 0, state.now_ms
    newest: dict[RangeKey, _ReleaseSpan] = {}
    last: dict[TopicIdPartition, _ReleaseSpan] = {}
    for key, due_ms, upto in zip(request.ranges, request.due_ms, request.upto, strict=True):
        range_ = state.delays.ranges.get(key)
        if range_ is None or range_.is_open or key.topic_id not in state.topics:
            continue
        span = newest.get(key)
        before = range_.released_count if span is None else span.upto
        if not (range_.published.first_due_ms <= due_ms <= now_ms and before < upto <= range_.published.record_count):
            continue
        late_ms = max(late_ms, now_ms - due_ms)
        # Extend the span only if no other range has come after it in this partition: the order is that of due times.
        if span is not None and last[span.topic_partition] is span:
            span.upto = upto
            continue
        tp = key.topic_id, _find_partition(state.topics[key.topic_id], range_)
        newest[key] = last[tp] = _ReleaseSpan(tp, range_, before, upto)
        spans.append(newest[key])
    return spans, late_ms


def _find_partition(topic: Topic, range_: WaitingRange) -> int:
    """Return the partition that gets the rows. If the topic has fewer partitions now, it is the number modulo their
    count.
    """
    return range_.published.partition % topic.partition_count


def build_range_end(
    range_: WaitingRange, released_count: int, ended_now: Collection[int] = (), rescheduled: bool = False
) -> RangeEnd:
    """Return how the range ends.

    ended_now: indexes of waiting rows that are cancelled or rescheduled by this request.
    """
    cancelled = sorted({*range_.cancelled, *ended_now}) if ended_now else range_.cancelled
    moved = sorted({*range_.rescheduled, *ended_now}) if ended_now and rescheduled else range_.rescheduled
    return RangeEnd(range_.published, released_count, list(cancelled), list(moved))


class _ReleaseSegments:
    """The segments of a release. Rows that continue in their file extend the segment before them."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._ends: dict[tuple[int, int], int] = {}
        self._last: dict[tuple[int, int], dict[str, Any]] = {}
        self._rows: list[dict[str, Any]] = []

    def append(self, range_: WaitingRange, first: int, upto: int) -> None:
        """Add rows first to upto (exclusive) of the range, without the cancelled ones."""
        for index in range_.cancelled[bisect_left(range_.cancelled, first) : bisect_left(range_.cancelled, upto)]:
            self._append(range_, first, index)
            first = index + 1
        self._append(range_, first, upto)

    def _append(self, range_: WaitingRange, first: int, upto: int) -> None:
        if first == upto:
            return
        published, count, topic = range_.published, upto - first, self._state.topics[range_.published.topic_id]
        partition = _find_partition(topic, range_)
        tp, first_row = (published.topic_id, partition), published.first_row + first
        ttl = topic.ttl(published.has_ttl, self._state.now_ms)
        end = self._ends.get(tp)
        if end is None:
            end = int(topic.high_watermarks[partition])
        self._ends[tp] = end + count
        last = self._last.get(tp)
        if last is not None and _continues(last, range_, first_row, ttl):
            last["record_count"] += count
            last["last_offset"] += count
            last["min_timestamp_ms"] = min(last["min_timestamp_ms"], published.min_timestamp_ms)
            last["max_timestamp_ms"] = max(last["max_timestamp_ms"], published.max_timestamp_ms)
            return
        self._last[tp] = {
            "topic_id": published.topic_id,
            "partition": partition,
            "file_partition": published.partition,
            "base_offset": end,
            "record_count": count,
            "last_offset": end + count - 1,
            "file_id": published.file_id,
            "footer_hash": published.footer_hash,
            "first_row": first_row,
            "min_timestamp_ms": published.min_timestamp_ms,
            "max_timestamp_ms": published.max_timestamp_ms,
            "ttl": ttl,
            "producer_id": range_.producer_id,
            "producer_epoch": range_.producer_epoch,
        }
        self._rows.append(self._last[tp])

    def segments(self) -> Segments:
        if not self._rows:
            return NO_SEGMENTS
        n, now_ms = len(self._rows), self._state.now_ms
        columns = {name: [row[name] for row in self._rows] for name in self._rows[0]}
        columns["ttl_from_ms"], columns["ttl_ms"] = map(list, zip(*columns.pop("ttl"), strict=True))
        topics = {topic_id: self._state.topics[topic_id] for topic_id in set(columns["topic_id"])}
        stamps = {i: topic.setting("message.timestamp.type") == "LogAppendTime" for i, topic in topics.items()}
        stamped = [stamps[topic_id] for topic_id in columns["topic_id"]]
        for name in ("min_timestamp_ms", "max_timestamp_ms"):
            columns[name] = [
                now_ms if is_append_time else ms for ms, is_append_time in zip(columns[name], stamped, strict=True)
            ]
        return build_segments(
            n,
            kind=["data"] * n,
            topic=[topics[topic_id].topic for topic_id in columns["topic_id"]],
            append_time_ms=[now_ms if is_append_time else None for is_append_time in stamped],
            decided_at_ms=[now_ms] * n,
            transactional=[False] * n,
            origin=["delay"] * n,
            **columns,
        )


def _continues(last: dict[str, Any], range_: WaitingRange, first_row: int, ttl: TimeToLive) -> bool:
    return (
        last["first_row"] + last["record_count"] == first_row
        and (last["file_id"], last["file_partition"]) == (range_.published.file_id, range_.published.partition)
        and (last["producer_id"], last["producer_epoch"]) == range_.author
        and last["ttl"] == ttl
    )


# Rows that wait: publish, cancel and reschedule them.


def decide_delayed_rows(
    state: State,
    request: Produce,
    topics: Sequence[Topic],
    ranges: RangeColumns,
    files: Sequence[DataFile | PendingFile],
) -> list[JournalEntry]:
    """Return the entry for the delayed rows of a publish. ranges: the delayed ones, at least one.

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
        [request.has_ttl] * len(ranges),
    )
    delayed = [
        DelayedRange(
            topics[topic].topic_id,
            topics[topic].topic,
            partition,
            files[file].file_id,
            files[file].footer_hash,
            *rest,
        )
        for topic, partition, file, *rest in zip(*columns, strict=True)
    ]
    keys = {range_.key for range_ in delayed}
    # Rows that travelled in a letter get a file that is new in this step, so no packed range can have their key. This
    # saves the slow search in packed ranges for most publishes.
    waiting = state.delays.ranges
    is_known = waiting.has_any(keys) if request.files else not keys.isdisjoint(waiting.unpacked.keys())
    if len(keys) < len(delayed) or is_known:
        raise InvalidRequest("These rows wait already, and cannot be published again.")
    record = Delayed(
        ranges_to_columns(delayed),
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
            more = sum(count for t, count in zip(ranges.topic_index, ranges.record_count, strict=True) if t == index)
            if more and waiting + more > most:
                raise DelayQueueFull(
                    f"{topic.topic} has as many delayed messages as delay.max.pending allows.",
                    found=f"{waiting} wait, {more} more",
                    expected=f"at most {most} (delay.max.pending)",
                )


def decide_cancel(state: State, request: CancelDelays, inputs: DecisionInputs) -> Decision:
    """Cancel rows that wait, and report the state of the others. Raises InvalidRequest."""
    rows = _list_rows(request)
    state.delays.ranges.unpack({key for key, _ in rows})  # all at once is fast, and the state stays the same
    outcomes = [_find_outcome(state, *row) for row in rows]
    waiting = [row for row, outcome in zip(rows, outcomes, strict=True) if outcome is CancelOutcome.WAITING]
    judged = DelaysJudged(
        [CancelOutcome.CANCELLED if outcome is CancelOutcome.WAITING else outcome for outcome in outcomes]
    )
    return Decision(judged, (JournalEntry(_build_cancellation(state, waiting)),) if waiting else ())


def decide_reschedule(state: State, request: RescheduleDelays, inputs: DecisionInputs) -> Decision:
    """Give rows another due time, not before the present one. If one of them does not wait, none changes.

    Raises InvalidRequest.
    """
    rows = _list_rows(request)
    if len(request.due_ms) != len(rows) or len(set(rows)) < len(rows):
        raise InvalidRequest("Each row must be named once, and needs a due time.", found=f"{len(request.due_ms)} times")
    outcomes = [_find_outcome(state, *row) for row in rows]
    if {*outcomes} != {CancelOutcome.WAITING}:
        return Decision(DelaysJudged(outcomes))
    due_ms = [max(requested_ms, state.now_ms) for requested_ms in request.due_ms]
    instead: dict[RangeKey, DelayedRange] = {}
    for row, at_ms in zip(rows, due_ms, strict=True):
        range_ = _build_rescheduled_range(state, instead, *row, at_ms)
        instead[range_.key] = range_
    record = _build_cancellation(state, rows, list(instead.values()))
    judged = DelaysJudged([CancelOutcome.RESCHEDULED] * len(rows), [key.reschedules for key in instead], due_ms)
    return Decision(judged, (JournalEntry(record),))


def _list_rows(request: CancelDelays | RescheduleDelays) -> list[tuple[RangeKey, int]]:
    """Return the rows of the request: the key of the range, and the index of the row in it."""
    reschedules = request.reschedules or [0] * len(request.topic_id)
    columns = (request.topic_id, request.file_id, request.first_row, reschedules, request.index)
    if len({len(column) for column in columns}) != 1:
        raise InvalidRequest("The columns differ in length.", found=[len(column) for column in columns])
    return [(RangeKey(*key), index) for *key, index in zip(*columns, strict=True)]


def _find_outcome(state: State, key: RangeKey, index: int) -> CancelOutcome:
    range_ = state.delays.ranges.get(key)
    if range_ is None or range_.is_open or index >= range_.published.record_count:
        return CancelOutcome.NOT_FOUND
    return range_.find_outcome(index)


def _build_cancellation(
    state: State, rows: Sequence[tuple[RangeKey, int]], instead: Sequence[DelayedRange] = ()
) -> DelaysCancelled:
    """Return the record that cancels these rows. All of them must be waiting.

    instead: the ranges that replace them if they are rescheduled, one per row.
    """
    fresh: dict[RangeKey, set[int]] = {}
    for key, index in rows:
        fresh.setdefault(key, set()).add(index)
    ranges, moved = state.delays.ranges, bool(instead)
    finished = {key for key, indexes in fresh.items() if len(indexes) == ranges[key].waiting_count}
    unfinished = {key: sorted(indexes) for key, indexes in fresh.items() if key not in finished}
    ends = [
        build_range_end(ranges[key], ranges[key].released_count, fresh[key], moved) for key in fresh if key in finished
    ]
    return DelaysCancelled(
        [key.topic_id for key in unfinished],
        [key.file_id for key in unfinished],
        [key.first_row for key in unfinished],
        list(unfinished.values()),
        ends_to_columns(ends),
        ranges_to_columns(instead),
        [ranges[key].producer_id for key, _ in rows] if instead else [],
        [ranges[key].producer_epoch for key, _ in rows] if instead else [],
    )


def _build_rescheduled_range(
    state: State, new_keys: Container[RangeKey], key: RangeKey, index: int, due_ms: int
) -> DelayedRange:
    """Return the row as a range of its own under a free key.

    The key may be taken: a row may have been rescheduled before, or be part of two ranges.
    """
    published = state.delays.ranges[key].published
    place = RangeKey(key.topic_id, key.file_id, key.first_row + index, key.reschedules + 1)
    while place in state.delays.ranges or place in new_keys:
        place = place._replace(reschedules=place.reschedules + 1)
    return published._replace(
        first_row=place.first_row,
        record_count=1,
        first_due_ms=due_ms,
        last_due_ms=due_ms,
        reschedules=place.reschedules,
    )


# -- ends of transactions and topics ----------------------------------------------------------------------


def decide_delays_of_transaction(
    state: State, transactional_id: str, producer_id: int, producer_epoch: int, committed: bool
) -> list[JournalEntry]:
    """Let the delayed rows of a transaction wait from its commit on, or drop them with its abort."""
    keys = state.delays.open.get((producer_id, producer_epoch), {})
    ranges = [state.delays.ranges[key].published for key in keys]
    if not ranges:
        return []
    columns, name = ranges_to_columns(ranges), (transactional_id, producer_id, producer_epoch)
    if committed:
        return [JournalEntry(DelaysSettled(*name, columns.topic_id, columns.file_id, columns.first_row))]
    return [JournalEntry(DelaysSettled(*name, aborted=columns))]


def decide_delays_of_topic(state: State, topic: Topic) -> list[JournalEntry]:
    """Drop the delayed rows of a topic that is deleted."""
    if topic.topic_id not in state.delays.pending:
        return []
    state.delays.ranges.unpack_topic(topic.topic_id)
    ranges = [range_ for key, range_ in state.delays.ranges.unpacked.items() if key.topic_id == topic.topic_id]
    return [
        JournalEntry(
            DelaysDropped(
                topic.topic, ends_to_columns([build_range_end(range_, range_.released_count) for range_ in ranges])
            )
        )
    ]


# -- folding ----------------------------------------------------------------------------------------------


def add_waiting_ranges(state: State, record: Delayed, segments: Segments) -> None:
    for range_ in record.ranges.to_ranges():
        _add_range(state, range_, record.producer_id, record.producer_epoch, record.transactional_id)


def _add_range(
    state: State,
    published: DelayedRange,
    producer_id: int | None,
    producer_epoch: int | None,
    transactional_id: str | None = None,
) -> None:
    is_open, place = transactional_id is not None, (state.step, state.delays.published)
    state.delays.published += 1
    state.delays.add(WaitingRange(published, *place, producer_id, producer_epoch, transactional_id, is_open))


def release_ranges(state: State, record: DelaysReleased, segments: Segments) -> None:
    state.advance_logs(segments)
    state.delays.pointer_ms = record.pointer_ms
    keys = columns_to_keys(record.topic_id, record.file_id, record.first_row)
    finished = [range_.key for range_ in record.done.to_ranges()]
    state.delays.ranges.unpack([*keys, *finished])
    for key, count in zip(keys, record.released_count, strict=True):
        state.delays.release(key, count)
    for key in finished:
        state.delays.remove(key, DelayEvent.RELEASE)


def cancel_rows(state: State, record: DelaysCancelled, segments: Segments) -> None:
    keys = columns_to_keys(record.topic_id, record.file_id, record.first_row)
    finished = [range_.key for range_ in record.done.to_ranges()]
    state.delays.ranges.unpack([*keys, *finished])
    for key, rows in zip(keys, record.cancelled, strict=True):
        state.delays.cancel(key, rows, record.is_reschedule)
    for key in finished:
        state.delays.remove(key, DelayEvent.RESCHEDULE if record.is_reschedule else DelayEvent.CANCEL)
    authors = zip(record.producer_id, record.producer_epoch, strict=True)
    for range_, author in zip(record.instead.to_ranges(), authors, strict=True):
        _add_range(state, range_, *author)


def settle_ranges(state: State, record: DelaysSettled, segments: Segments) -> None:
    for range_ in record.aborted.to_ranges():
        state.delays.remove(range_.key, DelayEvent.ABORT)
    state.delays.open.pop((record.producer_id, record.producer_epoch), None)
    for key in columns_to_keys(record.topic_id, record.file_id, record.first_row):
        state.delays.start_waiting(key)


def drop_ranges(state: State, record: DelaysDropped, segments: Segments) -> None:
    keys = [range_.key for range_ in record.ranges.to_ranges()]
    state.delays.ranges.unpack(keys)
    for key in keys:
        state.delays.remove(key, DelayEvent.DELETE_TOPIC)


DECIDE: Rules = {RangesDue: decide_release, CancelDelays: decide_cancel, RescheduleDelays: decide_reschedule}
EVOLVE: Folds = {
    Delayed: add_waiting_ranges,
    DelaysCancelled: cancel_rows,
    DelaysReleased: release_ranges,
    DelaysSettled: settle_ranges,
    DelaysDropped: drop_ranges,
}
TIMERS: Timers = ()
