"""Read when the rows of waiting ranges are due, from their data files, which never change."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.messages import file_stem
from lakemq.tables.storage.object_stores.files import Files

from ...protocol.errors import FileTruncated, StorageError
from ...protocol.values.delayed.delays import DelayedRange
from ..data_file_reader import open_data_file

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
