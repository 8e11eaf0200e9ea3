"""Leftovers: files that a merge has replaced, or that somebody who was killed left behind; deleted after a grace.

Before a merge commits, an object says which files will be of no use then, or now if it never does: whoever leads later
deletes those of them that the table does not name. How long they have lain is told by the store's times alone, and what
the table names is asked of its newest version, after they were looked for. A leader deletes only from tables to which
it has itself committed in its term: who was stopped while about to commit one of these files has lost by then.

What lies in the folder and is no list is logged and left. As long as it may be one of files that were replaced lately,
nothing of its table is deleted, and nothing that no list names.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterable
from urllib.parse import unquote

from .files import Files
from .objects import checked
from .store import TableHandle

log = logging.getLogger("lakemq.tables")

FOLDER = "leftovers"

MAX_LIST_BYTES = 64 << 20

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
        named = {name: self._named(name) for name in lists}
        live = _live(newest())
        # what was announced anew lately has just been replaced
        recent = [named[name] for name in lists if name not in due and self._files.modified_ms(name) is not None]
        if None in recent:
            return 0
        read = [name for name in due if named[name] is not None]
        gone = _all(named[name] for name in read) - live - _all(recent)
        if self._deleted(f"{table}/{path}" for path in sorted(gone)):
            self._deleted(read)
        return len(gone)

    def sweep(self, table: str, grace_ms: int, newest: Callable[[], TableHandle]) -> int:
        """Delete files that neither the table nor a list names, and that are older than `grace_ms`; how many."""
        old = self._older(self._files.list(table), max(grace_ms, STRAY_MS))
        if not old:
            return 0
        live = _live(newest())
        lists = [name for name in self._files.list(FOLDER) if _table_of(name) == table]
        named = [self._named(name) for name in lists]
        if None in named:
            return 0
        known = live | _all(named)
        strays = [name for name in old if name.partition("/")[2] not in known]
        self._deleted(strays)
        return len(strays)

    def _named(self, name: str) -> set[str] | None:
        """The paths of a list; None: it cannot be read, or is none."""
        try:
            paths = json.loads(self._files.get(name, MAX_LIST_BYTES))
            if not isinstance(paths, list):
                raise ValueError(f"found {type(paths).__name__}, expected a list of paths")
            return {_path(one) for one in paths}
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s is no list of files, and is passed over: %s", name, error)
            return None

    def _deleted(self, names: Iterable[str]) -> bool:
        """Whether the store has deleted them all; the others are tried again with the next that are due."""
        try:
            self._files.delete(names)
        except OSError as error:
            log.warning("Files of no use cannot be deleted: %s", error)
            return False
        return True

    def _older(self, names: Iterable[str], age_ms: int) -> list[str]:
        now_ms = self._files.time_ms()
        written = {name: self._files.modified_ms(name) for name in names}
        return [name for name, at_ms in written.items() if at_ms is not None and now_ms - at_ms > age_ms]


def _table_of(name: str) -> str:
    return name.partition("/")[2].rpartition("-")[0]


def _path(path: object) -> str:
    """ValueError: what is no path of a data file."""
    if not isinstance(path, str) or checked(path).startswith("_delta_log/"):
        raise ValueError(f"found {path!r}, expected the path of a data file")
    path.encode()  # else the file system cannot take it
    return path


def _all(sets: Iterable[set[str] | None]) -> set[str]:
    return set().union(*(one or () for one in sets))


def _live(table: TableHandle) -> set[str]:
    return {unquote(file.path) for file in table.files()}
