"""Ranges of rows as columns: checked, and laid end to end into dense offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lakemq.tables.specs.delayed import HOUR_MS, NOT_DELAYED

from ..errors import InvalidRequest
from ..values.log import DataFile, PendingFile, Ranges

Column = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RowSource:
    """Where the rows of a request are: in its data files, or in a stretch of the one the sequencer wrote.

    ends: per file the row after the last one that is the request's; first_row, first_file: where the request's own
    numbers begin to count.
    """

    files: Sequence[DataFile | PendingFile]
    ends: Sequence[int]
    first_row: int = 0
    first_file: int = 0

    def place(self, file: Any, first_row: Any) -> tuple[Any, Any]:
        """Index into `files`, and row of that file; numbers or columns."""
        return file - self.first_file, first_row + self.first_row


@dataclass(frozen=True)
class RangeColumns:
    """Columns of equal length, one entry per range.

    topic_index: into the request's topics; file: into the files of its rows; unit: number of the range's topic,
    partition and whether it waits, among those of the request, in order. first_due_ms, last_due_ms: NOT_DELAYED where
    it does not wait.
    """

    topic_index: Column
    partition: Column
    file: Column
    first_row: Column
    record_count: Column
    min_timestamp_ms: Column
    max_timestamp_ms: Column
    unit: Column
    first_due_ms: Column
    last_due_ms: Column

    @classmethod
    def of(cls, ranges: Ranges, partition_counts: Sequence[int], source: RowSource) -> RangeColumns:
        """The columns of a request's ranges; raises InvalidRequest where one lies outside what the request names.

        partition_counts: per topic.
        """
        lists = [
            ranges.topic_index,
            ranges.partition,
            ranges.file,
            ranges.first_row,
            ranges.record_count,
            ranges.min_timestamp_ms,
            ranges.max_timestamp_ms,
        ]
        if len({len(column) for column in lists}) != 1:
            raise InvalidRequest("The columns of the ranges differ in length.", found=[len(c) for c in lists])
        topic_index, partition, file, first_row, record_count, low, high = (np.array(c, np.int64) for c in lists)
        file, first_row = source.place(file, first_row)
        counts = np.array(partition_counts, np.int64)
        if len(topic_index) > _FEW or not _are_there(ranges, partition_counts, source):
            _check(topic_index, partition, file, first_row, record_count, np.array(source.ends, np.int64), counts)
        first_due, last_due = _due(ranges)
        unit = _ONE if len(topic_index) == 1 else _units(topic_index, partition, first_due != NOT_DELAYED, counts)
        return cls(topic_index, partition, file, first_row, record_count, low, high, unit, first_due, last_due)

    @property
    def are_units(self) -> bool:
        """Whether each is a unit of its own, in their order."""
        return len(self) == 1 or bool((self.unit == np.arange(len(self))).all())

    @property
    def waits(self) -> Mask:
        """Which of them are not for the log yet."""
        mask: Mask = self.first_due_ms != NOT_DELAYED
        return mask

    def where(self, mask: Mask) -> RangeColumns:
        """The ranges selected by the mask."""
        return RangeColumns(*(getattr(self, name)[mask] for name in self.__dataclass_fields__))

    def __len__(self) -> int:
        return len(self.topic_index)


_FEW = 16
"""Ranges that are looked at one by one: numpy's price per call would be more."""


def _are_there(ranges: Ranges, partition_counts: Sequence[int], source: RowSource) -> bool:
    """The same as `_check`, for a few."""
    columns = (ranges.topic_index, ranges.partition, ranges.file, ranges.first_row, ranges.record_count)
    for topic, partition, of_file, of_row, count in zip(*columns, strict=True):
        file, first_row = source.place(of_file, of_row)
        if not (0 <= topic < len(partition_counts) and 0 <= file < len(source.ends)):
            return False
        if not (0 <= partition < partition_counts[topic] and first_row >= 0 and count > 0):
            return False
        if first_row + count > source.ends[file]:
            return False
    return True


# Most requests of small clients have one range: numpy's price per call would be most of what deciding them costs.
_ONE: Column = np.zeros(1, np.int64)


def _grows(numbers: Column) -> bool:
    """Whether they are in order, none of them twice: as in most requests, which have one range of each partition."""
    return bool((numbers[1:] > numbers[:-1]).all())


def _units(topic_index: Column, partition: Column, waits: Mask, partition_counts: Column) -> Column:
    starts = np.cumsum(partition_counts) - partition_counts
    key = 2 * (starts[topic_index] + partition) + waits
    if _grows(key):
        return np.arange(len(key))
    unit: Column = np.unique(key, return_inverse=True)[1]
    return unit


def _due(ranges: Ranges) -> tuple[Column, Column]:
    """When the first and the last row of each range are due. Raises InvalidRequest."""
    n = len(ranges.topic_index)
    if not (ranges.first_due_ms or ranges.last_due_ms):
        nothing = np.full(n, NOT_DELAYED, np.int64)
        return nothing, nothing
    if {len(ranges.first_due_ms), len(ranges.last_due_ms)} != {n}:
        raise InvalidRequest("The columns of the ranges differ in length.", found="due times", expected=n)
    first, last = np.array(ranges.first_due_ms, np.int64), np.array(ranges.last_due_ms, np.int64)
    # -1 is in an hour of its own
    wrong = (last < first) | (first // HOUR_MS != last // HOUR_MS)
    if wrong.any():
        bad = int(np.argmax(wrong))
        raise InvalidRequest(
            "The rows of a range are due within one hour, in order.", found=f"{int(first[bad])} to {int(last[bad])}"
        )
    return first, last


def dense_offsets(unit: Column, record_count: Column, high_watermarks: Column) -> Column:
    """The base offset of every range: each unit's ranges one after the other, in order, from its high watermark on.

    high_watermarks: per unit.
    """
    if _grows(unit):
        return high_watermarks[unit]
    order = np.argsort(unit, kind="stable")
    counts, grouped = record_count[order], unit[order]
    before = np.cumsum(counts) - counts
    opens = np.concatenate([[True], grouped[1:] != grouped[:-1]])
    offsets = np.empty(len(order), np.int64)
    offsets[order] = high_watermarks[grouped] + before - before[opens][np.cumsum(opens) - 1]
    return offsets


def _check(
    topic_index: Column,
    partition: Column,
    file: Column,
    first_row: Column,
    record_count: Column,
    file_rows: Column,
    partition_counts: Column,
) -> None:
    known = (topic_index >= 0) & (topic_index < len(partition_counts)) & (file >= 0) & (file < len(file_rows))
    if known.all():
        known = (partition >= 0) & (partition < partition_counts[topic_index])
        known &= (first_row >= 0) & (record_count > 0) & (first_row + record_count <= file_rows[file])
    if not known.all():
        bad = int(np.argmin(known))
        named = {
            "topic": topic_index,
            "partition": partition,
            "file": file,
            "first_row": first_row,
            "record_count": record_count,
        }
        raise InvalidRequest(
            "A range names a topic, partition, file or row that is not there.",
            found={name: int(column[bad]) for name, column in named.items()},
            expected=f"{len(partition_counts)} topics, {len(file_rows)} files, rows within the file",
        )
