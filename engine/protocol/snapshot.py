"""The state as the projections hold it at a watermark: the inverse of `projection`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.groups import ConsumerOffsetRow
from lakemq.tables.specs.producers import ProducerRow
from lakemq.tables.specs.topics import TopicRow
from lakemq.tables.specs.watermarks import WatermarkRow

from .codec import decode_config, decode_results, decode_transaction
from .records import UnitAppended
from .state import Application, Client, CommittedOffset, Producer, State, Topic


def restore(
    watermark: WatermarkRow,
    topics: list[TopicRow],
    partitions: pa.Table,
    producers: list[ProducerRow],
    offsets: list[ConsumerOffsetRow],
) -> State:
    """The state at the watermark. All rows are the newest of their key at or below its step.

    partitions: columns of `partitions`. Producers and offsets may be left out by a reader, who decides nothing.
    """
    state = State(
        step=watermark.step,
        now_ms=watermark.decided_at_ms,
        leader=watermark.leader,
        leader_epoch=watermark.leader_epoch,
        lease_ms=watermark.lease_ms,
        next_topic_id=watermark.next_topic_id,
        next_producer_id=watermark.next_producer_id,
        subscriptions_step=watermark.subscriptions_step,
    )
    for row in topics:
        if not row.removed:
            _restore_topic(state, row)
    _restore_partitions(state, partitions.filter(~pc.field("removed")))
    for producer in producers:
        if not producer.removed:
            _restore_producer(state, producer)
    for name, transaction in state.transactions.items():
        holder = Producer(transaction.producer_epoch, transaction.seen_at_ms)
        state.producers.setdefault(transaction.producer_id, holder).transactional_id = name
    for one in offsets:
        if one.removed:
            continue
        committed = CommittedOffset(one.committed_offset, one.metadata, one.committed_at_ms)
        state.offsets.setdefault(one.group, {})[one.topic_id, one.partition] = committed
    return state


def _restore_topic(state: State, row: TopicRow) -> None:
    zeros = np.zeros(row.partition_count, np.int64)
    config, subscriptions = decode_config(row.config), list(row.subscriptions)
    state.topics[row.topic_id] = Topic(row.topic_id, row.topic, config, subscriptions, zeros, zeros.copy())
    state.topic_ids[row.topic] = row.topic_id


def _restore_partitions(state: State, partitions: pa.Table) -> None:
    topic_ids = partitions.column("topic_id").to_numpy()
    for topic_id in np.unique(topic_ids).tolist():
        mine = topic_ids == topic_id
        numbers = partitions.column("partition").to_numpy()[mine]
        topic = state.topics[topic_id]
        topic.high_watermarks[numbers] = partitions.column("high_watermark").to_numpy()[mine]
        topic.log_starts[numbers] = partitions.column("log_start_offset").to_numpy()[mine]
    has_open = partitions.filter(pc.greater(pc.list_value_length(partitions.column("open_transactions")), 0))
    for row in has_open.select(["topic_id", "partition", "open_transactions"]).to_pylist():
        firsts = {one["producer_id"]: one["first_offset"] for one in row["open_transactions"]}
        state.topics[row["topic_id"]].open_transactions[row["partition"]] = firsts


def _restore_producer(state: State, row: ProducerRow) -> None:
    if row.kind == "client":
        results = decode_results(row.document or "[]")
        state.clients[row.name] = Client(row.version or 0, results, row.seen_at_ms)
    elif row.kind == "transaction":
        transaction = decode_transaction(row.document or "{}")
        state.transactions[row.name] = transaction
        if transaction.status == "Ongoing":
            state.ongoing.add(row.name)
    elif row.kind == "application":
        target, _, app_id = row.name.partition(":")
        state.applications[app_id, target] = Application(row.version or 0, row.seen_at_ms)
    else:
        producer = Producer(row.producer_epoch or 0, row.seen_at_ms)
        for stored in row.units or []:
            unit = UnitAppended(**stored)
            key = (unit.topic_id, unit.partition)
            producer.units[key] = (*producer.units.get(key, ()), unit)
        state.producers[int(row.name)] = producer
