"""`dead_letters`: refused rows by reference, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from .spec import INT64, TEXT, TableSpec, column


@dataclass(frozen=True, kw_only=True)
class DeadLetterRow:
    step: int = column(INT64, "The step that decided it.")
    source: str = column(TEXT, "Topic or destination that the rows were published to.")
    file_id: int = column(INT64, "Data file that holds the rows.")
    first_row: int = column(INT64, "First row.")
    record_count: int = column(INT64, "Number of rows.")
    error: str = column(TEXT, "Name of the error.")
    reason: str = column(TEXT, "The value found, and the one expected.")
    dead_at_ms: int = column(INT64, "Time of the refusal.")


DEAD_LETTERS = TableSpec(
    name="dead_letters",
    row=DeadLetterRow,
    shape="log",
    keys=("file_id", "first_row"),
    sort_by=("step", "file_id", "first_row"),
    comment="Rows that were refused, with the reasons.",
)
