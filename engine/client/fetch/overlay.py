"""The journal's tail as a reader follows it: segments that came after the watermark it reads the tables at.

They are kept in few pieces, so that to look through thousands of steps costs about what it costs to look through ten.
The newest are kept as they came: who follows the end of a log needs these alone, and to look through a few of them
takes less than Arrow takes to begin.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...protocol.values.journal import Step
from ...protocol.values.segments import Segments
from ...protocol.values.topics import Topic
from .lookup import LOOKED_AT, Lookup, Numbers, looked_at

_MANY_NEWEST = 128
"""Segments that are looked through one by one; more become a piece."""

_FOUND_BY = ("kind", "topic_id", "partition", "base_offset", "last_offset", "first_offset")


class _Newest(NamedTuple):
    """A segment as it came: what it is found by, and where the rest of it is."""

    kind: str
    topic_id: int
    partition: int
    base_offset: int
    last_offset: int
    first_offset: int | None
    segments: Segments
    row: int
    step: int


class Overlay:
    """Of one load of a namespace; columns of LOOKED_AT."""

    def __init__(self) -> None:
        self._newest: list[_Newest] = []
        self._newest_steps: list[Step] = []
        self._joined: list[pa.Table] = []
        """Each twice as long as the next, at least: a segment is copied as often as its number has digits."""
        self._ends: dict[tuple[int, int], int] = {}
        """(topic_id, partition) -> the offset after the last segment of the pieces."""
        self._begins: dict[int, dict[int, int]] = {}
        """topic_id -> partition -> the offset of its first segment."""

    def add(self, steps: Iterable[Step]) -> None:
        """The segments of the next steps."""
        for step in steps:
            found = [one.segments for one in step.entries if len(one.segments)]
            self._newest_steps += [step] if found else []
            if len(self._newest) + sum(map(len, found)) > _MANY_NEWEST:
                self._join()
                continue
            for segments in found:
                found_by = zip(*(segments.column(name) for name in _FOUND_BY), strict=True)
                mine = [_Newest._make((*by, segments, row, step.step)) for row, by in enumerate(found_by)]
                self._newest += mine
                for one in mine:
                    self._begins_at(one.topic_id, one.partition, one.base_offset)

    def _join(self) -> None:
        """What is newest becomes a piece."""
        joined = looked_at(self._newest_steps).combine_chunks()
        self._newest, self._newest_steps = [], []
        self._note(joined)
        while self._joined and self._joined[-1].num_rows < 2 * joined.num_rows:
            joined = pa.concat_tables([self._joined.pop(), joined]).combine_chunks()
        self._joined.append(joined)

    def _note(self, piece: pa.Table) -> None:
        columns = (piece.column(name).to_pylist() for name in ("topic_id", "partition", "base_offset", "last_offset"))
        for topic_id, partition, base, last in zip(*columns, strict=True):
            self._begins_at(topic_id, partition, base)
            self._ends[topic_id, partition] = max(self._ends.get((topic_id, partition), 0), last + 1)

    def _begins_at(self, topic_id: int, partition: int, offset: int) -> None:
        begins = self._begins.setdefault(topic_id, {})
        begins[partition] = min(begins.get(partition, offset), offset)

    def forget(self, step: int) -> None:
        """Segments up to this step are read elsewhere."""
        left = self._all().filter(pc.field("step") > step).combine_chunks()
        self._newest, self._newest_steps, self._ends, self._begins = [], [], {}, {}
        self._joined = [left] if left.num_rows else []
        self._note(left)

    def find(self, lookup: Lookup) -> pa.Table:
        ranges, topic_id = {r.partition: r for r in lookup.ranges}, lookup.topic_id

        def is_wanted(one: _Newest) -> bool:
            mine = ranges.get(one.partition)
            if one.topic_id != topic_id or mine is None:
                return False
            if one.kind == "data":
                return one.base_offset < mine.end and one.last_offset >= mine.start
            began = one.first_offset if one.kind == "abort" else None
            return lookup.committed and began is not None and began < lookup.end

        newest = _table([one for one in self._newest if is_wanted(one)])
        # a marker comes after all that it ends
        if all(r.start >= self._ends.get((topic_id, r.partition), 0) for r in lookup.ranges):
            return newest
        return pa.concat_tables([lookup.among(pa.concat_tables(self._joined)), newest])

    def begins(self, topic: Topic) -> Numbers:
        """By partition of the topic, the offset of its first segment here; where there is none, its high watermark."""
        begins: Numbers = topic.high_watermarks.copy()
        for partition, offset in self._begins.get(topic.topic_id, {}).items():
            begins[partition] = min(begins[partition], offset)
        return begins

    def _all(self) -> pa.Table:
        return pa.concat_tables([*self._joined, looked_at(self._newest_steps)])


def _table(chosen: list[_Newest]) -> pa.Table:
    steps = pa.array([one.step for one in chosen], LOOKED_AT.field(0).type)
    rest = [pa.array([one.segments.column(f.name)[one.row] for one in chosen], f.type) for f in list(LOOKED_AT)[1:]]
    return pa.Table.from_arrays([steps, *rest], schema=LOOKED_AT)
