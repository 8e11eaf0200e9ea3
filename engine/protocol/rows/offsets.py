"""The table `consumer_offsets`."""

from __future__ import annotations

import pyarrow as pa

from lakemq.tables.specs.offsets import CONSUMER_OFFSETS, ConsumerOffsetRow

from ..values.consuming.assignments import TopicIdPartition
from ..values.consuming.offsets import CommittedOffset
from ..values.journal import StepBatch
from ..values.queues.partition_deliveries import Deliveries
from ..values.state import State
from . import stretches
from .steps import Project, Restore, map_change_times


def _project_offsets(state: State, steps: StepBatch) -> pa.Table:
    changed = map_change_times(state.changes.offsets, steps)
    shards = {group: state.shards.of_group(group) for group in {group for group, _ in changed}}
    return CONSUMER_OFFSETS.table(
        _build_row(state, group, tp, at_ms, shards[group]) for (group, tp), at_ms in changed.items()
    )


def _build_row(state: State, group: str, tp: TopicIdPartition, at_ms: int, shard: int) -> ConsumerOffsetRow:
    committed, (topic_id, partition) = state.offsets.get(group, {}).get(tp), tp
    deliveries = state.find_deliveries(group, tp)
    return ConsumerOffsetRow(
        step=state.step,
        group=group,
        topic_id=topic_id,
        topic=state.find_topic_name(topic_id),
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
        tp, counts = (row.topic_id, row.partition), (row.deleted_count, row.expired_count)
        committed = CommittedOffset(row.committed_offset, row.metadata, row.committed_at_ms, *counts)
        state.offsets.setdefault(row.group, {})[tp] = committed
        if row.ranges is not None:
            deliveries = state.deliveries.setdefault(row.group, {})
            ranges = [stretches.row_to_stretch(stretch) for stretch in row.ranges]
            deliveries[tp] = Deliveries.from_stretches(row.committed_offset, ranges, row.silent_since_ms)
            state.note_deliveries(row.group, tp)


PROJECT: Project = {CONSUMER_OFFSETS.name: _project_offsets}
RESTORE: Restore = {CONSUMER_OFFSETS.name: _restore}
