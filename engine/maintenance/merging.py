"""Merge small data files into large sorted ones. `removal.py` removes those that nothing needs any more.

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
`merge.grace.ms`. Rows of docs/architecture.md: publish 14.
"""

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemq.tables.specs.messages import MESSAGES, REJECTED_ROWS, SEQUENCERS_FILES, file_stem
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.specs.topics import COMPACTED, SEGMENTS
from lakemq.tables.storage.delta.commits import GROUP_ROWS, NewFile, StoredFile, compute_statistics
from lakemq.tables.storage.delta.leftovers import Leftovers
from lakemq.tables.storage.delta.store import Store, TableHandle
from lakemq.tables.storage.object_stores.files import Files
from lakemq.tables.storage.parquet import BASE_BYTES, open_bounded_parquet
from lakemq.tables.views import RATE_MS

from ..namespace import crash
from ..namespace.clock import Clock
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
from ..protocol.values.segments import cut_segments, find_continuations, merge_continuations
from .removal import POINTING, DataFileRemover, Handles, parse_file_id, read_named_file_ids
from .retention import LiveState, mask_deleted_segments

log = logging.getLogger("lakemq.serve")

# Write the file that a merge puts in the place of others.


def write_merged_file(
    files: Files, leftovers: Leftovers, spec: TableSpec, rows: pa.Table, replaced: Sequence[StoredFile]
) -> tuple[NewFile, ...]:
    """Write the rows as one file; none if there are no rows. First announce the files that will be unneeded."""
    return write_merged_pieces(files, leftovers, spec, [rows], replaced)


