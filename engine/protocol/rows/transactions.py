"""`transactional_ids`, `transactions`, `control_markers`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.transactions import (
    CONTROL_MARKERS,
    TRANSACTIONAL_IDS,
    TRANSACTIONS,
    TransactionalIdRow,
    TransactionRow,
)

from ..hashing import shard
from ..values.deliveries import MessagesSettled, Range, Taken
from ..values.log import Produced
from ..values.offsets import OffsetCommit, OffsetsCommitted
from ..values.producers import ProducerState
from ..values.segments import table_of
from ..values.state import State
from ..values.topics import TopicDeleted
from ..values.transactions import (
    Ended,
    EndReason,
    MarkersWritten,
    Transaction,
    TransactionFailed,
    TransactionMoved,
    TransactionStatus,
)
from .steps import Project, Restore, Steps, records


def _transactional_ids(state: State, steps: Steps) -> pa.Table:
    changed = {
        record.transactional_id: step.decided_at_ms
        for step, record in records(steps)
        if isinstance(record, TransactionMoved | TransactionFailed | Produced | OffsetsCommitted | MessagesSettled)
        and record.transactional_id is not None
    }
    return TRANSACTIONAL_IDS.table(_id_row(state, name, changed[name]) for name in sorted(changed))


def _id_row(state: State, name: str, at_ms: int) -> TransactionalIdRow:
    known, ended = state.transactions.get(name), None
    removed = known is None
    if known is None:
        known = Transaction(0, 0, 0, TransactionStatus.DEAD, at_ms)
    elif known.ended is not None:
        ended = {
            "producer_id": known.ended.producer_id,
            "producer_epoch": known.ended.producer_epoch,
            "committed": known.ended.committed,
            "reason": known.ended.reason.value,
        }
    return TransactionalIdRow(
        step=state.step,
        transactional_id=name,
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
        state=known.status.value,
        timeout_ms=known.timeout_ms,
        started_at_ms=known.started_at_ms,
        partitions=[{"topic_id": topic_id, "partition": p} for topic_id, p in sorted(known.partitions)],
        offsets=[
            {"group": group, "offsets": [_stored(topic_id, one) for topic_id, one in offsets]}
            for group, offsets in sorted(known.offsets.items())
        ],
        acknowledged=[
            {"group": group, "topic_id": one.topic_id, "partition": one.partition, "ranges": _stored_ranges(one.ranges)}
            for group, taken in sorted(known.acknowledged.items())
            for one in taken
        ],
        part_count=known.part_count,
        error=known.error,
        ended=ended,
        batch_id=known.batch_id,
        seen_at_ms=known.seen_at_ms,
        removed=removed,
    )


def _stored_ranges(ranges: Iterable[Range]) -> list[dict[str, int]]:
    return [{"first_offset": first, "record_count": count} for first, count in ranges]


def _stored(topic_id: int, one: OffsetCommit) -> dict[str, Any]:
    return {
        "topic_id": topic_id,
        "topic": one.topic,
        "partition": one.partition,
        "offset": one.offset,
        "metadata": one.metadata,
    }


def _restore(state: State, rows: pa.Table) -> None:
    for row in TRANSACTIONAL_IDS.rows(rows):
        known = _known(row)
        state.transactions[row.transactional_id] = known
        if known.status is TransactionStatus.ONGOING:
            state.ongoing.add(row.transactional_id)
        holder = ProducerState(known.producer_epoch, known.seen_at_ms)
        state.producers.setdefault(known.producer_id, holder).transactional_id = row.transactional_id


def _known(row: TransactionalIdRow) -> Transaction:
    ended = row.ended
    if ended is not None:
        reason = EndReason(ended["reason"])
        ended = Ended(ended["producer_id"], ended["producer_epoch"], ended["committed"], reason)
    acknowledged: dict[str, list[Taken]] = {}
    for one in row.acknowledged:
        ranges = [(part["first_offset"], part["record_count"]) for part in one["ranges"]]
        acknowledged.setdefault(one["group"], []).append(Taken(one["topic_id"], one["partition"], ranges))
    return Transaction(
        row.producer_id,
        row.producer_epoch,
        row.timeout_ms,
        TransactionStatus(row.state),
        row.seen_at_ms,
        row.started_at_ms,
        {(place["topic_id"], place["partition"]) for place in row.partitions},
        {of["group"]: [_committed(one) for one in of["offsets"]] for of in row.offsets},
        row.part_count,
        acknowledged,
        row.error,
        ended,
        row.batch_id,
    )


def _committed(one: dict[str, Any]) -> tuple[int, OffsetCommit]:
    topic_id = one["topic_id"]
    return topic_id, OffsetCommit(one["topic"], one["partition"], one["offset"], one["metadata"], topic_id)


def _transactions(state: State, steps: Steps) -> pa.Table:
    return TRANSACTIONS.table(_transitions(state, steps))


def _transitions(state: State, steps: Steps) -> Iterator[TransactionRow]:
    gone = {record.topic_id: record.topic for _, record in records(steps) if isinstance(record, TopicDeleted)}
    for step in steps:
        for position, one in enumerate(step.entries):
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
                state=record.status.value,
                timeout_ms=record.timeout_ms,
                started_at_ms=record.started_at_ms,
                updated_at_ms=step.decided_at_ms,
                topics=[
                    f"{gone.get(topic_id) or state.topics[topic_id].topic}-{partition}"
                    for topic_id, partition in record.partitions
                ],
                groups=record.groups,
                reason=None if record.reason is None else record.reason.value,
                batch_id=record.batch_id,
            )


def _control_markers(state: State, steps: Steps) -> pa.Table:
    tables = [CONTROL_MARKERS.empty()]
    for step in steps:
        ended = [one for one in step.entries if isinstance(one.record, MarkersWritten)]
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


PROJECT: Project = {
    TRANSACTIONAL_IDS.name: _transactional_ids,
    TRANSACTIONS.name: _transactions,
    CONTROL_MARKERS.name: _control_markers,
}
RESTORE: Restore = {TRANSACTIONAL_IDS.name: _restore}
