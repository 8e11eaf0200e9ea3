"""`dead_letters`: what was refused or gave up, by reference, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from .spec import INT64, TEXT, TableSpec, column


@dataclass(frozen=True, kw_only=True)
class DeadLetterRow:
    step: int = column(INT64, "The step that decided it.")
    source: str = column(TEXT, "Topic or destination it was meant for.")
    file_id: int = column(INT64, "Data file that holds the rows.")
    first_row: int = column(INT64, "First row.")
    record_count: int = column(INT64, "Number of rows.")
    error: str = column(TEXT, "Name of the error.")
    reason: str = column(TEXT, "What was found and what was expected.")
    dead_at_ms: int = column(INT64, "When.")


DEAD_LETTERS = TableSpec(
    name="dead_letters",
    row=DeadLetterRow,
    shape="log",
    keys=("file_id", "first_row"),
    sort_by=("step", "file_id", "first_row"),
    comment="Rows that were not delivered, and why.",
)