def write_merged_pieces(
    files: Files, leftovers: Leftovers, spec: TableSpec, pieces: Iterable[pa.Table], replaced: Sequence[StoredFile]
) -> tuple[NewFile, ...]:
    """Write rows as one file, like `write_merged_file`, and hold one piece at a time.

    pieces: in the order of the table, so that the rows are sorted once each piece is.
    """
    path = f"merged-{uuid.uuid4().hex}.parquet"
    leftovers.announce(spec.name, [path, *(file.path for file in replaced)])
    filled = (_sort_rows(spec, rows) for rows in pieces if rows.num_rows)
    first = next(filled, None)
    if first is None:
        return ()
    name, statistics = f"{spec.name}/{path}", list[dict[str, Any]]()
    with (
        files.open_output(name) as sink,
        pq.ParquetWriter(sink, first.schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for rows in chain([first], filled):
            writer.write_table(rows, row_group_size=GROUP_ROWS)
            statistics.append(compute_statistics(rows))
    size, written_ms = files.size(name), files.modified_ms(name)
    return (NewFile(path, size or 0, written_ms or 0, join_statistics(statistics)),)


def _sort_rows(spec: TableSpec, rows: pa.Table) -> pa.Table:
    return rows.sort_by([(key, "ascending") for key in spec.sort_by]) if spec.sort_by else rows


def join_statistics(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the statistics of a file from those of its parts. A column needs bounds in all of them."""
    names = [name for name in parts[0]["minValues"] if all(name in part["minValues"] for part in parts)]
    return {
        "numRecords": sum(part["numRecords"] for part in parts),
        "minValues": {name: min(part["minValues"][name] for part in parts) for name in names},
        "maxValues": {name: max(part["maxValues"][name] for part in parts) for name in names},
        "nullCount": {name: sum(part["nullCount"][name] for part in parts) for name in names},
    }


# The counts, rates and times of the view `topic_stats`: two segments become one only if these stay the same.


Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class LogBounds:
    """How far each log reaches, as `topic_stats` sees it: the log start per partition, the newest message per topic."""

    READ = ("kind", "topic_id", "partition", "base_offset", "last_offset", "max_timestamp_ms")
    """The columns of `segments` that the bounds follow from."""

    def __init__(self, parts: Callable[[], Iterable[pa.Table]]) -> None:
        """parts: returns all rows of `segments`, columns of READ, in any number of tables. Called twice."""
        self._log_starts: dict[tuple[int, int], int] = {}
        self._newest_ms: dict[int, int] = {}
        for part in parts():
            cuts = part.filter(pc.equal(part.column("kind"), "log_start"))
            for topic_id, partition, offset in _values(cuts, "topic_id", "partition", "base_offset"):
                self._log_starts[topic_id, partition] = max(offset, self._log_starts.get((topic_id, partition), 0))
        for part in parts():
            data = part.filter(pc.equal(part.column("kind"), "data"))
            live = data.filter(pa.array(~self._mask_deleted_rows(data)))
            newest = live.group_by("topic_id").aggregate([("max_timestamp_ms", "max")])
            for topic_id, newest_ms in _values(newest, "topic_id", "max_timestamp_ms_max"):
                self._newest_ms[topic_id] = max(newest_ms, self._newest_ms.get(topic_id, newest_ms))

    def have_same_figures(self, segments: pa.Table) -> Mask:
        """Return for each data segment but the first whether it and the one before it may be counted as one.

        They may if both are deleted, both lie before the last RATE_MS of their topic, or both lie within them.
        `topic_stats` then shows the same count, rate and times for one segment as for the two.
        """
        topic_ids = segments.column("topic_id").to_pylist()
        since_ms = np.array([self._newest_ms.get(topic_id, 0) - RATE_MS for topic_id in topic_ids], np.int64)
        first_ms, last_ms = (_numbers(segments, f"{bound}_timestamp_ms") for bound in ("min", "max"))
        place = np.select([self._mask_deleted_rows(segments), last_ms <= since_ms, first_ms > since_ms], [0, 1, 2], -1)
        same: Mask = (place[1:] == place[:-1]) & (place[1:] >= 0)
        return same

    def _mask_deleted_rows(self, segments: pa.Table) -> Mask:
        log_starts = [self._log_starts.get(key, 0) for key in _values(segments, "topic_id", "partition")]
        deleted: Mask = _numbers(segments, "last_offset") < np.array(log_starts, np.int64)
        return deleted


def _values(rows: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows.column(name).to_pylist() for name in names), strict=True)


def _numbers(rows: pa.Table, name: str) -> Numbers:
    numbers: Numbers = rows.column(name).fill_null(0).to_numpy()
    return numbers


def read_log_bounds(segments: TableHandle) -> LogBounds:
    """Read the bounds of all logs, one file of `segments` at a time."""
    return LogBounds(lambda: (segments.read(list(LogBounds.READ), files=[file]) for file in segments.files()))


# The merge of data files as pure column operations: which files, the order of rows, the rewritten segments.
#
# Merged rows are sorted by topic, partition and offset, so that a fetch reads one stretch of a file. Each segment is
# then cut where its rows no longer follow each other, moved to the merged file, and joined with its neighbours where
# possible. Far fewer segments remain: those of one partition usually become one.
#
# Invariant: a rewritten segment gives each of its offsets the same row as before; so does a rejection. Two neighbours
# become one only where every view and every fetch shows the same for the one as for the two.


MAX_BYTES_AT_ONCE = 32 << 20
"""Bytes of files that one merge takes: they are read in one go, while passes wait."""

EQUAL_COLUMNS = (
    "kind",
    "topic_id",
    "partition",
    "file_id",
    "file_partition",
    "producer_id",
    "producer_epoch",
    "transactional",
    "origin",
    "append_time_ms",
    "ttl_from_ms",
    "ttl_ms",
    "decided_at_ms",
    "dead_letter",
)
"""Columns that must be equal in segments that become one."""
_CONSECUTIVE_COLUMNS = ("base_offset", "first_row", "base_sequence", "source_offset")
"""Columns that must run on from one segment to the next."""


def choose_files_to_merge(size_bytes: Numbers, least: int) -> Numbers:
    """Return the indexes of the files to merge; none if fewer than `least` qualify.

    Files are taken from the smallest on, at most MAX_BYTES_AT_ONCE.
    The largest chosen file is no larger than the others together. So each merge puts a byte into a file at least twice
    as large as before, and a byte is rewritten only a few times, however many files come.
    """
    order = np.argsort(size_bytes, kind="stable")
    sizes = size_bytes[order]
    ends = np.cumsum(sizes)
    count = int(np.max(np.flatnonzero(sizes <= ends - sizes), initial=-1)) + 1
    count = min(count, int(np.searchsorted(ends, MAX_BYTES_AT_ONCE, side="right"))) if count >= least else 0
    return order[: count if count > 1 else 0]


@dataclass(frozen=True)
class PointedRows:
    """The rows that some ranges of files point at, in the order of the ranges.

    Attributes:
        index: of the range that the row belongs to.
        nth: number of the row within its range, from 0.
        row: number of the row among the rows of all files, one file after the other.
    """

    index: Numbers
    nth: Numbers
    row: Numbers


def find_pointed_rows(ranges: pa.Table, file_ids: Numbers, record_counts: Numbers) -> PointedRows:
    """Return the rows that the ranges point at.

    Args:
        ranges: columns file_id, first_row, record_count; only of the given files.
        file_ids: ascending.

    Raises:
        ValueError: a range leaves its file.
    """
    firsts = np.cumsum(record_counts) - record_counts
    first_row, counts = (ranges.column(name).to_numpy() for name in ("first_row", "record_count"))
    file = np.searchsorted(file_ids, ranges.column("file_id").to_numpy())
    if ((first_row < 0) | (counts < 1) | (first_row + counts > record_counts[file])).any():
        raise ValueError("a range of rows that is not in its file")
    begin = firsts[file] + first_row
    index = np.repeat(np.arange(len(counts)), counts)
    nth = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    return PointedRows(index, nth, begin[index] + nth)


def order_merged_rows(
    segments: pa.Table, shown: PointedRows, rejected: PointedRows, row_count: int
) -> tuple[Numbers, Numbers]:
    """Return the order of rows in the merged file, as their old numbers, and the new number of each old row.

    Rows of segments come by topic, partition and offset; a row of several segments by the first of them. Then come the
    rows of rejections that no segment has. Rows that nothing points at are left out: their new number is -1.
    """
    keys = [segments.column(name).to_numpy()[shown.index] for name in ("topic_id", "partition")]
    offset = segments.column("base_offset").to_numpy()[shown.index] + shown.nth
    rows = np.concatenate([shown.row[np.lexsort((offset, keys[1], keys[0]))], np.sort(rejected.row)])
    order = rows[np.sort(np.unique(rows, return_index=True)[1])]
    place = np.full(row_count, -1, np.int64)
    place[order] = np.arange(len(order))
    return order, place


def move_ranges(ranges: pa.Table, rows: PointedRows, place: Numbers, file_id: int) -> pa.Table:
    """Return the ranges as they are in the merged file, cut where their rows do not follow each other there.

    Args:
        ranges: rows of `segments` or `rejected_rows`. Offsets and sequences are cut with the rows.
    """
    at = place[rows.row]
    begins = np.ones(len(at), np.bool_)
    begins[1:] = (rows.index[1:] != rows.index[:-1]) | (at[1:] != at[:-1] + 1)
    first = np.flatnonzero(begins)
    counts = np.diff(first, append=len(at))
    cut = ranges.take(pa.array(rows.index[first]))
    if "base_offset" in cut.column_names:
        cut = cut_segments(cut, rows.nth[first], counts)
    changed: dict[str, pa.Array | pa.ChunkedArray] = {
        "file_id": pa.repeat(pa.scalar(file_id, pa.int64()), len(first)),
        "first_row": pa.array(at[first]),
        "record_count": pa.array(counts),
    }
    return _replace_columns(cut, changed)


def set_footer_hash(segments: pa.Table, footer_hash: int) -> pa.Table:
    """Return the segments with the merged file's footer hash."""
    column = pa.repeat(pa.scalar(footer_hash, pa.int64()), segments.num_rows)
    return _replace_columns(segments, {"footer_hash": column})


def coalesce_segments(segments: pa.Table, floor: int, bounds: LogBounds) -> pa.Table:
    """Join neighbours among rows of `segments`; return them by topic, partition and offset.

    Neighbours are joined if they hold data of one file, author, origin and time, and if offsets, rows and sequences run
    on; or if both are compacted. Segments of different steps are joined only up to the floor, below which no reader
    begins; the last step is kept.
    """
    order = [(name, "ascending") for name in ("topic_id", "partition", "base_offset")]
    segments = segments.sort_by(order).combine_chunks()
    step = segments.column("step").to_numpy()
    touches = (
        find_continuations(segments, EQUAL_COLUMNS, _CONSECUTIVE_COLUMNS)
        & pc.is_in(segments.column("kind"), pa.array(["data", COMPACTED])).to_numpy()[1:]
    )
    touches &= (step[1:] == step[:-1]) | ((step[1:] <= floor) & (step[:-1] <= floor))
    touches &= bounds.have_same_figures(segments)
    return merge_continuations(segments, touches)


def _replace_columns(rows: pa.Table, columns: dict[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    for name, column in columns.items():
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def points_at_files(rows: pa.Table, file_ids: Sequence[int] | Numbers) -> Mask:
    """Return which rows point at one of these files."""
    is_in: Mask = pc.is_in(rows.column("file_id"), pa.array(file_ids, pa.int64())).to_numpy()
    return is_in


# The merge itself, step by step as above.


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
        self._sparse: frozenset[str] = frozenset()
        """Larger data files of which at most half of the rows are needed. Each is rewritten alone."""
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
            if (file.size_bytes < SMALL_BYTES or file.path in self._sparse)
            and parse_file_id(file.path) >= 0
            and file.path not in excluded
        ]
        if len(small) < least and not self._sparse:
            return []
        announced = self._leftovers.list_announced_paths(MESSAGES.name)
        small = [file for file in small if file.path not in announced]
        if len(small) < least and not any(file.path in self._sparse for file in small):
            return []  # on a store, to know the time takes requests
        files_seen.written_ms = {f.path: files_seen.written_ms.get(f.path, -1) for f in small}
        now_ms, old = self._files.time_ms(), []
        for file in small:
            if files_seen.written_ms[file.path] < 0:
                files_seen.written_ms[file.path] = self._files.modified_ms(f"{MESSAGES.name}/{file.path}") or now_ms
            if now_ms - files_seen.written_ms[file.path] > self._min_age_ms(parse_file_id(file.path)):
                old.append(file)
        for file in old:
            if file.path in self._sparse:
                return [file]
        indexes = choose_files_to_merge(np.array([f.size_bytes for f in old], np.int64), least)
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
        """Replace the chosen files by one; return False, and change nothing, if too few of them are readable.

        The writes come in this order: announce the replaced files, write the merged file and add it to `messages`, let
        each table point at the merged file, withdraw the merged file's announcement. So the merged file is there before
        a row points at it, and its announcement stands until no row points at a replaced file.
        """
        ids = np.array([parse_file_id(file.path) for file in chosen], np.int64)
        pointing = {name: self._read_pointing_rows(handles[name], ids) for name in REWRITTEN}
        bodies = self._read_bodies(chosen, ids, pointing[SEGMENTS.name].rows)
        if len(bodies) < min(2, len(chosen)):
            return False
        # From here on, a row is known by its number among the rows of all files, one file after the other. `order` has
        # these numbers in the order of the merged file, and `new_position` says where each row is in it.
        merged_ids, counts = np.array(sorted(bodies), np.int64), np.array([bodies[i].num_rows for i in sorted(bodies)])
        ranges, pointed = {}, {}
        for name, pointing_rows in pointing.items():
            ranges[name] = pointing_rows.rows.filter(pa.array(points_at_files(pointing_rows.rows, merged_ids)))
            pointed[name] = find_pointed_rows(ranges[name], merged_ids, counts)
        segments, shown, rejected = ranges[SEGMENTS.name], pointed[SEGMENTS.name], pointed[REJECTED_ROWS.name]
        order, new_position = order_merged_rows(segments, shown, rejected, int(counts.sum()))
        body = pa.concat_tables([bodies[i] for i in merged_ids.tolist()]).take(pa.array(order))
        bounds = read_log_bounds(handles[SEGMENTS.name])
        merged, announcement = self._write_merged_rows(handles[MESSAGES.name], body, merged_ids)
        for name, pointing_rows in pointing.items():
            if ranges[name].num_rows and merged is not None:
                rows = move_ranges(ranges[name], pointed[name], new_position, merged.file_id)
                if name == SEGMENTS.name:
                    rows = coalesce_segments(set_footer_hash(rows, merged.footer_hash), floor, bounds)
                self._swap_rows(pointing_rows, rows, merged_ids, floor if name == SEGMENTS.name else 0)
                self._crash_point("housekeeping.segments_swapped")
        if announcement is not None:
            self._leftovers.withdraw(announcement)
        return True

    def _read_pointing_rows(self, handle: TableHandle, ids: Numbers) -> _PointingRows:
        """Read the files of a table that point at the ids. Of other files, only the column of ids is read."""
        stored = [file for file in handle.files() if points_at_files(handle.read(["file_id"], files=[file]), ids).any()]
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
        other_rows = pointing.rows.filter(pa.array(~points_at_files(pointing.rows, ids)))
        added = write_merged_file(
            self._files, self._leftovers, handle.spec, pa.concat_tables([other_rows, rows]), pointing.stored
        )
        handle.replace_at(
            handle.version, added, pointing.stored, handle.last_step() or None, max(floor, handle.floor()) or None
        )

    # -- deleted offsets ---------------------------------------------------------------------------------

    def _find_waste(self, handles: Handles, settled: LiveState) -> None:
        """Find files of `segments` with mostly deleted rows, and data files that nothing points at, or little.

        Those that nothing points at are announced like replaced files, and are removed after the same grace.
        """
        wasted, needed, segments = set(), Counter[int](), handles[SEGMENTS.name]
        for file in segments.files():
            rows = segments.read(["topic_id", "partition", "last_offset", "file_id", "record_count"], files=[file])
            needed.update(_count_rows(rows))
            if 2 * np.count_nonzero(mask_deleted_segments(rows, settled)) > rows.num_rows:
                wasted.add(file.path)
        self.wasted = frozenset(wasted)
        needed.update(_count_rows(handles[REJECTED_ROWS.name].read(["file_id", "record_count"])))
        named = needed.keys() | set[int]().union(
            *(read_named_file_ids(handles[name]) for name in POINTING if name not in REWRITTEN)
        )
        files = {i: file for file in handles[MESSAGES.name].files() if (i := parse_file_id(file.path)) >= 0}
        self._sparse = frozenset(
            file.path
            for i, file in files.items()
            if SMALL_BYTES <= file.size_bytes <= MAX_BYTES_AT_ONCE and 0 < 2 * needed[i] <= file.record_count
        )
        paths = {file.path for i, file in files.items() if i not in named}
        if paths and (new := paths - self._leftovers.list_announced_paths(MESSAGES.name)):
            self._leftovers.announce(MESSAGES.name, sorted(new))


def _count_rows(ranges: pa.Table) -> dict[int, int]:
    """Return by file how many rows ranges point at. A row to which two ranges point counts twice."""
    counted = ranges.filter(pc.field("file_id").is_valid()).group_by("file_id").aggregate([("record_count", "sum")])
    return dict(_values(counted, "file_id", "record_count_sum"))


def _file_path(file_id: int) -> str:
    return f"{file_stem(file_id)}.parquet"
