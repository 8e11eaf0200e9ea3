"""The journal's tail as a reader follows it: segments that came after the watermark it reads the tables at.

They are kept in few pieces, so that to look through thousands of steps costs about what it costs to look through ten.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...protocol.values.journal import Step
from ...protocol.values.topics import Topic
from .lookup import LOOKED_AT, Lookup, Numbers, looked_at

_MANY_PIECES = 16
"""Pieces of a step each that become one."""


class Overlay:
    """Of one load of a namespace; columns of LOOKED_AT."""

    def __init__(self) -> None:
        self._recent: list[pa.Table] = []
        self._joined: list[pa.Table] = []
        """Each twice as long as the next, at least: a segment is copied as often as its number has digits."""

    def add(self, steps: Iterable[Step]) -> None:
        """The segments of the next steps."""
        self._recent += [piece for piece in map(looked_at, steps) if piece.num_rows]
        if len(self._recent) < _MANY_PIECES:
            return
        joined, self._recent = pa.concat_tables(self._recent).combine_chunks(), []
        while self._joined and self._joined[-1].num_rows < 2 * joined.num_rows:
            joined = pa.concat_tables([self._joined.pop(), joined]).combine_chunks()
        self._joined.append(joined)

    def forget(self, step: int) -> None:
        """Segments up to this step are read elsewhere."""
        left = self._all().filter(pc.field("step") > step).combine_chunks()
        self._recent, self._joined = [], [left] if left.num_rows else []

    def find(self, lookup: Lookup) -> pa.Table:
        return lookup.among(self._all())

    def begins(self, topic: Topic) -> Numbers:
        """By partition of the topic, the offset of its first segment here; where there is none, its high watermark."""
        begins: Numbers = topic.high_watermarks.copy()
        segments = self._all()
        mine = np.flatnonzero(segments.column("topic_id").to_numpy() == topic.topic_id)
        partitions = segments.column("partition").to_numpy()[mine]
        np.minimum.at(begins, partitions, segments.column("base_offset").to_numpy()[mine])
        return begins

    def _all(self) -> pa.Table:
        return pa.concat_tables([LOOKED_AT.empty_table(), *self._joined, *self._recent])
