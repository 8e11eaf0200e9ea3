"""Encode an entry of a Delta log. Source: the Delta protocol, "Actions", for reader version 1 and writer version 2.

Spark, delta-rs and DuckDB read these entries like their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from .commits import NewFile, StoredFile

ENGINE = "LakeMQ"
"""The writer's name in the table's history."""

PROTOCOL = (1, 2)
"""Protocol versions of reader and writer for which the entries are complete; later ones may need more."""


def encode_entry(
    version: int, add: Sequence[NewFile], remove: Sequence[StoredFile], written_at_ms: int, nonce: str
) -> bytes:
    """Encode the entry of `version`, which adds and removes files.

    With both, the added files hold the rows of the removed ones. written_at_ms: the store's time. nonce: unique to this
    entry, so that its writer can recognise it.
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
    actions += [{"add": _add_action(file, moved)} for file in add]
    actions += [{"remove": _remove_action(file, written_at_ms)} for file in remove]
    # JSON in ASCII has no line ends except those between the actions
    return "\n".join(json.dumps(action, separators=(",", ":")) for action in actions).encode("ascii")


def find_nonce(actions: Iterable[Any]) -> str | None:
    """Return the nonce of an entry; None if its writer gave none."""
    infos = [action.get("commitInfo") for action in actions if isinstance(action, dict)]
    return next((info.get("nonce") for info in infos if isinstance(info, dict)), None)


def _add_action(file: NewFile, moved: bool) -> dict[str, Any]:
    return {
        "path": file.path,
        "partitionValues": {},
        "size": file.size_bytes,
        "modificationTime": file.modified_ms,
        "dataChange": not moved,
        "stats": json.dumps(dict(file.statistics), separators=(",", ":")),
    }


def _remove_action(file: StoredFile, deleted_at_ms: int) -> dict[str, Any]:
    return {
        "path": file.path,
        "deletionTimestamp": deleted_at_ms,
        "dataChange": False,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": file.size_bytes,
    }
