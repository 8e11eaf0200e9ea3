"""The report of a flush: the records acknowledged since the last one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...protocol.values.log import Published


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
        return {place: (span.first_offset, span.last_offset) for place, span in self.spans.items()}


class FlushCounter:
    """Counts acknowledged records since the last flush: a few numbers per partition, however much was sent."""

    def __init__(self) -> None:
        self._spans: dict[tuple[str, int], AcknowledgedSpan] = {}
        self._rejected_count = self._waiting_count = 0

    def add(self, published: Published) -> None:
        self._rejected_count += published.rejected_count
        self._waiting_count += sum(unit.record_count for unit in published.waiting)
        for unit in published.units:
            place, last = (unit.topic, unit.partition), unit.base_offset + unit.record_count - 1
            self._spans[place] = AcknowledgedSpan(unit.base_offset, last, unit.record_count).merge(
                self._spans.get(place)
            )

    def take(self) -> FlushReport:
        """Return the counts, and begin at zero again."""
        report = FlushReport(self._spans, self._rejected_count, self._waiting_count)
        self._spans, self._rejected_count, self._waiting_count = {}, 0, 0
        return report
