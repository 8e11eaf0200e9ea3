"""Changelogs: append-only tables in which the newest row of a key is its state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def select_newest(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the row with the highest step per key, in order of step; of equal steps, the later row."""
    if rows.num_rows == 0:
        return rows
    ordered = _in_order(rows)
    numbered = ordered.select(list(keys)).append_column("row", pa.array(np.arange(ordered.num_rows)))
    last = numbered.group_by(list(keys)).aggregate([("row", "max")])
    if last.num_rows == ordered.num_rows:  # large tables are merged and mostly unique: avoid copying all rows
        return ordered
    return ordered.take(pa.array(np.sort(last.column("row_max").to_numpy())))


def _in_order(rows: pa.Table) -> pa.Table:
    """Sort the rows by step, stably."""
    steps = rows.column("step").to_numpy()
    return rows if (steps[1:] >= steps[:-1]).all() else rows.take(pa.array(np.argsort(steps, kind="stable")))
