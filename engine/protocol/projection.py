"""Projections: the rows that decisions add to the tables. Pure: the state and the steps in, Arrow tables out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.dead_letters import DEAD_LETTERS, DeadLetterRow
from lakemq.tables.specs.groups import CONSUMER_OFFSETS, ConsumerOffsetRow
from lakemq.tables.specs.producers import PRODUCERS, ProducerRow
from lakemq.tables.specs.segments import SEGMENTS, SegmentRow
from lakemq.tables.specs.topics import OPEN_TRANSACTIONS, PARTITIONS, TOPICS, TopicRow
from lakemq.tables.specs.transactions import CONTROL_MARKERS, TRANSACTIONS, TransactionRow
from lakemq.tables.specs.watermarks import WATERMARKS, WatermarkRow

from .codec import encode_config, encode_results, encode_transaction
from .hashing import shard
from .records import (
    Answered,
    AnyRecord,
    ClientRemoved,
    DeadLettered,
    FilesAdded,
    MarkersWritten,
    OffsetsCommitted,
    OffsetsRemoved,
    Produced,
    ProducerExpired,
    ProducerInitialized,
    RecordsDeleted,
    StepDecisions,
    TopicAltered,
    TopicCreated,
    TopicDeleted,
    TransactionFailed,
    TransactionMoved,
)
from .requests import DataFile
from .segments import Segments, table_of
from .state import State, Topic


def project(state: State, steps: Sequence[StepDecisions]) -> dict[str, pa.Table]:
    """Rows per table, for all tables these steps change but `messages` and `watermarks`.

    Holds: `state` is the fold up to the last of `steps`. Rows of a changelog bear that last step: what a key was in
    between is in the journal.
    """
    tables = {
        TOPICS.name: _topics(state, steps),
        PARTITIONS.name: _partitions(state, steps),
        SEGMENTS.name: _segments(steps),
        PRODUCERS.name: PRODUCERS.table(
            [
                *_producers(state, steps),
                *_applications(state, steps),
                *_transactional_ids(state, steps),
                *_clients(state, steps),
            ]
        ),
        TRANSACTIONS.name: TRANSACTIONS.table(_transactions(state, steps)),
        CONTROL_MARKERS.name: _control_markers(steps),
        CONSUMER_OFFSETS.name: CONSUMER_OFFSETS.table(_consumer_offsets(state, steps)),
        DEAD_LETTERS.name: DEAD_LETTERS.table(_dead_letters(steps)),
    }
    return {name: table for name, table in tables.items() if table.num_rows}


def watermark(state: State, floor: int, journal_start: int) -> pa.Table:
    """The row that says: all tables are complete up to the state's step."""
    row = WatermarkRow(
        step=state.step,
        floor=floor,
        journal_start=journal_start,
        decided_at_ms=state.now_ms,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        lease_ms=state.lease_ms,
        next_topic_id=state.next_topic_id,
        next_producer_id=state.next_producer_id,
        subscriptions_step=state.subscriptions_step,
    )
    return WATERMARKS.table([row])


def files_added(steps: Sequence[StepDecisions]) -> list[DataFile]:
    """The data files to be registered in `messages`."""
    return [file for _, record in _records(steps) if isinstance(record, FilesAdded) for file in record.files]


def _records(steps: Sequence[StepDecisions]) -> Iterator[tuple[StepDecisions, AnyRecord]]:
    return ((step, one.record) for step in steps for one in step.decisions)


