"""A Delta table's log as files: one entry per version, and checkpoints. This encodes, puts, finds and deletes them.

Once a log is cleaned, put-if-absent is no fence any more: a process that stopped before it put version N finds the name
free again. For the same reason, a missing entry N proves nothing unless entry N - 1 still exists. Entries are deleted
in ascending order, and the newest never, so that this check is reliable. All times are the store's. Source: the Delta
protocol, "Delta Log Entries".
"""

import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from deltalake import Schema

from ...specs.spec import TableSpec
from ..object_stores.files import Files
from .commits import CommitConflict, NewFile, StoredFile

_ENTRY = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint(\.[0-9a-z.-]+)?\.parquet")
_PART = re.compile(r"[0-9]{20}\.checkpoint\.[0-9]{10}\.([0-9]{10})\.parquet")


def log_folder(table: str) -> str:
    """Return the log folder of a table; without a table, of the root."""
    return f"{table}/_delta_log" if table else "_delta_log"


class DeltaLog:
    """The log of one table, below its folder. The caller decides what to commit and when."""

    def __init__(self, files: Files, table: str = "") -> None:
        """table: the folder of the table; empty: the root of the files."""
        self._files, self._table = files, table
        self._folder = log_folder(table)

    def exists(self) -> bool:
        """Return whether there is any log."""
        return bool(self._files.list(self._folder, 1))

    def has_versions(self) -> bool:
        """Return whether there is an entry or a checkpoint, so that delta-rs finds a table."""
        return any(_ENTRY.fullmatch(name) or _CHECKPOINT.fullmatch(name) for name in self._names())

    def identity(self, version: int) -> str | None:
        """Return the identity of the entry of this version; None if it does not exist (yet, or any more)."""
        return self._files.identity(self._entry(version))

    def has_same_entry(self, version: int, identity: str | None) -> bool:
        """Return whether the entry of this version still exists as the same object. identity None: it never did."""
        return identity is not None and self.identity(version) == identity

    def modified_ms(self, version: int) -> int | None:
        """Return when the entry of this version was written, by the store's clock; None if it does not exist."""
        return self._files.modified_ms(self._entry(version))

    def read_actions(self, version: int) -> list[dict[str, Any]]:
        """Read the actions of this commit in order. Raises FileNotFoundError if there is no such entry."""
        # split bytes, not text: text would also split at U+2028, which JSON need not escape
        return [json.loads(line) for line in self._files.get(self._entry(version)).splitlines() if line.strip()]

    def list_added_files(self, version: int) -> list[str]:
        """List the files that this commit added, as paths for `Files`, also files without new rows."""
        adds = [action["add"] for action in self.read_actions(version) if "add" in action]
        return [f"{self._table}/{unquote(add['path'])}" for add in adds]

    def list_objects(self, version: int) -> list[str]:
        """Return the names of all entries and checkpoints up to a version, from the root. With them a reader loads it.

        Raises FileNotFoundError: its own entry is gone.
        """
        names = [
            name
            for name in self._names()
            if any((at := _version(kind, name)) is not None and at <= version for kind in (_ENTRY, _CHECKPOINT))
        ]
        if self._entry(version) not in (listed := [f"{self._folder}/{name}" for name in names]):
            raise FileNotFoundError(self._entry(version))
        return listed

    def put_entry(self, version: int, body: bytes) -> str:
        """Put the entry of this version durably if its name is free, and return its identity.

        Args:
            body: equal to no other entry, so that a put that failed can be told from one that has landed.

        Raises:
            CommitConflict: another entry has this version.
            OSError: the store failed; the entry may be there or not.
        """
        conflict = CommitConflict(f"{self._table}: another process has committed version {version}")
        try:
            return self._files.put(self._entry(version), body)
        except OSError as failed:
            try:
                stored = self._files.get_identified(self._entry(version))
            except OSError:
                raise (conflict if isinstance(failed, FileExistsError) else failed) from None
            if stored.body != body:
                raise conflict from None
        self.sync_entry(version)
        return stored.identity

    def remove_if_newest(self, version: int, identity: str) -> None:
        """Delete the entry of this version if it is this object and nothing later is in the log.

        The table was deleted or replaced, for example by an older copy, while its writer put the entry. No reader could
        read a log with such an entry. A log that others have cleaned keeps later entries.
        """
        versions = [v for name in self._names() for kind in (_ENTRY, _CHECKPOINT) if (v := _version(kind, name))]
        if [v for v in versions if v >= version] == [version] and self.has_same_entry(version, identity):
            self._files.delete([self._entry(version)])

    def sync_entry(self, version: int) -> None:
        """Make the entry of this version durable, but not the files that it adds."""
        self._files.sync([self._entry(version)])

    def sync_commit(self, version: int) -> None:
        """Make the commit of this version durable, with the files that it adds."""
        self._files.sync(self.list_added_files(version))
        self.sync_entry(version)

    def sync_checkpoint(self, version: int) -> None:
        """Make the checkpoint of this version durable, so that earlier entries may be deleted."""
        named = [f"{self._folder}/{name}" for name in self._names() if _version(_CHECKPOINT, name) == version]
        self._files.sync([*named, self._pointer])

    def checkpointed_version(self) -> int:
        """Return the version of the last checkpoint, of any writer; 0 before the first."""
        hinted = self._hinted_version()
        # entries below it may be deleted, so do not trust the hint without the file
        if hinted is not None and self._files.size(f"{self._folder}/{hinted:020d}.checkpoint.parquet"):
            return hinted
        return max(_complete_checkpoints(self._names()), default=0)

    def _hinted_version(self) -> int | None:
        """Return the version in `_last_checkpoint`. It is only a hint: after a loss of power it may hold anything."""
        try:
            version = json.loads(self._files.get(self._pointer))["version"]
        except (FileNotFoundError, ValueError, LookupError, TypeError, RecursionError):
            return None
        return version if type(version) is int and 0 <= version < 10**20 else None

    def drop_stale_pointer(self) -> None:
        """Delete `_last_checkpoint` if its checkpoint is not there: delta-rs reads no log with such a hint.

        A reader without the hint lists the log, as Delta's protocol says.
        """
        hinted = self._hinted_version()
        if hinted is not None and hinted not in _complete_checkpoints(self._names()):
            self._files.delete([self._pointer])

    def expire(self, keep_ms: int, now_ms: int) -> int:
        """Delete entries and checkpoints that a newer checkpoint has covered for `keep_ms`, and return how many.

        Their own age does not matter. In a quiet table the last checkpoint may be hours old, and a reader that started
        just before the next one still needs it. Deletion is in ascending order and spares the newest entry.

        now_ms: the store's time.
        """
        names = self._names()
        entries = {name: version for name in names if (version := _version(_ENTRY, name)) is not None}
        checkpoints = {name: version for name in names if (version := _version(_CHECKPOINT, name)) is not None}
        end = min(self._find_covering_checkpoint(checkpoints, now_ms - keep_ms), max(entries.values(), default=0))
        versions = {**entries, **checkpoints}
        covered = sorted((version, name) for name, version in versions.items() if version < end)
        for _, name in covered:  # one by one: if one cannot be deleted, keep all after it
            self._files.delete([f"{self._folder}/{name}"])
        return len(covered)

    def _find_covering_checkpoint(self, checkpoints: Mapping[str, int], time_ms: int) -> int:
        """Return the version of the newest complete checkpoint written by that time; 0 if there is none."""
        for version in sorted(_complete_checkpoints(checkpoints), reverse=True):
            paths = [
                f"{self._folder}/{name}"
                for name, checkpoint_version in checkpoints.items()
                if checkpoint_version == version
            ]
            written_ms = [self._files.modified_ms(path) for path in paths]
            # a loss of power may have left an empty file
            if all(ms is not None and ms <= time_ms for ms in written_ms) and all(map(self._files.size, paths)):
                return version
        return 0

    @property
    def _pointer(self) -> str:
        return f"{self._folder}/_last_checkpoint"

    def _entry(self, version: int) -> str:
        return f"{self._folder}/{version:020d}.json"

    def _names(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self._files.list(self._folder)]


