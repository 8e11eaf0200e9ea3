"""Leftovers: files that a merge replaced, or that a killed process left behind. They are deleted after a grace period.

Before a merge commits, it writes a list of the files that become useless: the replaced ones if it commits, the new ones
if it never does. A later leader deletes the listed files that the table does not name. Three rules make this safe:

- Ages count by the store's times alone.
- The table's newest version is read after the lists. So a listed file that it names is in use and stays.
- A leader deletes only from tables to which it has committed in its term. A process that was stopped just before it
  committed one of these files has lost the table by then.

An object in the folder that is not a valid list is logged and left alone. It may name recently replaced files, so
nothing of its table is deleted as long as it is young, and no unlisted file at all.
"""

import json
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from ..object_stores.files import Files
from ..object_stores.objects import check_name
from .store import TableHandle

log = logging.getLogger("lakemq.tables")

FOLDER = "leftovers"

MAX_LIST_BYTES = 64 << 20

STRAY_MS = 3_600_000
"""Least age at which an unlisted file is deleted: its writer may still be about to commit it."""


@dataclass(frozen=True)
class ExpiredLists:
    """Lists that are old enough, and the paths that they name, except paths that a younger list names too."""

    lists: tuple[str, ...]
    paths: frozenset[str]


class Leftovers:
    """The lists of all tables of a namespace. A list never changes, so it is read once."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._read: dict[str, frozenset[str]] = {}
        self._written_ms: dict[str, int] = {}

    def announce(self, table: str, paths: Iterable[str]) -> str:
        """Write a durable list of the table's files that a commit will replace or add, and return the list's name."""
        return self._write_list(table, uuid.uuid4().hex, paths)

    def announce_new(self, table: str, path: str) -> None:
        """Write a durable list with one file that a later commit, maybe of another process, will add."""
        self._write_list(table, _find_file_name(path), [path])

    def _write_list(self, table: str, id_: str, paths: Iterable[str]) -> str:
        name = f"{FOLDER}/{table}-{id_}.json"
        self._files.put(name, json.dumps([unquote(path) for path in paths]).encode())
        return name

    def withdraw(self, name: str) -> None:
        """Delete a list whose files are part of the table now."""
        self._try_delete([name])

    def withdraw_new(self, table: str, paths: Iterable[str]) -> None:
        """Delete the lists that `announce_new` has written for these files, which are part of the table now."""
        self._try_delete(f"{FOLDER}/{table}-{_find_file_name(path)}.json" for path in paths)

    def list_announced_paths(self, table: str) -> frozenset[str]:
        """Return all paths that the table's lists name."""
        return _union(self._read_list(name) for name in self._list_names(table))

    def delete(self, table: str, grace_ms: int, newest: Callable[[], TableHandle]) -> int:
        """Delete files that were listed `grace_ms` ago, and that the newest version does not name. Return how many."""
        (expired,) = self.find_expired_lists(table, grace_ms)
        if not expired.lists:
            return 0
        # the table is read after the lists
        gone = expired.paths - _list_live_paths(newest())
        self.delete_expired_files(expired, table, gone)
        return len(gone)

    def find_expired_lists(self, table: str, *grace_ms: int) -> list[ExpiredLists]:
        """Return for each grace period the lists older than it, and their paths that no younger list names."""
        lists = self._list_names(table)
        if not lists:
            return [ExpiredLists((), frozenset())] * len(grace_ms)
        now_ms = self._files.time_ms()
        written = {name: at_ms for name in lists if (at_ms := self._list_written_ms(name)) is not None}
        return [self._choose_lists(written, now_ms - grace) for grace in grace_ms]

    def _choose_lists(self, written: Mapping[str, int], before_ms: int) -> ExpiredLists:
        old = [name for name, at_ms in written.items() if at_ms < before_ms]
        if not old:
            return ExpiredLists((), frozenset())
        named = {name: self._read_list(name) for name in written}
        # a path in a younger list was replaced only recently
        recent = [named[name] for name in written if name not in old]
        if None in recent:
            return ExpiredLists((), frozenset())
        read = tuple(name for name in old if named[name] is not None)
        return ExpiredLists(read, _union(named[name] for name in read) - _union(recent))

    def delete_expired_files(self, expired: ExpiredLists, table: str, gone: Iterable[str]) -> bool:
        """Delete these files of the table, then the lists. Returns False if the store has not deleted all files."""
        if not self._try_delete(f"{table}/{path}" for path in sorted(gone)):
            return False
        self._try_delete(expired.lists)
        return True

    def sweep(self, table: str, grace_ms: int, newest: Callable[[], TableHandle]) -> int:
        """Delete files older than `grace_ms` that neither the table nor a list names. Returns their number."""
        old = self._list_older(self._files.list(table), max(grace_ms, STRAY_MS))
        if not old:
            return 0
        live = _list_live_paths(newest())
        named = [self._read_list(name) for name in self._list_names(table)]
        if None in named:
            return 0
        expected = live | _union(named)
        strays = [name for name in old if name.partition("/")[2] not in expected]
        self._try_delete(strays)
        return len(strays)

    def _list_names(self, table: str) -> list[str]:
        lists = [name for name in self._files.list(FOLDER) if _table_of(name) == table]
        for cache in (self._read, self._written_ms):
            for name in [name for name in cache if _table_of(name) == table and name not in lists]:
                del cache[name]
        return lists

    def _list_written_ms(self, name: str) -> int | None:
        """Return when a list was written, by the store's time; None if it is gone."""
        if name not in self._written_ms:
            at_ms = self._files.modified_ms(name)
            if at_ms is None:
                return None
            self._written_ms[name] = at_ms
        return self._written_ms[name]

    def _read_list(self, name: str) -> frozenset[str] | None:
        """Return the paths of a list; None if it is unreadable or not a list."""
        if name in self._read:
            return self._read[name]
        try:
            paths = json.loads(self._files.get(name, MAX_LIST_BYTES))
            if not isinstance(paths, list):
                raise ValueError(f"found {type(paths).__name__}, expected a list of paths")
            self._read[name] = frozenset(map(_check_path, paths))
            return self._read[name]
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s is not a list of files and is ignored: %s", name, error)
            return None

    def _try_delete(self, names: Iterable[str]) -> bool:
        """Delete the objects, and return whether all are deleted. The next call tries the rest again."""
        try:
            self._files.delete(names)
        except OSError as error:
            log.warning("Unused files cannot be deleted, and will be tried again: %s", error)
            return False
        return True

    def _list_older(self, names: Iterable[str], age_ms: int) -> list[str]:
        now_ms = self._files.time_ms()
        written = {name: self._files.modified_ms(name) for name in names}
        return [name for name, at_ms in written.items() if at_ms is not None and now_ms - at_ms > age_ms]


def _find_file_name(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".parquet")


def _table_of(name: str) -> str:
    return name.partition("/")[2].rpartition("-")[0]


def _check_path(path: object) -> str:
    """Check the path of a data file. Raises ValueError."""
    if not isinstance(path, str) or check_name(path).startswith("_delta_log/"):
        raise ValueError(f"found {path!r}, expected the path of a data file")
    path.encode()  # a file system cannot take a path that is not UTF-8
    return path


def _union(sets: Iterable[frozenset[str] | None]) -> frozenset[str]:
    return frozenset().union(*(paths or () for paths in sets))


def _list_live_paths(table: TableHandle) -> set[str]:
    return {unquote(file.path) for file in table.files()}
