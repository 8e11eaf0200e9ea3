"""What a read reads: ranges of offsets, held against what the log still has, and the tasks that read them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from ...protocol.errors import (
    FileTruncated,
    OffsetOutOfRange,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from ...protocol.values.state import State
from ..connection import Connection
from ..fetch.fetch_plan import FetchPlan
from ..fetch.plan import Bounds, bounds_of
from .narrowing import Narrowing
from .options import ReadOptions
from .positions import logs_of, offsets_at
from .tasks import MessagesTask, tasks_of

logger = logging.getLogger("lakemq.format")

_ATTEMPTS = 3
"""How often it is planned while messages are deleted, or files merged, under it."""

Range = tuple[int, int]


def plan_batch(options: ReadOptions, narrowing: Narrowing) -> list[MessagesTask]:
    """The tasks of a batch, as of now. Raises InvalidConfig, UnknownTopicOrPartition, OffsetOutOfRange."""
    with options.place.connect() as mq:
        logs = logs_of(mq.state(), options.which, options.isolation)
        starts = offsets_at(mq, options.start, logs, "startingOffsets")
        ends = offsets_at(mq, options.end, logs, "endingOffsets")
        ranges = {
            topic: {p: (starts[topic][p], ends[topic][p]) for p in log}
            for topic, log in logs.items()
            if narrowing.has_topic(topic)
        }
        return tasks_of_ranges(mq, options, {topic: _id(log) for topic, log in logs.items()}, ranges, narrowing)


def _id(log: Mapping[int, Bounds]) -> int:
    return next(iter(log.values())).topic_id


def tasks_of_ranges(
    mq: Connection,
    options: ReadOptions,
    topic_ids: Mapping[str, int],
    ranges: Mapping[str, Mapping[int, Range]],
    narrowing: Narrowing,
    now_ms: int | None = None,
) -> list[MessagesTask]:
    """Of what the log still has of these ranges of these topics; what it lost is told as failOnDataLoss says.

    now_ms: what had expired by then is left out; None: by now.
    Raises OffsetOutOfRange, UnknownTopicId: data was lost; UnstableOffsetCommit.
    """

    def tasks() -> list[MessagesTask]:
        state = mq.state()
        plans = [
            plan
            for topic, wanted in ranges.items()
            if (plan := _plan(mq, state, options, topic, topic_ids[topic], wanted, narrowing)) is not None
        ]
        if now_ms is not None:
            plans = [replace(plan, now_ms=now_ms) for plan in plans]
        return tasks_of(mq.namespace.files, plans, options)

    for _ in range(_ATTEMPTS - 1):
        try:
            return tasks()
        except (OffsetOutOfRange, UnknownTopicOrPartition, UnknownTopicId, FileTruncated):
            continue  # it may have been deleted, or merged, between two looks
    return tasks()


def _plan(
    mq: Connection,
    state: State,
    options: ReadOptions,
    topic: str,
    topic_id: int,
    wanted: Mapping[int, Range],
    narrowing: Narrowing,
) -> FetchPlan | None:
    found = state.topics.get(topic_id)
    if found is None or found.topic != topic:
        if any(end > start for start, end in wanted.values()):
            gone = UnknownTopicId(f"Topic {topic} was deleted before it was read; data may be lost.", found=topic_id)
            lost(options, gone)
        return None
    log = dict(enumerate(bounds_of(found, options.isolation)))
    kept = {p: kept_range(options, topic, p, one, log.get(p)) for p, one in wanted.items()}
    narrowed = {p: narrowing.range_of(p, *one) for p, one in kept.items()}
    starts, ends = ({p: one[i] for p, one in narrowed.items() if one[1] > one[0]} for i in (0, 1))
    if not starts:
        return None
    plan = mq.fetch(topic, isolation=options.isolation, start=starts, end=ends).plan
    if plan.topic_id != topic_id:
        raise UnknownTopicId(f"Topic {topic} was made anew meanwhile.", found=plan.topic_id, expected=str(topic_id))
    return replace(plan, segments=narrowing.among(plan.segments))


def kept_range(options: ReadOptions, topic: str, partition: int, wanted: Range, bounds: Bounds | None) -> Range:
    """What of start <= offset < end the partition has; raises OffsetOutOfRange where that is less, if it is to.

    Raises UnstableOffsetCommit: it has all, but not committed yet. That is not lost, and failOnDataLoss says nothing.
    """
    if bounds is None:
        gone = OffsetOutOfRange(f"{topic}-{partition} is not there any more; data may be lost.", found=wanted)
        lost(options, gone)
        return wanted[1], wanted[1]
    start, end = wanted
    if bounds.end < end <= bounds.high_watermark:
        raise UnstableOffsetCommit(
            f"{topic}-{partition} has an open transaction among what is to be read.",
            found=f"{start} to {end}",
            expected=f"an end of at most {bounds.end}, or isolation.level=read_uncommitted",
        )
    first, last = min(max(start, bounds.first), bounds.end), min(end, bounds.end)
    if (start < bounds.first and end > start) or end > bounds.end or start > bounds.end:
        less = OffsetOutOfRange(
            f"{topic}-{partition} does not hold all of what is to be read; data may be lost.",
            found=f"{start} to {end}",
            expected=f"{bounds.first} to {bounds.end}, or failOnDataLoss=false",
        )
        lost(options, less)
    return first, max(first, last)


def lost(options: ReadOptions, error: OffsetOutOfRange | UnknownTopicId | UnknownTopicOrPartition) -> None:
    """Raises the error, or tells it: failOnDataLoss."""
    if options.fail_on_data_loss:
        raise error
    logger.warning("%s What is there is read, as failOnDataLoss is false.", error)
