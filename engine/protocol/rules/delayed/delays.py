"""Delayed messages: rows wait as ranges, and get offsets when they are due (`delay_release`).

Invariant: a row is released once, in a step whose time is not before its due time. The released rows of a range are
always its first ones, and their number only grows.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from ...errors import DelayQueueFull, InvalidRequest
from ...values.decision import Decision, DecisionInputs
from ...values.delayed.delays import (
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
    RangeKey,
    RangesDue,
    RescheduleDelays,
    WaitingRange,
    columns_to_keys,
    ends_to_columns,
    ranges_to_columns,
)
from ...values.journal import JournalEntry
from ...values.log import DataFile, PendingFile, Produce
from ...values.segments import Segments
from ...values.state import State
from ...values.topics import DeleteTopic, Topic
from ..ranges import RangeColumns
from ..registries import Folds, Rules
from ..timers import Timers
from .delay_release import build_range_end, decide_release


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


def needs_all_ranges(state: State, request: object) -> bool:
    """Return whether a decision about the request may look for a range or a count, however late the range is due."""
    if isinstance(request, Produce):
        has_limit = any(topic.setting("delay.max.pending") >= 0 for topic in state.topics.values())
        return bool(request.ranges.first_due_ms) and (bool(request.files) or has_limit)
    return isinstance(request, CancelDelays | RescheduleDelays | DeleteTopic)


def _check_room(state: State, topics: Sequence[Topic], ranges: RangeColumns) -> None:
    for index, topic in enumerate(topics):
        most = topic.setting("delay.max.pending")
        if most >= 0:
            waiting = state.delays.count_pending(topic.topic_id)
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
    if not state.delays.count_pending(topic.topic_id):
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
