"""Read `delayed` at the start of a term.

It may have millions of rows, so read them piece by piece, and most only once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lakemq.tables.specs.delayed import DELAYED
from lakemq.tables.storage.changelog import select_newest
from lakemq.tables.storage.store import TableHandle

from ..protocol.projection import RESTORED_COLUMNS
from ..protocol.values.packed import KEY, Hashes, hash_keys


def read_waiting(handle: TableHandle, step: int) -> Iterator[pa.Table]:
    """Yield tables with the newest row of each range that waits at this step.

    Almost every range has one row. So first read hashes of the keys, and compare only rows that share a hash.
    """
    if not handle.files():
        return
    dataset, is_then = handle.dataset(), pc.field("step") <= step
    there, gone = is_then & ~pc.field("removed"), is_then & pc.field("removed")
    hashes, file_ids = _read_hashes(dataset, there)
    if not len(hashes):
        return
    # rows of ended ranges stay for days, and may be many times as many
    gone &= pc.field("file_id").isin(pa.array(file_ids))
    contested = _find_shared_hashes(hashes, _read_hashes(dataset, gone)[0])
    del hashes, file_ids
    several: list[pa.Table] = []
    for rows in _yield_row_groups(dataset, there, [*RESTORED_COLUMNS, "step", "removed"]):
        is_contested = _is_in(_hashes_of(rows), contested)
        if is_contested.any():
            several.append(rows.filter(pa.array(is_contested)))
            rows = rows.filter(pa.array(~is_contested))
        yield DELAYED.validate(rows)
    if len(contested):
        for rows in _yield_row_groups(dataset, gone, [*RESTORED_COLUMNS, "step", "removed"]):
            several.append(rows.filter(pa.array(_is_in(_hashes_of(rows), contested))))
        rows = select_newest(DELAYED.validate(pa.concat_tables(several)), DELAYED.keys)
        yield rows.filter(~pc.field("removed"))


def _find_shared_hashes(there: Hashes, gone: Hashes) -> Hashes:
    """Return the hashes that occur in more than one row, sorted."""
    there.sort()
    repeated = there[1:][there[1:] == there[:-1]]
    return np.unique(np.concatenate([repeated, gone[_is_in(gone, there)]]))


def _is_in(hashes: Hashes, sorted_hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Return for each hash whether it is among `those`, which are sorted."""
    if not len(sorted_hashes):
        return np.zeros(len(hashes), np.bool_)
    is_in: npt.NDArray[np.bool_] = (
        sorted_hashes[np.minimum(np.searchsorted(sorted_hashes, hashes), len(sorted_hashes) - 1)] == hashes
    )
    return is_in


def _read_hashes(dataset: ds.Dataset, where: pc.Expression) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """Return the hash of each row's key, and the ids of the files."""
    hashes, file_ids = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for rows in _yield_row_groups(dataset, where, list(KEY)):
        hashes.append(_hashes_of(rows))
        file_ids.append(pc.unique(rows.column("file_id")).to_numpy())
    return np.concatenate(hashes), np.unique(np.concatenate(file_ids))


def _hashes_of(rows: pa.Table) -> Hashes:
    return hash_keys(rows.column(name).to_numpy() for name in KEY)


def _yield_row_groups(dataset: ds.Dataset, where: pc.Expression, columns: list[str]) -> Iterator[pa.Table]:
    """Yield the rows of each row group. A scanner of the whole dataset would read gigabytes ahead."""
    for fragment in dataset.get_fragments(where):
        for group in fragment.split_by_row_group(where, schema=dataset.schema):
            rows = group.to_table(dataset.schema, columns, where)
            if rows.num_rows:
                yield rows
