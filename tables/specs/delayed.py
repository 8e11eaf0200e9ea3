"""`delayed`: ranges of rows that wait for their time, partitioned by the hour they are due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .spec import BOOL, INT32, INT64, TEXT, TableSpec, column


@dataclass(frozen=True, kw_only=True)
class DelayedRow:
    step: int = column(INT64, "The step that decided it.")
    topic_id: int = column(INT64, "Topic the rows will go to.")
    partition: int = column(INT32, "Partition they will go to.")
    due_hour: int = column(INT64, "Hour they are due, in hours since 1970.")
    file_id: int = column(INT64, "Data file.")
    first_row: int = column(INT64, "First row of the range.")
    record_count: int = column(INT64, "Number of rows, sorted by due time.")
    due_times_ms: list[int] | None = column(pa.list_(INT64), "Due time per row, once expanded.", nullable=True)
    cancelled_rows: list[Any] | None = column(pa.list_(INT64), "Rows that will not be delivered.", nullable=True)
    state: str = column(TEXT, "waiting, expanded, released or cancelled.")
    removed: bool = column(BOOL, "Nothing of it waits any more.")


DELAYED = TableSpec(
    name="delayed",
    row=DelayedRow,
    shape="changelog",
    keys=("file_id", "first_row", "topic_id"),
    comment="Messages to be delivered later, as ranges of rows per due hour.",
)
