"""When the rows of ranges that wait are due, read from their data files, which never change."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemq.tables.specs.messages import file_stem
from lakemq.tables.storage.files import Files

from ..protocol.values.delays import DelayedRange
from .data_file import file_name, is_as_written, look

Numbers = npt.NDArray[np.int64]


class Run(NamedTuple):
    """Rows of a range that are due together. upto: how many of its rows come before the end of these."""

    due_ms: int
    upto: int


Runs: TypeAlias = "list[Run] | Exception"
"""Of a range, or why they are not known."""


def read_runs(files: Files, ranges: Sequence[DelayedRange]) -> list[Runs]:
    """For each of the ranges; those of one file cost one look into it."""
    found: dict[int, Runs] = {}
    order = sorted(range(len(ranges)), key=lambda i: ranges[i].file_id)
    for _, members in groupby(order, key=lambda i: ranges[i].file_id):
        mine = list(members)
        try:
            due_ms: Numbers | Exception = _due_times(files, ranges[mine[0]])
        except (OSError, ValueError, pa.ArrowException) as error:
            due_ms = error
        for i in mine:
            found[i] = due_ms if isinstance(due_ms, Exception) else _runs(ranges[i], due_ms)
    return [found[i] for i in range(len(ranges))]


def _due_times(files: Files, one: DelayedRange) -> Numbers:
    """Of all rows of its file, in milliseconds; 0 of those that do not wait."""
    facts = look(files, one.file_id)
    if facts is None or facts.flaw:
        raise ValueError("gone" if facts is None else facts.flaw)
    if not is_as_written(one.footer_hash, facts.footer_hash, facts.is_journaled):
        raise ValueError("rewritten or damaged")
    with files.open_input(file_name(one.file_id)) as source:
        column = pq.ParquetFile(source).read(["deliver_at"]).column("deliver_at")
    times_us: Numbers = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
    return -(-times_us // 1000)


def _runs(one: DelayedRange, due_ms: Numbers) -> Runs:
    mine = due_ms[one.first_row : one.first_row + one.record_count]
    as_told = len(mine) == one.record_count and (mine[0], mine[-1]) == (one.first_due_ms, one.last_due_ms)
    if not as_told or (mine[1:] < mine[:-1]).any():
        return ValueError(f"rows of data file {file_stem(one.file_id)} are not due when their publisher said")
    ends = np.append(np.flatnonzero(mine[1:] != mine[:-1]) + 1, one.record_count)
    return [Run(*run) for run in zip(mine[ends - 1].tolist(), ends.tolist(), strict=True)]
