"""`watermarks`: up to which step the projections are complete. Written last, read first."""

from __future__ import annotations

from dataclasses import dataclass

from .spec import INT64, TEXT, TableSpec, column


@dataclass(frozen=True, kw_only=True)
class WatermarkRow:
    step: int = column(INT64, "All tables hold every decision up to this step.")
    floor: int = column(INT64, "Steps below this one cannot be read as of then any more.")
    journal_start: int = column(INT64, "First step that the journal may still hold after truncation.")
    decided_at_ms: int = column(INT64, "The sequencer's time at this step.")
    leader: str = column(TEXT, "Who leads, empty when nobody does.")
    leader_epoch: int = column(INT64, "Epoch of the lease.")
    lease_ms: int = column(INT64, "How long the lease holds without a new step.")
    next_topic_id: int = column(INT64, "Id the next topic gets.")
    next_producer_id: int = column(INT64, "Id the next producer gets.")
    routing_step: int = column(INT64, "Last step that changed which topics a destination reaches.")
    delay_pointer_ms: int = column(INT64, "All delayed messages that were due up to this time are released.")


WATERMARKS = TableSpec(
    name="watermarks",
    row=WatermarkRow,
    shape="log",
    keys=("step",),
    sort_by=("step",),
    comment="The step up to which all projections are complete, and the counters at that step.",
)
