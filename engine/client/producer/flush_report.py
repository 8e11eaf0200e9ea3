"""The report of a flush: the records acknowledged since the last one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class AcknowledgedSpan(NamedTuple):
    """Acknowledged records of one partition. Other producers may have published between its offsets."""

    first_offset: int
    last_offset: int
    record_count: int

    def merge(self, other: AcknowledgedSpan | None) -> AcknowledgedSpan:
        """Return one span over both. None stands for a span without records."""
        if other is None:
            return self
        first, last = min(self.first_offset, other.first_offset), max(self.last_offset, other.last_offset)
        return AcknowledgedSpan(first, last, self.record_count + other.record_count)


@dataclass(frozen=True)
class FlushReport:
    """The records acknowledged since the last flush.

    Attributes:
        spans: (topic, partition) -> the acknowledged records.
        rejected_count: rows that could not be messages.
        waiting_count: rows that wait for their time of delivery.
    """

    spans: Mapping[tuple[str, int], AcknowledgedSpan]
    rejected_count: int
    waiting_count: int = 0

    def offsets(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return (topic, partition) -> first and last acknowledged offset."""
        return {tp: (span.first_offset, span.last_offset) for tp, span in self.spans.items()}
