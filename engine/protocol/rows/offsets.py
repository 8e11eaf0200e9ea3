"""The table `consumer_offsets`."""

from __future__ import annotations

import pyarrow as pa

from lakemq.tables.specs.offsets import CONSUMER_OFFSETS, ConsumerOffsetRow

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
from .steps import Project, Restore, Steps, iterate_records


def _project_offsets(state: State, steps: Steps) -> pa.Table:
    changed: dict[tuple[str, int, int], tuple[str | None, int]] = {}
    for step, record in iterate_records(steps):
        if isinstance(record, OffsetsCommitted) and record.transactional_id is None:
            for topic_id, commit in zip(record.topic_ids, record.offsets, strict=True):
                changed[record.group, topic_id, commit.partition] = commit.topic, step.decided_at_ms
        elif isinstance(record, OffsetsRemoved):
            for partition in record.partitions:
                changed[record.group, record.topic_id, partition] = record.topic, step.decided_at_ms
        elif isinstance(record, RecordsDeleted):
            deleted = {(record.topic_id, partition) for partition in record.log_starts}
            change = record.topic, step.decided_at_ms
            for group, committed in state.offsets.items():
                there = deleted & committed.keys()
                changed |= {(group, *place): change for place in there if committed[place].deleted_count}
        elif isinstance(record, MessagesPassed):
            changed[record.group, record.topic_id, record.partition] = None, step.decided_at_ms
        elif isinstance(record, MessagesAcquired | MessagesSettled | MessagesDeadLettered):
            parts = record.taken if isinstance(record, MessagesAcquired) else record.parts
            changed |= {(record.group, *part.place): (None, step.decided_at_ms) for part in parts}
    shards = {group: state.shards.of_group(group) for group, _, _ in changed}
    return CONSUMER_OFFSETS.table(
        _build_row(state, *key, *change, shards[key[0]]) for key, change in sorted(changed.items())
    )


def _build_row(
    state: State, group: str, topic_id: int, partition: int, topic: str | None, at_ms: int, shard: int
) -> ConsumerOffsetRow:
    """topic: None where the record does not tell; a topic that is gone tells it in a record of its own."""
    committed = state.offsets.get(group, {}).get((topic_id, partition))
    deliveries = state.find_deliveries(group, (topic_id, partition))
    return ConsumerOffsetRow(
        step=state.step,
        group=group,
        topic_id=topic_id,
        topic=topic if topic is not None else state.topics[topic_id].topic,
        partition=partition,
        committed_offset=committed.offset if committed else 0,
        ranges=None if deliveries is None else [stretches.stretch_to_row(stretch) for stretch in deliveries.stretches],
        silent_since_ms=0 if deliveries is None else deliveries.silent_since_ms,
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
            deliveries = state.deliveries.setdefault(row.group, {})
            ranges = [stretches.row_to_stretch(stretch) for stretch in row.ranges]
            deliveries[place] = Deliveries.from_stretches(row.committed_offset, ranges, row.silent_since_ms)
            state.index_dying(row.group, place)


PROJECT: Project = {CONSUMER_OFFSETS.name: _project_offsets}
RESTORE: Restore = {CONSUMER_OFFSETS.name: _restore}
