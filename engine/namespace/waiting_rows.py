"""Delayed messages that wait: a new term reads them from the table `delayed`.

The table may have millions of rows, so they are read piece by piece.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lakemq.tables.specs.messages import DELAYED, HOUR_MS, file_stem
from lakemq.tables.storage.delta.store import Bounds, Store, TableHandle, make_filter, select_newest
from lakemq.tables.storage.object_stores.files import Files

from ..protocol.errors import FileTruncated, StorageError
from ..protocol.rows.delays import NEAR_MS, RESTORED_COLUMNS, pack_pieces
from ..protocol.values.delays import DelayedRange
from ..protocol.values.packed import KEY, Hashes, hash_keys
from ..protocol.values.state import State
from ..protocol.values.waiting import CountedBlock
from .data_file_reader import open_data_file
from .store_errors import report_damage

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

    def count_rows(self, first_hour: int) -> int:
        """Return about how many rows wait that are due from this hour on, or more."""
        return self._count(self._bounds(False, first_hour))

    def has_open(self, first_hour: int) -> bool:
        """Return whether rows that are due from this hour on may be of open transactions."""
        return self._count({**self._bounds(False, first_hour), "state": ("open", "open")}) > 0

    def read(self, first_hour: int | None = None, last_hour: int | None = None) -> Iterator[pa.Table]:
        """Yield tables with the newest row of each range that waits and is due in these hours.

        Almost every range has one row. So first read hashes of the keys, and compare only rows that share a hash. All
        rows of a key have the same hour, because only a new key gets a new due time.
        """
        there, gone = self._bounds(False, first_hour, last_hour), self._bounds(True, first_hour, last_hour)
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

    def _bounds(self, removed: bool, first_hour: int | None = None, last_hour: int | None = None) -> Bounds:
        return {"step": (None, self._step), "removed": (removed, removed), "due_hour": (first_hour, last_hour)}

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


# Ranges that are due much later, read by a thread of their own while the sequencer already works.


T = TypeVar("T")

SWITCH_S = 0.0005
"""Time after which a thread gives up the interpreter's lock to one that waits for it, while ranges are read. A step
asks for the lock a dozen times; with Python's 5 ms, the slowest of a hundred took 10 ms longer."""

MIN_ROWS = 1 << 17
"""Fewer rows than this take less than about 0.1 s, so a start waits for them."""

LONGEST_WAIT_S = 1_800.0
"""How long a step waits for these ranges. Ten million take about ten seconds from a disk, longer from a store."""
_TURN_S = 0.2
"""How long to wait at once."""


class LaterRanges:
    """Reads the ranges of one term that are due much later.

    A start with ten million ranges would take seconds. Until they are read, the state expects their blocks, and a
    look-up that may need one of them waits (`PackedRanges`).
    """

    def __init__(self, workers: Executor, now_ms: int) -> None:
        """workers: reads the ranges, and is shut down afterwards. now_ms: the present time."""
        self._workers, self._now_ms = workers, now_ms
        self._future: Future[list[CountedBlock]] | None = None
        self._is_stopped = False
        self.is_added = False
        """Whether the state has the ranges."""

    def start(self, store: Store, rows: WaitingRows, state: State) -> int | None:
        """Start to read, if that is worthwhile. Return the last hour that the caller reads itself; None: all hours."""
        last_hour = (max(state.now_ms, self._now_ms) + NEAR_MS) // HOUR_MS
        # the end of a transaction must find its ranges at once
        if rows.count_rows(last_hour + 1) < MIN_ROWS or rows.has_open(last_hour + 1):
            return None
        self._future = self._workers.submit(self._read, store, rows, last_hour + 1)
        state.delays.expect_blocks((last_hour + 1) * HOUR_MS, self._future.result)
        return last_hour

    @property
    def is_done(self) -> bool:
        return self._future is None or self._future.done()

    def wait_for_all(self, meanwhile: Callable[[], None]) -> None:
        """Wait until all is read. Raises StorageError after LONGEST_WAIT_S.

        meanwhile: called several times in a second.
        """
        for _ in range(int(LONGEST_WAIT_S / _TURN_S)):
            if self._future is None or not wait([self._future], _TURN_S).not_done:
                return
            meanwhile()
        raise StorageError(f"The delayed messages that are due much later were not read in {LONGEST_WAIT_S:g} s.")

    def stop(self) -> None:
        """Stop reading: the term has ended, or all is read."""
        self._is_stopped = True
        self._future = None  # it would hold blocks that the state has merged meanwhile
        self._workers.shutdown(wait=False)

    def _read(self, store: Store, rows: WaitingRows, first_hour: int) -> list[CountedBlock]:
        with report_damage(store), _switch_threads_often():
            return list(pack_pieces(self._until_stopped(rows.read(first_hour))))

    def _until_stopped(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            if self._is_stopped:
                raise OSError("The term has ended.")
            yield item


@contextmanager
def _switch_threads_often() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(min(before_s, SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


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
