"""Filters of a query on topic, partition, offset and timestamp: they skip ranges. Spark still checks each row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from ..arguments import to_microseconds

_LOWEST, _HIGHEST = -(2**62), 2**62


@dataclass
class PushedFilters:
    """Bounds for rows that pass the filters, both ends included. topics: None is all."""

    topics: frozenset[str] | None = None
    partition: tuple[int, int] = (_LOWEST, _HIGHEST)
    offset: tuple[int, int] = (_LOWEST, _HIGHEST)
    timestamp_us: tuple[int, int] = (_LOWEST, _HIGHEST)

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> PushedFilters:
        """Combine filters. Filters of other kinds are ignored."""
        bounds = cls()
        for filter_ in filters:
            bounds._add(filter_)
        return bounds

    def _add(self, filter_: Filter) -> None:
        path: tuple[str, ...] = getattr(filter_, "attribute", ())
        name = path[0] if len(path) == 1 else ""
        if name == "topic":
            self._add_topics(filter_)
        elif name in ("partition", "offset", "timestamp") and (bounds := _find_bounds(filter_)) is not None:
            field = "timestamp_us" if name == "timestamp" else name
            low, high = getattr(self, field)
            setattr(self, field, (max(low, bounds[0]), min(high, bounds[1])))

    def _add_topics(self, filter_: Filter) -> None:
        if isinstance(filter_, EqualTo | EqualNullSafe | In):
            values = filter_.value if isinstance(filter_, In) else (filter_.value,)
            topics = frozenset(value for value in values if isinstance(value, str))
            self.topics = topics if self.topics is None else self.topics & topics

    def has_topic(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics

    def clip_range(self, partition: int, start: int, end: int) -> tuple[int, int]:
        """Return the part of start <= offset < end that may pass."""
        if not self.partition[0] <= partition <= self.partition[1]:
            return start, start
        first = min(max(start, self.offset[0]), end)
        return first, max(first, min(end, self.offset[1] + 1))

    def select_segments(self, segments: pa.Table) -> pa.Table:
        """Return the segments, columns of PLAN_SCHEMA, that may have messages of these times."""
        if self.timestamp_us == (_LOWEST, _HIGHEST):
            return segments
        # a timestamp by the sequencer replaces the message's own; bounds are whole milliseconds, rounded down
        appended = segments.column("append_time_ms")
        first_ms = pc.coalesce(appended, segments.column("min_timestamp_ms")).to_numpy()
        last_ms = pc.coalesce(appended, segments.column("max_timestamp_ms")).to_numpy()
        low, high = (bound // 1000 for bound in self.timestamp_us)
        may_have = (last_ms >= np.int64(low)) & (first_ms <= np.int64(high))
        return segments if may_have.all() else segments.filter(pa.array(may_have))


def _find_bounds(filter_: Filter) -> tuple[int, int] | None:
    """Return the least and greatest value that passes. None: unknown."""
    if isinstance(filter_, In):
        values = [_to_number(value) for value in filter_.value]
        numbers = [value for value in values if value is not None]
        return (min(numbers), max(numbers)) if numbers and len(numbers) == len(values) else None
    value = _to_number(getattr(filter_, "value", None))
    if value is None:
        return None
    if isinstance(filter_, EqualTo | EqualNullSafe):
        return value, value
    if isinstance(filter_, GreaterThan | GreaterThanOrEqual):
        return value + isinstance(filter_, GreaterThan), _HIGHEST
    if isinstance(filter_, LessThan | LessThanOrEqual):
        return _LOWEST, value - isinstance(filter_, LessThan)
    return None


def _to_number(value: Any) -> int | None:
    if isinstance(value, datetime):
        return to_microseconds(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
