"""`messages`: the data files. A payload is written once, and not copied on its way to a consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from .spec import BINARY, INT32, INT64, TEXT, TIME, TableSpec, column

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


@dataclass(frozen=True, kw_only=True)
class MessageRow:
    file_id: int = column(INT64, "Random id of the file; its 16 hex digits are the file's name.")
    row: int = column(INT64, "Number of the row in its file, from 0.")
    topic: str = column(TEXT, "Destination it was published to; the topic is that of its segment.")
    partition: int = column(INT32, "Partition by the hash of the key; negative for a rejected row.")
    key: bytes | None = column(BINARY, "Key, or null.", nullable=True)
    value: bytes | None = column(BINARY, "Payload; null is a tombstone.", nullable=True)
    headers: list[Any] | None = column(HEADERS, "Headers, in the sender's order.", nullable=True)
    timestamp: Any = column(TIME, "The producer's time.")
    deliver_at: Any = column(TIME, "Earliest time of delivery, or null.", nullable=True)
    ttl_ms: int | None = column(
        INT64,
        "Time to live, counted from its arrival in the log; null: the topic's ttl.ms.",
        nullable=True,
    )


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
