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
from dataclasses import dataclass
from urllib.parse import unquote

from .files import Files
from .objects import checked
from .store import TableHandle

log = logging.getLogger("lakemq.tables")

FOLDER = "leftovers"

MAX_LIST_BYTES = 64 << 20

STRAY_MS = 3_600_000
"""Least age of a file that no table and no list names: whoever wrote it was about to commit it."""


@dataclass(frozen=True)
class Due:
    """Lists that have lain for long enough, and the paths they name, but for those that a younger one names, too."""

    lists: tuple[str, ...]
    paths: frozenset[str]


class Leftovers:
    """Of all tables of a namespace. A list never changes, and is read once."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._read: dict[str, frozenset[str]] = {}
        self._written_ms: dict[str, int] = {}

    def announce(self, table: str, paths: Iterable[str]) -> str:
        """These files of the table (paths below it) are about to be replaced, or about to be written. Durable.

        The name of the list.
        """
        body = json.dumps([unquote(path) for path in paths]).encode()
        name = f"{FOLDER}/{table}-{uuid.uuid4().hex}.json"
        self._files.put(name, body)
        return name

    def withdraw(self, name: str) -> None:
        """What was about to be written is a part of the table now, and in use."""
        self._deleted([name])

    def announced(self, table: str) -> frozenset[str]:
        """All paths that lists of the table name."""
        return _all(self._named(name) for name in self._lists(table))

    def delete(self, table: str, grace_ms: int, newest: Callable[[], TableHandle]) -> int:
        """Delete what was announced longer ago than `grace_ms` and the newest version does not name; how many."""
        due = self.due(table, grace_ms)
        if not due.lists:
            return 0
        # what the table names is asked after the lists
        gone = due.paths - _live(newest())
        self.clear(due, table, gone)
        return len(gone)

    def due(self, table: str, grace_ms: int) -> Due:
        """What was announced longer ago than `grace_ms`, and not since."""
        lists = self._lists(table)
        if not lists:
            return Due((), frozenset())
        now_ms = self._files.time_ms()
        written = {name: at_ms for name in lists if (at_ms := self._list_written_ms(name)) is not None}
        old = [name for name, at_ms in written.items() if now_ms - at_ms > grace_ms]
        if not old:
            return Due((), frozenset())
        named = {name: self._named(name) for name in written}
        # what was announced anew lately has just been replaced
        recent = [named[name] for name in written if name not in old]
        if None in recent:
            return Due((), frozenset())
        read = tuple(name for name in old if named[name] is not None)
        return Due(read, _all(named[name] for name in read) - _all(recent))

    def clear(self, due: Due, table: str, gone: Iterable[str]) -> bool:
        """Delete these files of the table, then the lists. False where the store has not deleted all of the files."""
        if not self._deleted(f"{table}/{path}" for path in sorted(gone)):
            return False
        self._deleted(due.lists)
        return True

    def sweep(self, table: str, grace_ms: int, newest: Callable[[], TableHandle]) -> int:
        """Delete files that neither the table nor a list names, and that are older than `grace_ms`; how many."""
        old = self._older(self._files.list(table), max(grace_ms, STRAY_MS))
        if not old:
            return 0
        live = _live(newest())
        named = [self._named(name) for name in self._lists(table)]
        if None in named:
            return 0
        known = live | _all(named)
        strays = [name for name in old if name.partition("/")[2] not in known]
        self._deleted(strays)
        return len(strays)

    def _lists(self, table: str) -> list[str]:
        lists = [name for name in self._files.list(FOLDER) if _table_of(name) == table]
        for known in (self._read, self._written_ms):
            for name in [name for name in known if _table_of(name) == table and name not in lists]:
                del known[name]
        return lists

    def _list_written_ms(self, name: str) -> int | None:
        """None: it is gone."""
        if name not in self._written_ms:
            at_ms = self._files.modified_ms(name)
            if at_ms is None:
                return None
            self._written_ms[name] = at_ms
        return self._written_ms[name]

    def _named(self, name: str) -> frozenset[str] | None:
        """The paths of a list; None: it cannot be read, or is none."""
        if name in self._read:
            return self._read[name]
        try:
            paths = json.loads(self._files.get(name, MAX_LIST_BYTES))
            if not isinstance(paths, list):
                raise ValueError(f"found {type(paths).__name__}, expected a list of paths")
            self._read[name] = frozenset(map(_path, paths))
            return self._read[name]
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


def _all(sets: Iterable[frozenset[str] | None]) -> frozenset[str]:
    return frozenset().union(*(one or () for one in sets))


def _live(table: TableHandle) -> set[str]:
    return {unquote(file.path) for file in table.files()}
