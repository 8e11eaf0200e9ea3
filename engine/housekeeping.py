"""Housekeeping of the tables by the leader: checkpoints, merging of small files, removal of what was replaced.

Invariant: a merge changes no row that a reader at or above the floor sees. A namespace must run for months, so the
number of live files and of log entries read at start stays bounded.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemq.tables.changelog import newest
from lakemq.tables.files import Files
from lakemq.tables.journal import JOURNAL
from lakemq.tables.spec import TableSpec
from lakemq.tables.store import NewFile, StoredFile, TableHandle
from lakemq.tables.watermarks import WATERMARKS

from . import crash
from .clock import Clock
from .config import EngineConfig

SMALL_BYTES = 8 << 20
"""Files below this size are merged."""

_STATISTICS_TYPES = (pa.types.is_integer, pa.types.is_string)


@dataclass
class _Tended:
    commits_at_checkpoint: int = 0
    expired_at_ms: int = 0
    floor: int = 0
    """The watermark when the table was last tended: a merge now keeps what keys were then."""


@dataclass(frozen=True)
class JournalMerge:
    """Files of the journal to swap for merged ones."""

    add: tuple[NewFile, ...]
    remove: tuple[StoredFile, ...]


@dataclass
class Housekeeping:
    """Tends one table at a time, right after a commit of the leader's."""

    files: Files
    config: EngineConfig
    clock: Clock
    reached: crash.Reached = crash.nowhere
    _tended: dict[str, _Tended] = field(default_factory=dict)
    _replaced: list[tuple[int, str]] = field(default_factory=list)

    def tend(self, handle: TableHandle, step: int) -> None:
        """Checkpoint, merge and expire as far as it is time. `step`: the watermark just written."""
        tended = self._tended.setdefault(handle.spec.name, _Tended(handle.version))
        if handle.version - tended.commits_at_checkpoint < self.config.number("checkpoint.interval"):
            return
        if handle.spec.shape != "data":
            self._merge(handle, tended.floor)
        handle.checkpoint()
        self._expire_log(handle, tended)
        handle.reopen()
        tended.commits_at_checkpoint, tended.floor = handle.version, step
        self.remove_replaced()

    def _merge(self, handle: TableHandle, floor: int) -> None:
        files = handle.files()
        small = [f for f in files if f.size_bytes < SMALL_BYTES]
        if len(small) < self.config.number("compact.min.files"):
            return
        rows = _kept(handle.spec, handle.read(files=small), floor, whole=len(small) == len(files))
        added = [self._write(handle.spec, rows)] if rows.num_rows else []
        self.reached("housekeeping.merged_file_written")
        handle.replace_at(handle.version, added, small, handle.last_step() or None, floor)
        self.reached("housekeeping.files_swapped")
        self._retire(handle.spec, small)

    def tend_journal(self, handle: TableHandle, watermark: int) -> JournalMerge | None:
        """Checkpoint the journal, and prepare the merge of its files up to the watermark, if it is time.

        `handle` is not the sequencer's own. The merge is a commit to the journal, so that the sequencer makes it,
        between two steps; the files it names stay live until then, because nobody else removes any.
        """
        tended = self._tended.setdefault(JOURNAL.name, _Tended())
        if handle.version - tended.commits_at_checkpoint >= self.config.number("checkpoint.interval"):
            handle.checkpoint()
            self._expire_log(handle, tended)
            tended.commits_at_checkpoint = handle.version
        horizon = self.clock.now_ms() - self.config.ms("journal.retention.ms")
        projected = [f for f in handle.files() if f.statistics["max.step"] <= watermark]
        small = [f for f in projected if f.size_bytes < SMALL_BYTES]
        old = [
            f
            for f in projected
            if f.size_bytes >= SMALL_BYTES and f.statistics["max.decided_at_ms"] < horizon
        ]
        if len(small) < self.config.number("compact.min.files") and not old:
            return None
        rows = handle.read(files=small, decided_at_ms=(horizon, None))
        added = (self._write(JOURNAL, rows),) if rows.num_rows else ()
        return JournalMerge(added, (*small, *old))

    def merged_journal(self, merge: JournalMerge) -> None:
        """The sequencer has committed the merge."""
        self._retire(JOURNAL, merge.remove)

    def _write(self, spec: TableSpec, rows: pa.Table) -> NewFile:
        if spec.sort_by:
            rows = rows.sort_by([(key, "ascending") for key in spec.sort_by])
        path = f"merged-{uuid.uuid4().hex}.parquet"
        with self.files.open_output(f"{spec.name}/{path}") as sink:
            pq.write_table(rows, sink, compression="zstd", row_group_size=1 << 16)
        size = self.files.size(f"{spec.name}/{path}")
        return NewFile(path, size or 0, self.clock.now_ms(), _statistics(rows))

    def _expire_log(self, handle: TableHandle, tended: _Tended) -> None:
        now_ms = self.clock.now_ms()
        if now_ms - tended.expired_at_ms > 600_000:
            handle.expire_log()
            tended.expired_at_ms = now_ms

    def _retire(self, spec: TableSpec, files: Sequence[StoredFile]) -> None:
        now_ms = self.clock.now_ms()
        self._replaced += [(now_ms, f"{spec.name}/{f.path}") for f in files]

    def remove_replaced(self) -> None:
        """Delete files that were replaced longer than `reader.grace.ms` ago."""
        horizon = self.clock.now_ms() - self.config.ms("reader.grace.ms")
        due = [path for at_ms, path in self._replaced if at_ms < horizon]
        if due:
            self.files.delete(due)
            self._replaced = self._replaced[len(due) :]


def _kept(spec: TableSpec, rows: pa.Table, floor: int, whole: bool) -> pa.Table:
    """The rows a merge keeps: all of a log's, a changelog's newest per key at or below the floor and all later ones.

    whole: the rows are the whole table, so that a key removed by the floor needs no row to say so.
    """
    if spec.name == WATERMARKS.name:
        return newest(rows.append_column("all", pa.repeat(0, rows.num_rows)), ["all"]).drop_columns("all")
    if spec.shape != "changelog":
        return rows
    settled = newest(rows.filter(pc.field("step") <= floor), spec.keys)
    if whole and "removed" in settled.column_names:
        settled = settled.filter(~pc.field("removed"))
    return pa.concat_tables([settled, rows.filter(pc.field("step") > floor)])


def _statistics(rows: pa.Table) -> dict[str, Any]:
    bounds = {
        name: pc.min_max(rows.column(name)).as_py()
        for name in rows.column_names
        if any(is_type(rows.schema.field(name).type) for is_type in _STATISTICS_TYPES)
        and name not in ("decision", "answer")
    }
    known = {name: b for name, b in bounds.items() if b["min"] is not None}
    return {
        "numRecords": rows.num_rows,
        "minValues": {name: b["min"] for name, b in known.items()},
        "maxValues": {name: b["max"] for name, b in known.items()},
        "nullCount": {name: rows.column(name).null_count for name in known},
    }
