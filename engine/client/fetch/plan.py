"""Plan a fetch: from ranges of offsets to row ranges of data files.

A fetch has three parts:

1. Plan: positions (`earliest`, `latest`, offsets, times) become ranges of offsets, as of a reader's step.
2. Look up: the ranges become segments, which name rows of files (`lookup.py`, `log_reader.py`).
3. Read: the rows of the segments become messages, in Arrow (`arrow.py`) or in Spark (`spark.py`). One plan serves both.

Rows of docs/architecture.md: fetch 3.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import pyarrow.compute as pc

from lakemq.tables.storage.object_stores.files import Files

from ...protocol.errors import InvalidRequest, OffsetOutOfRange, UnknownTopicOrPartition
from ...protocol.values.topics import Topic
from ..arguments import parse_choice, to_microseconds
from .arrow import find_first_at_or_after
from .log_reader import Reader
from .lookup import OffsetRange
from .rows import FetchPlan, Isolation

FetchPosition = int | str | datetime | Mapping[int, int]
"""Where to start or end: an offset for every partition, `earliest`, `latest`, a time, or partition -> offset."""


def check_isolation(isolation: str) -> None:
    """Raise InvalidRequest unless this is an isolation level."""
    parse_choice("isolation", isolation, ("read_committed", "read_uncommitted"))


def plan_fetch(
    reader: Reader,
    topic: Topic,
    isolation: Isolation,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    include_expired: bool = False,
) -> FetchPlan:
    """Return the plan that reads these offsets.

    The time of the newest step decides which messages have expired, so the plan shows the same messages whenever it is
    read.

    Args:
        reader: reads the namespace as of its last `refresh`.
        topic: as of the same step.
        isolation: whether messages of open and aborted transactions are read.
        starts: partition -> first offset.
        ends: partition -> end offset (exclusive). Partitions that are missing in one of the two are not read.
        include_expired: also show messages that have expired.

    Raises:
        OffsetOutOfRange: the log of a partition does not hold its range.
    """
    ranges = tuple(
        OffsetRange(partition, starts[partition], ends[partition]) for partition in sorted(starts) if partition in ends
    )
    limits = topic.find_ends(isolation)
    for range_ in ranges:
        begin, end = int(topic.log_starts[range_.partition]), int(limits[range_.partition])
        if range_.start < begin or range_.end > end:
            raise OffsetOutOfRange(
                f"{topic.topic}-{range_.partition} does not hold this range.",
                found=f"{range_.start} to {range_.end}",
                expected=f"{begin} to {end}",
            )
    filled = [range_ for range_ in ranges if range_.end > range_.start]
    segments = reader.find_segments(topic, filled, committed=isolation == "read_committed")
    return FetchPlan(
        topic=topic.topic,
        topic_id=topic.topic_id,
        step=reader.state.step,
        segments=segments,
        ranges=ranges,
        step_rows=reader.find_step_rows(segments),
        isolation=isolation,
        now_ms=None if include_expired else reader.state.now_ms,
    )


def replan(reader: Reader, plan: FetchPlan) -> FetchPlan | None:
    """Return a plan that reads the same messages where they are now; None if they have not moved.

    Args:
        reader: a reader that was just refreshed.
        plan: a plan whose files may have been merged into others.

    Raises:
        UnknownTopicOrPartition, OffsetOutOfRange: the messages were deleted.
    """
    topic = reader.state.topics.get(plan.topic_id)
    if topic is None:
        raise UnknownTopicOrPartition("The topic was deleted meanwhile.", found=plan.topic)
    spans = plan.segments.group_by("partition").aggregate([("base_offset", "min"), ("last_offset", "max")])
    partitions = spans.column("partition").to_pylist()
    starts = dict(zip(partitions, spans.column("base_offset_min").to_pylist(), strict=True))
    ends = dict(zip(partitions, pc.add(spans.column("last_offset_max"), 1).to_pylist(), strict=True))
    new_plan = plan_fetch(reader, topic, plan.isolation, starts, ends)
    if new_plan.segments.equals(plan.segments):
        return None
    return replace(new_plan, ranges=plan.ranges, now_ms=plan.now_ms)


def beginning_offsets(topic: Topic) -> dict[int, int]:
    """Return partition -> the first offset that is still there."""
    return dict(enumerate(topic.log_starts.tolist()))


def end_offsets(topic: Topic, isolation: Isolation) -> dict[int, int]:
    """Return partition -> the offset at which a fetch of this isolation ends."""
    return dict(enumerate(topic.find_ends(isolation).tolist()))


def check_offset(offset: int, lowest: int) -> int:
    """Return the offset. Raise OffsetOutOfRange below `lowest`, which is -2 where Kafka's -1 and -2 are understood."""
    if offset < lowest:
        raise OffsetOutOfRange("An offset is not negative.", found=offset, expected="0 or more, earliest, or latest")
    return offset


