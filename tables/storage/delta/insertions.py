"""Find the rows that a commit of a Delta table inserted, so that each of them is processed once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ...specs.spec import TableSpec
from ..object_stores.files import Files
from .delta_log import DeltaLog

Action = dict[str, Any]

_OF_OLD_ROWS = ("RESTORE", "CLONE")
"""Operations that add rows which an earlier commit has inserted."""


@dataclass(frozen=True)
class Insertion:
    """The files that a commit inserted: their names below the namespace, and their size in bytes."""

    version: int
    files: tuple[str, ...]
    size_bytes: int


def read_insertion(files: Files, spec: TableSpec, version: int) -> Insertion:
    """Return the files that commit `version` inserted; none if it restored, moved or rewrote rows.

    Where a table was made before it only took new rows, UPDATE, DELETE and MERGE rewrite rows that were inserted
    before, and INSERT OVERWRITE inserts new ones.

    Raises FileNotFoundError if the log no longer holds the commit.
    """
    actions = DeltaLog(files, spec.name).read_actions(version)
    operation = next((action["commitInfo"].get("operation") for action in actions if "commitInfo" in action), "")
    is_rewrite = operation != "WRITE" and any(_of(actions, "remove"))
    added = [] if is_rewrite or operation in _OF_OLD_ROWS else list(_of(actions, "add"))
    names = tuple(f"{spec.name}/{unquote(add['path'])}" for add in added)
    return Insertion(version, names, sum(add["size"] for add in added))


def _of(actions: list[Action], kind: str) -> Iterator[Action]:
    return (action[kind] for action in actions if kind in action and action[kind].get("dataChange", True))
