"""`topics` and `partitions`: the topics, and the extent of each partition's log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .offsets import RANGES
from .spec import BOOL, INT32, INT64, TEXT, TableSpec, column

OPEN_TRANSACTIONS = pa.list_(pa.struct([pa.field("producer_id", INT64), pa.field("first_offset", INT64)]))

SCHEMAS = pa.list_(
    pa.struct([pa.field("version", INT32), pa.field("type", TEXT), pa.field("schema", TEXT), pa.field("step", INT64)])
)


@dataclass(frozen=True, kw_only=True)
class TopicRow:
    step: int = column(INT64, "The step that decided it.")
    topic_id: int = column(INT64, "Id of the topic, never reused.")
    topic: str = column(TEXT, "Name.")
    partition_count: int = column(INT32, "Number of partitions that take new messages.")
    draining_count: int = column(INT32, "Number of following partitions that are only read to their ends.")
    ended_count: int = column(INT32, "Number of following partitions that are read to their ends.")
    config: str = column(TEXT, "Settings that are set, as a JSON object; the rest are defaults.")
    subscriptions: list[str] = column(pa.list_(TEXT), "Destinations that the topic also receives.")
    schemas: list[Any] = column(SCHEMAS, "All versions of its schema, with the steps that decided them.")
    state: str = column(TEXT, "active or deleted.")
    removed: bool = column(BOOL, "Whether it is deleted.")


TOPICS = TableSpec(
    name="topics",
    row=TopicRow,
    shape="changelog",
    keys=("topic_id",),
    comment="The topics, with their settings.",
)


@dataclass(frozen=True, kw_only=True)
class PartitionRow:
    step: int = column(INT64, "The step that decided it.")
    topic_id: int = column(INT64, "Topic.")
    topic: str = column(TEXT, "Its name.")
    partition: int = column(INT32, "Partition.")
    log_start_offset: int = column(INT64, "First offset that is not deleted.")
    high_watermark: int = column(INT64, "Offset of the next message.")
    last_stable_offset: int = column(INT64, "End of read_committed: the start of the first open transaction.")
    final_offset: int = column(INT64, "End of what is in final_messages.")
    redrives: list[Any] | None = column(
        RANGES,
        "Dead letters of a dead-letter topic: to be sent back (dying), or sent back or purged (acknowledged).",
        nullable=True,
    )
    state: str = column(TEXT, "active, draining or ended.")
    open_transactions: list[Any] = column(
        OPEN_TRANSACTIONS, "Open transactions in this partition, with their first offsets."
    )
    removed: bool = column(BOOL, "Whether it was deleted with its topic.")


PARTITIONS = TableSpec(
    name="partitions",
    row=PartitionRow,
    shape="changelog",
    keys=("topic_id", "partition"),
    comment="The extent of each partition's log.",
)
