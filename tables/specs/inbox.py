"""`inbox`: publish with plain SQL. The only table that Spark writes; the micro-batch job drains it exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .messages import HEADERS
from .spec import BINARY, INT64, TEXT, TIME, TableSpec, column


@dataclass(frozen=True, kw_only=True)
class InboxRow:
    topic: str = column(TEXT, "Topic or destination.")
    key: bytes | None = column(BINARY, "Key, or null.", nullable=True)
    value: bytes | None = column(BINARY, "Payload.", nullable=True)
    headers: list[Any] | None = column(HEADERS, "Headers, or null.", nullable=True)
    timestamp: Any = column(TIME, "Time of the message; null: the time when it is drained.", nullable=True)
    deliver_at: Any = column(TIME, "Deliver the message no earlier than this; null: at once.", nullable=True)
    delay_ms: int | None = column(INT64, "Or deliver it this long after it is drained; null: at once.", nullable=True)
    ttl_ms: int | None = column(INT64, "Time to live; null: the topic's.", nullable=True)


INBOX = TableSpec(
    name="inbox",
    row=InboxRow,
    shape="data",
    keys=(),
    is_open_to_writers=True,
    # A row that is published cannot be changed any more, so engines refuse to change one that waits.
    properties={"delta.appendOnly": "true"},
    comment="INSERT INTO inbox (topic, key, value) VALUES ...: published by the next micro-batch. "
    "On a local disk, one JVM may insert at a time: Spark's commits to a local path are not atomic between processes.",
)
