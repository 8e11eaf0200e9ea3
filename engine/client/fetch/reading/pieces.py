"""A fetch in pieces of bounded size, for callers that pass messages on instead of keeping them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....namespace.data_file import ROW_GROUP_ROWS
from ..planning.fetch_plan import FetchPlan

FIRST_ROWS = 64
MAX_ROWS = 1 << 18


def read_in_pieces(
    read: Callable[[FetchPlan], pa.Table], plan: FetchPlan, limit: int | None, target_bytes: int
) -> Iterator[pa.Table]:
    """Yield the messages of a plan in order.

    Besides a piece, only the row groups in which it lies are in memory. Publishers keep these small.

    Args:
        read: reads all messages of a plan.
        plan: what to read.
        limit: the most messages; None: all.
        target_bytes: about the size of a table.
    """
    total = plan.record_count
    remaining = total if limit is None else limit
    may_expire = plan.expirable.num_rows > 0  # then the next visible messages may be far away
    ends = np.cumsum(plan.segments.column("record_count").to_numpy())
    first, rows = 0, FIRST_ROWS
    while first < total and remaining > 0:
        furthest = min(total, first + (max(remaining, rows) if may_expire else remaining))
        last = _find_read_end(ends, first, min(first + rows, furthest), furthest)
        table = read(slice_plan(plan, ends, first, last)).slice(0, remaining)
        remaining -= table.num_rows
        first, rows = last, min(MAX_ROWS, rows * 4)
        if table.num_rows:  # else all have expired
            # The size of the rows that were read tells how many make a piece, and how many to read next.
            piece_rows = max(1, target_bytes * table.num_rows // max(table.nbytes, 1))
            for begin in range(0, table.num_rows, piece_rows):
                yield table.slice(begin, piece_rows)
            rows = min(rows, piece_rows)


def _find_read_end(ends: npt.NDArray[np.int64], first: int, target: int, total: int) -> int:
    """Return where a read from `first` should end: with a segment near `target`, if possible.

    To read a part of a segment costs its whole row group, and the next read would cost it again.
    """
    index = int(np.searchsorted(ends, target, side="right"))
    if index and ends[index - 1] > first:
        return int(ends[index - 1])
    return min(int(ends[index]), first + ROW_GROUP_ROWS, total)


def slice_plan(plan: FetchPlan, ends: npt.NDArray[np.int64], first: int, last: int) -> FetchPlan:
    """Return the plan of the messages first <= number < last, counted from 0.

    Args:
        plan: the whole plan.
        ends: running sum of the record counts of its segments.
        first, last: numbers of messages.
    """
    low = int(np.searchsorted(ends, first, side="right"))
    high = int(np.searchsorted(ends, last, side="left"))
    part = plan.segments.slice(low, high - low + 1)
    count = part.column("record_count").to_numpy().copy()
    skipped = np.zeros_like(count)
    skipped[0] = first - (int(ends[low]) - int(count[0]))
    count -= skipped
    count[-1] -= int(ends[high]) - last
    base = part.column("base_offset").to_numpy() + skipped
    changes = {
        "source_offset": pc.add(part.column("source_offset"), pa.array(skipped)),
        "base_offset": pa.array(base),
        "first_row": pa.array(part.column("first_row").to_numpy() + skipped),
        "record_count": pa.array(count),
        "last_offset": pa.array(base + count - 1),
    }
    for name, column in changes.items():
        part = part.set_column(part.column_names.index(name), name, column)
    return dataclasses.replace(plan, segments=part)
