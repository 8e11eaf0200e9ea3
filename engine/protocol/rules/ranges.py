"""Ranges of rows as columns: checks them, and computes the dense offsets that they get."""

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
    """The files with the rows of a request: its own data files, or a part of the file that the sequencer writes.

    ends: for each file, the row after the last row of the request. first_row, first_file: where the request's own row
    and file numbers start to count.
    """

    files: Sequence[DataFile | PendingFile]
    ends: Sequence[int]
    first_row: int = 0
    first_file: int = 0

    def locate(self, file: Any, first_row: Any) -> tuple[Any, Any]:
        """Return the index into `files` and the row of that file, for a file and a row as the request numbers them.

        Works for single numbers and for columns.
        """
        return file - self.first_file, first_row + self.first_row


@dataclass(frozen=True)
class RangeColumns:
    """Columns of equal length, with one entry per range.

    topic_index: index into the request's topics. file: index into the files of the row source. unit: number of the
    range's unit, which is its topic, its partition and whether it waits. first_due_ms, last_due_ms: NOT_DELAYED for a
    range that does not wait.
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
    def from_ranges(cls, ranges: Ranges, partition_counts: Sequence[int], source: RowSource) -> RangeColumns:
        """Return the columns of a request's ranges.

        Raises InvalidRequest if a range lies outside the topics, partitions, files and rows of the request.
        partition_counts: one per topic.
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
        file, first_row = source.locate(file, first_row)
        counts = np.array(partition_counts, np.int64)
        if len(topic_index) > _FEW or not _are_few_valid(ranges, partition_counts, source):
            _check_columns(
                topic_index, partition, file, first_row, record_count, np.array(source.ends, np.int64), counts
            )
        first_due, last_due = _read_due_times(ranges)
        unit = (
            _SINGLE_UNIT
            if len(topic_index) == 1
            else _number_units(topic_index, partition, first_due != NOT_DELAYED, counts)
        )
        return cls(topic_index, partition, file, first_row, record_count, low, high, unit, first_due, last_due)

    @property
    def are_units(self) -> bool:
        """True if each range is a unit of its own, in the order of the units."""
        return len(self) == 1 or bool((self.unit == np.arange(len(self))).all())

    @property
    def waits(self) -> Mask:
        """Mask of the delayed ranges, which do not enter the log yet."""
        mask: Mask = self.first_due_ms != NOT_DELAYED
        return mask

    def where(self, mask: Mask) -> RangeColumns:
        """Return the ranges that the mask selects."""
        return RangeColumns(*(getattr(self, name)[mask] for name in self.__dataclass_fields__))

    def __len__(self) -> int:
        return len(self.topic_index)


_FEW = 16
"""Up to this number of ranges a Python loop is faster than numpy, because each call of numpy costs a fixed price."""


def _are_few_valid(ranges: Ranges, partition_counts: Sequence[int], source: RowSource) -> bool:
    """Check a few ranges one by one. Returns the same answer as `_check_columns`, which raises instead."""
    columns = (ranges.topic_index, ranges.partition, ranges.file, ranges.first_row, ranges.record_count)
    for topic, partition, of_file, of_row, count in zip(*columns, strict=True):
        file, first_row = source.locate(of_file, of_row)
        if not (0 <= topic < len(partition_counts) and 0 <= file < len(source.ends)):
            return False
        if not (0 <= partition < partition_counts[topic] and first_row >= 0 and count > 0):
            return False
        if first_row + count > source.ends[file]:
            return False
    return True


# Most requests of small clients have one range. For them numpy's price per call would be most of the work.
_SINGLE_UNIT: Column = np.zeros(1, np.int64)


def _is_increasing(numbers: Column) -> bool:
    """Return whether each number is greater than the one before. True for most requests: one range per partition."""
    return bool((numbers[1:] > numbers[:-1]).all())


def _number_units(topic_index: Column, partition: Column, waits: Mask, partition_counts: Column) -> Column:
    starts = np.cumsum(partition_counts) - partition_counts
    key = 2 * (starts[topic_index] + partition) + waits
    if _is_increasing(key):
        return np.arange(len(key))
    unit: Column = np.unique(key, return_inverse=True)[1]
    return unit


def _read_due_times(ranges: Ranges) -> tuple[Column, Column]:
    """Return when the first and the last row of each range are due. Raises InvalidRequest."""
    n = len(ranges.topic_index)
    if not (ranges.first_due_ms or ranges.last_due_ms):
        nothing = np.full(n, NOT_DELAYED, np.int64)
        return nothing, nothing
    if {len(ranges.first_due_ms), len(ranges.last_due_ms)} != {n}:
        raise InvalidRequest("The columns of the ranges differ in length.", found="due times", expected=n)
    first, last = np.array(ranges.first_due_ms, np.int64), np.array(ranges.last_due_ms, np.int64)
    # NOT_DELAYED is -1, which lies in an hour of its own: a range cannot mix delayed rows with others
    wrong = (last < first) | (first // HOUR_MS != last // HOUR_MS)
    if wrong.any():
        bad = int(np.argmax(wrong))
        raise InvalidRequest(
            "The rows of a range must be due within one hour, in order.", found=f"{int(first[bad])} to {int(last[bad])}"
        )
    return first, last


def compute_base_offsets(unit: Column, record_count: Column, high_watermarks: Column) -> Column:
    """Return the base offset of each range.

    The ranges of a unit follow one another without a gap, starting at its high watermark. high_watermarks: one per
    unit.
    """
    if _is_increasing(unit):
        return high_watermarks[unit]
    # Sort the ranges by unit, keeping their order within it. `before` then counts the records ahead of each range over
    # all units; subtracting the count at the start of its unit leaves the records ahead of it within the unit.
    order = np.argsort(unit, kind="stable")
    counts, grouped = record_count[order], unit[order]
    before = np.cumsum(counts) - counts
    opens = np.concatenate([[True], grouped[1:] != grouped[:-1]])
    offsets = np.empty(len(order), np.int64)
    offsets[order] = high_watermarks[grouped] + before - before[opens][np.cumsum(opens) - 1]
    return offsets


def _check_columns(
    topic_index: Column,
    partition: Column,
    file: Column,
    first_row: Column,
    record_count: Column,
    file_rows: Column,
    partition_counts: Column,
) -> None:
    valid = (topic_index >= 0) & (topic_index < len(partition_counts)) & (file >= 0) & (file < len(file_rows))
    if valid.all():
        valid = (partition >= 0) & (partition < partition_counts[topic_index])
        valid &= (first_row >= 0) & (record_count > 0) & (first_row + record_count <= file_rows[file])
    if not valid.all():
        bad = int(np.argmin(valid))
        columns = {
            "topic": topic_index,
            "partition": partition,
            "file": file,
            "first_row": first_row,
            "record_count": record_count,
        }
        raise InvalidRequest(
            "A range names a topic, partition, file or row that does not exist.",
            found={name: int(column[bad]) for name, column in columns.items()},
            expected=f"{len(partition_counts)} topics, {len(file_rows)} files, rows within the file",
        )
