"""`delayed`: ranges of rows that wait for their due time, and their outcome."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from .spec import BOOL, INT32, INT64, TEXT, TableSpec, column

HOUR_MS = 3_600_000

NOT_DELAYED = -1
"""The due time of rows without a delay."""


@dataclass(frozen=True, kw_only=True)
class DelayedRow:
    step: int = column(INT64, "The step up to which the row is current.")
    topic_id: int = column(INT64, "Topic of the rows.")
    topic: str = column(TEXT, "Its name.")
    partition: int = column(INT32, "Partition of the rows.")
    due_hour: int = column(INT64, "Hour in which all rows are due, in hours since 1970.")
    file_id: int = column(INT64, "Data file.")
    footer_hash: int | None = column(INT64, "Hash of the file's footer, as in segments.", nullable=True)
    first_row: int = column(INT64, "First row of the range.")
    reschedules: int = column(INT64, "How often its row was rescheduled; 0: never.")
    record_count: int = column(INT64, "Number of rows, in order of due time.")
    first_due_ms: int = column(INT64, "Due time of the first row.")
    last_due_ms: int = column(INT64, "Due time of the last row.")
    min_timestamp_ms: int = column(INT64, "Smallest message timestamp.")
    max_timestamp_ms: int = column(INT64, "Largest message timestamp.")
    has_ttl: bool = column(BOOL, "Whether some rows have their own time to live.")
    producer_id: int | None = column(INT64, "The idempotent producer, while rows wait.", nullable=True)
    producer_epoch: int | None = column(INT32, "Its epoch.", nullable=True)
    transactional_id: str | None = column(TEXT, "Id of the transaction, while it is open.", nullable=True)
    scheduled_step: int | None = column(INT64, "The step that accepted the rows, while they wait.", nullable=True)
    position: int | None = column(INT32, "Order among the ranges of scheduled_step.", nullable=True)
    waiting_count: int = column(INT64, "Number of rows that wait.")
    released_count: int = column(INT64, "Rows from the first on that are released, cancelled ones included.")
    cancelled_rows: list[int] | None = column(
        pa.list_(INT64), "Cancelled or rescheduled rows, as numbers within the range.", nullable=True
    )
    rescheduled_rows: list[int] | None = column(
        pa.list_(INT64), "Rescheduled rows among them, which have a range of their own.", nullable=True
    )
    state: str = column(
        TEXT, "open, waiting, or the outcome of its last rows: released, cancelled, rescheduled, aborted."
    )
    changed_at_ms: int = column(INT64, "Time of the last change of state, or of a step soon after it.")
    changed_by: str | None = column(
        TEXT, "The request that changed it, client id / number; null: its due time came.", nullable=True
    )
    removed: bool = column(BOOL, "Whether no row waits any more. The entry is deleted after delay.history.ms.")


DELAYED = TableSpec(
    name="delayed",
    row=DelayedRow,
    shape="changelog",
    keys=("file_id", "first_row", "topic_id", "reschedules"),
    sort_by=("due_hour", "topic_id", "partition", "file_id", "first_row"),
    comment="Delayed messages, as ranges of rows that are due within the same hour.",
)
