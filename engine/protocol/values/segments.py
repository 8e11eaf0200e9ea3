"""The segments of an entry of the journal: columns of equal length, as in SEGMENT_SCHEMA.

They are kept in the form in which they come: lists from a decision, Arrow batches from the journal. Most requests have
few segments, for which Arrow arrays cost more than the decision. So a step builds the arrays once for all its requests.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.topics import SEGMENT_SCHEMA

Mask = npt.NDArray[np.bool_]

_NAMES = tuple(SEGMENT_SCHEMA.names)
_INDEX = {name: i for i, name in enumerate(_NAMES)}


class Segments:
    """Segments in the order of their offsets within each partition. Immutable."""

    __slots__ = ("_columns", "_count")

    def __init__(self, columns: Sequence[list[Any]] | pa.RecordBatch) -> None:
        """columns: lists, or a batch, in the order of SEGMENT_SCHEMA."""
        self._columns = columns
        # each step asks many times
        self._count = columns.num_rows if isinstance(columns, pa.RecordBatch) else len(columns[0])

    def __len__(self) -> int:
        return self._count

    def column(self, name: str) -> list[Any]:
        """Return one column as Python values."""
        column = self._columns[_INDEX[name]]
        return column if isinstance(column, list) else column.to_pylist()

    def row(self, number: int, names: Sequence[str]) -> dict[str, Any]:
        """Return these columns of one segment as Python values, by name."""
        columns = [(name, self._columns[_INDEX[name]]) for name in names]
        return {name: column[number] if type(column) is list else column[number].as_py() for name, column in columns}

    def lists(self) -> list[list[Any]]:
        """Return all columns as Python values, in the order of SEGMENT_SCHEMA."""
        return [column if isinstance(column, list) else column.to_pylist() for column in self._columns]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Segments) and segments_to_table([self]).equals(segments_to_table([other]))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Segments({segments_to_table([self]).to_pylist()})"


NO_SEGMENTS = Segments([[] for _ in SEGMENT_SCHEMA])


def build_segments(count: int, **columns: list[Any]) -> Segments:
    """Return segments with these columns. Columns that are not named are null."""
    nulls = [None] * count
    return Segments([columns.get(name, nulls) for name in _NAMES])


def build_marker_segments(
    kind: str,
    producer_id: int,
    producer_epoch: int,
    *,
    topic_id: list[int],
    topic: list[str],
    partition: list[int],
    offset: list[int],
    first_offset: list[int],
) -> Segments:
    """Return one `commit` or `abort` marker per partition, each at its own offset.

    first_offset: where the transaction began in that partition.
    """
    n = len(partition)
    return build_segments(
        n,
        kind=[kind] * n,
        topic_id=topic_id,
        topic=topic,
        partition=partition,
        base_offset=offset,
        record_count=[1] * n,
        last_offset=offset,
        producer_id=[producer_id] * n,
        producer_epoch=[producer_epoch] * n,
        transactional=[True] * n,
        origin=["publish"] * n,
        first_offset=first_offset,
    )


def segments_to_table(parts: Iterable[Segments]) -> pa.Table:
    """Return all segments, one after another, as a table of SEGMENT_SCHEMA."""
    tables: list[pa.Table] = []
    lists: list[Sequence[list[Any]]] = []
    for part in parts:
        if isinstance(part._columns, pa.RecordBatch):
            tables += [*_lists_to_tables(lists), pa.Table.from_batches([part._columns])]
            lists = []
        elif len(part):
            lists.append(part._columns)
    tables += _lists_to_tables(lists)
    return tables[0] if len(tables) == 1 else pa.concat_tables([SEGMENT_SCHEMA.empty_table(), *tables])


def _lists_to_tables(parts: list[Sequence[list[Any]]]) -> list[pa.Table]:
    if not parts:
        return []
    columns = (chain.from_iterable(part[i] for part in parts) for i in range(len(SEGMENT_SCHEMA)))
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, SEGMENT_SCHEMA, strict=True)]
    return [pa.table(arrays, schema=SEGMENT_SCHEMA)]


# -- parts ------------------------------------------------------------------------------------------------


def filter_rows(segments: pa.Table, mask: Mask) -> pa.Table:
    """Return the rows of the mask. Nothing is copied if these are all rows, as in a fetch of a whole log."""
    return segments if mask.all() else segments.filter(pa.array(mask))


def is_kind(segments: pa.Table, kind: str) -> Mask:
    """Return a mask of the segments of this kind."""
    mask: Mask = pc.equal(segments.column("kind"), kind).to_numpy()
    return mask


def cut_segments(segments: pa.Table, skipped: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> pa.Table:
    """Return the segments without their first rows, and with so many rows. They may lack columns."""
    changes = {
        name: pc.add(segments.column(name), pa.array(skipped))
        for name in ("base_offset", "first_row", "base_sequence", "source_offset")
        if name in segments.column_names
    }
    if "record_count" in segments.column_names:
        changes["record_count"] = pa.array(counts)
    changes["last_offset"] = pc.add(changes["base_offset"], pa.array(counts - 1))
    for name, column in changes.items():
        segments = segments.set_column(segments.schema.get_field_index(name), name, column)
    return segments


# -- neighbours -------------------------------------------------------------------------------------------


def find_continuations(rows: pa.Table, agree: Iterable[str], run_on: Iterable[str]) -> Mask:
    """Return for each row but the first whether it continues the row before it.

    agree: columns that must be equal, or null, in both. run_on: columns that must grow by the number of records, or be
    null in both.
    """
    goes = np.ones(max(0, rows.num_rows - 1), np.bool_)
    if not len(goes):  # a fetch of what has just come
        return goes
    counts = rows.column("record_count").to_numpy()
    for name in agree:
        goes &= _compare_neighbours(rows.column(name), 0)
    for name in run_on:
        goes &= _compare_neighbours(rows.column(name), counts[:-1])
    return goes


def _compare_neighbours(column: pa.ChunkedArray, step: int | npt.NDArray[np.int64]) -> Mask:
    if pa.types.is_string(column.type):
        column = column.combine_chunks().dictionary_encode()
        column = (pa.chunked_array([column]) if isinstance(column, pa.Array) else column).unify_dictionaries()
        column = pa.chunked_array([chunk.indices for chunk in column.chunks], pa.int32())
    is_null = column.is_null().to_numpy()
    values = column.cast(pa.int64()).fill_null(0).to_numpy()
    same_null = is_null[1:] == is_null[:-1]
    follows: Mask = same_null & (is_null[1:] | (values[1:] == values[:-1] + step))
    return follows


def merge_continuations(rows: pa.Table, goes: Mask) -> pa.Table:
    """Return the segments with each run of continuations merged into one, with the bounds and counts of all.

    goes: the mask from `find_continuations`.
    """
    if not goes.any():
        return rows
    first = np.flatnonzero(np.concatenate([[True], ~goes]))
    last = np.append(first[1:], rows.num_rows) - 1
    result = rows.take(pa.array(first))
    merged = {"last_offset": rows.column("last_offset").take(pa.array(last))}
    for name, bound in (
        ("record_count", np.add),
        ("min_timestamp_ms", np.minimum),
        ("max_timestamp_ms", np.maximum),
        ("decided_at_ms", np.maximum),
        ("step", np.maximum),
    ):
        if name in rows.column_names:
            merged[name] = _reduce_runs(rows.column(name), bound, first)
    for name, column in merged.items():
        result = result.set_column(result.column_names.index(name), name, column)
    return result


def _reduce_runs(column: pa.ChunkedArray, bound: np.ufunc, first: npt.NDArray[np.int64]) -> pa.Array:
    """Reduce each run to one value. A row without a value is a run of its own, since its neighbours differ in kind."""
    is_null = column.is_null().to_numpy()
    values = bound.reduceat(column.fill_null(0).to_numpy(), first)
    return pa.array(values, column.type, mask=is_null[first])
