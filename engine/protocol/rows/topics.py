"""`topics` and `partitions`."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.topics import OPEN_TRANSACTIONS, PARTITIONS, TOPICS, TopicRow

from ..values.log import Produced
from ..values.segments import Segments
from ..values.state import State
from ..values.topics import MAX_PARTITIONS, RecordsDeleted, Topic, TopicAltered, TopicCreated, TopicDeleted
from ..values.transactions import MarkersWritten
from .steps import Project, Restore, Steps, records

_configs = msgspec.json.Decoder(dict[str, Any])


def _topics(state: State, steps: Steps) -> pa.Table:
    changed = {
        record.topic_id: record.topic
        for _, record in records(steps)
        if isinstance(record, TopicCreated | TopicAltered | TopicDeleted)
    }
    return TOPICS.table(
        _topic_row(state.step, state.topics[topic_id])
        if topic_id in state.topics
        else _no_topic_row(state.step, topic_id, name)
        for topic_id, name in sorted(changed.items())
    )


def _topic_row(step: int, topic: Topic) -> TopicRow:
    return TopicRow(
        step=step,
        topic_id=topic.topic_id,
        topic=topic.topic,
        partition_count=topic.partition_count,
        config=msgspec.json.encode(topic.config).decode(),
        subscriptions=topic.subscriptions,
        state="active",
        removed=False,
    )


def _no_topic_row(step: int, topic_id: int, name: str) -> TopicRow:
    return TopicRow(
        step=step,
        topic_id=topic_id,
        topic=name,
        partition_count=0,
        config="{}",
        subscriptions=[],
        state="deleted",
        removed=True,
    )


def _partitions(state: State, steps: Steps) -> pa.Table:
    changed: dict[int, set[int]] = {}
    for step in steps:
        for one in step.entries:
            record = one.record
            if isinstance(record, TopicCreated | TopicAltered):
                changed.setdefault(record.topic_id, set()).update(range(record.partitions))
            elif isinstance(record, RecordsDeleted):
                changed.setdefault(record.topic_id, set()).update(record.log_starts)
            elif isinstance(record, Produced | MarkersWritten):
                _add_touched(changed, one.segments)
    there = [(state.topics[t], sorted(p)) for t, p in sorted(changed.items()) if t in state.topics]
    gone = [record for _, record in records(steps) if isinstance(record, TopicDeleted)]
    return pa.concat_tables(
        [PARTITIONS.empty()]
        + [_partition_rows(state.step, topic, partitions) for topic, partitions in there]
        + [_no_partition_rows(state.step, record) for record in gone]
    )


def _add_touched(changed: dict[int, set[int]], segments: Segments) -> None:
    for topic_id, partition in zip(segments.column("topic_id"), segments.column("partition"), strict=True):
        changed.setdefault(topic_id, set()).add(partition)


def _partition_rows(step: int, topic: Topic, partitions: list[int]) -> pa.Table:
    n, chosen = len(partitions), np.array(partitions, np.int64)
    columns: list[Any] = [
        pa.repeat(step, n),
        pa.repeat(topic.topic_id, n),
        pa.repeat(topic.topic, n),
        chosen.astype(np.int32),
        topic.log_starts[chosen],
        topic.high_watermarks[chosen],
        topic.last_stable_offsets[chosen],
        pa.array([_open(topic, partition) for partition in partitions], OPEN_TRANSACTIONS),
        pa.repeat(False, n),
    ]
    return pa.table([pa.array(c) for c in columns], schema=PARTITIONS.stored_schema)


def _no_partition_rows(step: int, record: TopicDeleted) -> pa.Table:
    zeros = np.zeros(record.partitions, np.int64)
    none_open = Topic(record.topic_id, record.topic, {}, [], zeros, zeros)
    rows = _partition_rows(step, none_open, list(range(record.partitions)))
    return rows.set_column(rows.column_names.index("removed"), "removed", pa.repeat(True, record.partitions))


def _open(topic: Topic, partition: int) -> list[dict[str, int]]:
    firsts = topic.open_transactions.get(partition, {})
    return [{"producer_id": producer_id, "first_offset": first} for producer_id, first in firsts.items()]


def _restore_topics(state: State, rows: pa.Table) -> None:
    for row in TOPICS.rows(rows):
        if not 1 <= row.partition_count <= MAX_PARTITIONS:
            raise ValueError(f"{TOPICS.name} has {row.topic} with {row.partition_count} partitions")
        if row.topic in state.topic_ids:
            raise ValueError(f"{TOPICS.name} has two topics {row.topic}")
        zeros = np.zeros(row.partition_count, np.int64)
        config, subscriptions = _configs.decode(row.config), list(row.subscriptions)
        state.topics[row.topic_id] = Topic(row.topic_id, row.topic, config, subscriptions, zeros, zeros.copy())
        state.topic_ids[row.topic] = row.topic_id


def _restore_partitions(state: State, partitions: pa.Table) -> None:
    topic_ids = partitions.column("topic_id").to_numpy()
    for topic_id in np.unique(topic_ids).tolist():
        mine = topic_ids == topic_id
        numbers = partitions.column("partition").to_numpy()[mine]
        topic = state.topics[topic_id]
        if numbers.min() < 0 or numbers.max() >= topic.partition_count:
            raise ValueError(f"{PARTITIONS.name} has a partition of {topic.topic} beyond its {topic.partition_count}")
        ends = partitions.column("high_watermark").to_numpy()[mine]
        starts = partitions.column("log_start_offset").to_numpy()[mine]
        if (starts < 0).any() or (starts > ends).any():
            raise ValueError(f"{PARTITIONS.name} has a log of {topic.topic} that ends before it starts")
        topic.high_watermarks[numbers], topic.log_starts[numbers] = ends, starts
    has_open = partitions.filter(pc.greater(pc.list_value_length(partitions.column("open_transactions")), 0))
    for row in has_open.select(["topic_id", "partition", "open_transactions"]).to_pylist():
        firsts = {one["producer_id"]: one["first_offset"] for one in row["open_transactions"]}
        state.topics[row["topic_id"]].open_transactions[row["partition"]] = firsts


PROJECT: Project = {TOPICS.name: _topics, PARTITIONS.name: _partitions}
RESTORE: Restore = {TOPICS.name: _restore_topics, PARTITIONS.name: _restore_partitions}
