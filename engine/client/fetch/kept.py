"""Row groups that were read last: a consumer comes back for the rest of each with its next poll."""

from __future__ import annotations

import threading
from collections import OrderedDict

import pyarrow as pa

MOST_BYTES = 160 << 20
"""Two of the largest that publishers write, of 64 MiB of rows: where one ends, a poll lies in it and in the next."""


class KeptRows:
    """Of one consumer; at most so many bytes, the group that was used longest ago goes first. Thread-safe.

    A row group never changes: its file is verified when it is read.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._lock = threading.Lock()
        self._starts: dict[int, tuple[int, ...]] = {}
        self._groups: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()

    def starts(self, file_id: int) -> tuple[int, ...] | None:
        """Where the file's row groups begin, and where the last one ends; None: nothing of it is kept."""
        return self._starts.get(file_id)

    def get(self, file_id: int, group: int) -> pa.Table | None:
        with self._lock:
            found = self._groups.get((file_id, group))
            if found is not None:
                self._groups.move_to_end((file_id, group))
            return found

    def put(self, file_id: int, starts: tuple[int, ...], group: int, rows: pa.Table) -> None:
        """One that is larger than all that is kept is not."""
        with self._lock:
            if rows.nbytes > self._most_bytes or (file_id, group) in self._groups:
                return
            self._starts[file_id] = starts
            self._groups[file_id, group] = rows
            self._bytes += rows.nbytes
            while self._bytes > self._most_bytes:
                (gone, _), table = self._groups.popitem(last=False)
                self._bytes -= table.nbytes
                if all(kept != gone for kept, _ in self._groups):
                    del self._starts[gone]
