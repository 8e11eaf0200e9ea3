"""`transactions` and `control_markers`: the transaction log, and the marker each transaction leaves in a partition."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from .spec import INT32, INT64, TEXT, TableSpec, column


@dataclass(frozen=True, kw_only=True)
class TransactionRow:
    step: int = column(INT64, "The micro-batch that decided it.")
    position: int = column(INT32, "Order within the step.")
    transactional_id: str = column(TEXT, "The application's id.")
    shard: int = column(INT32, "abs(hash) % 50 of the id, by Java's hash of text.")
    producer_id: int = column(INT64, "Producer that holds the id.")
    producer_epoch: int = column(INT32, "Its epoch.")
    state: str = column(TEXT, "Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort or Dead.")
    timeout_ms: int = column(INT64, "transaction.timeout.ms of the producer.")
    started_at_ms: int | None = column(INT64, "First publish or offset commit of the transaction.", nullable=True)
    updated_at_ms: int = column(INT64, "When this transition was decided.")
    topics: list[str] = column(pa.list_(TEXT), "Topic-partitions written to, as topic-partition.")
    groups: list[str] = column(pa.list_(TEXT), "Groups whose offsets it carries.")
    reason: str | None = column(
        TEXT, "Who ended it: producer, timeout, fenced (by the id's next producer) or operator.", nullable=True
    )
    batch_id: int | None = column(INT64, "Micro-batch of a stream that the commit carries.", nullable=True)


TRANSACTIONS = TableSpec(
    name="transactions",
    row=TransactionRow,
    shape="log",
    keys=("step", "position"),
    sort_by=("step", "position"),
    comment="The transaction log: one row per transition of a transactional id.",
)


@dataclass(frozen=True, kw_only=True)
class ControlMarkerRow:
    step: int = column(INT64, "The micro-batch that decided it.")
    topic_id: int = column(INT64, "Topic.")
    topic: str = column(TEXT, "Its name.")
    partition: int = column(INT32, "Partition.")
    offset: int = column(INT64, "The offset the marker takes.")
    producer_id: int = column(INT64, "Producer whose transaction ends.")
    producer_epoch: int = column(INT32, "Its epoch.")
    marker: str = column(TEXT, "COMMIT or ABORT.")
    first_offset: int = column(INT64, "First offset of the transaction in this partition.")
    transactional_id: str = column(TEXT, "The application's id.")


CONTROL_MARKERS = TableSpec(
    name="control_markers",
    row=ControlMarkerRow,
    shape="log",
    keys=("topic_id", "partition", "offset"),
    sort_by=("topic_id", "partition", "offset"),
    comment="Commit and abort markers, one offset each, never shown to consumers.",
)