def _complete_checkpoints(names: Iterable[str]) -> Iterator[int]:
    """Yield versions with a complete checkpoint: one file, or all parts that each part announces."""
    parts = Counter[tuple[int, int]]()
    for name in names:
        version, part = _version(_CHECKPOINT, name), _PART.fullmatch(name)
        if version is not None:
            parts[version, int(part[1]) if part else 1] += 1
    return (version for (version, expected), count in parts.items() if count >= expected)


def _version(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    return int(match[1]) if match else None


# Encode the log entry of a commit that LakeMQ makes: files that join a table, files that leave it, and notes.
#
# LakeMQ puts the entry itself, if its name is free. Through delta-rs a commit would read the table's log again and
# again: before the put, to search for other writers, and after it, to load the new version. A handle knows all of that.
#
# A table that only LakeMQ writes has the writer feature `lakemq`. Every reader reads it. Engines that follow the Delta
# protocol refuse to write it, because they do not know the feature: one UPDATE would destroy the namespace.
#
# Source: the Delta protocol, "Actions" and "Table Features". A table with another protocol may need more than these
# actions, so a commit to it is refused.


ENGINE = "LakeMQ"
"""The writer that commits name. It appears in the table's history."""

OPERATION = "WRITE"
CREATION = "CREATE TABLE"

WRITER_FEATURE = "lakemq"


@dataclass(frozen=True)
class WriterProtocol:
    """What a writer of a table must support, in terms of the Delta protocol."""

    version: int
    features: frozenset[str] = frozenset()

    def __str__(self) -> str:
        features = f" with the features {', '.join(sorted(self.features))}" if self.features else ""
        return f"writer version {self.version} of Delta's protocol{features}"


ONLY_LAKEMQ = WriterProtocol(7, frozenset({WRITER_FEATURE}))
ANY_WRITER = WriterProtocol(2)


def writer_protocol(spec: TableSpec) -> WriterProtocol:
    """Return the protocol with which a table is created, and to which the entries here keep."""
    return ANY_WRITER if spec.is_open_to_writers else ONLY_LAKEMQ


def read_clock_ms() -> int:
    """Return this machine's time, which the history shows. Nothing compares it with a time of the store."""
    return time.time_ns() // 1_000_000


def encode_entry(
    add: Sequence[NewFile], remove: Sequence[StoredFile], notes: Mapping[str, int], moved: bool, now_ms: int
) -> bytes:
    """Return the body of a log entry, in which no two commits are equal.

    Args:
        notes: application id -> version, as Delta's `txn` actions.
        moved: the added files hold rows that the table has already.
        now_ms: time of the commit and of the removals.
    """
    actions = [_build_commit_info(OPERATION, {"mode": "Append"}, not remove, now_ms)]
    actions += [{"txn": {"appId": app_id, "version": version}} for app_id, version in notes.items()]
    actions += [{"add": _build_add(file, not moved)} for file in add]
    actions += [{"remove": _build_remove(file, now_ms)} for file in remove]
    return _join_lines(actions)


def encode_creation(spec: TableSpec, now_ms: int) -> bytes:
    """Return the body of a table's first log entry. Each has a new table id, so no two are equal."""
    protocol = writer_protocol(spec)
    features = {"writerFeatures": sorted(protocol.features)} if protocol.features else {}
    metadata = {
        "id": str(uuid.uuid4()),
        "name": spec.name,
        "description": spec.comment,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": Schema.from_arrow(spec.stored_schema).to_json(),
        "partitionColumns": list(spec.partitioned_by),
        "configuration": dict(spec.configuration),
        "createdTime": now_ms,
    }
    return _join_lines(
        [
            _build_commit_info(CREATION, {}, True, now_ms),
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": protocol.version, **features}},
            {"metaData": metadata},
        ]
    )


def _build_commit_info(
    operation: str, parameters: Mapping[str, str], is_blind_append: bool, now_ms: int
) -> dict[str, Any]:
    return {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": operation,
            "operationParameters": parameters,
            "isBlindAppend": is_blind_append,
            "engineInfo": ENGINE,
            "txnId": uuid.uuid4().hex,
        }
    }


def _build_add(file: NewFile, is_change: bool) -> dict[str, Any]:
    return {
        "path": quote(file.path, safe="/="),
        "partitionValues": _name_partition(file),
        "size": file.size_bytes,
        "modificationTime": file.modified_ms,
        "dataChange": is_change,
        "stats": json.dumps(dict(file.statistics)),
    }


def _build_remove(file: StoredFile, now_ms: int) -> dict[str, Any]:
    return {
        # as the log names it: that is how a reader finds the action that this one ends
        "path": file.path,
        "deletionTimestamp": now_ms,
        "dataChange": False,
        "extendedFileMetadata": True,
        "partitionValues": _name_partition(file),
        "size": file.size_bytes,
    }


def _name_partition(file: NewFile | StoredFile) -> dict[str, str]:
    return {name: str(value) for name, value in file.partition_values.items()}


def _join_lines(actions: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(action, separators=(",", ":")).encode() + b"\n" for action in actions)
