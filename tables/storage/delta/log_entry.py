"""Encode the log entry of a commit that LakeMQ makes: files that join a table, files that leave it, and notes.

LakeMQ puts the entry itself, if its name is free. Through delta-rs a commit would read the table's log again and
again: before the put, to search for other writers, and after it, to load the new version. A handle knows all of that.

Source: the Delta protocol, "Actions". LakeMQ creates its tables with writer version 2. A table with a higher one may
need more than these actions, so a commit to it is refused.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from .commits import NewFile, StoredFile

ENGINE = "LakeMQ"
"""The writer that commits name. It appears in the table's history."""

OPERATION = "WRITE"

WRITER_VERSION = 2
"""The highest writer version of Delta's protocol to which these entries keep."""


def read_clock_ms() -> int:
    """Return this machine's time, which the history shows. Nothing compares it with a time of the store."""
    return time.time_ns() // 1_000_000


def encode_entry(
    add: Sequence[NewFile], remove: Sequence[StoredFile], notes: Mapping[str, int], moved: bool, now_ms: int
) -> bytes:
    """Return the body of a log entry, in which no two commits are equal.

    Args:
        notes: application id -> version, as Delta's `txn` actions.
        moved: the added files hold rows that the table has already.
        now_ms: time of the commit and of the removals.
    """
    actions: list[dict[str, Any]] = [
        {
            "commitInfo": {
                "timestamp": now_ms,
                "operation": OPERATION,
                "operationParameters": {"mode": "Append"},
                "isBlindAppend": not remove,
                "engineInfo": ENGINE,
                "txnId": uuid.uuid4().hex,
            }
        }
    ]
    actions += [{"txn": {"appId": app_id, "version": version}} for app_id, version in notes.items()]
    actions += [{"add": _build_add(file, not moved)} for file in add]
    actions += [{"remove": _build_remove(file, now_ms)} for file in remove]
    return _join_lines(actions)


def _build_add(file: NewFile, is_change: bool) -> dict[str, Any]:
    return {
        "path": quote(file.path),
        "partitionValues": {},
        "size": file.size_bytes,
        "modificationTime": file.modified_ms,
        "dataChange": is_change,
        "stats": json.dumps(dict(file.statistics)),
    }


def _build_remove(file: StoredFile, now_ms: int) -> dict[str, Any]:
    return {
        # as the log names it: that is how a reader finds the action that this one ends
        "path": file.path,
        "deletionTimestamp": now_ms,
        "dataChange": False,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": file.size_bytes,
    }


def _join_lines(actions: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(action, separators=(",", ":")).encode() + b"\n" for action in actions)
