"""`watermarks`: the step up to which all projections are complete. Written last, read first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .spec import INT64, TEXT, TableSpec, column

VERSIONS = pa.list_(pa.struct([pa.field("table", TEXT), pa.field("version", INT64)]))


@dataclass(frozen=True, kw_only=True)
class WatermarkRow:
    step: int = column(INT64, "All tables hold every decision up to this step.")
    floor: int = column(INT64, "Earliest step whose state can be read.")
    decided_at_ms: int = column(INT64, "The sequencer's time at this step.")
    leader: str = column(TEXT, "The sequencer that leads; empty if none leads.")
    leader_epoch: int = column(INT64, "Epoch of the lease.")
    lease_ms: int = column(INT64, "Duration of the lease after the last step.")
    next_topic_id: int = column(INT64, "Id of the next topic.")
    next_producer_id: int = column(INT64, "Id of the next producer.")
    routing_step: int = column(INT64, "Last step that changed the topics of a destination.")
    delay_pointer_ms: int = column(INT64, "All delayed messages due up to this time are released.")
    versions: list[dict[str, Any]] = column(VERSIONS, "Least Delta version of each table that holds this step.")


GROUP_SHARDS = "lakemq.groupShards"
TRANSACTION_SHARDS = "lakemq.transactionShards"
"""Properties of the table: the numbers of shards, set when the namespace is created and never changed."""

WATERMARKS = TableSpec(
    name="watermarks",
    row=WatermarkRow,
    shape="log",
    keys=("step",),
    sort_by=("step",),
    comment="The step up to which all projections are complete, and the counters at that step.",
)
