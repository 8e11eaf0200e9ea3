"""A table's log as files: one entry per version, checkpoints now and then. Which entries are there, and which may go.

Put-if-absent is no fence once a log is cleaned: who was stopped before it put version N finds the name free again. And
who looks for N and finds nothing has learnt nothing, unless N - 1 is still there: entries go in ascending order, the
newest never. Nothing of this asks a clock but the store's. Source: the Delta protocol, "Delta Log Entries".
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from .files import Files

_ENTRY = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint(\.[0-9a-z.-]+)?\.parquet")
_PART = re.compile(r"[0-9]{20}\.checkpoint\.[0-9]{10}\.([0-9]{10})\.parquet")


def log_folder(table: str) -> str:
    """Where the log of a table is; of the root without one."""
    return f"{table}/_delta_log" if table else "_delta_log"


class DeltaLog:
    """The log of one table, below its folder. What is a commit, and whose turn it is, is for those who call."""

    def __init__(self, files: Files, table: str = "") -> None:
        """table: the folder of the table; without one, the root of the files is asked about."""
        self._files, self._table = files, table
        self._folder = log_folder(table)

    def exists(self) -> bool:
        """Whether there is anything of a log."""
        return bool(self._files.list(self._folder, 1))

    def identity(self, version: int) -> str | None:
        """Which object the entry of this version is; None: it is not there (any more, or yet)."""
        return self._files.identity(self._entry(version))

    def has_still(self, version: int, identity: str | None) -> bool:
        """Whether the entry of this version is there and the object it was; None: it was not there then either."""
        return identity is not None and self.identity(version) == identity

    def modified_ms(self, version: int) -> int | None:
        """When the entry of this version was written, by the store's clock; None: it is not there."""
        return self._files.modified_ms(self._entry(version))

    def actions(self, version: int) -> list[dict[str, Any]]:
        """What this very commit did, in order. FileNotFoundError: there is no such entry."""
        # bytes are split at line ends alone; text would be at U+2028 too, which JSON need not escape
        return [json.loads(line) for line in self._files.get(self._entry(version)).splitlines() if line.strip()]

    def added(self, version: int, *, moved: bool) -> list[str]:
        """Files that this very commit added, paths as `Files` takes them. moved: also those that hold no new rows."""
        added = [action["add"] for action in self.actions(version) if "add" in action]
        return [f"{self._table}/{unquote(one['path'])}" for one in added if moved or one["dataChange"]]

    def put(self, version: int, entry: bytes) -> None:
        """The entry of this version, durable. Raises FileExistsError: there is one; else as `Files.put`."""
        self._files.put(self._entry(version), entry)

    def sync_entry(self, version: int) -> None:
        """The entry of this version survives a loss of power, if the files it adds do."""
        self._files.sync([self._entry(version)])

    def sync_commit(self, version: int) -> None:
        """The commit of this version, with the files it adds, survives a loss of power."""
        self._files.sync(self.added(version, moved=True))
        self.sync_entry(version)

    def sync_checkpoint(self, version: int) -> None:
        """The checkpoint of this version survives a loss of power, so that the entries before it may go."""
        named = [f"{self._folder}/{name}" for name in self._names() if _version(_CHECKPOINT, name) == version]
        self._files.sync([*named, self._pointer])

    def checkpointed_version(self) -> int:
        """The version of the last checkpoint, whoever made it; 0 before the first."""
        hinted = self._hinted_version()
        # entries below it may go, so that a word of it is not enough
        if hinted is not None and self._files.size(f"{self._folder}/{hinted:020d}.checkpoint.parquet"):
            return hinted
        return max(_complete(self._names()), default=0)

    def _hinted_version(self) -> int | None:
        """What `_last_checkpoint` says. It is a hint, as Delta has it: a loss of power may have left anything of it."""
        try:
            version = json.loads(self._files.get(self._pointer))["version"]
        except (FileNotFoundError, ValueError, LookupError, TypeError, RecursionError):
            return None
        return version if type(version) is int and 0 <= version < 10**20 else None

    def expire(self, keep_ms: int, now_ms: int) -> int:
        """Delete entries and checkpoints older than `keep_ms` that a newer checkpoint covers; how many.

        now_ms: the store's time. In ascending order, and never the newest entry nor the checkpoint itself.
        """
        covered = self.checkpointed_version()
        versions = {name: _version(_ENTRY, name) for name in self._names()}
        checkpoints = {name: _version(_CHECKPOINT, name) for name in versions}
        newest = max((version for version in versions.values() if version is not None), default=0)
        old = sorted(
            (version, name)
            for name in versions
            if (version := versions[name] if checkpoints[name] is None else checkpoints[name]) is not None
            and version < min(covered, newest)
        )
        gone = 0
        for _, name in old:
            path = f"{self._folder}/{name}"
            written_ms = self._files.modified_ms(path)
            if written_ms is not None and now_ms - written_ms < keep_ms:
                break
            self._files.delete([path])
            gone += 1
        return gone

    @property
    def _pointer(self) -> str:
        return f"{self._folder}/_last_checkpoint"

    def _entry(self, version: int) -> str:
        return f"{self._folder}/{version:020d}.json"

    def _names(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self._files.list(self._folder)]


def _complete(names: Iterable[str]) -> Iterator[int]:
    """Versions of which a whole checkpoint is named: in one file, or in as many parts as each of them says."""
    parts = Counter[tuple[int, int]]()
    for name in names:
        version, part = _version(_CHECKPOINT, name), _PART.fullmatch(name)
        if version is not None:
            parts[version, int(part[1]) if part else 1] += 1
    return (version for (version, expected), found in parts.items() if found >= expected)


def _version(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    return int(match[1]) if match else None
