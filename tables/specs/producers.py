"""`producers`: sequence numbers, which identify a repeated publish."""

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
