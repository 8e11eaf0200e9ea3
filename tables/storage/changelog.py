"""Changelogs: append-only tables in which the newest row of a key is its state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def newest(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Per key the row with the highest step, in order of step; of equal steps, the later row."""
    if rows.num_rows == 0:
        return rows
    ordered = _in_order(rows)
    numbered = ordered.select(list(keys)).append_column("row", pa.array(np.arange(ordered.num_rows)))
    last = numbered.group_by(list(keys)).aggregate([("row", "max")])
    if last.num_rows == ordered.num_rows:  # what is large has been merged: to take all of it would cost as much again
        return ordered
    return ordered.take(pa.array(np.sort(last.column("row_max").to_numpy())))


def _in_order(rows: pa.Table) -> pa.Table:
    """Of steps; of equal ones as they come."""
    steps = rows.column("step").to_numpy()
    return rows if (steps[1:] >= steps[:-1]).all() else rows.take(pa.array(np.argsort(steps, kind="stable")))
