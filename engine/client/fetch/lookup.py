"""What a fetch looks for among segments, wherever these are: its ranges, and aborts that may end what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.segments import SEGMENT_SCHEMA, SEGMENTS

from ...protocol.values.journal import Step
from ...protocol.values.segments import table_of

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NEVER = np.iinfo(np.int64).max

PLANNED: pa.Schema = pa.schema(
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
"""What a fetch needs of a segment; the rest of them is not read."""

LOOKED_AT: pa.Schema = pa.schema(
    [SEGMENTS.stored_schema.field(name) for name in ("step", "kind", "topic_id", "first_offset")] + list(PLANNED)
)
"""What segments are found by, and PLANNED."""


@dataclass(frozen=True)
class OffsetRange:
    """Offsets start <= offset < end of a partition."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class Lookup:
    """Data segments of a topic that share an offset with one of the ranges (at least one, each of another partition).

    committed: also aborts in these partitions, of transactions that begin before the last of the ranges ends. A marker
    comes after all that it ends, maybe after the end of the range.
    """

    topic_id: int
    ranges: Sequence[OffsetRange]
    committed: bool

    @cached_property
    def partitions(self) -> tuple[int, int]:
        """The lowest and the highest."""
        return min(r.partition for r in self.ranges), max(r.partition for r in self.ranges)

    @cached_property
    def start(self) -> int:
        return min(r.start for r in self.ranges)

    @cached_property
    def end(self) -> int:
        return max(r.end for r in self.ranges)

    @cached_property
    def _bounds(self) -> tuple[Numbers, Numbers]:
        """By partition its start and end; for one without a range, such that nothing is between them."""
        starts, ends = np.full(self.partitions[1] + 2, _NEVER), np.full(self.partitions[1] + 2, -1)
        for one in self.ranges:
            starts[one.partition], ends[one.partition] = one.start, one.end
        return starts, ends

    def among(self, segments: pa.Table) -> pa.Table:
        """Those of these segments, columns of LOOKED_AT."""
        found = chosen(segments, segments.column("topic_id").to_numpy() == self.topic_id)
        return chosen(found, self._is_wanted(found))

    def _is_wanted(self, segments: pa.Table) -> Mask:
        starts, ends = self._bounds
        partitions = np.minimum(segments.column("partition").to_numpy(), len(starts) - 1)
        base, last = segments.column("base_offset").to_numpy(), segments.column("last_offset").to_numpy()
        wanted: Mask = (base < ends[partitions]) & (last >= starts[partitions]) & is_kind(segments, "data")
        if self.committed and (aborts := is_kind(segments, "abort")).any():
            begins = pc.fill_null(segments.column("first_offset"), _NEVER).to_numpy()
            wanted |= aborts & (starts[partitions] != _NEVER) & (begins < self.end)
        return wanted

    def expression(self) -> pc.Expression:
        """The same and some more, for who scans files."""
        low, high = self.partitions
        of_these = (pc.field("partition") >= low) & (pc.field("partition") <= high)
        in_range = (pc.field("base_offset") < self.end) | (pc.field("kind") == "abort")
        return (pc.field("topic_id") == self.topic_id) & of_these & (pc.field("last_offset") >= self.start) & in_range


def chosen(segments: pa.Table, mask: Mask) -> pa.Table:
    """Those of the mask; where that is all, as it is in a fetch of a whole log, nothing is copied."""
    return segments if mask.all() else segments.filter(pa.array(mask))


def is_kind(segments: pa.Table, kind: str) -> Mask:
    mask: Mask = pc.equal(segments.column("kind"), kind).to_numpy()
    return mask


def looked_at(steps: Iterable[Step]) -> pa.Table:
    """The segments of steps, columns of LOOKED_AT: one table of all takes little more than of one."""
    parts = [(step.step, one.segments) for step in steps for one in step.entries if len(one.segments)]
    segments = table_of(part for _, part in parts)
    numbers = [number for number, part in parts for _ in range(len(part))]
    columns = [segments.column(name) for name in LOOKED_AT.names[1:]]
    return pa.table([pa.array(numbers, LOOKED_AT.field(0).type), *columns], schema=LOOKED_AT)
