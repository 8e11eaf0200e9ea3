"""`delayed`: ranges of rows that wait for their time, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from .spec import BOOL, INT32, INT64, TEXT, TableSpec, column

HOUR_MS = 3_600_000

NOT_DELAYED = -1
"""The due time of rows that are in the log at once."""


@dataclass(frozen=True, kw_only=True)
class DelayedRow:
    step: int = column(INT64, "The step up to which this holds.")
    topic_id: int = column(INT64, "Topic the rows will go to.")
    topic: str = column(TEXT, "Its name.")
    partition: int = column(INT32, "Partition they will go to.")
    due_hour: int = column(INT64, "Hour in which all of them are due, in hours since 1970.")
    file_id: int = column(INT64, "Data file.")
    footer_hash: int | None = column(INT64, "By which the file is known, as in segments.", nullable=True)
    first_row: int = column(INT64, "First row of the range.")
    reschedules: int = column(INT64, "How often its row was rescheduled; 0: it is as it was published.")
    record_count: int = column(INT64, "Number of rows, in the order in which they are due.")
    first_due_ms: int = column(INT64, "When the first of them is due.")
    last_due_ms: int = column(INT64, "When the last of them is due.")
    min_timestamp_ms: int = column(INT64, "Smallest message timestamp.")
    max_timestamp_ms: int = column(INT64, "Largest message timestamp.")
    has_ttl: bool = column(BOOL, "Whether some of them have a time to live of their own.")
    producer_id: int | None = column(INT64, "The idempotent producer, while they wait.", nullable=True)
    producer_epoch: int | None = column(INT32, "Its epoch.", nullable=True)
    transactional_id: str | None = column(TEXT, "Whose transaction has not ended yet.", nullable=True)
    scheduled_step: int | None = column(INT64, "The step that decided it, while they wait.", nullable=True)
    position: int | None = column(INT32, "Order among the ranges of that step.", nullable=True)
    waiting_count: int = column(INT64, "Rows that wait.")
    released_count: int = column(INT64, "Rows that are in the log, but for those passed over, from the first on.")
    cancelled_rows: list[int] | None = column(
        pa.list_(INT64), "Numbers within the range of rows that are passed over.", nullable=True
    )
    rescheduled_rows: list[int] | None = column(
        pa.list_(INT64), "Those of them that have a range of their own since, with another time.", nullable=True
    )
    state: str = column(TEXT, "open, waiting, or what its last rows were: released, cancelled, rescheduled, aborted.")
    changed_at_ms: int = column(INT64, "When that was decided, or a step soon afterwards.")
    changed_by: str | None = column(TEXT, "The request that did, of a client's number; null: time.", nullable=True)
    removed: bool = column(BOOL, "Nothing of it waits any more. The row goes after delay.history.ms.")


DELAYED = TableSpec(
    name="delayed",
    row=DelayedRow,
    shape="changelog",
    keys=("file_id", "first_row", "topic_id", "reschedules"),
    sort_by=("due_hour", "topic_id", "partition", "file_id", "first_row"),
    comment="Messages to be delivered later, as ranges of rows that are due within an hour.",
)
