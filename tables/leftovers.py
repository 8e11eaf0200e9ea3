"""Leftovers: files that a merge has replaced, or that somebody who was killed left behind; deleted after a grace.

Before a merge commits, an object says which files will be of no use then, or now if it never does: whoever leads later
deletes those of them that the table does not name. How long they have lain is told by the store's times alone, and what
the table names is asked of its newest version, after they were looked for. A leader deletes only from tables to which
it has itself committed in its term: who was stopped while about to commit one of these files has lost by then.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from urllib.parse import unquote

from .files import Files
from .store import TableHandle

FOLDER = "leftovers"

STRAY_MS = 3_600_000
"""Least age of a file that no table and no list names: whoever wrote it was about to commit it."""


class Leftovers:
    """Of all tables of a namespace."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def announce(self, table: str, paths: Iterable[str]) -> None:
        """These files of the table (paths below it) are about to be replaced, or about to be written. Durable."""
        body = json.dumps([unquote(path) for path in paths]).encode()
        self._files.put(f"{FOLDER}/{table}-{uuid.uuid4().hex}.json", body)

    def delete(self, table: str, grace_ms: int, newest: Callable[[], TableHandle]) -> int:
        """Delete what was announced longer ago than `grace_ms` and the newest version does not name; how many."""
        lists = [name for name in self._files.list(FOLDER) if _table_of(name) == table]
        due = self._older(lists, grace_ms)
        if not due:
            return 0
        named = {name: set(json.loads(self._files.get(name))) for name in lists}
        live = _live(newest())
        # what was announced anew lately has just been replaced
        recent = set().union(*(named[name] for name in lists if name not in due))
        gone = set().union(*(named[name] for name in due)) - live - recent
        self._files.delete(f"{table}/{path}" for path in sorted(gone))
        self._files.delete(due)
        return len(gone)

    def sweep(self, table: str, grace_ms: int, newest: Callable[[], TableHandle]) -> int:
        """Delete files that neither the table nor a list names, and that are older than `grace_ms`; how many."""
        old = self._older(self._files.list(table), max(grace_ms, STRAY_MS))
        if not old:
            return 0
        live = _live(newest())
        lists = [name for name in self._files.list(FOLDER) if _table_of(name) == table]
        known = live.union(*(json.loads(self._files.get(name)) for name in lists))
        strays = [name for name in old if name.partition("/")[2] not in known]
        self._files.delete(strays)
        return len(strays)

    def _older(self, names: Iterable[str], age_ms: int) -> list[str]:
        now_ms = self._files.time_ms()
        written = {name: self._files.modified_ms(name) for name in names}
        return [name for name, at_ms in written.items() if at_ms is not None and now_ms - at_ms > age_ms]


def _table_of(name: str) -> str:
    return name.partition("/")[2].rpartition("-")[0]


def _live(table: TableHandle) -> set[str]:
    return {unquote(file.path) for file in table.files()}
