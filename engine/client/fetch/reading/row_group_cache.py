"""Row groups that were read last: a consumer comes back for the rest of each with its next poll."""

from __future__ import annotations

import threading
from collections import OrderedDict

import pyarrow as pa

MOST_BYTES = 160 << 20
"""Room for two row groups of 64 MiB, because a poll may lie in two. Publishers write about half as much at a time."""


class RowGroupCache:
    """A cache of row groups of one consumer. The one that was used longest ago goes first. Thread-safe.

    A row group never changes, and its file is verified when it is read, so nothing here becomes stale.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._lock = threading.Lock()
        self._starts: dict[int, tuple[int, ...]] = {}
        self._groups: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()

    def row_group_starts(self, file_id: int) -> tuple[int, ...] | None:
        """Return the first row of each row group, and the end of the last; None: nothing of the file is cached."""
        return self._starts.get(file_id)

    def get(self, file_id: int, group: int) -> pa.Table | None:
        """Return a row group, if it is cached."""
        with self._lock:
            rows = self._groups.get((file_id, group))
            if rows is not None:
                self._groups.move_to_end((file_id, group))
            return rows

    def put(self, file_id: int, starts: tuple[int, ...], group: int, rows: pa.Table) -> None:
        """Cache a row group, unless it is larger than the whole cache. starts: as `row_group_starts` returns them."""
        with self._lock:
            if rows.nbytes > self._most_bytes or (file_id, group) in self._groups:
                return
            self._starts[file_id] = starts
            self._groups[file_id, group] = rows
            self._bytes += rows.nbytes
            while self._bytes > self._most_bytes:
                (oldest_file_id, _), table = self._groups.popitem(last=False)
                self._bytes -= table.nbytes
                if all(cached_file_id != oldest_file_id for cached_file_id, _ in self._groups):
                    del self._starts[oldest_file_id]
