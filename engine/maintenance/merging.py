"""Which data files are merged, where their rows go, and what segments and dead letters say then. Pure, as columns.

Invariant: a segment, rewritten, gives each of its offsets the row it gave before; so does a dead letter. Neighbours
become one only where every view and every fetch shows the same of the one as of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..protocol.values.segments import goes_on, joined

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MOST_BYTES = 32 << 20
"""Of files that are merged at once: what is read in one go, while passes wait."""

AGREE = (
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
    "dead_letter",
)
"""What segments agree in that may become one."""
_RUN_ON = ("base_offset", "first_row", "base_sequence", "source_offset")


def files_to_merge(size_bytes: Numbers, least: int) -> Numbers:
    """Indexes of the files to be merged, none where they would be fewer than `least`.

    The largest of them is no larger than the others together: so a byte is written anew once per doubling of its file,
    however many files come.
    """
    order = np.argsort(size_bytes, kind="stable")
    sizes = size_bytes[order]
    ends = np.cumsum(sizes)
    count = int(np.max(np.flatnonzero(sizes <= ends - sizes), initial=-1)) + 1
    count = min(count, int(np.searchsorted(ends, MOST_BYTES, side="right"))) if count >= least else 0
    return order[: count if count > 1 else 0]


@dataclass(frozen=True)
class Rows:
    """The rows that some ranges of files point at, in the order of the ranges.

    index: of the range each is of; nth: which of its rows, from 0; row: its number among the rows of all files, taken
    one after the other.
    """

    index: Numbers
    nth: Numbers
    row: Numbers


def rows_pointed_at(ranges: pa.Table, file_ids: Numbers, record_counts: Numbers) -> Rows:
    """ranges: columns file_id, first_row, record_count, all of files given. file_ids: ascending.

    Raises ValueError: a range leaves its file.
    """
    firsts = np.cumsum(record_counts) - record_counts
    first_row, counts = (ranges.column(name).to_numpy() for name in ("first_row", "record_count"))
    file = np.searchsorted(file_ids, ranges.column("file_id").to_numpy())
    if ((first_row < 0) | (counts < 1) | (first_row + counts > record_counts[file])).any():
        raise ValueError("a range of rows that is not in its file")
    begin = firsts[file] + first_row
    index = np.repeat(np.arange(len(counts)), counts)
    nth = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    return Rows(index, nth, begin[index] + nth)


def places(segments: pa.Table, shown: Rows, refused: Rows, row_count: int) -> tuple[Numbers, Numbers]:
    """The rows of the merged file, in order, by their numbers before; and of each row before, its number there.

    By topic, partition and offset, where several segments show a row by the first of them; then those refused. What
    nothing points at has no place: -1.
    """
    keys = [segments.column(name).to_numpy()[shown.index] for name in ("topic_id", "partition")]
    offset = segments.column("base_offset").to_numpy()[shown.index] + shown.nth
    rows = np.concatenate([shown.row[np.lexsort((offset, keys[1], keys[0]))], np.sort(refused.row)])
    order = rows[np.sort(np.unique(rows, return_index=True)[1])]
    place = np.full(row_count, -1, np.int64)
    place[order] = np.arange(len(order))
    return order, place


def moved(ranges: pa.Table, rows: Rows, place: Numbers, file_id: int) -> pa.Table:
    """The ranges as they are in the merged file: cut where their rows do not follow one another there.

    ranges: rows of `segments` or `dead_letters`; columns of offsets and sequences go along.
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
    return _changed(cut, changed)


def with_footer(segments: pa.Table, footer_hash: int) -> pa.Table:
    """The same once it is known by what the merged file is told."""
    column = pa.repeat(pa.scalar(footer_hash, pa.int64()), segments.num_rows)
    return _changed(segments, {"footer_hash": column})


def coalesced(segments: pa.Table, floor: int) -> pa.Table:
    """Rows of `segments`, those that touch as one, by topic, partition and offset.

    They touch if they hold data of one file, author, origin and time of appending, and if offsets, rows and sequences
    run on. Of different steps only up to the floor, below which nobody asks what there was: they bear the last one.
    """
    order = [(name, "ascending") for name in ("topic_id", "partition", "base_offset")]
    segments = segments.sort_by(order).combine_chunks()
    step = segments.column("step").to_numpy()
    touches = goes_on(segments, AGREE, _RUN_ON) & pc.equal(segments.column("kind"), "data").to_numpy()[1:]
    touches &= (step[1:] == step[:-1]) | ((step[1:] <= floor) & (step[:-1] <= floor))
    return joined(segments, touches)


def _changed(rows: pa.Table, columns: dict[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    for name, column in columns.items():
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def of_files(rows: pa.Table, file_ids: Sequence[int] | Numbers) -> Mask:
    """Which rows point at one of these files."""
    is_in: Mask = pc.is_in(rows.column("file_id"), pa.array(file_ids, pa.int64())).to_numpy()
    return is_in
