"""Plan a read on the driver: check ranges of offsets against what the log still has, and cut them into tasks."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField

from ...protocol.errors import (
    FileTruncated,
    OffsetOutOfRange,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from ...protocol.values.state import State
from ...protocol.values.topics import Bounds
from ..connection import Connection
from ..fetch.rows import FetchPlan
from ..schemas import SchemaRule
from ..schemas.topic_schema import PARSED, add_schemas, compile_schema, find_reading_rule
from .offsets import find_logs, find_offsets, find_topic_ids
from .options import ReadOptions, parse_selection_options
from .tasks import MessagesTask, cut_into_tasks

logger = logging.getLogger("lakemq.format")

_ATTEMPTS = 3
"""Attempts at a plan while messages are deleted, or files merged, at the same time."""

Range = tuple[int, int]


def plan_batch(options: ReadOptions) -> list[MessagesTask]:
    """Return the tasks of a batch as of now. Raises InvalidConfig, UnknownTopicOrPartition, OffsetOutOfRange."""
    with options.location.connect() as mq:
        logs = find_logs(mq.state(), options.selection, options.isolation)
        starts = find_offsets(mq, options.start, logs, "startingOffsets")
        ends = find_offsets(mq, options.end, logs, "endingOffsets")
        ranges = {topic: {p: (starts[topic][p], ends[topic][p]) for p in log} for topic, log in logs.items()}
        return plan_tasks(mq, options, find_topic_ids(logs), ranges)


def plan_tasks(
    mq: Connection,
    options: ReadOptions,
    topic_ids: Mapping[str, int],
    ranges: Mapping[str, Mapping[int, Range]],
    now_ms: int | None = None,
) -> list[MessagesTask]:
    """Return tasks for what the log still has of these ranges. Report lost data as failOnDataLoss says.

    Args:
        now_ms: messages expired by then are left out. None: by now.

    Raises:
        OffsetOutOfRange, UnknownTopicId: data was lost.
        UnstableOffsetCommit: a range contains an open transaction.
    """

    def tasks() -> list[MessagesTask]:
        state = mq.state()
        plans = [
            plan
            for topic, partition_ranges in ranges.items()
            if (plan := _plan_topic(mq, state, options, topic, topic_ids[topic], partition_ranges)) is not None
        ]
        if now_ms is not None:
            plans = [replace(plan, now_ms=now_ms) for plan in plans]
        return cut_into_tasks(mq.namespace.files, plans, _with_later_schemas(options, state, topic_ids))

    for _ in range(_ATTEMPTS - 1):
        try:
            return tasks()
        except (OffsetOutOfRange, UnknownTopicOrPartition, UnknownTopicId, FileTruncated):
            continue  # a file may have been deleted, or merged, since the state was read
    return tasks()


def _with_later_schemas(options: ReadOptions, state: State, topic_ids: Mapping[str, int]) -> ReadOptions:
    """Return the options, able to read Avro values under versions that the topics have got since the read began."""
    if options.schema is None:
        return options
    topics = [state.topics[topic_id] for topic_id in topic_ids.values() if topic_id in state.topics]
    versions = (version for topic in topics for version in topic.schemas)
    return replace(options, schema=add_schemas(options.schema, versions))


def _plan_topic(
    mq: Connection,
    state: State,
    options: ReadOptions,
    topic: str,
    topic_id: int,
    ranges: Mapping[int, Range],
) -> FetchPlan | None:
    current = state.topics.get(topic_id)
    if current is None or current.topic != topic:
        if any(end > start for start, end in ranges.values()):
            gone = UnknownTopicId(f"Topic {topic} was deleted before it was read; data may be lost.", found=topic_id)
            report_data_loss(options, gone)
        return None
    log = dict(enumerate(current.read_bounds(options.isolation)))
    clipped = {p: clip_range(options, topic, p, range_, log.get(p)) for p, range_ in ranges.items()}
    starts, ends = ({p: range_[i] for p, range_ in clipped.items() if range_[1] > range_[0]} for i in (0, 1))
    if not starts:
        return None
    plan = mq.fetch(topic, isolation=options.isolation, start=starts, end=ends).plan
    if plan.topic_id != topic_id:
        raise UnknownTopicId(f"Topic {topic} was created again meanwhile.", found=plan.topic_id, expected=str(topic_id))
    return plan


def clip_range(options: ReadOptions, topic: str, partition: int, range_: Range, bounds: Bounds | None) -> Range:
    """Return the part of start <= offset < end that the partition has. Report lost data as failOnDataLoss says.

    Raises:
        OffsetOutOfRange: data was lost.
        UnstableOffsetCommit: the range contains an open transaction. Nothing is lost, so failOnDataLoss does not
            matter.
    """
    if bounds is None:
        gone = OffsetOutOfRange(f"{topic}-{partition} is not there any more; data may be lost.", found=range_)
        report_data_loss(options, gone)
        return range_[1], range_[1]
    start, end = range_
    if bounds.end < end <= bounds.high_watermark:
        raise UnstableOffsetCommit(
            f"{topic}-{partition} has an open transaction within the range of the read.",
            found=f"{start} to {end}",
            expected=f"an end of at most {bounds.end}, or isolation.level=read_uncommitted",
        )
    first, last = min(max(start, bounds.first), bounds.end), min(end, bounds.end)
    if (start < bounds.first and end > start) or end > bounds.end or start > bounds.end:
        less = OffsetOutOfRange(
            f"{topic}-{partition} does not hold all offsets of the read; data may be lost.",
            found=f"{start} to {end}",
            expected=f"{bounds.first} to {bounds.end}, or failOnDataLoss=false",
        )
        report_data_loss(options, less)
    return first, max(first, last)


def report_data_loss(options: ReadOptions, error: OffsetOutOfRange | UnknownTopicId | UnknownTopicOrPartition) -> None:
    """Raise the error, or log it if failOnDataLoss is false."""
    if options.fail_on_data_loss:
        raise error
    logger.warning("%s The rest is read, because failOnDataLoss is false.", error)


class TypedValues(NamedTuple):
    """The schema of a read. field: the column that it adds."""

    rule: SchemaRule
    field: StructField


def find_typed_values(options: Mapping[str, str]) -> TypedValues:
    """Return the newest schema of the topics that the options select.

    Raises:
        InvalidConfig, UnknownTopicOrPartition: an option is not valid.
        InvalidRequest: a topic has no schema, or they have several.
        MissingExtra: the extra `schemas` is not installed.
    """
    location, selection = parse_selection_options(options)
    with location.connect() as mq:
        state = mq.state()
        rule = find_reading_rule(state.topic(name) for name in find_logs(state, selection, "read_uncommitted"))
    # Timestamps without a zone stay so, as a DDL schema may have both.
    schema = pa.schema([(PARSED, compile_schema(rule).parsed_type)])
    return TypedValues(rule, from_arrow_schema(schema, prefer_timestamp_ntz=True).fields[0])
