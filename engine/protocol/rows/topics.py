"""The tables `topics` and `partitions`."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.groups import RANGES
from lakemq.tables.specs.topics import OPEN_TRANSACTIONS, PARTITIONS, TOPICS, TopicRow

from ..parameters import SchemaVersion
from ..values.base import copy_fields
from ..values.dead_letters import REDRIVE
from ..values.deliveries import Deliveries, DeliveryStatus, Stretch
from ..values.journal import StepBatch
from ..values.state import Changes, State
from ..values.topics import MAX_PARTITIONS, Topic
from . import Project, Restore, groups, list_changed

_configs = msgspec.json.Decoder(dict[str, Any])
_FIELDS = ("topic_id", "topic", "partition_count", "draining_count", "ended_count", "subscriptions")


def _project_topics(state: State, steps: StepBatch) -> pa.Table:
    return TOPICS.table(_build_topic_row(state, topic_id) for topic_id in list_changed(state.changes.topics, steps))


def _build_topic_row(state: State, topic_id: int) -> TopicRow:
    existing = state.topics.get(topic_id)
    topic = existing or _make_topic(topic_id, state.find_topic_name(topic_id), 0)
    return TopicRow(
        step=state.step,
        config=msgspec.json.encode(topic.config).decode(),
        schemas=[msgspec.structs.asdict(version) for version in topic.schemas],
        state="active" if existing else "deleted",
        removed=existing is None,
        **copy_fields(topic, _FIELDS),
    )


def _project_partitions(state: State, steps: StepBatch) -> pa.Table:
    changed = _find_changed_partitions(state.changes, steps)
    existing: list[tuple[Topic, Sequence[int]]] = []
    deleted: list[tuple[Topic, Sequence[int]]] = []
    changed_topics = set(list_changed(state.changes.topics, steps))
    for topic_id in sorted(changed_topics | changed.keys()):
        topic = state.topics.get(topic_id)
        if topic is None:
            gone = state.changes.deleted_topics[topic_id]
            deleted.append((_make_topic(topic_id, gone.topic, gone.log_count), range(gone.log_count)))
        else:  # a topic that has changed may have partitions in other states
            existing.append(
                (topic, range(topic.log_count) if topic_id in changed_topics else sorted(changed[topic_id]))
            )
    return pa.concat_tables(
        [
            _build_partition_rows(state.step, existing, removed=False),
            _build_partition_rows(state.step, deleted, removed=True),
        ]
    )


def _find_changed_partitions(changes: Changes, steps: StepBatch) -> dict[int, set[int]]:
    """Return topic id -> partitions that these steps have changed. Those of changed topics may be missing."""
    changed: dict[int, set[int]] = {}
    for topic_id, partition in list_changed(changes.partitions, steps):
        changed.setdefault(topic_id, set()).add(partition)
    for step, segments in changes.appended:
        if steps and step >= steps[0].step:
            for topic_id, partition in zip(segments.column("topic_id"), segments.column("partition"), strict=True):
                changed.setdefault(topic_id, set()).add(partition)
    return changed


def _make_topic(topic_id: int, name: str, log_count: int) -> Topic:
    """Return a topic whose partitions have had no message."""
    return Topic(topic_id, name, {}, [], *np.zeros((3, log_count), np.int64))


def _build_partition_rows(step: int, touched: Sequence[tuple[Topic, Sequence[int]]], removed: bool) -> pa.Table:
    """Return one row per topic and partition, in this order, built as columns because topics may be thousands."""
    if not touched:
        return PARTITIONS.empty()
    chosen = [(topic, np.array(partitions, np.int64)) for topic, partitions in touched]
    counts = [len(partitions) for _, partitions in chosen]
    n = sum(counts)
    columns: list[Any] = [
        pa.repeat(step, n),
        np.repeat([topic.topic_id for topic, _ in chosen], counts),
        [topic.topic for topic, partitions in touched for _ in partitions],
        np.concatenate([partitions for _, partitions in chosen]).astype(np.int32),
        np.concatenate([topic.log_starts[partitions] for topic, partitions in chosen]),
        np.concatenate([topic.high_watermarks[partitions] for topic, partitions in chosen]),
        np.concatenate([topic.last_stable_offsets[partitions] for topic, partitions in chosen]),
        np.concatenate([topic.final_offsets[partitions] for topic, partitions in chosen]),
        _build_redrives(touched, n),
        pa.array(
            [topic.status(partition).value for topic, partitions in touched for partition in partitions], pa.string()
        ),
        pa.array(
            [_list_open_transactions(topic, partition) for topic, partitions in touched for partition in partitions],
            OPEN_TRANSACTIONS,
        ),
        pa.repeat(removed, n),
    ]
    return pa.table([pa.array(c) for c in columns], schema=PARTITIONS.stored_schema)


def _build_redrives(touched: Sequence[tuple[Topic, Sequence[int]]], count: int) -> pa.Array:
    """Return the column `redrives`. Few topics have any. The finished part at the start is stored as a stretch."""
    if not any(topic.redrives for topic, _ in touched):
        return pa.nulls(count, RANGES)
    redrives = [topic.redrives.get(partition) for topic, partitions in touched for partition in partitions]
    return pa.array(
        [
            None if deliveries is None else list(map(groups.stretch_to_row, _list_all_stretches(deliveries)))
            for deliveries in redrives
        ],
        RANGES,
    )


def _list_all_stretches(deliveries: Deliveries) -> list[Stretch]:
    return [Stretch(0, deliveries.start, DeliveryStatus.ACKNOWLEDGED), *deliveries.stretches]


def _list_open_transactions(topic: Topic, partition: int) -> list[dict[str, int]]:
    firsts = topic.open_transactions.get(partition, {})
    return [{"producer_id": producer_id, "first_offset": first} for producer_id, first in firsts.items()]


def _restore_topics(state: State, rows: pa.Table) -> None:
    for row in TOPICS.rows(rows):
        counts = row.partition_count, row.draining_count, row.ended_count
        if min(counts) < 0 or not 1 <= row.partition_count <= sum(counts) <= MAX_PARTITIONS:
            raise ValueError(f"{TOPICS.name} has {row.topic} with {sum(counts)} partitions")
        if row.topic in state.topic_ids:
            raise ValueError(f"{TOPICS.name} has two topics {row.topic}")
        topic = _make_topic(row.topic_id, row.topic, sum(counts))
        topic.config, topic.subscriptions = _configs.decode(row.config), list(row.subscriptions)
        topic.draining_count, topic.ended_count = row.draining_count, row.ended_count
        topic.schemas = tuple(SchemaVersion(**version) for version in row.schemas)
        state.add_topic(topic)


def _restore_partitions(state: State, partitions: pa.Table) -> None:
    partitions = partitions.sort_by("topic_id")
    names = ("topic_id", "partition", "high_watermark", "log_start_offset", "final_offset")
    topic_ids, numbers, ends, starts, finals = (partitions.column(name).to_numpy() for name in names)
    distinct, counts = np.unique(topic_ids, return_counts=True)
    topics = [state.topics[topic_id] for topic_id in distinct.tolist()]
    beyond = numbers >= np.repeat(np.array([topic.log_count for topic in topics], np.int64), counts)
    if len(wrong := np.flatnonzero((numbers < 0) | beyond)):
        topic = state.topics[int(topic_ids[wrong[0]])]
        raise ValueError(f"{PARTITIONS.name} has a partition of {topic.topic} beyond its {topic.log_count}")
    if len(wrong := np.flatnonzero((starts < 0) | (starts > ends))):
        topic = state.topics[int(topic_ids[wrong[0]])]
        raise ValueError(f"{PARTITIONS.name} has a log of {topic.topic} that ends before it starts")
    if len(wrong := np.flatnonzero((finals < 0) | (finals > ends))):
        topic = state.topics[int(topic_ids[wrong[0]])]
        raise ValueError(f"{PARTITIONS.name} has a log of {topic.topic} that is final beyond its end")
    for topic, count, end in zip(topics, counts.tolist(), np.cumsum(counts).tolist(), strict=True):
        rows_of_topic = slice(end - count, end)
        restored = (topic.high_watermarks, ends), (topic.log_starts, starts), (topic.final_offsets, finals)
        for offsets, column in restored:
            offsets[numbers[rows_of_topic]] = column[rows_of_topic]
    has_open = partitions.filter(pc.greater(pc.list_value_length(partitions.column("open_transactions")), 0))
    for row in has_open.select(["topic_id", "partition", "open_transactions"]).to_pylist():
        opened = {entry["producer_id"]: entry["first_offset"] for entry in row["open_transactions"]}
        state.topics[row["topic_id"]].open_transactions[row["partition"]] = opened
    redriven = partitions.filter(pc.is_valid(partitions.column("redrives")))
    for row in redriven.select(["topic_id", "partition", "redrives"]).to_pylist():
        deliveries = Deliveries.from_stretches(0, list(map(groups.row_to_stretch, row["redrives"])))
        state.topics[row["topic_id"]].redrives[row["partition"]] = deliveries
        state.note_deliveries(REDRIVE, (row["topic_id"], row["partition"]))


PROJECT: Project = {TOPICS.name: _project_topics, PARTITIONS.name: _project_partitions}
RESTORE: Restore = {TOPICS.name: _restore_topics, PARTITIONS.name: _restore_partitions}
