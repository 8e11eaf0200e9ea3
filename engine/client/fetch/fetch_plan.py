"""A plan of a fetch, apart from planning: executors read by it, which have no Delta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from .held import Held
    from .lookup import OffsetRange

Isolation = Literal["read_committed", "read_uncommitted"]


@dataclass(frozen=True)
class FetchPlan:
    """Row ranges in the order of partition and offset (columns of PLANNED), as of one step.

    held: of rows that are not in a data file yet, as they ride in the journal; now_ms: what has expired by then is
    passed over, None: nothing is.
    """

    topic: str
    topic_id: int
    step: int
    segments: pa.Table
    ranges: tuple[OffsetRange, ...]
    held: Held
    isolation: Isolation
    now_ms: int | None = None

    @property
    def expirable(self) -> pa.Table:
        """Those of its segments some of whose messages may have expired."""
        if self.now_ms is None:
            return self.segments.slice(0, 0)
        return self.segments.filter(pc.is_valid(self.segments.column("ttl_from_ms")))

    @property
    def record_count(self) -> int:
        """Number of messages, with those that have expired."""
        return sum(self.segments.column("record_count").to_pylist())
