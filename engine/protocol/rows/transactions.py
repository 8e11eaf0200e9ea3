"""The tables `transactional_ids`, `transactions` and `control_markers`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, compress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.transactions import (
    CONTROL_MARKERS,
    TRANSACTIONAL_IDS,
    TRANSACTIONS,
    TransactionalIdRow,
    TransactionRow,
)

from ..values.consuming.offsets import OffsetCommit
from ..values.journal import StepBatch
from ..values.producers import ProducerState
from ..values.queues.deliveries import MessageRanges
from ..values.queues.stretches import Range
from ..values.state import State
from ..values.transactions import (
    EndedTransaction,
    EndReason,
    MarkersWritten,
    Transaction,
    TransactionMoved,
    TransactionStatus,
)
from .steps import Project, Restore, map_change_times


def _project_ids(state: State, steps: StepBatch) -> pa.Table:
    changed = map_change_times(state.changes.transactions, steps)
    return TRANSACTIONAL_IDS.table(_build_id_row(state, name, at_ms) for name, at_ms in changed.items())


def _build_id_row(state: State, name: str, at_ms: int) -> TransactionalIdRow:
    transaction, ended = state.transactions.get(name), None
    removed = transaction is None
    if transaction is None:
        transaction = Transaction(0, 0, 0, TransactionStatus.DEAD, at_ms)
    elif transaction.ended is not None:
        ended = {
            "producer_id": transaction.ended.producer_id,
            "producer_epoch": transaction.ended.producer_epoch,
            "committed": transaction.ended.committed,
            "reason": transaction.ended.reason.value,
        }
    return TransactionalIdRow(
        step=state.step,
        transactional_id=name,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        state=transaction.status.value,
        timeout_ms=transaction.timeout_ms,
        started_at_ms=transaction.started_at_ms,
        partitions=[{"topic_id": topic_id, "partition": p} for topic_id, p in sorted(transaction.partitions)],
        offsets=[
            {"group": group, "offsets": [_offset_to_row(topic_id, offset) for topic_id, offset in offsets]}
            for group, offsets in sorted(transaction.offsets.items())
        ],
        acknowledged=[
            {
                "group": group,
                "topic_id": part.topic_id,
                "partition": part.partition,
                "ranges": _ranges_to_rows(part.ranges),
            }
            for group, parts in sorted(transaction.acknowledged.items())
            for part in parts
        ],
        part_count=transaction.part_count,
        error=transaction.error,
        ended=ended,
        batch_id=transaction.batch_id,
        seen_at_ms=transaction.seen_at_ms,
        removed=removed,
    )


def _ranges_to_rows(ranges: Iterable[Range]) -> list[dict[str, int]]:
    return [{"first_offset": first, "record_count": count} for first, count in ranges]


def _offset_to_row(topic_id: int, commit: OffsetCommit) -> dict[str, Any]:
    return {
        "topic_id": topic_id,
        "topic": commit.topic,
        "partition": commit.partition,
        "offset": commit.offset,
        "metadata": commit.metadata,
    }


def _restore(state: State, rows: pa.Table) -> None:
    for row in TRANSACTIONAL_IDS.rows(rows):
        transaction = _row_to_transaction(row)
        state.transactions[row.transactional_id] = transaction
        if transaction.status is TransactionStatus.ONGOING:
            state.ongoing.add(row.transactional_id)
        holder = ProducerState(transaction.producer_epoch, transaction.seen_at_ms)
        state.producers.setdefault(transaction.producer_id, holder).transactional_id = row.transactional_id


def _row_to_transaction(row: TransactionalIdRow) -> Transaction:
    ended = row.ended
    if ended is not None:
        reason = EndReason(ended["reason"])
        ended = EndedTransaction(ended["producer_id"], ended["producer_epoch"], ended["committed"], reason)
    acknowledged: dict[str, list[MessageRanges]] = {}
    for part_row in row.acknowledged:
        ranges = [(part["first_offset"], part["record_count"]) for part in part_row["ranges"]]
        acknowledged.setdefault(part_row["group"], []).append(
            MessageRanges(part_row["topic_id"], part_row["partition"], ranges)
        )
    return Transaction(
        row.producer_id,
        row.producer_epoch,
        row.timeout_ms,
        TransactionStatus(row.state),
        row.seen_at_ms,
        row.started_at_ms,
        {(place["topic_id"], place["partition"]) for place in row.partitions},
        {
            offsets_row["group"]: [_row_to_offset(offset_row) for offset_row in offsets_row["offsets"]]
            for offsets_row in row.offsets
        },
        row.part_count,
        acknowledged,
        row.error,
        ended,
        row.batch_id,
    )


def _row_to_offset(row: dict[str, Any]) -> tuple[int, OffsetCommit]:
    topic_id = row["topic_id"]
    return topic_id, OffsetCommit(row["topic"], row["partition"], row["offset"], row["metadata"], topic_id)


def _project_transactions(state: State, steps: StepBatch) -> pa.Table:
    return TRANSACTIONS.table(_build_transaction_rows(state, steps))


def _build_transaction_rows(state: State, steps: StepBatch) -> Iterator[TransactionRow]:
    for step in steps:
        for position, entry in enumerate(step.entries):
            record = entry.record
            if not isinstance(record, TransactionMoved):
                continue
            yield TransactionRow(
                step=step.step,
                position=position,
                transactional_id=record.transactional_id,
                shard=state.shards.of_transactional_id(record.transactional_id),
                producer_id=record.producer_id,
                producer_epoch=record.producer_epoch,
                state=record.status.value,
                timeout_ms=record.timeout_ms,
                started_at_ms=record.started_at_ms,
                updated_at_ms=step.decided_at_ms,
                topics=[f"{state.find_topic_name(topic_id)}-{partition}" for topic_id, partition in record.partitions],
                groups=record.groups,
                reason=None if record.reason is None else record.reason.value,
                batch_id=record.batch_id,
            )


def _project_markers(state: State, steps: StepBatch) -> pa.Table:
    entries = [(step.step, entry) for step in steps for entry in step.entries]
    are_markers = [isinstance(entry.record, MarkersWritten) for _, entry in entries]
    if not any(are_markers):
        return CONTROL_MARKERS.empty()
    counts = list(chain.from_iterable(steps.segment_counts))
    markers = steps.segments.filter(pa.array(np.repeat(are_markers, counts)))
    ended, counts = list(compress(entries, are_markers)), list(compress(counts, are_markers))
    columns = [
        pa.array(np.repeat([step for step, _ in ended], counts)),
        *(markers.column(c) for c in ("topic_id", "topic", "partition", "base_offset")),
        *(markers.column(c) for c in ("producer_id", "producer_epoch")),
        pc.utf8_upper(markers.column("kind")),
        markers.column("first_offset"),
        pa.array([entry.record.subject for _, entry in ended for _ in range(len(entry.segments))], pa.string()),
    ]
    return pa.table(columns, schema=CONTROL_MARKERS.stored_schema)


PROJECT: Project = {
    TRANSACTIONAL_IDS.name: _project_ids,
    TRANSACTIONS.name: _project_transactions,
    CONTROL_MARKERS.name: _project_markers,
}
RESTORE: Restore = {TRANSACTIONAL_IDS.name: _restore}
