"""Look-ups of segments for a fetch, in the table and in the tail.

It needs all segments of its ranges, data and markers: together they have every offset, so that a lost one is noticed.
Committed reads also need the aborts after the ranges, which may end transactions in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemq.tables.specs.topics import COMPACTED, SEGMENT_SCHEMA, SEGMENTS
from lakemq.tables.storage.delta.commits import StoredFile
from lakemq.tables.storage.delta.store import Store, TableHandle
from lakemq.tables.storage.parquet import open_parquet

from ...protocol.values.journal import Step
from ...protocol.values.segments import Mask, filter_rows, is_kind, segments_to_table

Numbers = npt.NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max

KINDS_WITH_OFFSETS = ("data", "commit", "abort", COMPACTED)
"""The kinds of segments whose offsets lie in the log. Each offset from the log start on is in one such segment."""
_KINDS_WITH_OFFSETS = pa.array(KINDS_WITH_OFFSETS)

PLAN_SCHEMA: pa.Schema = pa.schema(
    [
        SEGMENT_SCHEMA.field(name)
        for name in (
            "partition",
            "base_offset",
            "record_count",
            "last_offset",
            "file_id",
            "footer_hash",
            "first_row",
            "file_partition",
            "min_timestamp_ms",
            "max_timestamp_ms",
            "append_time_ms",
            "ttl_from_ms",
            "ttl_ms",
            "producer_id",
            "producer_epoch",
            "transactional",
            "dead_letter",
            "source_offset",
        )
    ]
)
"""The columns of a segment that a fetch needs. Other columns are not read."""

LOOKUP_SCHEMA: pa.Schema = pa.schema(
    [SEGMENTS.stored_schema.field(name) for name in ("step", "kind", "topic_id", "first_offset")] + list(PLAN_SCHEMA)
)
"""The key columns of a look-up, and PLAN_SCHEMA."""


@dataclass(frozen=True)
class OffsetRange:
    """Offsets start <= offset < end of a partition."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class Lookup:
    """A look-up of the segments of a topic that share an offset with one of the ranges, data and markers.

    Attributes:
        ranges: at least one, each of another partition.
        committed: also find aborts in these partitions, of transactions that begin before the last of
            the ranges ends. The marker of an abort comes after all messages that it aborts, so it may be after the end.
    """

    topic_id: int
    ranges: Sequence[OffsetRange]
    committed: bool

    @cached_property
    def partitions(self) -> tuple[int, int]:
        """The lowest and the highest partition of the ranges."""
        return min(r.partition for r in self.ranges), max(r.partition for r in self.ranges)

    @cached_property
    def start(self) -> int:
        """The lowest start of the ranges."""
        return min(range_.start for range_ in self.ranges)

    @cached_property
    def end(self) -> int:
        """The highest end of the ranges."""
        return max(range_.end for range_ in self.ranges)

    @cached_property
    def _bounds(self) -> tuple[Numbers, Numbers]:
        """Start and end by partition number. A partition without a range has bounds that no offset lies between."""
        starts, ends = np.full(self.partitions[1] + 2, _NEVER), np.full(self.partitions[1] + 2, -1)
        for range_ in self.ranges:
            starts[range_.partition], ends[range_.partition] = range_.start, range_.end
        return starts, ends

    def select_from(self, segments: pa.Table) -> pa.Table:
        """Return the rows of a table with LOOKUP_SCHEMA that are looked up."""
        of_topic = filter_rows(segments, segments.column("topic_id").to_numpy() == self.topic_id)
        return filter_rows(of_topic, self._match(of_topic))

    def _match(self, segments: pa.Table) -> Mask:
        """Return a mask of the segments of the topic that are looked up."""
        starts, ends = self._bounds
        partitions = np.minimum(segments.column("partition").to_numpy(), len(starts) - 1)
        base, last = segments.column("base_offset").to_numpy(), segments.column("last_offset").to_numpy()
        mask: Mask = (base < ends[partitions]) & (last >= starts[partitions])
        mask &= pc.is_in(segments.column("kind"), _KINDS_WITH_OFFSETS).to_numpy()
        if self.committed and (aborts := is_kind(segments, "abort")).any():
            begins = pc.fill_null(segments.column("first_offset"), _NEVER).to_numpy()
            mask |= aborts & (starts[partitions] != _NEVER) & (begins < self.end)
        return mask

    def build_filter(self) -> pc.Expression:
        """Return a filter for scans of files, which lets at least the rows through that are looked up."""
        low, high = self.partitions
        of_partitions = (pc.field("partition") >= low) & (pc.field("partition") <= high)
        in_range = (pc.field("base_offset") < self.end) | (pc.field("kind") == "abort")
        of_topic = pc.field("topic_id") == self.topic_id
        return of_topic & of_partitions & (pc.field("last_offset") >= self.start) & in_range


