"""Delayed messages that wait: a new term reads them from the table `delayed`.

The table may have millions of rows, so they are read piece by piece.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lakemq.tables.specs.messages import DELAYED, file_stem
from lakemq.tables.storage.delta.store import Bounds, TableHandle, make_filter, select_newest
from lakemq.tables.storage.object_stores.files import Files

from ..protocol.errors import FileTruncated, StorageError
from ..protocol.rows.delays import RESTORED_COLUMNS
from ..protocol.values.delays import DelayedRange
from ..protocol.values.packed import KEY, Hashes, hash_keys
from .data_file_reader import open_data_file

_PIECE_ROWS = 1 << 16
"""Neighbouring row groups are read together up to this size. Each read costs about a millisecond."""

_COMPARED_ROWS = 1 << 19
"""Rows whose keys are compared at once, which takes about 100 MB."""

_COLUMNS = [*RESTORED_COLUMNS, "step", "removed"]


class WaitingRows:
    """The rows of `delayed` at one version of the table and one step."""

    def __init__(self, handle: TableHandle, step: int | None = None) -> None:
        """step: None stands for the newest one."""
        self._step = step
        self._dataset = handle.dataset()
        self._fragments = list(self._dataset.get_fragments()) if handle.files() else []

    def read(self) -> Iterator[pa.Table]:
        """Yield tables with the newest row of each range that waits.

        Almost every range has one row. So first read hashes of the keys, and compare only rows that share a hash.
        """
        there, gone = self._bounds(False), self._bounds(True)
        hashes, file_ids = self._read_hashes(there)
        if not len(hashes):
            return
        # rows of ended ranges stay for days, and may be many times as many
        contested = _find_shared_hashes(hashes, self._read_hashes(gone, file_ids)[0])
        del hashes
        several: list[pa.Table] = []
        for rows in self._yield_pieces(_COLUMNS, there):
            if len(contested):
                is_contested = _is_in(_hashes_of(rows), contested)
                if is_contested.any():
                    several.append(rows.filter(pa.array(is_contested)))
                    rows = rows.filter(pa.array(~is_contested))
            yield DELAYED.validate(rows)
        if len(contested):
            for rows in self._yield_pieces(_COLUMNS, gone):
                several.append(rows.filter(pa.array(_is_in(_hashes_of(rows), contested))))
            rows = select_newest(DELAYED.validate(pa.concat_tables(several)), DELAYED.keys)
            yield rows.filter(~pc.field("removed"))

    def read_file_ids(self) -> set[int]:
        """Return the ids of all data files with rows that wait.

        A key without a row that removes it exists, and that is enough for its file. Keys are compared only in other
        files, a bounded number of rows at once.
        """
        there, gone = self._bounds(False), self._bounds(True)
        gone_hashes = np.unique(self._read_hashes(gone)[0])
        all_ids, waiting_ids = set[int](), set[int]()
        for rows in self._yield_pieces(list(KEY), there):
            exists = ~_is_in(_hashes_of(rows), gone_hashes)
            all_ids.update(pc.unique(rows.column("file_id")).to_pylist())
            waiting_ids.update(pc.unique(rows.column("file_id").filter(pa.array(exists))).to_pylist())
        del gone_hashes
        unclear = np.array(sorted(all_ids - waiting_ids), np.int64)
        count = sum(rows.num_rows for rows in self._yield_rows_of_files(["file_id"], unclear))
        for file_ids in np.array_split(unclear, -(-count // _COMPARED_ROWS)) if count else []:
            pieces = list(self._yield_rows_of_files([*KEY, "step", "removed"], file_ids))
            if pieces:
                rows = select_newest(pa.concat_tables(pieces), DELAYED.keys).filter(~pc.field("removed"))
                waiting_ids.update(pc.unique(rows.column("file_id")).to_pylist())
        return waiting_ids

    def _yield_rows_of_files(self, names: Sequence[str], file_ids: npt.NDArray[np.int64]) -> Iterator[pa.Table]:
        """Yield all rows of these data files, also those that remove keys. file_ids: sorted."""
        if len(file_ids):
            for rows in self._yield_pieces(names, {"step": (None, self._step), "file_id": (file_ids[0], file_ids[-1])}):
                yield rows.filter(pa.array(_is_in(rows.column("file_id").to_numpy(), file_ids)))

    def _bounds(self, removed: bool) -> Bounds:
        return {"step": (None, self._step), "removed": (removed, removed)}

    def _read_hashes(
        self, bounds: Bounds, of_files: npt.NDArray[np.int64] | None = None
    ) -> tuple[Hashes, npt.NDArray[np.int64]]:
        """Return the hash of each row's key, and the ids of the files. of_files: leave out rows of other files."""
        hashes, count, file_ids = np.empty(self._count(bounds), np.uint64), 0, np.empty(0, np.int64)
        for rows in self._yield_pieces(list(KEY), bounds):
            if of_files is not None:
                rows = rows.filter(pa.array(_is_in(rows.column("file_id").to_numpy(), of_files)))
            else:
                file_ids = np.union1d(file_ids, pc.unique(rows.column("file_id")).to_numpy())
            hashes[count : count + rows.num_rows] = _hashes_of(rows)
            count += rows.num_rows
        return hashes[:count], file_ids

    def _count(self, bounds: Bounds) -> int:
        """Return the number of rows of all row groups that may have rows within the bounds."""
        return sum(group.num_rows for fragment in self._select(bounds) for group in fragment.row_groups)

    def _select(self, bounds: Bounds) -> Iterator[ds.ParquetFileFragment]:
        """Yield the files, with the row groups that may have rows within the bounds by their statistics."""
        for fragment in self._fragments:
            yield fragment.subset(make_filter(bounds), schema=self._dataset.schema)

    def _yield_pieces(self, names: Sequence[str], bounds: Bounds) -> Iterator[pa.Table]:
        """Yield the rows within the bounds. A scanner of the whole dataset would read gigabytes ahead."""
        within, schema = make_filter(bounds), self._dataset.schema
        for fragment in self._select(bounds):
            ends = np.cumsum([group.num_rows for group in fragment.row_groups])
            for _, run in groupby(zip(fragment.row_groups, ends, strict=True), lambda at: (at[1] - 1) // _PIECE_ROWS):
                piece = fragment.subset(row_group_ids=[group.id for group, _ in run])
                rows = piece.to_table(schema, columns=list(names), filter=within, use_threads=False)
                if rows.num_rows:
                    yield rows


def _find_shared_hashes(there: Hashes, gone: Hashes) -> Hashes:
    """Return the hashes that occur in more than one row, sorted."""
    there.sort()
    repeated: list[Hashes] = []
    # a piece at a time, because a mask that is applied holds up all other threads
    for first in range(0, len(there), _PIECE_ROWS):
        piece = there[first : first + _PIECE_ROWS + 1]
        repeated.append(piece[1:][piece[1:] == piece[:-1]])
    return np.unique(np.concatenate([*repeated, gone[_is_in(gone, there)]]))


def _is_in(values: npt.NDArray[Any], sorted_values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return for each value whether it is among the others, which are sorted."""
    if not len(sorted_values):
        return np.zeros(len(values), np.bool_)
    is_in: npt.NDArray[np.bool_] = (
        sorted_values[np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)] == values
    )
    return is_in


def _hashes_of(rows: pa.Table) -> Hashes:
    return hash_keys(rows.column(name).to_numpy() for name in KEY)


# Read when the rows of waiting ranges are due, from their data files, which never change.


Numbers = npt.NDArray[np.int64]


class DueRun(NamedTuple):
    """Consecutive rows of a range that are due together. upto: number of the range's rows up to the end of these."""

    due_ms: int
    upto: int


DueRuns: TypeAlias = "list[DueRun] | Exception"
"""The runs of one range, or why they are unknown."""


def read_due_runs(files: Files, ranges: Sequence[DelayedRange]) -> list[DueRuns]:
    """Return the runs of each range. Ranges of one file cost one look into it."""
    runs: dict[int, DueRuns] = {}
    order = sorted(range(len(ranges)), key=lambda i: ranges[i].file_id)
    for _, members in groupby(order, key=lambda i: ranges[i].file_id):
        of_file = list(members)
        try:
            due_ms: Numbers | Exception = _read_due_times(files, ranges[of_file[0]])
        except (FileTruncated, StorageError, pa.ArrowException) as error:
            due_ms = error
        for i in of_file:
            runs[i] = due_ms if isinstance(due_ms, Exception) else _find_runs(ranges[i], due_ms)
    return [runs[i] for i in range(len(ranges))]


def _read_due_times(files: Files, range_: DelayedRange) -> Numbers:
    """Return the due times of all rows of the range's file, in milliseconds. 0: the row does not wait."""
    with open_data_file(files, range_.file_id, range_.footer_hash) as parquet:
        column = parquet.read(["deliver_at"]).column("deliver_at")
    times_us: Numbers = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
    return -(-times_us // 1000)


def _find_runs(range_: DelayedRange, due_ms: Numbers) -> DueRuns:
    times_ms = due_ms[range_.first_row : range_.first_row + range_.record_count]
    is_as_published = len(times_ms) == range_.record_count and (times_ms[0], times_ms[-1]) == (
        range_.first_due_ms,
        range_.last_due_ms,
    )
    if not is_as_published or (times_ms[1:] < times_ms[:-1]).any():
        return ValueError(f"rows of data file {file_stem(range_.file_id)} are not due when their publisher said")
    ends = np.append(np.flatnonzero(times_ms[1:] != times_ms[:-1]) + 1, range_.record_count)
    return [DueRun(*run) for run in zip(times_ms[ends - 1].tolist(), ends.tolist(), strict=True)]
