"""`consumer_offsets`."""

from __future__ import annotations

import pyarrow as pa

from lakemq.tables.specs.offsets import CONSUMER_OFFSETS, ConsumerOffsetRow

from ..hashing import shard
from ..values.dead_letters import MessagesDeadLettered
from ..values.deliveries import (
    Deliveries,
    MessagesAcquired,
    MessagesPassed,
    MessagesSettled,
)
from ..values.offsets import CommittedOffset, OffsetsCommitted, OffsetsRemoved
from ..values.state import State
from ..values.topics import RecordsDeleted
from . import stretches
from .steps import Project, Restore, Steps, records


def _consumer_offsets(state: State, steps: Steps) -> pa.Table:
    changed: dict[tuple[str, int, int], tuple[str | None, int]] = {}
    for step, record in records(steps):
        if isinstance(record, OffsetsCommitted) and record.transactional_id is None:
            for topic_id, one in zip(record.topic_ids, record.offsets, strict=True):
                changed[record.group, topic_id, one.partition] = one.topic, step.decided_at_ms
        elif isinstance(record, OffsetsRemoved):
            for partition in record.partitions:
                changed[record.group, record.topic_id, partition] = record.topic, step.decided_at_ms
        elif isinstance(record, RecordsDeleted):
            deleted = {(record.topic_id, partition) for partition in record.log_starts}
            told = record.topic, step.decided_at_ms
            for group, known in state.offsets.items():
                there = deleted & known.keys()
                changed |= {(group, *place): told for place in there if known[place].deleted_count}
        elif isinstance(record, MessagesPassed):
            changed[record.group, record.topic_id, record.partition] = None, step.decided_at_ms
        elif isinstance(record, MessagesAcquired | MessagesSettled | MessagesDeadLettered):
            parts = record.taken if isinstance(record, MessagesAcquired) else record.parts
            changed |= {(record.group, *one.place): (None, step.decided_at_ms) for one in parts}
    shards = {group: shard(group) for group, _, _ in changed}
    return CONSUMER_OFFSETS.table(_row(state, *key, *told, shards[key[0]]) for key, told in sorted(changed.items()))


def _row(
    state: State, group: str, topic_id: int, partition: int, topic: str | None, at_ms: int, shard: int
) -> ConsumerOffsetRow:
    """topic: None where the record does not tell; a topic that is gone tells it in a record of its own."""
    committed = state.offsets.get(group, {}).get((topic_id, partition))
    deliveries = state.deliveries_of(group, (topic_id, partition))
    return ConsumerOffsetRow(
        step=state.step,
        group=group,
        topic_id=topic_id,
        topic=topic if topic is not None else state.topics[topic_id].topic,
        partition=partition,
        committed_offset=committed.offset if committed else 0,
        ranges=None if deliveries is None else [stretches.stored(one) for one in deliveries.stretches],
        metadata=committed.metadata if committed else None,
        committed_at_ms=committed.committed_at_ms if committed else at_ms,
        deleted_count=committed.deleted_count if committed else 0,
        expired_count=committed.expired_count if committed else 0,
        shard=shard,
        removed=committed is None,
    )


def _restore(state: State, rows: pa.Table) -> None:
    for row in CONSUMER_OFFSETS.rows(rows):
        place, counts = (row.topic_id, row.partition), (row.deleted_count, row.expired_count)
        committed = CommittedOffset(row.committed_offset, row.metadata, row.committed_at_ms, *counts)
        state.offsets.setdefault(row.group, {})[place] = committed
        if row.ranges is not None:
            known = state.deliveries.setdefault(row.group, {})
            known[place] = Deliveries.of(row.committed_offset, [stretches.read(one) for one in row.ranges])
            state.note_dying(row.group, place)


PROJECT: Project = {CONSUMER_OFFSETS.name: _consumer_offsets}
RESTORE: Restore = {CONSUMER_OFFSETS.name: _restore}
