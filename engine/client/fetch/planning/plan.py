"""Plan a fetch: from ranges of offsets to row ranges of data files.

A fetch has three parts. It plans: positions become ranges of offsets (`positions.py`). It looks the ranges up among the
segments (`lookup.py`, `stored_segments.py`, `tail_segments.py`). It reads the rows of the segments, in Arrow
(`arrow.py`) or in Spark (`spark.py`); one plan serves both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import pyarrow.compute as pc

from ....protocol.errors import OffsetOutOfRange, UnknownTopicOrPartition
from ....protocol.values.topics import Offsets, Topic
from ...arguments import parse_choice
from ..lookup.lookup import OffsetRange
from ..lookup.reader import Reader
from .fetch_plan import FetchPlan, Isolation

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
    is_committed = isolation == "read_committed"
    limits = topic.last_stable_offsets if is_committed else topic.high_watermarks
    for range_ in ranges:
        first, last = int(topic.log_starts[range_.partition]), int(limits[range_.partition])
        if not first <= range_.start or range_.end > last:
            raise OffsetOutOfRange(
                f"{topic.topic}-{range_.partition} does not hold this range.",
                found=f"{range_.start} to {range_.end}",
                expected=f"{first} to {last}",
            )
    segments = reader.find_segments(topic, [range_ for range_ in ranges if range_.end > range_.start], is_committed)
    return FetchPlan(
        topic=topic.topic,
        topic_id=topic.topic_id,
        step=reader.state.step,
        segments=segments,
        ranges=ranges,
        journal_parts=reader.find_journal_parts(segments),
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
    return dict(enumerate(_ends(topic, isolation).tolist()))


def _ends(topic: Topic, isolation: Isolation) -> Offsets:
    check_isolation(isolation)
    return topic.last_stable_offsets if isolation == "read_committed" else topic.high_watermarks


@dataclass(frozen=True)
class Bounds:
    """The bounds of a partition.

    Attributes:
        first: the first offset that is still there.
        end: where a fetch ends.
        high_watermark: the offset of the next message that is published.
    """

    topic_id: int
    first: int
    end: int
    high_watermark: int


def read_bounds(topic: Topic, isolation: Isolation, partitions: Sequence[int] | None = None) -> list[Bounds]:
    """Return the bounds for a fetch of this isolation, of these partitions in their order, or of all."""
    index = slice(None) if partitions is None else np.array(partitions, np.int64)
    columns = topic.log_starts, _ends(topic, isolation), topic.high_watermarks
    rows = zip(*(column[index].tolist() for column in columns), strict=True)
    return [Bounds(topic.topic_id, *row) for row in rows]


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
            raise UnknownTopicOrPartition(
                f"{topic.topic} has no such partition.",
                found=partition,
                expected=f"0 to {topic.log_count - 1}",
            )
        number = check_offset(offset, lowest=-2)
        offsets[partition] = {-2: first[partition], -1: defaults[partition]}.get(number, number)
    return offsets
