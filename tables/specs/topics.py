"""`topics`, `partitions` and `segments`: the topics, the extent of each partition's log, and what is in it."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .groups import RANGES
from .spec import BOOL, INT32, INT64, TEXT, TableSpec, column, optional

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
    redrives: list[Any] | None = optional(
        RANGES, "Dead letters of a dead-letter topic: to be sent back (dying), or sent back or purged (acknowledged)."
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


# `segments`: the map from rows of data files to offsets of partitions, and the extent of each log.
#
# This one table holds everything that SQL views need to decide which messages are visible, in one commit. Spark takes
# the snapshots of two tables at different times, so that two tables could disagree.


FINAL = "final"
"""The kind of rows that name files of `final_messages`. Views read the files up to the last step of these rows."""
FINAL_PENDING = "final_pending"
"""Their kind at first: the files come into the table, and views read the messages where they were published."""
COMPACTED = "compacted"
"""The kind of rows for offsets whose messages compaction has removed from all files."""


@dataclass(frozen=True, kw_only=True)
class SegmentRow:
    step: int = column(INT64, "The step that decided it.")
    kind: str = column(
        TEXT,
        "data: rows of a file; commit, abort: the marker that ends a transaction; compacted: offsets whose messages"
        " compaction has removed, and that no file has; log_start: offsets below base_offset"
        " are deleted; topic_deleted: the topic is deleted; final: offsets in a file of final_messages; final_pending:"
        " the same, and views read them where they were published.",
    )
    topic_id: int = column(INT64, "Id of the topic, never reused.")
    topic: str = column(TEXT, "Name of the topic.")
    partition: int = column(INT32, "Partition within the topic.")
    base_offset: int = column(INT64, "Offset of the first row.")
    record_count: int = column(INT64, "Number of offsets of the segment, or of messages of a final range.")
    last_offset: int = column(INT64, "Offset of the last row; lets readers skip files at both ends.")
    file_id: int | None = optional(INT64, "The data file, as in its column file_id.")
    footer_hash: int | None = optional(
        INT64, "Identifies the file for a fetch: xxHash64 of its Parquet footer, seeded with its size."
    )
    first_row: int | None = optional(
        INT64, "Row of the file that has the base offset; with final and final_pending the first message."
    )
    file_partition: int | None = optional(
        INT32, "Column partition of these rows in the file; file_id + file_partition is the join key."
    )
    min_timestamp_ms: int | None = optional(INT64, "Smallest message timestamp.")
    max_timestamp_ms: int | None = optional(INT64, "Largest message timestamp.")
    append_time_ms: int | None = optional(
        INT64, "With message.timestamp.type LogAppendTime: the timestamp of all its messages."
    )
    decided_at_ms: int | None = optional(
        INT64, "If origin is not publish: the time of its step, from which the age of its messages counts."
    )
    ttl_from_ms: int | None = optional(
        INT64, "If messages may expire: the time of its step, from which their time to live counts."
    )
    ttl_ms: int | None = optional(
        INT64,
        "The time to live of messages that have none of their own. -1: none, and compaction may have emptied some.",
    )
    producer_id: int | None = optional(INT64, "The idempotent producer.")
    producer_epoch: int | None = optional(INT32, "Its epoch.")
    base_sequence: int | None = optional(INT64, "Its sequence number of the first row.")
    transactional: bool = column(BOOL, "Whether it belongs to a transaction.")
    origin: str = column(TEXT, "publish, delay, dead_letter or redrive.")
    first_offset: int | None = optional(INT64, "Markers: first offset of the transaction in this partition.")
    dead_letter: str | None = optional(
        TEXT, "Dead letters, as JSON: source topic and partition, group, reason, error and delivery_count."
    )
    source_offset: int | None = optional(INT64, "Dead letters: offset of the first row in the source.")


SEGMENTS = TableSpec(
    name="segments",
    row=SegmentRow,
    shape="log",
    keys=("topic_id", "partition", "base_offset", "kind"),
    sort_by=("topic_id", "partition", "base_offset"),
    comment="Ranges of rows in data files as dense offsets of partitions. SQL visibility depends on this table alone.",
)

SEGMENT_SCHEMA: pa.Schema = pa.schema([f for f in SEGMENTS.stored_schema if f.name != "step"])
"""A segment before its step is known: the columns of the table without `step`."""

SEGMENT_STRUCT: pa.DataType = pa.struct(list(SEGMENT_SCHEMA))
