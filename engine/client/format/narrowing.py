"""Filters of a query on topic, partition, offset and timestamp: they leave ranges out; Spark still looks at rows."""

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

from ..arguments import microseconds

_LOWEST, _HIGHEST = -(2**62), 2**62


@dataclass
class Narrowing:
    """What rows can be of that pass; bounds are included. `topics`: None is all."""

    topics: frozenset[str] | None = None
    partition: tuple[int, int] = (_LOWEST, _HIGHEST)
    offset: tuple[int, int] = (_LOWEST, _HIGHEST)
    timestamp_us: tuple[int, int] = (_LOWEST, _HIGHEST)

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Narrowing:
        """Filters that say something else say nothing here."""
        found = cls()
        for one in filters:
            found._add(one)
        return found

    def _add(self, one: Filter) -> None:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        name = path[0] if len(path) == 1 else ""
        if name == "topic":
            self._add_topics(one)
        elif name in ("partition", "offset", "timestamp") and (bounds := _bounds(one)) is not None:
            field = "timestamp_us" if name == "timestamp" else name
            low, high = getattr(self, field)
            setattr(self, field, (max(low, bounds[0]), min(high, bounds[1])))

    def _add_topics(self, one: Filter) -> None:
        if isinstance(one, EqualTo | EqualNullSafe | In):
            values = one.value if isinstance(one, In) else (one.value,)
            mine = frozenset(value for value in values if isinstance(value, str))
            self.topics = mine if self.topics is None else self.topics & mine

    def has_topic(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics

    def range_of(self, partition: int, start: int, end: int) -> tuple[int, int]:
        """What is left of the offsets start <= offset < end of a partition."""
        if not self.partition[0] <= partition <= self.partition[1]:
            return start, start
        first = min(max(start, self.offset[0]), end)
        return first, max(first, min(end, self.offset[1] + 1))

    def among(self, segments: pa.Table) -> pa.Table:
        """Those of the segments, columns of PLANNED, that may have messages of such times."""
        if self.timestamp_us == (_LOWEST, _HIGHEST):
            return segments
        # what the sequencer stamped is what is shown; bounds are whole milliseconds, rounded down
        appended = segments.column("append_time_ms")
        first_ms = pc.coalesce(appended, segments.column("min_timestamp_ms")).to_numpy()
        last_ms = pc.coalesce(appended, segments.column("max_timestamp_ms")).to_numpy()
        low, high = (bound // 1000 for bound in self.timestamp_us)
        may_have = (last_ms >= np.int64(low)) & (first_ms <= np.int64(high))
        return segments if may_have.all() else segments.filter(pa.array(may_have))


def _bounds(one: Filter) -> tuple[int, int] | None:
    """The least and the greatest value that passes; None: it is not known."""
    if isinstance(one, In):
        values = [_number(value) for value in one.value]
        known = [value for value in values if value is not None]
        return (min(known), max(known)) if known and len(known) == len(values) else None
    value = _number(getattr(one, "value", None))
    if value is None:
        return None
    if isinstance(one, EqualTo | EqualNullSafe):
        return value, value
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return value + isinstance(one, GreaterThan), _HIGHEST
    if isinstance(one, LessThan | LessThanOrEqual):
        return _LOWEST, value - isinstance(one, LessThan)
    return None


def _number(value: Any) -> int | None:
    if isinstance(value, datetime):
        return microseconds(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
