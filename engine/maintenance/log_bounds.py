"""The counts, rates and times of the view `topic_stats`: two segments become one only if these stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.storage.delta.store import TableHandle
from lakemq.tables.views.topics import RATE_MS

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class LogBounds:
    """How far each log reaches, as `topic_stats` sees it: the log start per partition, the newest message per topic."""

    READ = ("kind", "topic_id", "partition", "base_offset", "last_offset", "max_timestamp_ms")
    """The columns of `segments` that the bounds follow from."""

    def __init__(self, parts: Callable[[], Iterable[pa.Table]]) -> None:
        """parts: returns all rows of `segments`, columns of READ, in any number of tables. Called twice."""
        self._log_starts: dict[tuple[int, int], int] = {}
        self._newest_ms: dict[int, int] = {}
        for part in parts():
            cuts = part.filter(pc.equal(part.column("kind"), "log_start"))
            for topic_id, partition, offset in _values(cuts, "topic_id", "partition", "base_offset"):
                self._log_starts[topic_id, partition] = max(offset, self._log_starts.get((topic_id, partition), 0))
        for part in parts():
            data = part.filter(pc.equal(part.column("kind"), "data"))
            live = data.filter(pa.array(~self._mask_deleted_rows(data)))
            newest = live.group_by("topic_id").aggregate([("max_timestamp_ms", "max")])
            for topic_id, newest_ms in _values(newest, "topic_id", "max_timestamp_ms_max"):
                self._newest_ms[topic_id] = max(newest_ms, self._newest_ms.get(topic_id, newest_ms))

    def have_same_figures(self, segments: pa.Table) -> Mask:
        """Return for each data segment but the first whether it and the one before it may be counted as one.

        They may if both are deleted, both lie before the last RATE_MS of their topic, or both lie within them.
        `topic_stats` then shows the same count, rate and times for one segment as for the two.
        """
        topic_ids = segments.column("topic_id").to_pylist()
        since_ms = np.array([self._newest_ms.get(topic_id, 0) - RATE_MS for topic_id in topic_ids], np.int64)
        first_ms, last_ms = (_numbers(segments, f"{bound}_timestamp_ms") for bound in ("min", "max"))
        place = np.select([self._mask_deleted_rows(segments), last_ms <= since_ms, first_ms > since_ms], [0, 1, 2], -1)
        same: Mask = (place[1:] == place[:-1]) & (place[1:] >= 0)
        return same

    def _mask_deleted_rows(self, segments: pa.Table) -> Mask:
        log_starts = [self._log_starts.get(key, 0) for key in _values(segments, "topic_id", "partition")]
        deleted: Mask = _numbers(segments, "last_offset") < np.array(log_starts, np.int64)
        return deleted


def _values(rows: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows.column(name).to_pylist() for name in names), strict=True)


def _numbers(rows: pa.Table, name: str) -> Numbers:
    numbers: Numbers = rows.column(name).fill_null(0).to_numpy()
    return numbers


def read_log_bounds(segments: TableHandle) -> LogBounds:
    """Read the bounds of all logs, one file of `segments` at a time."""
    return LogBounds(lambda: (segments.read(list(LogBounds.READ), files=[file]) for file in segments.files()))
