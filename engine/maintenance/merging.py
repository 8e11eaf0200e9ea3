"""The merge of data files as pure column operations: which files, the order of rows, the rewritten segments.

Merged rows are sorted by topic, partition and offset, so that a fetch reads one stretch of a file. Each segment is then
cut where its rows no longer follow each other, moved to the merged file, and joined with its neighbours where possible.
Far fewer segments remain: those of one partition usually become one.

Invariant: a rewritten segment gives each of its offsets the same row as before; so does a rejection. Two neighbours
become one only where every view and every fetch shows the same for the one as for the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..protocol.values.segments import find_continuations, merge_continuations
from .log_bounds import LogBounds

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MAX_BYTES_AT_ONCE = 32 << 20
"""Bytes of files that one merge takes: they are read in one go, while passes wait."""

EQUAL_COLUMNS = (
    "kind",
    "topic_id",
    "partition",
    "file_id",
    "file_partition",
    "producer_id",
    "producer_epoch",
    "transactional",
    "origin",
    "append_time_ms",
    "ttl_from_ms",
    "ttl_ms",
    "decided_at_ms",
    "dead_letter",
)
"""Columns that must be equal in segments that become one."""
_CONSECUTIVE_COLUMNS = ("base_offset", "first_row", "base_sequence", "source_offset")
"""Columns that must run on from one segment to the next."""


def choose_files_to_merge(size_bytes: Numbers, least: int) -> Numbers:
    """Return the indexes of the files to merge; none if fewer than `least` qualify.

    Files are taken from the smallest on, at most MAX_BYTES_AT_ONCE.
    The largest chosen file is no larger than the others together. So each merge puts a byte into a file at least twice
    as large as before, and a byte is rewritten only a few times, however many files come.
    """
    order = np.argsort(size_bytes, kind="stable")
    sizes = size_bytes[order]
    ends = np.cumsum(sizes)
    count = int(np.max(np.flatnonzero(sizes <= ends - sizes), initial=-1)) + 1
    count = min(count, int(np.searchsorted(ends, MAX_BYTES_AT_ONCE, side="right"))) if count >= least else 0
    return order[: count if count > 1 else 0]


@dataclass(frozen=True)
class PointedRows:
    """The rows that some ranges of files point at, in the order of the ranges.

    Attributes:
        index: of the range that the row belongs to.
        nth: number of the row within its range, from 0.
        row: number of the row among the rows of all files, one file after the other.
    """

    index: Numbers
    nth: Numbers
    row: Numbers


def find_pointed_rows(ranges: pa.Table, file_ids: Numbers, record_counts: Numbers) -> PointedRows:
    """Return the rows that the ranges point at.

    Args:
        ranges: columns file_id, first_row, record_count; only of the given files.
        file_ids: ascending.

    Raises:
        ValueError: a range leaves its file.
    """
    firsts = np.cumsum(record_counts) - record_counts
    first_row, counts = (ranges.column(name).to_numpy() for name in ("first_row", "record_count"))
    file = np.searchsorted(file_ids, ranges.column("file_id").to_numpy())
    if ((first_row < 0) | (counts < 1) | (first_row + counts > record_counts[file])).any():
        raise ValueError("a range of rows that is not in its file")
    begin = firsts[file] + first_row
    index = np.repeat(np.arange(len(counts)), counts)
    nth = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    return PointedRows(index, nth, begin[index] + nth)


def order_merged_rows(
    segments: pa.Table, shown: PointedRows, rejected: PointedRows, row_count: int
) -> tuple[Numbers, Numbers]:
    """Return the order of rows in the merged file, as their old numbers, and the new number of each old row.

    Rows of segments come by topic, partition and offset; a row of several segments by the first of them. Then come the
    rows of rejections that no segment has. Rows that nothing points at are left out: their new number is -1.
    """
    keys = [segments.column(name).to_numpy()[shown.index] for name in ("topic_id", "partition")]
    offset = segments.column("base_offset").to_numpy()[shown.index] + shown.nth
    rows = np.concatenate([shown.row[np.lexsort((offset, keys[1], keys[0]))], np.sort(rejected.row)])
    order = rows[np.sort(np.unique(rows, return_index=True)[1])]
    place = np.full(row_count, -1, np.int64)
    place[order] = np.arange(len(order))
    return order, place


def move_ranges(ranges: pa.Table, rows: PointedRows, place: Numbers, file_id: int) -> pa.Table:
    """Return the ranges as they are in the merged file, cut where their rows do not follow each other there.

    Args:
        ranges: rows of `segments` or `rejected_rows`. Offsets and sequences are cut with the rows.
    """
    at = place[rows.row]
    begins = np.ones(len(at), np.bool_)
    begins[1:] = (rows.index[1:] != rows.index[:-1]) | (at[1:] != at[:-1] + 1)
    first = np.flatnonzero(begins)
    counts = np.diff(first, append=len(at))
    cut, skipped = ranges.take(pa.array(rows.index[first])), pa.array(rows.nth[first])
    changed: dict[str, pa.Array | pa.ChunkedArray] = {
        "file_id": pa.repeat(pa.scalar(file_id, pa.int64()), len(first)),
        "first_row": pa.array(at[first]),
        "record_count": pa.array(counts),
    }
    if "base_offset" in cut.column_names:
        changed["base_offset"] = pc.add(cut.column("base_offset"), skipped)
        changed["last_offset"] = pc.add(changed["base_offset"], pa.array(counts - 1))
        for name in ("base_sequence", "source_offset"):
            changed[name] = pc.add(cut.column(name), skipped)
    return _replace_columns(cut, changed)


def set_footer_hash(segments: pa.Table, footer_hash: int) -> pa.Table:
    """Return the segments with the merged file's footer hash."""
    column = pa.repeat(pa.scalar(footer_hash, pa.int64()), segments.num_rows)
    return _replace_columns(segments, {"footer_hash": column})


def coalesce_segments(segments: pa.Table, floor: int, bounds: LogBounds) -> pa.Table:
    """Join neighbours among rows of `segments`; return them by topic, partition and offset.

    Neighbours are joined if they hold data of one file, author, origin and time, and if offsets, rows and sequences run
    on. Segments of different steps are joined only up to the floor, below which no reader begins; the last step is
    kept.
    """
    order = [(name, "ascending") for name in ("topic_id", "partition", "base_offset")]
    segments = segments.sort_by(order).combine_chunks()
    step = segments.column("step").to_numpy()
    touches = (
        find_continuations(segments, EQUAL_COLUMNS, _CONSECUTIVE_COLUMNS)
        & pc.equal(segments.column("kind"), "data").to_numpy()[1:]
    )
    touches &= (step[1:] == step[:-1]) | ((step[1:] <= floor) & (step[:-1] <= floor))
    touches &= bounds.have_same_figures(segments)
    return merge_continuations(segments, touches)


def _replace_columns(rows: pa.Table, columns: dict[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    for name, column in columns.items():
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def points_at_files(rows: pa.Table, file_ids: Sequence[int] | Numbers) -> Mask:
    """Return which rows point at one of these files."""
    is_in: Mask = pc.is_in(rows.column("file_id"), pa.array(file_ids, pa.int64())).to_numpy()
    return is_in
