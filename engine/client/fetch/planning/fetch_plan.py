"""The plan of a fetch. It is apart from planning, because Spark's executors read by it and have no Delta library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from ..lookup.lookup import OffsetRange
    from ..lookup.tail import StepRowsByFile

Isolation = Literal["read_committed", "read_uncommitted"]


@dataclass(frozen=True)
class FetchPlan:
    """The rows that a fetch reads, as of one step.

    Attributes:
        segments: row ranges of data files (PLAN_SCHEMA), by partition and offset.
        ranges: the offsets that were asked for.
        step_rows: rows of the segments that are in steps, and may not be in a data file yet.
        now_ms: messages that have expired by this time are not shown; None: all are shown.
    """

    topic: str
    topic_id: int
    step: int
    segments: pa.Table
    ranges: tuple[OffsetRange, ...]
    step_rows: StepRowsByFile
    isolation: Isolation
    now_ms: int | None = None

    @property
    def expirable(self) -> pa.Table:
        """The segments that have messages with a time to live."""
        if self.now_ms is None:
            return self.segments.slice(0, 0)
        return self.segments.filter(pc.is_valid(self.segments.column("ttl_from_ms")))

    @property
    def record_count(self) -> int:
        """The number of messages, including those that have expired."""
        return sum(self.segments.column("record_count").to_pylist())
