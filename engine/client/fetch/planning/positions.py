"""Plan a fetch from positions: words, offsets and times become ranges of offsets of a topic, as of a reader's step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import pyarrow.compute as pc

from lakemq.tables.storage.object_stores.files import Files

from ....protocol.errors import InvalidRequest, UnknownTopicOrPartition
from ....protocol.values.topics import Topic
from ...arguments import to_microseconds
from ..lookup.lookup import OffsetRange
from ..lookup.reader import Reader
from ..reading.arrow import find_first_at_or_after
from .plan import (
    FetchPlan,
    FetchPosition,
    Isolation,
    beginning_offsets,
    check_isolation,
    check_offset,
    end_offsets,
    plan_fetch,
    resolve_offsets,
)


def plan_positions(
    reader: Reader,
    files: Files,
    topic_name: str,
    isolation: Isolation,
    start: FetchPosition,
    end: FetchPosition,
    partitions: list[int] | None,
    include_expired: bool = False,
) -> FetchPlan:
    """Return the plan of a fetch from one position to another, as of the reader's step.

    Args:
        reader: a reader that was refreshed.
        files: the data files, which are read only if a position is a time.
        topic_name: of the topic.
        isolation: whether messages of open and aborted transactions are read.
        start, end: positions that `parse_fetch_position` has checked.
        partitions: partitions to read; None: all that the start names.
        include_expired: also show messages that have expired.

    Raises:
        UnknownTopicOrPartition, InvalidRequest, OffsetOutOfRange: an argument is not valid.
    """
    check_isolation(isolation)
    topic = reader.state.topic(topic_name)
    starts = _resolve(reader, files, topic, isolation, start)
    ends = _resolve(reader, files, topic, isolation, end)
    if partitions is not None:
        _check_partitions(topic, partitions)
        if lacking := [partition for partition in partitions if partition not in starts]:
            raise InvalidRequest("start names no offset of a partition that is asked for.", found=lacking[0])
        starts = {partition: starts[partition] for partition in partitions}
    return plan_fetch(reader, topic, isolation, starts, ends, include_expired)


def _resolve(
    reader: Reader, files: Files, topic: Topic, isolation: Isolation, position: FetchPosition
) -> dict[int, int]:
    """Return partition -> offset."""
    first, last = beginning_offsets(topic), end_offsets(topic, isolation)
    if isinstance(position, str):
        return first if position == "earliest" else last
    if isinstance(position, datetime):
        messages = _find_by_times(reader, files, topic, dict.fromkeys(first, to_microseconds(position)))
        return {p: last[p] if message is None else min(message[0], last[p]) for p, message in messages.items()}
    if isinstance(position, Mapping):
        return resolve_offsets(topic, position, last)
    # One number for all partitions has no special meanings: `earliest` and `latest` say these.
    offset = check_offset(position, lowest=0)
    return {partition: min(max(offset, first[partition]), last[partition]) for partition in first}


def plan_tail(
    reader: Reader, topic_name: str, topic_id: int, isolation: Isolation, position: Mapping[int, int]
) -> FetchPlan:
    """Return the plan of what came behind a position; it has no range for partitions in which nothing came.

    If the offsets at the position were deleted, the partition goes on at the start of its log. A partition that the
    position does not name is new, and is read from its start.

    Raises:
        UnknownTopicOrPartition: the topic was deleted, even if another topic has its name now.
    """
    topic = reader.state.topics.get(topic_id)
    if topic is None:
        raise UnknownTopicOrPartition("The topic was deleted while it was followed.", found=topic_name)
    starts = {
        partition: max(position.get(partition, 0), first) for partition, first in beginning_offsets(topic).items()
    }
    ends = {partition: end for partition, end in end_offsets(topic, isolation).items() if end > starts[partition]}
    return plan_fetch(reader, topic, isolation, starts, ends)


def offsets_for_times(
    reader: Reader, files: Files, topic_name: str, times: Mapping[int, int | datetime]
) -> dict[int, tuple[int, int] | None]:
    """Return partition -> (offset, timestamp in ms) of its first message not before the time; None: there is none.

    Raises:
        UnknownTopicOrPartition: the topic does not exist, or has no such partition.
    """
    topic = reader.refresh().topic(topic_name)
    _check_partitions(topic, times)
    return _find_by_times(reader, files, topic, {partition: to_microseconds(time) for partition, time in times.items()})


def _check_partitions(topic: Topic, partitions: Iterable[int]) -> None:
    if unknown := [partition for partition in partitions if not 0 <= partition < topic.log_count]:
        raise UnknownTopicOrPartition(f"{topic.topic} has no such partition.", found=unknown[0])


def _find_by_times(
    reader: Reader, files: Files, topic: Topic, times_us: Mapping[int, int]
) -> dict[int, tuple[int, int] | None]:
    """Return partition -> (offset, timestamp in ms) of its first message not before the time.

    The greatest timestamp of each segment tells which segments may have it. Only the rows of these are read.
    """
    ranges = [OffsetRange(p, int(topic.log_starts[p]), int(topic.high_watermarks[p])) for p in times_us]
    segments = reader.find_segments(topic, [range_ for range_ in ranges if range_.end > range_.start], committed=False)
    journal_parts = reader.find_journal_parts(segments)
    messages: dict[int, tuple[int, int] | None] = {}
    for range_ in ranges:
        time_us = times_us[range_.partition]
        # Segments have timestamps in whole milliseconds, rounded down.
        is_late = pc.field("max_timestamp_ms") >= time_us // 1000
        candidates = segments.filter((pc.field("partition") == range_.partition) & is_late)
        messages[range_.partition] = None
        for i in range(candidates.num_rows):
            plan = FetchPlan(
                topic=topic.topic,
                topic_id=topic.topic_id,
                step=reader.state.step,
                segments=candidates.slice(i, 1),
                ranges=(range_,),
                journal_parts=journal_parts,
                isolation="read_uncommitted",
            )
            if message := find_first_at_or_after(files, plan, time_us):
                messages[range_.partition] = message
                break
    return messages
