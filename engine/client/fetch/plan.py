"""What a fetch reads: positions -> ranges of offsets -> row ranges of data files. One plan, two executions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import pyarrow.compute as pc

from ...protocol.errors import OffsetOutOfRange, UnknownTopicOrPartition
from ...protocol.values.topics import Offsets, Topic
from ..arguments import one_of
from .fetch_plan import FetchPlan, Isolation
from .lookup import OffsetRange
from .reader import Reader

Position = int | str | datetime | Mapping[int, int]
"""Where to start or end: an offset for every partition, `earliest`, `latest`, a time, or partition -> offset."""


def check_isolation(isolation: str) -> None:
    one_of("isolation", isolation, ("read_committed", "read_uncommitted"))


def plan_fetch(
    reader: Reader,
    topic: Topic,
    isolation: Isolation,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    include_expired: bool = False,
) -> FetchPlan:
    """Segments of the ranges given; raises OffsetOutOfRange where a range leaves what the partition holds.

    What has expired is judged by the time of the newest step: whoever reads the plan, and when, reads the same.
    """
    ranges = tuple(
        OffsetRange(partition, starts[partition], ends[partition]) for partition in sorted(starts) if partition in ends
    )
    committed = isolation == "read_committed"
    limit = topic.last_stable_offsets if committed else topic.high_watermarks
    for r in ranges:
        first, last = int(topic.log_starts[r.partition]), int(limit[r.partition])
        if not first <= r.start or r.end > last:
            raise OffsetOutOfRange(
                f"{topic.topic}-{r.partition} does not hold this range.",
                found=f"{r.start} to {r.end}",
                expected=f"{first} to {last}",
            )
    wanted = [r for r in ranges if r.end > r.start]
    segments = reader.segments(topic, wanted, committed)
    step, held = reader.state.step, reader.held(segments)
    now_ms = None if include_expired else reader.state.now_ms
    return FetchPlan(topic.topic, topic.topic_id, step, segments, ranges, held, isolation, now_ms)


def plan_again(reader: Reader, plan: FetchPlan) -> FetchPlan | None:
    """The same messages, where they are now; None where they are where they were.

    reader: that has just come. Raises UnknownTopicOrPartition, OffsetOutOfRange: they are deleted.
    """
    topic = reader.state.topics.get(plan.topic_id)
    if topic is None:
        raise UnknownTopicOrPartition("The topic was deleted meanwhile.", found=plan.topic)
    spans = plan.segments.group_by("partition").aggregate([("base_offset", "min"), ("last_offset", "max")])
    partitions = spans.column("partition").to_pylist()
    starts = dict(zip(partitions, spans.column("base_offset_min").to_pylist(), strict=True))
    ends = dict(zip(partitions, pc.add(spans.column("last_offset_max"), 1).to_pylist(), strict=True))
    again = plan_fetch(reader, topic, plan.isolation, starts, ends)
    return None if again.segments.equals(plan.segments) else replace(again, ranges=plan.ranges, now_ms=plan.now_ms)


def beginning_offsets(topic: Topic) -> dict[int, int]:
    return dict(enumerate(topic.log_starts.tolist()))


def end_offsets(topic: Topic, isolation: Isolation) -> dict[int, int]:
    """Where a fetch of this isolation ends."""
    return dict(enumerate(_ends(topic, isolation).tolist()))


def _ends(topic: Topic, isolation: Isolation) -> Offsets:
    check_isolation(isolation)
    return topic.last_stable_offsets if isolation == "read_committed" else topic.high_watermarks


@dataclass(frozen=True)
class Bounds:
    """Of a partition: the first offset that is still there, where a fetch ends, and where the next message will be."""

    topic_id: int
    first: int
    end: int
    high_watermark: int


def bounds_of(topic: Topic, isolation: Isolation, partitions: Sequence[int] | None = None) -> list[Bounds]:
    """Of these partitions, in their order, else of all; a fetch of this isolation."""
    chosen = slice(None) if partitions is None else np.array(partitions, np.int64)
    columns = topic.log_starts, _ends(topic, isolation), topic.high_watermarks
    rows = zip(*(column[chosen].tolist() for column in columns), strict=True)
    return [Bounds(topic.topic_id, *row) for row in rows]


def checked_offset(offset: int, lowest: int) -> int:
    """The offset; raises OffsetOutOfRange for a negative one, but for Kafka's -1 and -2 where they have a meaning."""
    if offset < lowest:
        raise OffsetOutOfRange("An offset is not negative.", found=offset, expected="0 or more, earliest, or latest")
    return offset


def explicit_offsets(topic: Topic, position: Mapping[int, int], defaults: Mapping[int, int]) -> dict[int, int]:
    """Per partition the offset named; -2 stands for the beginning, -1 for the default, as in Kafka's tools."""
    first = beginning_offsets(topic)
    offsets = {}
    for partition, offset in position.items():
        if partition not in first:
            raise UnknownTopicOrPartition(
                f"{topic.topic} has no such partition.",
                found=partition,
                expected=f"0 to {topic.log_count - 1}",
            )
        number = checked_offset(offset, lowest=-2)
        offsets[partition] = {-2: first[partition], -1: defaults[partition]}.get(number, number)
    return offsets
