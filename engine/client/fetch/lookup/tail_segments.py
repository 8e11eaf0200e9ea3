"""The segments of the journal's tail: those that came after the watermark at which the tables are read.

Older segments of the tail are kept in few large pieces, so that looking through thousands of steps costs about as much
as looking through ten. The newest are kept one by one: a reader at the end of a log needs these alone, and Python has
looked through a few of them before an Arrow computation has even begun.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ....protocol.values.journal import Step
from ....protocol.values.segments import Segments
from ....protocol.values.topics import Topic
from .lookup import LOOKUP_SCHEMA, Lookup, Numbers, segments_of_steps

_MANY_NEWEST = 128
"""How many segments are kept one by one. More become a piece."""

_KEY_COLUMNS = ("kind", "topic_id", "partition", "base_offset", "last_offset", "first_offset")
_OTHER_COLUMNS = LOOKUP_SCHEMA.names[1:]


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
    """The tail of one load of a namespace, and of the steps that were followed since."""

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
        piece = segments_of_steps(self._newest_steps).combine_chunks()
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
            range_ = ranges.get(segment.partition)
            if segment.topic_id != topic_id or range_ is None:
                return False
            if segment.kind == "data":
                return segment.base_offset < range_.end and segment.last_offset >= range_.start
            began = segment.first_offset if segment.kind == "abort" else None
            return lookup.committed and began is not None and began < lookup.end

        newest = _to_table([segment for segment in self._newest if matches(segment)])
        # The pieces are before the ranges. An abort in them is so, too, and all that it aborts is before it.
        if all(range_.start >= self._ends.get((topic_id, range_.partition), 0) for range_ in lookup.ranges):
            return newest
        return pa.concat_tables([lookup.select_from(pa.concat_tables(self._joined)), newest])

    def begins(self, topic: Topic) -> Numbers:
        """Return the offset of the first segment in the tail by partition; its high watermark if there is none."""
        begins: Numbers = topic.high_watermarks.copy()
        for partition, offset in self._begins.get(topic.topic_id, {}).items():
            begins[partition] = min(begins[partition], offset)
        return begins

    def _all(self) -> pa.Table:
        return pa.concat_tables([*self._joined, segments_of_steps(self._newest_steps)])


def _to_table(segments: list[_Newest]) -> pa.Table:
    rows = [[segment.step, *segment.segments.row(segment.row, _OTHER_COLUMNS)] for segment in segments]
    columns = zip(*rows, strict=True) if rows else [()] * len(LOOKUP_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, LOOKUP_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=LOOKUP_SCHEMA)
