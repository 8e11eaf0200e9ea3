"""Encode the log entry of a commit that LakeMQ makes: files that join a table, files that leave it, and notes.

LakeMQ puts the entry itself, if its name is free. Through delta-rs a commit would read the table's log again and
again: before the put, to search for other writers, and after it, to load the new version. A handle knows all of that.

A table that only LakeMQ writes has the writer feature `lakemq`. Every reader reads it. Engines that follow the Delta
protocol refuse to write it, because they do not know the feature: one UPDATE would destroy the namespace.

Source: the Delta protocol, "Actions" and "Table Features". A table with another protocol may need more than these
actions, so a commit to it is refused.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from deltalake import Schema

from ...specs.spec import TableSpec
from .commits import NewFile, StoredFile

ENGINE = "LakeMQ"
"""The writer that commits name. It appears in the table's history."""

OPERATION = "WRITE"
CREATION = "CREATE TABLE"

WRITER_FEATURE = "lakemq"


@dataclass(frozen=True)
class WriterProtocol:
    """What a writer of a table must support, in terms of the Delta protocol."""

    version: int
    features: frozenset[str] = frozenset()

    def __str__(self) -> str:
        features = f" with the features {', '.join(sorted(self.features))}" if self.features else ""
        return f"writer version {self.version} of Delta's protocol{features}"


ONLY_LAKEMQ = WriterProtocol(7, frozenset({WRITER_FEATURE}))
ANY_WRITER = WriterProtocol(2)


def writer_protocol(spec: TableSpec) -> WriterProtocol:
    """Return the protocol with which a table is created, and to which the entries here keep."""
    return ANY_WRITER if spec.is_open_to_writers else ONLY_LAKEMQ


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
    actions = [_build_commit_info(OPERATION, {"mode": "Append"}, not remove, now_ms)]
    actions += [{"txn": {"appId": app_id, "version": version}} for app_id, version in notes.items()]
    actions += [{"add": _build_add(file, not moved)} for file in add]
    actions += [{"remove": _build_remove(file, now_ms)} for file in remove]
    return _join_lines(actions)


def encode_creation(spec: TableSpec, configuration: Mapping[str, str], now_ms: int) -> bytes:
    """Return the body of a table's first log entry. Each has a new table id, so no two are equal."""
    protocol = writer_protocol(spec)
    features = {"writerFeatures": sorted(protocol.features)} if protocol.features else {}
    metadata = {
        "id": str(uuid.uuid4()),
        "name": spec.name,
        "description": spec.comment,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": Schema.from_arrow(spec.stored_schema).to_json(),
        "partitionColumns": list(spec.partitioned_by),
        "configuration": dict(configuration),
        "createdTime": now_ms,
    }
    return _join_lines(
        [
            _build_commit_info(CREATION, {}, True, now_ms),
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": protocol.version, **features}},
            {"metaData": metadata},
        ]
    )


def _build_commit_info(
    operation: str, parameters: Mapping[str, str], is_blind_append: bool, now_ms: int
) -> dict[str, Any]:
    return {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": operation,
            "operationParameters": parameters,
            "isBlindAppend": is_blind_append,
            "engineInfo": ENGINE,
            "txnId": uuid.uuid4().hex,
        }
    }


def _build_add(file: NewFile, is_change: bool) -> dict[str, Any]:
    return {
        "path": quote(file.path, safe="/="),
        "partitionValues": _name_partition(file),
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
        "partitionValues": _name_partition(file),
        "size": file.size_bytes,
    }


def _name_partition(file: NewFile | StoredFile) -> dict[str, str]:
    return {name: str(value) for name, value in file.partition_values.items()}


def _join_lines(actions: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(action, separators=(",", ":")).encode() + b"\n" for action in actions)
