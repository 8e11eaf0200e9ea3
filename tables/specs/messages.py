"""`messages`, `final_messages`, `inbox`, `rejected_rows`, `delayed` and `schedules`.

`messages` has the data files. A payload is written once, and not copied on its way to a consumer.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from .spec import BINARY, BOOL, INT32, INT64, TEXT, TIME, TableSpec, column, optional

HEADERS = pa.list_(pa.struct([pa.field("key", TEXT), pa.field("value", BINARY)]))
# the range of timestamps: years that Spark and Delta read reliably
MIN_TIMESTAMP_US = 0
MAX_TIMESTAMP_US = 253_402_300_799_999_999  # 9999-12-31T23:59:59.999999Z
LIKE_SECONDS_US = range(10**11, 10**14)
"""Times from 2 January 1970 to 3 March 1973. A time of our centuries in seconds lies there if it is taken for
milliseconds. Such a message would be delivered at once, or deleted at the next look of retention, so it is refused.
"""
DUE_LIKE_SECONDS_US = range(10**6, LIKE_SECONDS_US.stop)
"""As above, for times of delivery, of which no old one is meant: also seconds that are taken for microseconds or
nanoseconds. A time of our centuries in seconds is 1.8 s after 1970 in nanoseconds.
"""
MAX_TTL_MS = 100 * 365 * 86_400_000
"""A hundred years, so that the time of expiry is always a valid timestamp."""
SUPERSEDED = -1
"""The time to live of messages that compaction has emptied, and of segments that may have such messages."""


@dataclass(frozen=True, kw_only=True)
class MessageRow:
    file_id: int = column(INT64, "Random id of the file; its 16 hex digits are the file's name.")
    row: int = column(INT64, "Number of the row in its file, from 0.")
    topic: str = column(TEXT, "Destination it was published to; the topic is that of its segment.")
    partition: int = column(INT32, "Partition by the hash of the key; negative for a rejected row.")
    key: bytes | None = optional(BINARY, "Key, or null.")
    value: bytes | None = optional(BINARY, "Payload; null is a tombstone.")
    headers: list[Any] | None = optional(HEADERS, "Headers, in the sender's order.")
    timestamp: Any = column(TIME, "The producer's time.")
    deliver_at: Any = optional(TIME, "Earliest time of delivery, or null.")
    ttl_ms: int | None = optional(INT64, "Time to live, counted from its arrival in the log; null: the topic's ttl.ms.")


MESSAGES = TableSpec(
    name="messages",
    row=MessageRow,
    shape="data",
    keys=("file_id", "row"),
    sort_by=("file_id", "row"),
    comment="Message rows as published; segments map them to offsets.",
)


SEQUENCERS_FILES = 1 << 61
"""Ids of data files: publishers use ids below this, the sequencer ids from this on."""
FILE_IDS = 1 << 62
"""Upper bound of ids, so that id + partition, the join key of a file's rows, still fits a bigint."""
FINAL_FILES = FILE_IDS
"""Ids of files of `final_messages` are this or more, so that a plan of a fetch may name either kind of file."""


def file_stem(file_id: int) -> str:
    """Return the name of the file without folder and ending."""
    return f"{file_id:016x}"


class FileFacts(NamedTuple):
    """Facts about a data file as the store holds it.

    record_count, footer_hash: from its Parquet footer, hashed as in `segments`. flaw: why it is not a valid data file,
    or empty. is_journaled: its rows were in steps first.
    """

    size_bytes: int
    record_count: int = 0
    footer_hash: int = 0
    flaw: str = ""
    is_journaled: bool = False


BODY_SCHEMA: pa.Schema = pa.schema([f for f in MESSAGES.stored_schema if f.name not in ("file_id", "row")])
"""A message before it has a place in a file."""


# `final_messages`: the messages whose outcome is certain, one row each, for any reader of Delta tables.
#
# The table is partitioned by topic. The files lie in a folder per topic, and have neither of the partition columns.


_DAY_MS = 86_400_000