def collect_segments(steps: Iterable[Step]) -> pa.Table:
    """Return the segments of steps with LOOKUP_SCHEMA. They are one table, which costs little more than one segment."""
    parts = [(step.step, entry.segments) for step in steps for entry in step.entries if len(entry.segments)]
    segments = segments_to_table(part for _, part in parts)
    numbers = [number for number, part in parts for _ in range(len(part))]
    columns = [segments.column(name) for name in LOOKUP_SCHEMA.names[1:]]
    return pa.table([pa.array(numbers, LOOKUP_SCHEMA.field(0).type), *columns], schema=LOOKUP_SCHEMA)


# The segments of the table, looked up file by file and row group by row group, by the statistics of each.
#
# Files of a table never change, so the statistics of a file hold for as long as it is live. There may be a hundred
# small files, each written by one pass of the sequencer. These are read whole, once, and looked through together.


_FEW_ROWS = 4096
"""A file of at most this many rows is read whole."""

_MOST_ROWS_KEPT = 1 << 16
"""Rows of files that were read whole, which are kept in memory: about 8 MB."""

_MANY_ROW_GROUPS = 4
"""More than this are read with several threads."""

_LOWEST, _HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_NUMBERS = ("topic_id", "partition", "base_offset", "last_offset", "first_offset")


