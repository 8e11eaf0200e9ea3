"""One entry of a Delta log, as text. Source: the Delta protocol, "Actions", for readers and writers of version 1 and 2.

What is written here Spark, delta-rs and DuckDB read as they read their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from .commits import NewFile, StoredFile

ENGINE = "LakeMQ"
"""Who wrote the entry, as the table's history says."""

PROTOCOL = (1, 2)
"""Versions of the protocol, reader's and writer's, that entries are written for: in others they may need more."""


def encoded(
    version: int, add: Sequence[NewFile], remove: Sequence[StoredFile], written_at_ms: int, nonce: str
) -> bytes:
    """The entry of `version`, which adds and removes files; with both, the files added hold the rows of those removed.

    written_at_ms: by the store's time; nonce: no other entry's, so that who wrote this one can tell that it did.
    """
    moved = bool(remove)
    info = {
        "timestamp": written_at_ms,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": "[]"},
        "readVersion": version - 1,
        "isBlindAppend": not moved,
        "engineInfo": ENGINE,
        "nonce": nonce,
    }
    actions = [{"commitInfo": info}]
    actions += [{"add": _added(file, moved)} for file in add]
    actions += [{"remove": _removed(file, written_at_ms)} for file in remove]
    # JSON in ASCII has no line end but those that part the actions
    return "\n".join(json.dumps(action, separators=(",", ":")) for action in actions).encode("ascii")


def nonce_of(actions: Iterable[Any]) -> str | None:
    """The nonce of an entry, whatever stands in it; None: it was written by somebody who gives none."""
    infos = [action.get("commitInfo") for action in actions if isinstance(action, dict)]
    return next((info.get("nonce") for info in infos if isinstance(info, dict)), None)


def _added(file: NewFile, moved: bool) -> dict[str, Any]:
    return {
        "path": file.path,
        "partitionValues": {},
        "size": file.size_bytes,
        "modificationTime": file.modified_ms,
        "dataChange": not moved,
        "stats": json.dumps(dict(file.statistics), separators=(",", ":")),
    }


def _removed(file: StoredFile, deleted_at_ms: int) -> dict[str, Any]:
    return {
        "path": file.path,
        "deletionTimestamp": deleted_at_ms,
        "dataChange": False,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": file.size_bytes,
    }
