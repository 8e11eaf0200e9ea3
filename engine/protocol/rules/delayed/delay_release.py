"""Release delayed messages: give offsets to rows that are due. A release points at the rows and copies none."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ...values.base import Done
from ...values.consuming.assignments import TopicIdPartition
from ...values.decision import Decision, DecisionInputs
from ...values.delayed.delays import DelaysReleased, RangeEnd, RangeKey, RangesDue, WaitingRange, ends_to_columns
from ...values.journal import JournalEntry
from ...values.segments import NO_SEGMENTS, Segments, build_segments
from ...values.state import State
from ...values.topics import TimeToLive, Topic


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