class StoredSegments:
    """The table as of a step. `move_to` goes on to a later one, and keeps the footers of files that stay."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._footers: dict[str, _IndexedFooter] = {}
        self._whole: dict[str, pa.Table] = {}

    def move_to(self, table: TableHandle, step: int) -> None:
        """Look up segments up to this step, in the version of the handle."""
        self._step, self._files = step, table.files()
        self._files.sort(key=lambda file: file.statistics.get("max.step") or 0, reverse=True)
        self._ranges = _ValueRanges.of([file.statistics for file in self._files])
        paths = {file.path for file in self._files}
        self._footers = {path: footer for path, footer in self._footers.items() if path in paths}
        self._whole = {path: rows for path, rows in self._whole.items() if path in paths}
        total_rows = np.cumsum([file.record_count for file in self._files])
        self._is_small = [
            0 < file.record_count <= _FEW_ROWS and total <= _MOST_ROWS_KEPT
            for file, total in zip(self._files, total_rows.tolist(), strict=True)
        ]
        self._small_rows: pa.Table | None = None

    def find(self, lookup: Lookup) -> pa.Table:
        """Return the segments that are looked up (LOOKUP_SCHEMA).

        Raises:
            FileNotFoundError: a file was merged into another one meanwhile, and deleted.
        """
        candidates = np.flatnonzero(self._ranges.may_have(lookup)).tolist()
        parts = [lookup.select_from(self._read(self._files[i], lookup)) for i in candidates if not self._is_small[i]]
        if any(self._is_small[i] for i in candidates):
            self._small_rows = self._read_small_files() if self._small_rows is None else self._small_rows
            parts.append(lookup.select_from(self._small_rows))
        segments = pa.concat_tables([LOOKUP_SCHEMA.empty_table(), *parts])
        return filter_rows(segments, segments.column("step").to_numpy() <= self._step)

    def _read_small_files(self) -> pa.Table:
        small_files = [file for file, is_small in zip(self._files, self._is_small, strict=True) if is_small]
        for file in small_files:
            if file.path not in self._whole:
                self._whole[file.path] = self._read(file)
        return pa.concat_tables([self._whole[file.path] for file in small_files]).combine_chunks()

    def _read(self, file: StoredFile, lookup: Lookup | None = None) -> pa.Table:
        """Read a file whole, or at least the row groups that may have a match."""
        footer = self._footers.get(file.path)
        with (
            self._store.files.open_input(f"{SEGMENTS.name}/{unquote(file.path)}") as source,
            open_parquet(source, footer.metadata if footer else None) as parquet,
        ):
            if not parquet.schema_arrow.equals(SEGMENTS.stored_schema):  # another engine, such as Spark, has merged it
                filter_ = lookup.build_filter() if lookup else None
                dataset = self._store.dataset(SEGMENTS, [file])
                return _to_lookup_schema(dataset.to_table(columns=LOOKUP_SCHEMA.names, filter=filter_))
            if lookup is None:
                return _to_lookup_schema(parquet.read(columns=LOOKUP_SCHEMA.names, use_threads=False))
            if footer is None:
                footer = self._footers[file.path] = _IndexedFooter.of(parquet.metadata)
            groups = np.flatnonzero(footer.ranges.may_have(lookup)).tolist()
            use_threads = len(groups) > _MANY_ROW_GROUPS
            return _to_lookup_schema(
                parquet.read_row_groups(groups, columns=LOOKUP_SCHEMA.names, use_threads=use_threads)
            )


def _to_lookup_schema(rows: pa.Table) -> pa.Table:
    return SEGMENTS.validate(rows.select(LOOKUP_SCHEMA.names))


@dataclass(frozen=True)
class _ValueRanges:
    """The least and the greatest value of each column in some files or row groups; unbounded if unknown."""

    low: dict[str, Numbers]
    high: dict[str, Numbers]
    may_have_aborts: Mask

    @classmethod
    def of(cls, statistics: Sequence[Mapping[str, Any]]) -> _ValueRanges:
        """Return the ranges of files whose statistics are as in `StoredFile`."""

        def read_column(name: str, unknown: int) -> Numbers:
            values = [of_file.get(name) for of_file in statistics]
            return np.array([unknown if value is None else value for value in values], np.int64)

        least_kinds = [of_file.get("min.kind") for of_file in statistics]
        return cls(
            {name: read_column(f"min.{name}", _LOWEST) for name in _NUMBERS},
            {name: read_column(f"max.{name}", _HIGHEST) for name in _NUMBERS},
            # "abort" is the first of all kinds, so a file has aborts only if it is the least kind.
            np.array([kind is None or kind <= "abort" for kind in least_kinds], np.bool_),
        )

    def may_have(self, lookup: Lookup) -> Mask:
        """Return a mask of the files or row groups that may have segments that are looked up."""
        first, last = lookup.partitions
        of_topic = (self.low["topic_id"] <= lookup.topic_id) & (self.high["topic_id"] >= lookup.topic_id)
        of_partitions = (self.low["partition"] <= last) & (self.high["partition"] >= first)
        in_range = self.low["base_offset"] < lookup.end
        if lookup.committed:
            in_range |= self.may_have_aborts & (self.low["first_offset"] < lookup.end)
        return of_topic & of_partitions & in_range & (self.high["last_offset"] >= lookup.start)


@dataclass(frozen=True)
class _IndexedFooter:
    """The footer of a Parquet file, with the value ranges of its row groups."""

    metadata: pq.FileMetaData
    ranges: _ValueRanges

    @classmethod
    def of(cls, metadata: pq.FileMetaData) -> _IndexedFooter:
        """Return the footer with the statistics of its row groups."""
        places = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
        groups: list[dict[str, Any]] = []
        for i in range(metadata.num_row_groups):
            group = metadata.row_group(i)
            bounds: dict[str, Any] = {}
            for name in ("kind", *_NUMBERS):
                statistics = group.column(places[name]).statistics
                if statistics is not None and statistics.has_min_max:
                    bounds |= {f"min.{name}": statistics.min, f"max.{name}": statistics.max}
            groups.append(bounds)
        return cls(metadata, _ValueRanges.of(groups))
