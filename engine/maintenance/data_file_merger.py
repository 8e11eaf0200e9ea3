"""Merge small data files into large sorted ones. `data_file_removal.py` removes those that nothing needs any more.

How a merge goes, and why in this order:

1. Choose small files that are so old that no request can newly point at them.
2. Announce in `leftovers` that the old files, and then the new one, may be garbage. So a file that a killed process
   leaves behind is found later.
3. Write the merged file: rows that segments or rejections point at, sorted by topic, partition and offset.
4. Add it to `messages`, beside the old files. Both now hold the rows.
5. Rewrite the segments and rejections that point at the old files, each table in one commit.
6. Withdraw the announcement of the merged file: it is in use.

A process may be killed between any two of these. Before and after each, segments point at rows that exist, and a later
run finds files that nothing points at. Readers that planned before step 5 still read the old files, which stay for
`merge.grace.ms`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import pyarrow as pa

from lakemq.tables.specs.messages import MESSAGES, SEQUENCERS_FILES, file_stem
from lakemq.tables.specs.rejected_rows import REJECTED_ROWS
from lakemq.tables.specs.segments import SEGMENTS
from lakemq.tables.storage.delta.commits import StoredFile
from lakemq.tables.storage.delta.leftovers import Leftovers
from lakemq.tables.storage.delta.store import Store, TableHandle
from lakemq.tables.storage.parquet import open_bounded_parquet
from lakemq.tables.storage.parquet_pages import BASE_BYTES

from ..namespace.config import EngineConfig
from ..namespace.data_file import (
    BODY,
    WrittenFile,
    file_name,
    is_expected_file,
    new_data_file,
    read_file_facts,
    read_footer,
    to_table_file,
)
from ..namespace.processes import crash
from ..namespace.processes.clock import Clock
from . import merging
from .data_file_removal import POINTING, DataFileRemover, Handles, parse_file_id, read_named_file_ids
from .log_bounds import read_log_bounds
from .merging import Numbers
from .row_trimming import LiveState, mask_deleted_segments
from .writing import write_merged_file

log = logging.getLogger("lakemq.serve")

SMALL_BYTES = 8 << 20
"""Files below this size are merged."""

FEW_FILES = 8
"""Small files that are worth a merge if no file has come since the last look. Else `compact.min.files` are needed."""

SETTLED_MS = 60_000
"""Minimum age of a sequencer's file to be merged, and time between two looks. If merge.grace.ms is less, it applies."""

_GROUP_BYTES = 8 << 20
"""Size of a row group in a merged file. A fetch of one topic reads only the row groups that hold it."""

REWRITTEN = (SEGMENTS.name, REJECTED_ROWS.name)
"""The tables of POINTING that a merge rewrites. A file that another table of POINTING names is not merged."""


@dataclass
class _PointingRows:
    """The files of one table whose rows point at merged files, and all rows of these files."""

    handle: TableHandle
    stored: list[StoredFile]
    rows: pa.Table


@dataclass
class _KnownFiles:
    """Facts about small files of `messages`, kept from look to look.

    version: of the table at the last look. written_ms: when each file was written; -1: not known yet. damaged: files
    that cannot be read or merged. named_elsewhere: files that rows of another table point at, such as those with
    delayed messages, found at `named_at_ms` of the steady clock.
    """

    version: int = -1
    written_ms: dict[str, int] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    named_elsewhere: frozenset[str] = frozenset()
    named_at_ms: int | None = None


