"""Look-ups of segments for a fetch, in the table and in the tail.

It needs all segments of its ranges, data and markers: together they have every offset, so that a lost one is noticed.
Committed reads also need the aborts behind the ranges, which may end transactions in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.segments import SEGMENT_SCHEMA, SEGMENTS

from ....protocol.values.journal import Step
from ....protocol.values.segments import segments_to_table

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NEVER = np.iinfo(np.int64).max

KINDS_WITH_OFFSETS = ("data", "commit", "abort")
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
        committed: also find aborts in these partitions, of transactions that begin before the last of the ranges ends.
            The marker of an abort comes after all messages that it aborts, so it may be behind the end of the range.
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


def filter_rows(segments: pa.Table, mask: Mask) -> pa.Table:
    """Return the rows of the mask. Nothing is copied if these are all rows, as in a fetch of a whole log."""
    return segments if mask.all() else segments.filter(pa.array(mask))


def is_kind(segments: pa.Table, kind: str) -> Mask:
    """Return a mask of the segments of this kind."""
    mask: Mask = pc.equal(segments.column("kind"), kind).to_numpy()
    return mask


def collect_segments(steps: Iterable[Step]) -> pa.Table:
    """Return the segments of steps with LOOKUP_SCHEMA. They are one table, which costs little more than one segment."""
    parts = [(step.step, entry.segments) for step in steps for entry in step.entries if len(entry.segments)]
    segments = segments_to_table(part for _, part in parts)
    numbers = [number for number, part in parts for _ in range(len(part))]
    columns = [segments.column(name) for name in LOOKUP_SCHEMA.names[1:]]
    return pa.table([pa.array(numbers, LOOKUP_SCHEMA.field(0).type), *columns], schema=LOOKUP_SCHEMA)
