"""Changelogs: append-only tables in which the newest row of a key is its state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def newest(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Per key the row with the highest step, in order of step; of equal steps, the later row."""
    if rows.num_rows == 0:
        return rows
    ordered = rows.take(_stable_order(rows.column("step")))
    numbered = ordered.select(list(keys)).append_column("row", pa.array(np.arange(ordered.num_rows)))
    last = numbered.group_by(list(keys)).aggregate([("row", "max")])
    return ordered.take(pa.array(np.sort(last.column("row_max").to_numpy())))


def _stable_order(steps: pa.ChunkedArray) -> pa.Array:
    return pa.array(np.argsort(steps.to_numpy(), kind="stable"))
