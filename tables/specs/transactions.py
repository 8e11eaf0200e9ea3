"""`transactional_ids`, `transactions`, `control_markers`: ids with their producers, the transaction log, markers.

And `producers`, `clients` and `applications`, by which repeated requests are recognized.
"""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .spec import BOOL, INT32, INT64, TEXT, TableSpec, column, optional

STATES = "Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort or Dead."

RANGES = pa.list_(pa.struct([pa.field("first_offset", INT64), pa.field("record_count", INT64)]))

PLACES = pa.list_(pa.struct([pa.field("topic_id", INT64), pa.field("partition", INT32)]))

OFFSETS = pa.list_(
    pa.struct(
        [
            pa.field("group", TEXT),
            pa.field(
                "offsets",
                pa.list_(
                    pa.struct(
                        [
                            pa.field("topic_id", INT64),
                            pa.field("topic", TEXT),
                            pa.field("partition", INT32),
                            pa.field("offset", INT64),
                            pa.field("metadata", TEXT),
                        ]
                    )
                ),
            ),
        ]
    )
)

ACKNOWLEDGED = pa.list_(
    pa.struct(
        [
            pa.field("group", TEXT),
            pa.field("topic_id", INT64),
            pa.field("partition", INT32),
            pa.field("ranges", RANGES),
        ]
    )
)

ENDED = pa.struct(
    [
        pa.field("producer_id", INT64),
        pa.field("producer_epoch", INT32),
        pa.field("committed", BOOL),
        pa.field("reason", TEXT),
    ]
)


@dataclass(frozen=True, kw_only=True)
class TransactionalIdRow:
    step: int = column(INT64, "The step that decided it.")
    transactional_id: str = column(TEXT, "The application's id.")
    producer_id: int = column(INT64, "Producer that holds the id.")
    producer_epoch: int = column(INT32, "Its epoch, for its open or its next transaction.")
    state: str = column(TEXT, STATES)
    timeout_ms: int = column(INT64, "transaction.timeout.ms of the producer.")
    started_at_ms: int | None = optional(INT64, "Start time of the open transaction.")
    partitions: list[Any] = column(PLACES, "Partitions that the open transaction has written to.")
    offsets: list[Any] = column(OFFSETS, "Offsets of groups that it commits.")
    acknowledged: list[Any] = column(ACKNOWLEDGED, "Messages of queue groups that it acknowledges.")
    part_count: int = column(INT64, "Number of its publishes and of groups with offsets.")
    error: str | None = optional(TEXT, "Why it can only be aborted.")
    ended: Any | None = optional(ENDED, "The previous transaction, and its outcome.")
    batch_id: int = column(INT64, "The last committed micro-batch of a stream; -1 before the first.")
    seen_at_ms: int = column(INT64, "Time of its producer's last request.")
    removed: bool = column(BOOL, "Whether it has expired.")


TRANSACTIONAL_IDS = TableSpec(
    name="transactional_ids",
    row=TransactionalIdRow,
    shape="changelog",
    keys=("transactional_id",),
    comment="Transactional ids, with their open transactions.",
)


@dataclass(frozen=True, kw_only=True)
class TransactionRow:
    step: int = column(INT64, "The step that decided it.")
    position: int = column(INT32, "Order within the step.")
    transactional_id: str = column(TEXT, "The application's id.")
    shard: int = column(INT32, "abs(hash) % 50 of the id, by Java's hash of text.")
    producer_id: int = column(INT64, "Producer that holds the id.")
    producer_epoch: int = column(INT32, "Its epoch.")
    state: str = column(TEXT, STATES)
    timeout_ms: int = column(INT64, "transaction.timeout.ms of the producer.")
    started_at_ms: int | None = optional(INT64, "Time of the transaction's first publish or offset commit.")
    updated_at_ms: int = column(INT64, "Time of this transition.")
    topics: list[str] = column(pa.list_(TEXT), "Partitions that it wrote to, as topic-partition.")
    groups: list[str] = column(pa.list_(TEXT), "Groups whose offsets it commits.")
    reason: str | None = optional(
        TEXT, "Why it ended: producer, timeout, fenced (by the id's next producer) or operator."
    )
    batch_id: int | None = optional(INT64, "Micro-batch of a stream that it commits.")


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
    step: int = column(INT64, "The step that decided it.")
    topic_id: int = column(INT64, "Topic.")
    topic: str = column(TEXT, "Its name.")
    partition: int = column(INT32, "Partition.")
    offset: int = column(INT64, "Offset of the marker.")
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


# `producers`: sequence numbers, which identify a repeated publish.


UNITS = pa.list_(
    pa.struct(
        [
            pa.field("topic_id", INT64),
            pa.field("partition", INT32),
            pa.field("base_sequence", INT64),
            pa.field("record_count", INT64),
            pa.field("base_offset", INT64),
            pa.field("file_id", INT64),
        ]
    )
)


@dataclass(frozen=True, kw_only=True)
class ProducerRow:
    step: int = column(INT64, "The step that decided it.")
    producer_id: int = column(INT64, "Id of the producer.")
    producer_epoch: int = column(INT32, "Its current epoch; older epochs are fenced.")
    units: list[Any] = column(
        UNITS,
        "Its last five appends per partition, oldest first. For delayed rows, partition is -1 minus the partition, and"
        " file_id and base_offset say where the rows start.",
    )
    seen_at_ms: int = column(INT64, "Time of its last request.")
    removed: bool = column(BOOL, "Whether it has expired.")


PRODUCERS = TableSpec(
    name="producers",
    row=ProducerRow,
    shape="changelog",
    keys=("producer_id",),
    comment="Idempotent producers, with the sequence numbers that identify repeats.",
)


# `clients`: the clients of the mailbox, with their last answers.


@dataclass(frozen=True, kw_only=True)
class ClientRow:
    step: int = column(INT64, "The step that decided it.")
    client_id: str = column(TEXT, "Client: one connection of one process.")
    number: int = column(INT64, "Number of its last letter.")
    results: str = column(TEXT, "The answer to that letter as JSON, to repeat it if the client asks again.")
    seen_at_ms: int = column(INT64, "Time of its last letter.")
    removed: bool = column(BOOL, "Whether it ended, or was silent for too long.")


CLIENTS = TableSpec(
    name="clients",
    row=ClientRow,
    shape="changelog",
    keys=("client_id",),
    comment="Clients of the mailbox, with their last answers.",
)


# `applications`: the last published version per application, which identifies a repeated batch.


@dataclass(frozen=True, kw_only=True)
class ApplicationRow:
    step: int = column(INT64, "The step that decided it.")
    txn_app_id: str = column(TEXT, "Application, as in Delta's txnAppId.")
    target: str = column(TEXT, "Destination it publishes to.")
    version: int = column(INT64, "The last published txn_version; a batch with this or a lower one is a repeat.")
    seen_at_ms: int = column(INT64, "Time of the last publish.")
    removed: bool = column(BOOL, "Whether the entry has expired.")


APPLICATIONS = TableSpec(
    name="applications",
    row=ApplicationRow,
    shape="changelog",
    keys=("txn_app_id", "target"),
    comment="Applications that publish numbered batches, each batch once.",
)
