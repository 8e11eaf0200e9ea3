"""The tables `transactional_ids`, `transactions` and `control_markers`."""

from collections.abc import Iterable
from functools import cache
from itertools import chain, compress
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.transactions import (
    CONTROL_MARKERS,
    TRANSACTIONAL_IDS,
    TRANSACTIONS,
    TransactionalIdRow,
)

from ..hashing import find_shard
from ..values.base import copy_fields, find_shared_fields
from ..values.deliveries import MessageRanges, Range
from ..values.journal import StepBatch
from ..values.offsets import OffsetCommit
from ..values.producers import ProducerState
from ..values.state import State
from ..values.transactions import (
    EndedTransaction,
    MarkersWritten,
    Transaction,
    TransactionMoved,
    TransactionStatus,
)
from . import Project, Restore, find_records, map_change_times

_FIELDS = find_shared_fields(TransactionalIdRow, Transaction, "partitions", "offsets", "acknowledged", "ended")


def _project_ids(state: State, steps: StepBatch) -> pa.Table:
    changed = map_change_times(state.changes.transactions, steps)
    return TRANSACTIONAL_IDS.table(_build_id_row(state, name, at_ms) for name, at_ms in changed.items())


def _build_id_row(state: State, name: str, at_ms: int) -> TransactionalIdRow:
    existing = state.transactions.get(name)
    transaction = existing or Transaction(0, 0, 0, TransactionStatus.DEAD, at_ms)
    return TransactionalIdRow(
        step=state.step,
        transactional_id=name,
        state=transaction.status.value,
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
        ended=msgspec.to_builtins(transaction.ended),
        removed=existing is None,
        **copy_fields(transaction, _FIELDS),
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
    acknowledged: dict[str, list[MessageRanges]] = {}
    for part_row in row.acknowledged:
        ranges = [(part["first_offset"], part["record_count"]) for part in part_row["ranges"]]
        acknowledged.setdefault(part_row["group"], []).append(
            MessageRanges(part_row["topic_id"], part_row["partition"], ranges)
        )
    return Transaction(
        status=TransactionStatus(row.state),
        partitions={(partition["topic_id"], partition["partition"]) for partition in row.partitions},
        offsets={
            offsets_row["group"]: [_row_to_offset(offset_row) for offset_row in offsets_row["offsets"]]
            for offsets_row in row.offsets
        },
        acknowledged=acknowledged,
        ended=msgspec.convert(row.ended, EndedTransaction | None),
        **copy_fields(row, _FIELDS),
    )


def _row_to_offset(row: dict[str, Any]) -> tuple[int, OffsetCommit]:
    topic_id = row["topic_id"]
    return topic_id, OffsetCommit(row["topic"], row["partition"], row["offset"], row["metadata"], topic_id)


def _project_transactions(state: State, steps: StepBatch) -> pa.Table:
    """Return one row per move, built as columns because each transaction has several."""
    placed_moves = steps.find_entries(TransactionMoved)
    if not placed_moves:
        return TRANSACTIONS.empty()
    moves = [record for _, record in find_records(steps, TransactionMoved)]
    # the moves of a transaction repeat its id and its partitions
    find_shard_once = cache(find_shard)

    @cache
    def name_partition(topic_id: int, partition: int) -> str:
        return f"{state.find_topic_name(topic_id)}-{partition}"

    return TRANSACTIONS.to_table_from_columns(
        step=[placed.step.step for placed in placed_moves],
        position=[placed.position for placed in placed_moves],
        transactional_id=[move.transactional_id for move in moves],
        shard=[find_shard_once(move.transactional_id) for move in moves],
        producer_id=[move.producer_id for move in moves],
        producer_epoch=[move.producer_epoch for move in moves],
        state=[move.status.value for move in moves],
        timeout_ms=[move.timeout_ms for move in moves],
        started_at_ms=[move.started_at_ms for move in moves],
        updated_at_ms=[placed.step.decided_at_ms for placed in placed_moves],
        topics=[[name_partition(topic_id, partition) for topic_id, partition in move.partitions] for move in moves],
        groups=[move.groups for move in moves],
        reason=[None if move.reason is None else move.reason.value for move in moves],
        batch_id=[move.batch_id for move in moves],
    )


def _project_markers(state: State, steps: StepBatch) -> pa.Table:
    placed_markers = steps.find_entries(MarkersWritten)
    if not placed_markers:
        return CONTROL_MARKERS.empty()
    are_markers = [isinstance(entry.record, MarkersWritten) for step in steps for entry in step.entries]
    counts = list(chain.from_iterable(steps.segment_counts))
    markers = steps.segments.filter(pa.array(np.repeat(are_markers, counts)))
    counts = list(compress(counts, are_markers))
    columns = [
        pa.array(np.repeat([placed.step.step for placed in placed_markers], counts)),
        *(markers.column(c) for c in ("topic_id", "topic", "partition", "base_offset")),
        *(markers.column(c) for c in ("producer_id", "producer_epoch")),
        pc.utf8_upper(markers.column("kind")),
        markers.column("first_offset"),
        pa.array(
            [placed.entry.record.subject for placed in placed_markers for _ in range(len(placed.entry.segments))],
            pa.string(),
        ),
    ]
    return pa.table(columns, schema=CONTROL_MARKERS.stored_schema)


PROJECT: Project = {
    TRANSACTIONAL_IDS.name: _project_ids,
    TRANSACTIONS.name: _project_transactions,
    CONTROL_MARKERS.name: _project_markers,
}
RESTORE: Restore = {TRANSACTIONAL_IDS.name: _restore}