@dataclass(frozen=True, kw_only=True)
class FinalMessageRow:
    topic: str = column(TEXT, "Topic.")
    step: int = column(INT64, "The step that decided that it is final.")
    topic_id: int = column(INT64, "Id of the topic, never reused.")
    partition: int = column(INT32, "Partition within the topic.")
    offset: int = column(INT64, "Offset within the partition.")
    timestamp: Any = column(TIME, "The producer's time, or that of its step, as timestamp_type says.")
    timestamp_type: str = column(TEXT, "CreateTime or LogAppendTime.")
    key: bytes | None = optional(BINARY, "Key, or null.")
    value: bytes | None = optional(BINARY, "Payload; null is a tombstone.")
    headers: list[Any] | None = optional(HEADERS, "Headers, in the sender's order.")
    producer_id: int | None = optional(INT64, "The idempotent producer.")
    producer_epoch: int | None = optional(INT32, "Its epoch.")
    sequence: int | None = optional(INT64, "Its sequence number.")
    transactional: bool = column(BOOL, "Whether it belonged to a transaction.")
    origin: str = column(TEXT, "publish, delay, dead_letter or redrive.")
    dead_letter: str | None = optional(TEXT, "Dead letters: their cause, as JSON; see `segments`.")
    source_offset: int | None = optional(INT64, "Dead letters: offset in the source.")
    decided_at: Any = optional(TIME, "If origin is not publish: the time of its step.")
    expires_at: Any = optional(TIME, "When its time to live ends, or null.")
    ttl_ms: int | None = optional(
        INT64, "Its time to live, or null. -1: compaction has emptied the message, and no reader shows it."
    )


FINAL_MESSAGES = TableSpec(
    name="final_messages",
    row=FinalMessageRow,
    shape="data",
    keys=("topic_id", "partition", "offset"),
    sort_by=("partition", "offset"),
    partitioned_by=("topic", "step"),
    comment="Committed messages at their offsets, one row each, for any reader of Delta tables. Written "
    "each final.interval.ms.",
    # Other programs clean by this. The leader keeps entries by the time of the newest messages, see `housekeeping.py`.
    properties={
        "delta.logRetentionDuration": "interval 3650 days",
        "delta.deletedFileRetentionDuration": "interval 7 hours",
    },
    log_retention_ms=7 * _DAY_MS,
)
"""A stream that was down for the retention of the log goes on, so the files that its entries name stay as long."""

FILE_SCHEMA: pa.Schema = pa.schema(
    [f for f in FINAL_MESSAGES.stored_schema if f.name not in FINAL_MESSAGES.partitioned_by]
)
"""The columns of a file."""


def final_file_path(topic: str, file_id: int) -> str:
    """Return the path of a file below the table."""
    return f"topic={topic}/{file_stem(file_id)}.parquet"


def parse_final_file_id(path: str) -> int:
    """Return the id of a file from its path, or -1 for a foreign file."""
    stem = unquote(path).rpartition("/")[2].removesuffix(".parquet")
    return int(stem, 16) if len(stem) == 16 and not set(stem) - set("0123456789abcdef") else -1


# `inbox`: publish with plain SQL. The only table that Spark writes; the micro-batch job drains it exactly once.


@dataclass(frozen=True, kw_only=True)
class InboxRow:
    topic: str = column(TEXT, "Topic or destination.")
    key: bytes | None = optional(BINARY, "Key, or null.")
    value: bytes | None = optional(BINARY, "Payload.")
    headers: list[Any] | None = optional(HEADERS, "Headers, or null.")
    timestamp: Any = optional(TIME, "Time of the message; null: the time when it is drained.")
    deliver_at: Any = optional(TIME, "Deliver the message no earlier than this; null: at once.")
    delay_ms: int | None = optional(INT64, "Or deliver it this long after it is drained; null: at once.")
    ttl_ms: int | None = optional(INT64, "Time to live; null: the topic's.")


INBOX = TableSpec(
    name="inbox",
    row=InboxRow,
    shape="data",
    keys=(),
    is_open_to_writers=True,
    # A row that is published cannot be changed any more, so engines refuse to change one that waits.
    properties={"delta.appendOnly": "true", "delta.deletedFileRetentionDuration": "interval 7 hours"},
    comment="INSERT INTO inbox (topic, key, value) VALUES ...: published by the next micro-batch. "
    "On a local disk, one JVM may insert at a time: Spark's commits to a local path are not atomic between processes.",
)


# `rejected_rows`: rows that could not become messages, by reference, with the reason.


@dataclass(frozen=True, kw_only=True)
class RejectionRow:
    step: int = column(INT64, "The step that decided it.")
    source: str = column(TEXT, "Topic or destination that the rows were published to.")
    file_id: int = column(INT64, "Data file that holds the rows.")
    first_row: int = column(INT64, "First row.")
    record_count: int = column(INT64, "Number of rows.")
    error: str = column(TEXT, "Name of the error.")
    reason: str = column(TEXT, "The value found, and the one expected.")
    rejected_at_ms: int = column(INT64, "Time of the rejection.")


