"""`consumer_offsets`."""

from __future__ import annotations

import pyarrow as pa

from lakemq.tables.specs.offsets import CONSUMER_OFFSETS, ConsumerOffsetRow

from ..hashing import shard
from ..values.offsets import CommittedOffset, OffsetsCommitted, OffsetsRemoved
from ..values.state import State
from .steps import Project, Restore, Steps, records


def _consumer_offsets(state: State, steps: Steps) -> pa.Table:
    changed: dict[tuple[str, int, int], tuple[str, int]] = {}
    for step, record in records(steps):
        if isinstance(record, OffsetsCommitted) and record.transactional_id is None:
            for topic_id, one in zip(record.topic_ids, record.offsets, strict=True):
                changed[record.group, topic_id, one.partition] = one.topic, step.decided_at_ms
        elif isinstance(record, OffsetsRemoved):
            for partition in record.partitions:
                changed[record.group, record.topic_id, partition] = record.topic, step.decided_at_ms
    shards = {group: shard(group) for group, _, _ in changed}
    return CONSUMER_OFFSETS.table(_row(state, *key, *told, shards[key[0]]) for key, told in sorted(changed.items()))


def _row(
    state: State, group: str, topic_id: int, partition: int, topic: str, at_ms: int, shard: int
) -> ConsumerOffsetRow:
    committed = state.offsets.get(group, {}).get((topic_id, partition))
    return ConsumerOffsetRow(
        step=state.step,
        group=group,
        topic_id=topic_id,
        topic=topic,
        partition=partition,
        committed_offset=committed.offset if committed else 0,
        metadata=committed.metadata if committed else None,
        committed_at_ms=committed.committed_at_ms if committed else at_ms,
        shard=shard,
        removed=committed is None,
    )


def _restore(state: State, rows: pa.Table) -> None:
    for row in CONSUMER_OFFSETS.rows(rows):
        committed = CommittedOffset(row.committed_offset, row.metadata, row.committed_at_ms)
        state.offsets.setdefault(row.group, {})[row.topic_id, row.partition] = committed


PROJECT: Project = {CONSUMER_OFFSETS.name: _consumer_offsets}
RESTORE: Restore = {CONSUMER_OFFSETS.name: _restore}
