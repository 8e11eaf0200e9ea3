"""What each commit of a Delta table put in, as its log says: the identity of rows that are to be taken once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ..specs.spec import TableSpec
from .delta_log import DeltaLog
from .files import Files

Action = dict[str, Any]


@dataclass(frozen=True)
class Insertion:
    """The files that one commit inserted: names below the namespace, their bytes and rows."""

    version: int
    files: tuple[str, ...]
    size_bytes: int


def insertion(files: Files, spec: TableSpec, version: int) -> Insertion:
    """What commit `version` inserted: nothing for a commit that only rearranges, removes or rewrites rows.

    Rows that an UPDATE, DELETE or MERGE writes again were inserted before. Raises FileNotFoundError when the log holds
    that commit no more.
    """
    actions = DeltaLog(files, spec.name).actions(version)
    added = list(_of(actions, "add"))
    if any(_of(actions, "remove")) and _operation(actions) != "WRITE":
        added = []
    names = tuple(f"{spec.name}/{unquote(add['path'])}" for add in added)
    return Insertion(version, names, sum(add["size"] for add in added))


def _of(actions: list[Action], kind: str) -> Iterator[Action]:
    return (action[kind] for action in actions if kind in action and action[kind].get("dataChange", True))


def _operation(actions: list[Action]) -> str:
    return next((str(a["commitInfo"].get("operation")) for a in actions if "commitInfo" in a), "")
