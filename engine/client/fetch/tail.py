"""The tail: the segments and message rows of the steps after the watermark at which the tables are read.

Older segments of the tail are kept in few large pieces, so that looking through thousands of steps costs about as much
as looking through ten. The newest are kept one by one: a reader at the end of a log needs these alone, and Python has
looked through a few of them before an Arrow computation has even begun.

Message rows are kept until they are in their data file. Invariant: rows that the tail had when it was read are here,
or in the data file that their segment names.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.storage.object_stores.files import Files

from ...namespace.data_file import file_name
from ...protocol.codec.steps import decode_step_rows
from ...protocol.values.journal import Step
from ...protocol.values.log import RowsJournaled
from ...protocol.values.segments import Segments
from ...protocol.values.topics import Topic
from .lookup import KINDS_WITH_OFFSETS, LOOKUP_SCHEMA, Lookup, Numbers, collect_segments

_MANY_NEWEST = 128
"""How many segments are kept one by one. More become a piece."""

_KEY_COLUMNS = ("kind", "topic_id", "partition", "base_offset", "last_offset", "first_offset")
_OTHER_COLUMNS = tuple(LOOKUP_SCHEMA.names[1:])
_LOOKUP_ROW = pa.struct(list(LOOKUP_SCHEMA))


class _Newest(NamedTuple):
    """A segment that is kept by itself: its key columns, and where its other columns are."""

    kind: str
    topic_id: int
    partition: int
    base_offset: int
    last_offset: int
    first_offset: int | None
    segments: Segments
    row: int
    step: int


class TailSegments:
    """The segments of the steps in the tail."""

    def __init__(self) -> None:
        self._newest: list[_Newest] = []
        self._newest_steps: list[Step] = []
        self._joined: list[pa.Table] = []
        """Pieces, each at least twice as long as the next. So a segment is copied O(log n) times."""
        self._ends: dict[tuple[int, int], int] = {}
        """(topic_id, partition) -> the offset after the last segment of the pieces."""
        self._begins: dict[int, dict[int, int]] = {}
        """topic_id -> partition -> the offset of its first segment in the tail."""

    def add(self, steps: Iterable[Step]) -> None:
        """Add the segments of the next steps."""
        for step in steps:
            parts = [entry.segments for entry in step.entries if len(entry.segments)]
            if parts:
                self._newest_steps.append(step)
            if len(self._newest) + sum(map(len, parts)) > _MANY_NEWEST:
                self._join_newest()
                continue
            for segments in parts:
                keys = zip(*(segments.column(name) for name in _KEY_COLUMNS), strict=True)
                newest = [_Newest._make((*key, segments, row, step.step)) for row, key in enumerate(keys)]
                self._newest += newest
                for segment in newest:
                    self._note_begin(segment.topic_id, segment.partition, segment.base_offset)

    def _join_newest(self) -> None:
        """Make a piece of the newest segments, and join it with pieces that are not twice as long."""
        piece = collect_segments(self._newest_steps).combine_chunks()
        self._newest, self._newest_steps = [], []
        self._note_bounds(piece)
        while self._joined and self._joined[-1].num_rows < 2 * piece.num_rows:
            piece = pa.concat_tables([self._joined.pop(), piece]).combine_chunks()
        self._joined.append(piece)

    def _note_bounds(self, piece: pa.Table) -> None:
        columns = (piece.column(name).to_pylist() for name in ("topic_id", "partition", "base_offset", "last_offset"))
        for topic_id, partition, base, last in zip(*columns, strict=True):
            self._note_begin(topic_id, partition, base)
            self._ends[topic_id, partition] = max(self._ends.get((topic_id, partition), 0), last + 1)

    def _note_begin(self, topic_id: int, partition: int, offset: int) -> None:
        begins = self._begins.setdefault(topic_id, {})
        begins[partition] = min(begins.get(partition, offset), offset)

    def forget(self, step: int) -> None:
        """Drop the segments up to this step, which the table has from now on."""
        rest = self._all().filter(pc.field("step") > step).combine_chunks()
        self._newest, self._newest_steps, self._ends, self._begins = [], [], {}, {}
        self._joined = [rest] if rest.num_rows else []
        self._note_bounds(rest)

    def find(self, lookup: Lookup) -> pa.Table:
        """Return the segments of the tail that are looked up (LOOKUP_SCHEMA)."""
        ranges, topic_id = {range_.partition: range_ for range_ in lookup.ranges}, lookup.topic_id

        def matches(segment: _Newest) -> bool:
            range_ = ranges[segment.partition]
            if segment.base_offset < range_.end and segment.last_offset >= range_.start:
                return segment.kind in KINDS_WITH_OFFSETS
            began = segment.first_offset if segment.kind == "abort" else None
            return lookup.committed and began is not None and began < lookup.end

        newest = _to_table(
            [
                segment
                for segment in self._newest
                if segment.topic_id == topic_id and segment.partition in ranges and matches(segment)
            ]
        )
        # The pieces are before the ranges. An abort in them is so, too, and all that it aborts is before it.
        if all(range_.start >= self._ends.get((topic_id, range_.partition), 0) for range_ in lookup.ranges):
            return newest
        return pa.concat_tables([lookup.select_from(pa.concat_tables(self._joined)), newest])

    def find_begins(self, topic: Topic) -> Numbers:
        """Return the offset of the first segment in the tail by partition; its high watermark if there is none."""
        begins: Numbers = topic.high_watermarks.copy()
        for partition, offset in self._begins.get(topic.topic_id, {}).items():
            begins[partition] = min(begins[partition], offset)
        return begins

    def _all(self) -> pa.Table:
        return pa.concat_tables([*self._joined, collect_segments(self._newest_steps)])


def _to_table(segments: list[_Newest]) -> pa.Table:
    rows = [{"step": segment.step, **segment.segments.row(segment.row, _OTHER_COLUMNS)} for segment in segments]
    # An array of structs takes a third of the time of an array per column, of which there are many.
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(pa.array(rows, _LOOKUP_ROW))], LOOKUP_SCHEMA)


MOST_BYTES = 32 << 20
"""Bytes of rows above which those that are in their data file already are dropped. No leader lets more rows than this
wait for their files."""


@dataclass(frozen=True, eq=False)
class StepRows:
    """The rows of one step: `record_count` rows, which begin at row `first_row` of their file. body: as in the step."""

    first_row: int
    record_count: int
    body: bytes

    @cached_property
    def rows(self) -> pa.Table:
        """The rows as BODY_SCHEMA."""
        return decode_step_rows([self.body])


StepRowsByFile: TypeAlias = Mapping[int, Sequence[StepRows]]
"""file_id -> the rows of the steps that name the file, in the order of the steps."""


class TailRows:
    """The message rows of the steps in the tail, until they are in their data file."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._parts: dict[int, list[StepRows]] = {}
        self._last_steps: dict[int, int] = {}
        self._size_bytes = 0

    def add(self, steps: Iterable[Step]) -> None:
        """Add the rows of the next steps. Raises OSError: the store cannot say which files exist."""
        for step in steps:
            for entry in step.entries:
                record = entry.record
                if isinstance(record, RowsJournaled) and step.rows is not None:
                    part = StepRows(record.first_row, record.record_count, step.rows)
                    self._parts.setdefault(record.file_id, []).append(part)
                    self._last_steps[record.file_id] = step.step
                    self._size_bytes += len(step.rows)
        if self._size_bytes > MOST_BYTES:
            self._drop_written_files()

    def _drop_written_files(self) -> None:
        for file_id in list(self._parts):
            if self._size_bytes <= MOST_BYTES or self._files.size(file_name(file_id)) is None:
                return  # files are written in this order, so the others do not exist either
            self._drop(file_id)

    def forget(self, step: int) -> None:
        """Drop the rows of steps up to this watermark, which are in their files."""
        for file_id in [file_id for file_id, last_step in self._last_steps.items() if last_step <= step]:
            self._drop(file_id)

    def _drop(self, file_id: int) -> None:
        del self._last_steps[file_id]
        self._size_bytes -= sum(len(part.body) for part in self._parts.pop(file_id))

    def find_parts(self, segments: pa.Table) -> StepRowsByFile:
        """Return the parts with rows of these segments (columns file_id, footer_hash, first_row, record_count)."""
        parts_by_index: dict[int, dict[int, StepRows]] = {}
        footer_hashes = segments.column("footer_hash")
        all_pending = footer_hashes.null_count == segments.num_rows  # as at the end of a log
        pending = segments if all_pending else segments.filter(footer_hashes.is_null())
        columns = (pending.column(name).to_pylist() for name in ("file_id", "first_row", "record_count"))
        for file_id, first_row, count in zip(*columns, strict=True):
            parts = self._parts.get(file_id, ())
            i = max(0, bisect_right(parts, first_row, key=lambda part: part.first_row) - 1)
            while i < len(parts) and parts[i].first_row < first_row + count:
                parts_by_index.setdefault(file_id, {})[i] = parts[i]
                i += 1
        return {file_id: [parts[i] for i in sorted(parts)] for file_id, parts in parts_by_index.items()}
