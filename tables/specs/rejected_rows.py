"""`rejected_rows`: rows that could not become messages, by reference, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from .spec import INT64, TEXT, TableSpec, column


@dataclass(frozen=True, kw_only=True)
class RejectionRow:
    step: int = column(INT64, "The step that decided it.")
    source: str = column(TEXT, "Topic or destination that the rows were published to.")
    file_id: int = column(INT64, "Data file that holds the rows.")
    first_row: int = column(INT64, "First row.")
    record_count: int = column(INT64, "Number of rows.")
    error: str = column(TEXT, "Name of the error.")
    reason: str = column(TEXT, "The value found, and the one expected.")
    rejected_at_ms: int = column(INT64, "Time of the rejection.")


REJECTED_ROWS = TableSpec(
    name="rejected_rows",
    row=RejectionRow,
    shape="log",
    keys=("file_id", "first_row"),
    sort_by=("step", "file_id", "first_row"),
    comment="Rows that could not become messages, with the reasons.",
)
