"""A fetch in pieces of bounded size, for whoever passes messages on instead of keeping them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...namespace.data_file import ROW_GROUP_ROWS
from .fetch_plan import FetchPlan

FIRST_ROWS = 64
MAX_ROWS = 1 << 18


def pieces(
    read: Callable[[FetchPlan], pa.Table], plan: FetchPlan, limit: int | None, target_bytes: int
) -> Iterator[pa.Table]:
    """The messages of a plan in order, at most `limit` of them, in tables of about `target_bytes`.

    read: all messages of a plan. Held are the row groups that a piece lies in, which whoever wrote them kept small.
    """
    total = plan.record_count
    left = total if limit is None else limit
    may_expire = plan.expirable.num_rows > 0  # then as many as are left may be far away
    ends = np.cumsum(plan.segments.column("record_count").to_numpy())
    first, rows = 0, FIRST_ROWS
    while first < total and left > 0:
        most = min(total, first + (max(left, rows) if may_expire else left))
        last = _end_of_read(ends, first, min(first + rows, most), most)
        table = read(cut(plan, ends, first, last)).slice(0, left)
        left -= table.num_rows
        first, rows = last, min(MAX_ROWS, rows * 4)
        if table.num_rows:  # else all has expired
            # how many rows make so many bytes is learnt from what was read
            wanted = max(1, target_bytes * table.num_rows // max(table.nbytes, 1))
            for at in range(0, table.num_rows, wanted):
                yield table.slice(at, wanted)
            rows = min(rows, wanted)


def _end_of_read(ends: npt.NDArray[np.int64], first: int, wanted: int, total: int) -> int:
    """Where a read from `first` best ends: with a segment, as to read a part costs its whole row group anew."""
    within = int(np.searchsorted(ends, wanted, side="right"))
    if within and ends[within - 1] > first:
        return int(ends[within - 1])
    return min(int(ends[within]), first + ROW_GROUP_ROWS, total)


def cut(plan: FetchPlan, ends: npt.NDArray[np.int64], first: int, last: int) -> FetchPlan:
    """The plan of its messages first <= number < last, counted from 0."""
    low = int(np.searchsorted(ends, first, side="right"))
    high = int(np.searchsorted(ends, last, side="left"))
    part = plan.segments.slice(low, high - low + 1)
    count = part.column("record_count").to_numpy().copy()
    skipped = np.zeros_like(count)
    skipped[0] = first - (int(ends[low]) - int(count[0]))
    count -= skipped
    count[-1] -= int(ends[high]) - last
    base = part.column("base_offset").to_numpy() + skipped
    changed = {
        "source_offset": pc.add(part.column("source_offset"), pa.array(skipped)),
        "base_offset": pa.array(base),
        "first_row": pa.array(part.column("first_row").to_numpy() + skipped),
        "record_count": pa.array(count),
        "last_offset": pa.array(base + count - 1),
    }
    for name, column in changed.items():
        part = part.set_column(part.column_names.index(name), name, column)
    return dataclasses.replace(plan, segments=part)