REJECTED_ROWS = TableSpec(
    name="rejected_rows",
    row=RejectionRow,
    shape="log",
    keys=("file_id", "first_row"),
    sort_by=("step", "file_id", "first_row"),
    comment="Rows that could not become messages, with the reasons.",
)


# `delayed`: ranges of rows that wait for their due time, and their outcome.


HOUR_MS = 3_600_000

NOT_DELAYED = -1
"""The due time of rows without a delay."""


@dataclass(frozen=True, kw_only=True)
class DelayedRow:
    step: int = column(INT64, "The step up to which the row is current.")
    topic_id: int = column(INT64, "Topic of the rows.")
    topic: str = column(TEXT, "Its name.")
    partition: int = column(INT32, "Partition of the rows.")
    due_hour: int = column(INT64, "Hour in which all rows are due, in hours since 1970.")
    file_id: int = column(INT64, "Data file.")
    footer_hash: int | None = optional(INT64, "Hash of the file's footer, as in segments.")
    first_row: int = column(INT64, "First row of the range.")
    reschedules: int = column(INT64, "How often its row was rescheduled; 0: never.")
    record_count: int = column(INT64, "Number of rows, in order of due time.")
    first_due_ms: int = column(INT64, "Due time of the first row.")
    last_due_ms: int = column(INT64, "Due time of the last row.")
    min_timestamp_ms: int = column(INT64, "Smallest message timestamp.")
    max_timestamp_ms: int = column(INT64, "Largest message timestamp.")
    has_ttl: bool = column(BOOL, "Whether some rows have their own time to live.")
    producer_id: int | None = optional(INT64, "The idempotent producer, while rows wait.")
    producer_epoch: int | None = optional(INT32, "Its epoch.")
    transactional_id: str | None = optional(TEXT, "Id of the transaction, while it is open.")
    scheduled_step: int | None = optional(INT64, "The step that accepted the rows, while they wait.")
    position: int | None = optional(INT32, "Order among the ranges of scheduled_step.")
    waiting_count: int = column(INT64, "Number of rows that wait.")
    released_count: int = column(INT64, "Rows from the first on that are released, cancelled ones included.")
    cancelled_rows: list[int] | None = optional(
        pa.list_(INT64), "Cancelled or rescheduled rows, as numbers within the range."
    )
    rescheduled_rows: list[int] | None = optional(
        pa.list_(INT64), "Rescheduled rows among them, which have a range of their own."
    )
    state: str = column(
        TEXT, "open, waiting, or the outcome of its last rows: released, cancelled, rescheduled, aborted."
    )
    changed_at_ms: int = column(INT64, "Time of the last change of state, or of a step soon after it.")
    changed_by: str | None = optional(TEXT, "The request that changed it, client id / number; null: its due time came.")
    removed: bool = column(BOOL, "Whether no row waits any more. The entry is deleted after delay.history.ms.")


DELAYED = TableSpec(
    name="delayed",
    row=DelayedRow,
    shape="changelog",
    keys=("file_id", "first_row", "topic_id", "reschedules"),
    sort_by=("due_hour", "topic_id", "partition", "file_id", "first_row"),
    comment="Delayed messages, as ranges of rows that are due within the same hour.",
)


# `schedules`: recurring messages, and when they are due next.


@dataclass(frozen=True, kw_only=True)
class ScheduleRow:
    step: int = column(INT64, "The step up to which the row is current.")
    name: str = column(TEXT, "Name of the schedule.")
    topic_id: int = column(INT64, "Topic of its messages.")
    topic: str = column(TEXT, "Its name.")
    cron: str = column(TEXT, "Cron expression of five fields.")
    time_zone: str = column(TEXT, "IANA time zone in which the expression holds.")
    missed: str = column(TEXT, "once or skip: what happens to occurrences that could not be published.")
    key: bytes | None = optional(BINARY, "Key of its messages, or null.")
    value: bytes | None = optional(BINARY, "Their payload.")
    headers: list[Any] = column(HEADERS, "Their headers, without the two that each occurrence adds.")
    next_at_ms: int = column(
        INT64, "Its first occurrence that is not decided. While it is paused, this one is past or waits."
    )
    last_at_ms: int | None = optional(INT64, "The last occurrence that was published; null: none yet.")
    state: str = column(TEXT, "active or paused.")
    reason: str | None = optional(TEXT, "Why it is paused.")
    removed: bool = column(BOOL, "Whether it was deleted, or its topic.")


SCHEDULES = TableSpec(
    name="schedules",
    row=ScheduleRow,
    shape="changelog",
    keys=("name",),
    comment="Schedules of recurring messages. The view current_schedules shows those that exist.",
)
