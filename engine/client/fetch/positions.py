"""From positions to a plan: words, offsets and times become ranges of offsets of a topic, as of a reader's step."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import pyarrow.compute as pc

from lakemq.tables.storage.files import Files

from ...protocol.errors import InvalidRequest, UnknownTopicOrPartition
from ...protocol.values.topics import Topic
from ..arguments import microseconds
from .arrow import first_at_or_after
from .lookup import OffsetRange
from .plan import (
    FetchPlan,
    Isolation,
    Position,
    beginning_offsets,
    check_isolation,
    checked_offset,
    end_offsets,
    explicit_offsets,
    plan_fetch,
)
from .reader import Reader


def plan_positions(
    reader: Reader,
    files: Files,
    topic_name: str,
    isolation: Isolation,
    start: Position,
    end: Position,
    partitions: list[int] | None,
    include_expired: bool = False,
) -> FetchPlan:
    """The plan of a fetch as of the reader's step. Positions are what `fetch_position` lets pass."""
    check_isolation(isolation)
    topic = reader.state.topic(topic_name)
    starts = _positions(reader, files, topic, isolation, start)
    ends = _positions(reader, files, topic, isolation, end)
    if partitions is not None:
        unknown = [p for p in partitions if not 0 <= p < topic.log_count]
        if unknown:
            raise UnknownTopicOrPartition(f"{topic_name} has no such partition.", found=unknown[0])
        if lacking := [p for p in partitions if p not in starts]:
            raise InvalidRequest("start names no offset of a partition that is asked for.", found=lacking[0])
        starts = {p: starts[p] for p in partitions}
    return plan_fetch(reader, topic, isolation, starts, ends, include_expired)


def _positions(reader: Reader, files: Files, topic: Topic, isolation: Isolation, position: Position) -> dict[int, int]:
    first, last = beginning_offsets(topic), end_offsets(topic, isolation)
    if isinstance(position, str):
        return first if position == "earliest" else last
    if isinstance(position, datetime):
        found = _for_times(reader, files, topic, dict.fromkeys(first, microseconds(position)))
        return {p: last[p] if at is None else min(at[0], last[p]) for p, at in found.items()}
    if isinstance(position, Mapping):
        return explicit_offsets(topic, position, last)
    offset = checked_offset(position, lowest=0)  # for all partitions at once there are words
    return {p: min(max(offset, first[p]), last[p]) for p in first}


def plan_tail(
    reader: Reader, topic_name: str, topic_id: int, isolation: Isolation, position: Mapping[int, int]
) -> FetchPlan:
    """What a tail at this position has not seen yet, without a range where nothing has come.

    Where records were deleted under it, it goes on at the log start; a partition it has no position in is new. Raises
    UnknownTopicOrPartition: the topic is gone, though another one may have its name.
    """
    topic = reader.state.topics.get(topic_id)
    if topic is None:
        raise UnknownTopicOrPartition("The topic was deleted while it was followed.", found=topic_name)
    starts = {p: max(position.get(p, 0), first) for p, first in beginning_offsets(topic).items()}
    ends = {p: end for p, end in end_offsets(topic, isolation).items() if end > starts[p]}
    return plan_fetch(reader, topic, isolation, starts, ends)


def offsets_for_times(
    reader: Reader, files: Files, topic_name: str, times: Mapping[int, int | datetime]
) -> dict[int, tuple[int, int] | None]:
    """Partition -> (offset, timestamp in ms) of its first message not before the time, None where there is none."""
    topic = reader.refresh().topic(topic_name)
    unknown = [p for p in times if not 0 <= p < topic.log_count]
    if unknown:
        raise UnknownTopicOrPartition(f"{topic_name} has no such partition.", found=unknown[0])
    return _for_times(reader, files, topic, {p: microseconds(t) for p, t in times.items()})


def _for_times(
    reader: Reader, files: Files, topic: Topic, times_us: Mapping[int, int]
) -> dict[int, tuple[int, int] | None]:
    """The first segment with a late enough message is found by its bounds; only its rows are read."""
    ranges = [OffsetRange(p, int(topic.log_starts[p]), int(topic.high_watermarks[p])) for p in times_us]
    segments = reader.segments(topic, [r for r in ranges if r.end > r.start], committed=False)
    held = reader.held(segments)
    found: dict[int, tuple[int, int] | None] = {}
    for one in ranges:
        time_us = times_us[one.partition]
        # bounds are whole milliseconds, rounded down
        late = (pc.field("partition") == one.partition) & (pc.field("max_timestamp_ms") >= time_us // 1000)
        candidates = segments.filter(late)
        found[one.partition] = None
        for i in range(candidates.num_rows):
            step, segment = reader.state.step, candidates.slice(i, 1)
            plan = FetchPlan(topic.topic, topic.topic_id, step, segment, (one,), held, "read_uncommitted")
            if at := first_at_or_after(files, plan, time_us):
                found[one.partition] = at
                break
    return found
