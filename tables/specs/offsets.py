"""`consumer_offsets`: the committed offsets of each group."""

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
        RANGES, "In a queue group: the states of messages past it, in order.", nullable=True
    )
    silent_since_ms: int = column(
        INT64,
        "In a queue group: time since which its owner holds messages without acknowledging any; 0: it holds none.",
    )
    metadata: str | None = column(TEXT, "Text that the consumer committed with it.", nullable=True)
    committed_at_ms: int = column(INT64, "Time of the commit.")
    deleted_count: int = column(INT64, "Offsets deleted before the group had consumed them.")
    expired_count: int = column(INT64, "In a queue group: messages that expired before they were delivered.")
    shard: int = column(INT32, "abs(hash) % offsets.topic.num.partitions of the group's name, by Java's hash of text.")
    removed: bool = column(BOOL, "Whether it was deleted, alone or with its topic or group.")


CONSUMER_OFFSETS = TableSpec(
    name="consumer_offsets",
    row=ConsumerOffsetRow,
    shape="changelog",
    keys=("group", "topic_id", "partition"),
    comment="The committed offset of each group in each partition.",
)
