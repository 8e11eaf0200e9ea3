"""`final_messages`: the messages whose outcome is certain, one row each, for any reader of Delta tables.

The table is partitioned by topic. The files lie in a folder per topic, and have neither of the partition columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from .messages import HEADERS, file_stem
from .spec import BINARY, BOOL, INT32, INT64, TEXT, TIME, TableSpec, column

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
    key: bytes | None = column(BINARY, "Key, or null.", nullable=True)
    value: bytes | None = column(BINARY, "Payload; null is a tombstone.", nullable=True)
    headers: list[Any] | None = column(HEADERS, "Headers, in the sender's order.", nullable=True)
    producer_id: int | None = column(INT64, "The idempotent producer.", nullable=True)
    producer_epoch: int | None = column(INT32, "Its epoch.", nullable=True)
    sequence: int | None = column(INT64, "Its sequence number.", nullable=True)
    transactional: bool = column(BOOL, "Whether it belonged to a transaction.")
    origin: str = column(TEXT, "publish, delay, dead_letter or redrive.")
    dead_letter: str | None = column(TEXT, "Dead letters: their cause, as JSON; see `segments`.", nullable=True)
    source_offset: int | None = column(INT64, "Dead letters: offset in the source.", nullable=True)
    decided_at: Any = column(TIME, "If origin is not publish: the time of its step.", nullable=True)
    expires_at: Any = column(TIME, "When its time to live ends, or null.", nullable=True)
    ttl_ms: int | None = column(INT64, "Its time to live, or null.", nullable=True)


FINAL_MESSAGES = TableSpec(
    name="final_messages",
    row=FinalMessageRow,
    shape="data",
    keys=("topic_id", "partition", "offset"),
    sort_by=("partition", "offset"),
    partitioned_by=("topic", "step"),
    comment="Committed messages at their offsets, one row each, for any reader of Delta tables. Made if "
    "final.interval.ms is set.",
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