def resolve_offsets(topic: Topic, position: Mapping[int, int], defaults: Mapping[int, int]) -> dict[int, int]:
    """Return partition -> offset, with Kafka's special numbers replaced: -2 by the beginning, -1 by the default.

    Raises:
        UnknownTopicOrPartition: the topic has no such partition.
        OffsetOutOfRange: an offset is below -2.
    """
    first = beginning_offsets(topic)
    offsets = {}
    for partition, offset in position.items():
        if partition not in first:
            raise unknown_partition(topic.topic, partition, topic.log_count)
        number = check_offset(offset, lowest=-2)
        offsets[partition] = {-2: first[partition], -1: defaults[partition]}.get(number, number)
    return offsets


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
    topic = reader.state.topic(topic_name)
    first, last = beginning_offsets(topic), end_offsets(topic, isolation)
    starts = _resolve(reader, files, topic, start, first, last)
    ends = _resolve(reader, files, topic, end, first, last)
    if partitions is not None:
        check_partitions(topic, partitions)
        if lacking := [partition for partition in partitions if partition not in starts]:
            raise InvalidRequest("start names no offset of a partition that is asked for.", found=lacking[0])
        starts = {partition: starts[partition] for partition in partitions}
    _check_start(topic, start, list(starts))
    return plan_fetch(reader, topic, isolation, starts, ends, include_expired)


def _check_start(topic: Topic, start: FetchPosition, partitions: Sequence[int]) -> None:
    """Raise OffsetOutOfRange if a start is beyond the end. One number for all partitions need not be in all of them."""
    if not isinstance(start, int | Mapping):
        return
    ends = {partition: int(topic.high_watermarks[partition]) for partition in partitions}
    offsets = start if isinstance(start, Mapping) else dict.fromkeys(ends, start)
    beyond = [partition for partition, end in ends.items() if offsets[partition] > end]
    if beyond and (isinstance(start, Mapping) or len(beyond) == len(ends)):
        partition = beyond[0]
        raise OffsetOutOfRange(
            f"{topic.topic}-{partition} does not hold this offset.",
            found=offsets[partition],
            expected=f"{int(topic.log_starts[partition])} to {ends[partition]}",
        )


def _resolve(
    reader: Reader,
    files: Files,
    topic: Topic,
    position: FetchPosition,
    first: dict[int, int],
    last: dict[int, int],
) -> dict[int, int]:
    """Return partition -> offset. first, last: the beginning and the end of each partition."""
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
    """Return the plan of the messages after a position. It has no range for partitions without new offsets.

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
    check_partitions(topic, times)
    return _find_by_times(reader, files, topic, {partition: to_microseconds(time) for partition, time in times.items()})


def check_partitions(topic: Topic, partitions: Iterable[int]) -> None:
    """Raise UnknownTopicOrPartition if the topic lacks one of these partitions."""
    if unknown := [partition for partition in partitions if not 0 <= partition < topic.log_count]:
        raise unknown_partition(topic.topic, unknown[0], topic.log_count)


def unknown_partition(topic: str, partition: int, partition_count: int) -> UnknownTopicOrPartition:
    """Return the error for a partition that the topic does not have."""
    return UnknownTopicOrPartition(
        f"{topic} has no such partition.", found=partition, expected=f"0 to {partition_count - 1}"
    )


def _find_by_times(
    reader: Reader, files: Files, topic: Topic, times_us: Mapping[int, int]
) -> dict[int, tuple[int, int] | None]:
    """Return partition -> (offset, timestamp in ms) of its first message not before the time.

    The greatest timestamp of each segment tells which segments may have it. Only the rows of these are read.
    """
    starts, ends = beginning_offsets(topic), end_offsets(topic, "read_uncommitted")
    named = {partition: starts[partition] for partition in times_us}
    plan = plan_fetch(reader, topic, "read_uncommitted", named, ends, include_expired=True)
    messages: dict[int, tuple[int, int] | None] = {}
    for partition, time_us in times_us.items():
        # Segments have timestamps in whole milliseconds, rounded down.
        is_late = pc.field("max_timestamp_ms") >= time_us // 1000
        candidates = plan.segments.filter((pc.field("partition") == partition) & is_late)
        messages[partition] = None
        for i in range(candidates.num_rows):
            if message := find_first_at_or_after(files, replace(plan, segments=candidates.slice(i, 1)), time_us):
                messages[partition] = message
                break
    return messages
