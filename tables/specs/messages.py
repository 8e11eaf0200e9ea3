"""`messages`: the data files. A payload is written once, and never copied on its way to a consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from .spec import BINARY, INT32, INT64, TEXT, TIME, TableSpec, column

HEADERS = pa.list_(pa.struct([pa.field("key", TEXT), pa.field("value", BINARY)]))
# What a timestamp may be: Spark and Delta read these years without surprises.
MIN_TIMESTAMP_US = 0
MAX_TIMESTAMP_US = 253_402_300_799_999_999  # 9999-12-31T23:59:59.999999Z
MAX_TTL_MS = 100 * 365 * 86_400_000
"""A hundred years: whenever a message comes, the time at which it expires is one."""


@dataclass(frozen=True, kw_only=True)
class MessageRow:
    file_id: int = column(INT64, "Random id of the file, whose name is its 16 hex digits.")
    row: int = column(INT64, "Number of the row in its file, from 0.")
    topic: str = column(TEXT, "Destination it was published to; the topic that has it is its segment's.")
    partition: int = column(INT32, "Partition by the hash of the key; negative for a refused row.")
    key: bytes | None = column(BINARY, "Key, or null.", nullable=True)
    value: bytes | None = column(BINARY, "Payload; null is a tombstone.", nullable=True)
    headers: list[Any] | None = column(HEADERS, "Headers, in the sender's order.", nullable=True)
    timestamp: Any = column(TIME, "The producer's time.")
    deliver_at: Any = column(TIME, "Not before this time, or null.", nullable=True)
    ttl_ms: int | None = column(
        INT64,
        "How long after it came into a log it expires; null: as the topic's ttl.ms says.",
        nullable=True,
    )


MESSAGES = TableSpec(
    name="messages",
    row=MessageRow,
    shape="data",
    keys=("file_id", "row"),
    sort_by=("file_id", "row"),
    comment="Message rows as they were published; segments say which of them are which offsets.",
)


SEQUENCERS_FILES = 1 << 61
"""Ids of data files: publishers' are below this, those of files that the sequencer writes are from it on."""
FILE_IDS = 1 << 62
"""All are below this: an id with a partition added, by which the rows of a file are joined, is a bigint still."""


def file_stem(file_id: int) -> str:
    """The name of the file without folder and ending; by it people are told of the file."""
    return f"{file_id:016x}"


class FileFacts(NamedTuple):
    """What the store has under the name of a data file.

    record_count, footer_hash: as its Parquet footer says, the hash as in `segments`; flaw: why it is no data file,
    empty where it is one;
    is_journaled: its rows rode in the journal first.
    """

    size_bytes: int
    record_count: int = 0
    footer_hash: int = 0
    flaw: str = ""
    is_journaled: bool = False


BODY_SCHEMA: pa.Schema = pa.schema([f for f in MESSAGES.stored_schema if f.name not in ("file_id", "row")])
"""A message before it has a place in a file."""
