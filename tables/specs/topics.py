"""`topics` and `partitions`: the queues, and how far each of their logs reaches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .offsets import RANGES
from .spec import BOOL, INT32, INT64, TEXT, TableSpec, column

OPEN_TRANSACTIONS = pa.list_(pa.struct([pa.field("producer_id", INT64), pa.field("first_offset", INT64)]))


@dataclass(frozen=True, kw_only=True)
class TopicRow:
    step: int = column(INT64, "The step that decided it.")
    topic_id: int = column(INT64, "Id, never reused.")
    topic: str = column(TEXT, "Name.")
    partition_count: int = column(INT32, "Number of partitions that take what is published.")
    draining_count: int = column(INT32, "Number of those after them that are only read to their ends.")
    ended_count: int = column(INT32, "Number of those after these that were.")
    config: str = column(TEXT, "What was set, as a JSON object; the rest are defaults.")
    subscriptions: list[str] = column(pa.list_(TEXT), "Destinations it also receives.")
    state: str = column(TEXT, "active or deleted.")
    removed: bool = column(BOOL, "Whether it is deleted.")


TOPICS = TableSpec(
    name="topics",
    row=TopicRow,
    shape="changelog",
    keys=("topic_id",),
    comment="The topics (queues), with their settings.",
)


@dataclass(frozen=True, kw_only=True)
class PartitionRow:
    step: int = column(INT64, "The step that decided it.")
    topic_id: int = column(INT64, "Topic.")
    topic: str = column(TEXT, "Its name.")
    partition: int = column(INT32, "Partition.")
    log_start_offset: int = column(INT64, "First offset that is still there.")
    high_watermark: int = column(INT64, "Offset the next message gets.")
    last_stable_offset: int = column(INT64, "Where read_committed ends: before the first open transaction.")
    redrives: list[Any] | None = column(
        RANGES,
        "Which of its dead letters are to go back where they come from (dying), or have, or are done with"
        " (acknowledged).",
        nullable=True,
    )
    state: str = column(TEXT, "active, draining or ended.")
    open_transactions: list[Any] = column(OPEN_TRANSACTIONS, "Transactions that are open here, and where they begin.")
    removed: bool = column(BOOL, "Deleted with its topic.")


PARTITIONS = TableSpec(
    name="partitions",
    row=PartitionRow,
    shape="changelog",
    keys=("topic_id", "partition"),
    comment="How far the log of each partition reaches.",
)
