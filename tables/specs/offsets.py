"""`consumer_offsets`: how far each group has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .spec import BOOL, INT32, INT64, TEXT, TableSpec, column

RANGES = pa.list_(
    pa.struct(
        [
            pa.field("first_offset", INT64),
            pa.field("record_count", INT64),
            pa.field("state", TEXT),
            pa.field("deliveries", INT32),
            pa.field("not_before_ms", INT64),
            pa.field("reason", TEXT),
            pa.field("error", TEXT),
        ]
    )
)


@dataclass(frozen=True, kw_only=True)
class ConsumerOffsetRow:
    step: int = column(INT64, "The step that decided it.")
    group: str = column(TEXT, "Consumer group.")
    topic_id: int = column(INT64, "Topic.")
    topic: str = column(TEXT, "Its name.")
    partition: int = column(INT32, "Partition.")
    committed_offset: int = column(INT64, "Next offset to consume.")
    ranges: list[Any] | None = column(
        RANGES, "In a queue group, what became of messages past it, in order.", nullable=True
    )
    metadata: str | None = column(TEXT, "What the consumer noted.", nullable=True)
    committed_at_ms: int = column(INT64, "When.")
    deleted_count: int = column(INT64, "Offsets that were deleted before the group was done with them.")
    expired_count: int = column(INT64, "Messages that expired before anybody in a queue group had looked at them.")
    shard: int = column(INT32, "abs(hash) % 50 of the group's name, by Java's hash of text.")
    removed: bool = column(BOOL, "Deleted, or its topic, or its group.")


CONSUMER_OFFSETS = TableSpec(
    name="consumer_offsets",
    row=ConsumerOffsetRow,
    shape="changelog",
    keys=("group", "topic_id", "partition"),
    comment="How far each group has consumed each partition.",
)
