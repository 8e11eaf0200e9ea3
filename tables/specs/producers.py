"""`producers`: the sequences by which a repeat of a publish is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .spec import BOOL, INT32, INT64, TableSpec, column

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
    producer_id: int = column(INT64, "Producer.")
    producer_epoch: int = column(INT32, "Its current epoch; an older one is fenced.")
    units: list[Any] = column(
        UNITS,
        "Its last five appends per partition, oldest first. Of rows that wait the partition is -1 minus it, and file_id"
        " and base_offset are where they begin.",
    )
    seen_at_ms: int = column(INT64, "When it last did something.")
    removed: bool = column(BOOL, "Expired.")


PRODUCERS = TableSpec(
    name="producers",
    row=ProducerRow,
    shape="changelog",
    keys=("producer_id",),
    comment="Idempotent producers, with the sequences by which a repeat is known.",
)