def _topics(state: State, steps: Sequence[StepDecisions]) -> pa.Table:
    changed = {
        record.topic_id: record.topic
        for _, record in _records(steps)
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
        config=encode_config(topic.config),
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


def _partitions(state: State, steps: Sequence[StepDecisions]) -> pa.Table:
    changed: dict[int, set[int]] = {}
    for step in steps:
        for one in step.decisions:
            record = one.record
            if isinstance(record, TopicCreated | TopicAltered):
                changed.setdefault(record.topic_id, set()).update(range(record.partitions))
            elif isinstance(record, RecordsDeleted):
                changed.setdefault(record.topic_id, set()).update(record.log_starts)
            elif isinstance(record, Produced | MarkersWritten):
                _add_touched(changed, one.segments)
    there = [(state.topics[t], sorted(p)) for t, p in sorted(changed.items()) if t in state.topics]
    gone = [record for _, record in _records(steps) if isinstance(record, TopicDeleted)]
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


def _segments(steps: Sequence[StepDecisions]) -> pa.Table:
    tables = [SEGMENTS.empty()]
    for step in steps:
        table = table_of(one.segments for one in step.decisions)
        if table.num_rows:
            tables.append(table.add_column(0, "step", pa.repeat(step.step, table.num_rows)))
        cuts = [row for one in step.decisions for row in _cuts(step.step, one.record)]
        if cuts:
            tables.append(SEGMENTS.table(cuts))
    return pa.concat_tables(tables)


def _cuts(step: int, record: AnyRecord) -> list[SegmentRow]:
    def cut(kind: str, partition: int, offset: int, topic_id: int, topic: str) -> SegmentRow:
        return SegmentRow(
            step=step,
            kind=kind,
            topic_id=topic_id,
            topic=topic,
            partition=partition,
            base_offset=offset,
            record_count=0,
            last_offset=offset,
            transactional=False,
            origin="publish",
        )

    if isinstance(record, RecordsDeleted):
        return [cut("log_start", p, o, record.topic_id, record.topic) for p, o in record.log_starts.items()]
    if isinstance(record, TopicDeleted):
        return [cut("topic_deleted", -1, 0, record.topic_id, record.topic)]
    return []


def _producers(state: State, steps: Sequence[StepDecisions]) -> Iterator[ProducerRow]:
    changed = {
        producer_id: step.decided_at_ms
        for step, record in _records(steps)
        if isinstance(record, ProducerInitialized | ProducerExpired | Produced | TransactionMoved)
        for producer_id in (record.producer_id, getattr(record, "used_up", None))
        if producer_id is not None
    }
    for producer_id in sorted(changed):
        producer = state.producers.get(producer_id)
        units = [] if producer is None else [u for units in producer.units.values() for u in units]
        yield ProducerRow(
            step=state.step,
            kind="producer",
            name=str(producer_id),
            producer_epoch=producer.epoch if producer else None,
            units=[{name: getattr(u, name) for name in u.__struct_fields__} for u in units],
            seen_at_ms=producer.seen_at_ms if producer else changed[producer_id],
            removed=producer is None,
        )


def _transactional_ids(state: State, steps: Sequence[StepDecisions]) -> Iterator[ProducerRow]:
    changed = {
        record.transactional_id: step.decided_at_ms
        for step, record in _records(steps)
        if isinstance(record, TransactionMoved | TransactionFailed | Produced | OffsetsCommitted)
        and record.transactional_id is not None
    }
    for name in sorted(changed):
        known = state.transactions.get(name)
        yield ProducerRow(
            step=state.step,
            kind="transaction",
            name=name,
            producer_epoch=known.producer_epoch if known else None,
            document=encode_transaction(known) if known else None,
            seen_at_ms=known.seen_at_ms if known else changed[name],
            removed=known is None,
        )


def _transactions(state: State, steps: Sequence[StepDecisions]) -> Iterator[TransactionRow]:
    names = {topic_id: topic.topic for topic_id, topic in state.topics.items()}
    names |= {record.topic_id: record.topic for _, record in _records(steps) if isinstance(record, TopicDeleted)}
    for step in steps:
        for position, one in enumerate(step.decisions):
            record = one.record
            if not isinstance(record, TransactionMoved):
                continue
            yield TransactionRow(
                step=step.step,
                position=position,
                transactional_id=record.transactional_id,
                shard=shard(record.transactional_id),
                producer_id=record.producer_id,
                producer_epoch=record.producer_epoch,
                state=record.status,
                timeout_ms=record.timeout_ms,
                started_at_ms=record.started_at_ms,
                updated_at_ms=step.decided_at_ms,
                topics=[f"{names[topic_id]}-{partition}" for topic_id, partition in record.partitions],
                groups=record.groups,
                reason=record.reason,
                batch_id=record.batch_id,
            )


def _control_markers(steps: Sequence[StepDecisions]) -> pa.Table:
    tables = [CONTROL_MARKERS.empty()]
    for step in steps:
        ended = [one for one in step.decisions if isinstance(one.record, MarkersWritten)]
        if not ended:
            continue
        markers = table_of(one.segments for one in ended)
        names = [one.record.subject for one in ended for _ in range(len(one.segments))]
        columns = [
            pa.repeat(step.step, len(names)),
            *(markers.column(c) for c in ("topic_id", "topic", "partition", "base_offset")),
            *(markers.column(c) for c in ("producer_id", "producer_epoch")),
            pc.utf8_upper(markers.column("kind")),
            markers.column("first_offset"),
            pa.array(names, pa.string()),
        ]
        tables.append(pa.table(columns, schema=CONTROL_MARKERS.stored_schema))
    return pa.concat_tables(tables)


def _consumer_offsets(state: State, steps: Sequence[StepDecisions]) -> Iterator[ConsumerOffsetRow]:
    changed: dict[tuple[str, int, int], tuple[str, int]] = {}
    for step, record in _records(steps):
        if isinstance(record, OffsetsCommitted) and record.transactional_id is None:
            for topic_id, one in zip(record.topic_ids, record.offsets, strict=True):
                changed[record.group, topic_id, one.partition] = one.topic, step.decided_at_ms
        elif isinstance(record, OffsetsRemoved):
            for partition in record.partitions:
                changed[record.group, record.topic_id, partition] = record.topic, step.decided_at_ms
    shards = {group: shard(group) for group, _, _ in changed}
    for (group, topic_id, partition), (topic, at_ms) in sorted(changed.items()):
        committed = state.offsets.get(group, {}).get((topic_id, partition))
        yield ConsumerOffsetRow(
            step=state.step,
            group=group,
            topic_id=topic_id,
            topic=topic,
            partition=partition,
            committed_offset=committed.offset if committed else 0,
            metadata=committed.metadata if committed else None,
            committed_at_ms=committed.committed_at_ms if committed else at_ms,
            shard=shards[group],
            removed=committed is None,
        )


def _applications(state: State, steps: Sequence[StepDecisions]) -> Iterator[ProducerRow]:
    changed = {
        (record.txn_app_id, record.target)
        for _, record in _records(steps)
        if isinstance(record, Produced) and record.txn_app_id is not None
    }
    for app_id, target in sorted(changed):
        known = state.applications[app_id, target]
        yield ProducerRow(
            step=state.step,
            kind="application",
            name=f"{target}:{app_id}",
            version=known.version,
            seen_at_ms=known.seen_at_ms,
            removed=False,
        )


def _clients(state: State, steps: Sequence[StepDecisions]) -> Iterator[ProducerRow]:
    changed = {
        record.client_id: step.decided_at_ms
        for step, record in _records(steps)
        if isinstance(record, Answered | ClientRemoved)
    }
    for client_id in sorted(changed):
        client = state.clients.get(client_id)
        yield ProducerRow(
            step=state.step,
            kind="client",
            name=client_id,
            version=client.number if client else None,
            document=encode_results(client.results) if client else None,
            seen_at_ms=client.seen_at_ms if client else changed[client_id],
            removed=client is None,
        )


def _dead_letters(steps: Sequence[StepDecisions]) -> Iterator[DeadLetterRow]:
    return (
        DeadLetterRow(
            step=step.step,
            source=record.source,
            batch_id=record.batch_id,
            first_row=record.first_row,
            record_count=record.record_count,
            error=record.error,
            reason=record.reason,
            dead_at_ms=step.decided_at_ms,
        )
        for step, record in _records(steps)
        if isinstance(record, DeadLettered)
    )