class DataFileMerger:
    """The merges of one term of leadership. It works between two passes, with the handles of the passes."""

    def __init__(
        self,
        store: Store,
        config: EngineConfig,
        clock: Clock,
        new_file_id: Callable[[], int],
        removing: Lock,
        crash_point: crash.CrashPoint = crash.nowhere,
    ) -> None:
        """Args:
        new_file_id: returns a random id below SEQUENCERS_FILES.
        removing: held while files are removed. A search for dying messages holds it while its findings name files.
        """
        self._store, self._files, self._config, self._clock = store, store.files, config, clock
        self._new_file_id, self._crash_point = new_file_id, crash_point
        self._leftovers, self._known_files = Leftovers(store.files), _KnownFiles()
        grace_ms = config.ms("merge.grace.ms")
        self._remover = DataFileRemover(store, self._leftovers, clock, grace_ms, removing, crash_point)
        self._settled_ms = min(SETTLED_MS, grace_ms)
        self._looked_at_ms: int | None = None
        self._counted_at_ms: int | None = None
        self._count_every_ms = config.ms("retention.check.interval.ms")
        self.wasted: frozenset[str] = frozenset()
        """Files of `segments` that must be merged whatever their size, because most of their rows are deleted."""

    def is_due(self) -> bool:
        """Return whether it is time to look at the files."""
        last_ms = self._looked_at_ms
        return last_ms is None or self._clock.steady_ms() - last_ms >= self._settled_ms

    def maintain(self, handles: Handles, step: int, floor: int, settled: LiveState | None = None) -> bool:
        """Remove and merge files as needed. Return whether files were merged, and segments may have been joined.

        Args:
            handles: of TABLES_LOOKED_AT.
            step: of the watermark just written.
            floor: no reader begins at an older step.
            settled: the live objects at some step that no reader begins before.

        Raises:
            CommitConflict: another sequencer has committed to one of the tables.
        """
        self._looked_at_ms = self._clock.steady_ms()
        self._remover.remove(handles, step)
        last_ms = self._counted_at_ms
        if settled is not None and (last_ms is None or self._looked_at_ms - last_ms >= self._count_every_ms):
            self._counted_at_ms = self._looked_at_ms
            self._find_waste(handles, settled)
        files_seen, messages = self._known_files, handles[MESSAGES.name]
        # while files still come, wait for more of them; once no commit has come since the last look, merge a few
        least = min(FEW_FILES, self._min_files) if messages.version == files_seen.version else self._min_files
        files_seen.version = messages.version
        chosen = self._choose_files(messages, least)
        try:
            if chosen and self._read_names(handles) & {file.path for file in chosen}:
                # Files that must stay would be chosen again and again, and no other file would ever be merged.
                chosen = self._choose_files(messages, least)
            return bool(chosen) and self._merge(handles, chosen, floor)
        except (ValueError, LookupError, MemoryError, pa.ArrowException):
            # bad contents of a file or table must not stop the projection
            log.exception("Data files cannot be merged: %s", ", ".join(file.path for file in chosen))
            self._known_files.damaged |= {file.path for file in chosen}
            return False

    # -- merging ----------------------------------------------------------------------------------------

    def _choose_files(self, messages: TableHandle, least: int) -> list[StoredFile]:
        """Return files that are small, not replaced yet, and so old that no request can newly point at them."""
        files_seen = self._known_files
        if files_seen.named_at_ms is None or self._clock.steady_ms() - files_seen.named_at_ms >= self._count_every_ms:
            files_seen.named_elsewhere = frozenset()
        excluded = files_seen.damaged | files_seen.named_elsewhere
        small = [
            file
            for file in messages.files()
            if file.size_bytes < SMALL_BYTES and parse_file_id(file.path) >= 0 and file.path not in excluded
        ]
        if len(small) < least:
            return []
        announced = self._leftovers.list_announced_paths(MESSAGES.name)
        small = [file for file in small if file.path not in announced]
        files_seen.written_ms = {f.path: files_seen.written_ms.get(f.path, -1) for f in small}
        now_ms, old = self._files.time_ms(), []
        for file in small:
            if files_seen.written_ms[file.path] < 0:
                files_seen.written_ms[file.path] = self._files.modified_ms(f"{MESSAGES.name}/{file.path}") or now_ms
            if now_ms - files_seen.written_ms[file.path] > self._min_age_ms(parse_file_id(file.path)):
                old.append(file)
        indexes = merging.choose_files_to_merge(np.array([f.size_bytes for f in old], np.int64), least)
        return sorted((old[i] for i in indexes.tolist()), key=lambda file: parse_file_id(file.path))

    def _read_names(self, handles: Handles) -> frozenset[str]:
        """Return the files of `messages` that tables name which a merge does not rewrite."""
        ids = set[int]().union(*(read_named_file_ids(handles[name]) for name in POINTING if name not in REWRITTEN))
        paths = frozenset(file.path for file in handles[MESSAGES.name].files() if parse_file_id(file.path) in ids)
        self._known_files.named_elsewhere, self._known_files.named_at_ms = paths, self._looked_at_ms
        return paths

    @property
    def _min_files(self) -> int:
        return self._config.number("compact.min.files")

    def _min_age_ms(self, file_id: int) -> int:
        # a request may still name a publisher's file
        return self._settled_ms if file_id >= SEQUENCERS_FILES else self._config.ms("publish.max.duration.ms")

    def _merge(self, handles: Handles, chosen: Sequence[StoredFile], floor: int) -> bool:
        """Replace the chosen files by one; return False, and change nothing, if fewer than two of them are readable.

        The writes come in this order: announce the replaced files, write the merged file and add it to `messages`, let
        each table point at the merged file, withdraw the merged file's announcement. So the merged file is there before
        a row points at it, and its announcement stands until no row points at a replaced file.
        """
        ids = np.array([parse_file_id(file.path) for file in chosen], np.int64)
        pointing = {name: self._read_pointing_rows(handles[name], ids) for name in REWRITTEN}
        bodies = self._read_bodies(chosen, ids, pointing[SEGMENTS.name].rows)
        if len(bodies) < 2:
            return False
        # From here on, a row is known by its number among the rows of all files, one file after the other. `order` has
        # these numbers in the order of the merged file, and `new_position` says where each row is in it.
        merged_ids, counts = np.array(sorted(bodies), np.int64), np.array([bodies[i].num_rows for i in sorted(bodies)])
        ranges, pointed = {}, {}
        for name, pointing_rows in pointing.items():
            ranges[name] = pointing_rows.rows.filter(pa.array(merging.points_at_files(pointing_rows.rows, merged_ids)))
            pointed[name] = merging.find_pointed_rows(ranges[name], merged_ids, counts)
        segments, shown, rejected = ranges[SEGMENTS.name], pointed[SEGMENTS.name], pointed[REJECTED_ROWS.name]
        order, new_position = merging.order_merged_rows(segments, shown, rejected, int(counts.sum()))
        body = pa.concat_tables([bodies[i] for i in merged_ids.tolist()]).take(pa.array(order))
        bounds = read_log_bounds(handles[SEGMENTS.name])
        merged, announcement = self._write_merged_rows(handles[MESSAGES.name], body, merged_ids)
        for name, pointing_rows in pointing.items():
            if ranges[name].num_rows and merged is not None:
                rows = merging.move_ranges(ranges[name], pointed[name], new_position, merged.file_id)
                if name == SEGMENTS.name:
                    rows = merging.coalesce_segments(merging.set_footer_hash(rows, merged.footer_hash), floor, bounds)
                self._swap_rows(pointing_rows, rows, merged_ids, floor if name == SEGMENTS.name else 0)
                self._crash_point("housekeeping.segments_swapped")
        if announcement is not None:
            self._leftovers.withdraw(announcement)
        return True

    def _read_pointing_rows(self, handle: TableHandle, ids: Numbers) -> _PointingRows:
        """Read the files of a table that point at the ids. Of other files, only the column of ids is read."""
        stored = [
            file
            for file in handle.files()
            if merging.points_at_files(handle.read(["file_id"], files=[file]), ids).any()
        ]
        return _PointingRows(handle, stored, handle.read(files=stored))

    def _read_bodies(self, chosen: Sequence[StoredFile], ids: Numbers, segments: pa.Table) -> dict[int, pa.Table]:
        """Return the rows of each file by id, of those files that are as they were written."""
        footers = dict(zip(*(segments.column(name).to_pylist() for name in ("file_id", "footer_hash")), strict=True))
        bodies: dict[int, pa.Table] = {}
        for file, file_id in zip(chosen, ids.tolist(), strict=True):
            try:
                bodies[file_id] = self._read_body(file, file_id, footers)
            except (OSError, ValueError, pa.ArrowException) as error:
                self._known_files.damaged.add(file.path)
                log.warning("Data file %s is left out of merges: %s", file_stem(file_id), error)
        return bodies

    def _read_body(self, file: StoredFile, file_id: int, footers: dict[int, int | None]) -> pa.Table:
        facts = read_file_facts(self._files, file_id, footers.get(file_id))
        if facts is None or facts.flaw:
            raise ValueError("gone" if facts is None else facts.flaw)
        if file_id in footers and not is_expected_file(footers[file_id], facts.footer_hash, facts.is_journaled):
            raise ValueError("rewritten or damaged")
        with self._files.open_input(file_name(file_id)) as source:
            rows = open_bounded_parquet(source, read_footer(source).parse(), BASE_BYTES).read(["row", *BODY])
        if not np.array_equal(rows.column("row").to_numpy(), np.arange(file.record_count)):
            raise ValueError("its rows are not where they were")
        return rows.select(BODY)

    def _write_merged_rows(
        self, messages: TableHandle, body: pa.Table, replaced: Numbers
    ) -> tuple[WrittenFile | None, str | None]:
        """Announce the replaced files, then write the merged file and add it to `messages`.

        Return the file, and the announcement to withdraw once the file is in use. (None, None): no row is needed any
        more, so there is no merged file, and the replaced ones are only announced.
        """
        self._leftovers.announce(MESSAGES.name, map(_file_path, replaced.tolist()))
        if not body.num_rows:
            return None, None
        file_id = SEQUENCERS_FILES | self._new_file_id()
        announcement = self._leftovers.announce(MESSAGES.name, [_file_path(file_id)])
        rows_at_once = max(1, body.num_rows * _GROUP_BYTES // max(1, body.nbytes))
        with new_data_file(self._files, file_id) as writer:
            for first in range(0, body.num_rows, rows_at_once):
                writer.write(body.slice(first, rows_at_once))
        written = writer.written(self._files)
        self._crash_point("housekeeping.merged_data_written")
        messages.replace_at(messages.version, [to_table_file(written)], moved=True)
        self._crash_point("housekeeping.merged_registered")
        return written, announcement

    def _swap_rows(self, pointing: _PointingRows, rows: pa.Table, ids: Numbers, floor: int) -> None:
        """Replace the rows that point at these files, in one commit.

        Other rows of the rewritten files are copied. floor: of the table from this commit on, if it is not higher yet.
        """
        handle = pointing.handle
        other_rows = pointing.rows.filter(pa.array(~merging.points_at_files(pointing.rows, ids)))
        added = write_merged_file(
            self._files, self._leftovers, handle.spec, pa.concat_tables([other_rows, rows]), pointing.stored
        )
        handle.replace_at(
            handle.version, added, pointing.stored, handle.last_step() or None, max(floor, handle.floor()) or None
        )

    # -- what was deleted ---------------------------------------------------------------------------------

    def _find_waste(self, handles: Handles, settled: LiveState) -> None:
        """Find files of `segments` with mostly deleted rows, and data files that nothing points at.

        The latter are announced like replaced files, and are removed after the same grace.
        """
        wasted, named, segments = set(), set[int](), handles[SEGMENTS.name]
        for file in segments.files():
            rows = segments.read(["topic_id", "partition", "last_offset", "file_id"], files=[file])
            named.update(rows.column("file_id").unique().drop_null().to_pylist())
            if 2 * np.count_nonzero(mask_deleted_segments(rows, settled)) > rows.num_rows:
                wasted.add(file.path)
        self.wasted = frozenset(wasted)
        named = named.union(*(read_named_file_ids(handles[name]) for name in POINTING if name != SEGMENTS.name))
        paths = {f.path for f in handles[MESSAGES.name].files() if (i := parse_file_id(f.path)) >= 0 and i not in named}
        if paths and (new := paths - self._leftovers.list_announced_paths(MESSAGES.name)):
            self._leftovers.announce(MESSAGES.name, sorted(new))


def _file_path(file_id: int) -> str:
    return f"{file_stem(file_id)}.parquet"
