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


@dataclass(frozen=True)
class Insertion:
    """The files that a commit inserted: their names below the namespace, and their size in bytes."""

    version: int
    files: tuple[str, ...]
    size_bytes: int


def read_insertion(files: Files, spec: TableSpec, version: int) -> Insertion:
    """Return the files that commit `version` inserted; none if it only moved, deleted or rewrote rows.

    An UPDATE, DELETE or MERGE rewrites rows that were inserted before, so its files do not count.

    Raises FileNotFoundError if the log no longer holds the commit.
    """
    actions = DeltaLog(files, spec.name).read_actions(version)
    added = list(_of(actions, "add"))
    if any(_of(actions, "remove")) and _operation(actions) != "WRITE":
        added = []
    names = tuple(f"{spec.name}/{unquote(add['path'])}" for add in added)
    return Insertion(version, names, sum(add["size"] for add in added))


def _of(actions: list[Action], kind: str) -> Iterator[Action]:
    return (action[kind] for action in actions if kind in action and action[kind].get("dataChange", True))


def _operation(actions: list[Action]) -> str:
    return next((str(a["commitInfo"].get("operation")) for a in actions if "commitInfo" in a), "")
