"""A publish as columns: its ranges, and its units.

A unit is all rows that one request puts into one (topic, partition). Repeats are recognized unit by unit.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate, compress, islice

import msgspec

from lakemq.tables.specs.messages import HOUR_MS, NOT_DELAYED

from ..errors import InvalidRequest
from ..values.log import DataFile, PendingFile, Produce, Ranges, Unit
from ..values.producers import ProducerSequences, UnitAppended, waiting_unit
from ..values.state import State
from ..values.topics import Topic
from .clients import check_producer, find_duplicate

# Ranges of rows as columns: checks them, and computes the dense offsets that they get.
#
# Columns are lists. Most requests have one range or a handful, and for these each call of numpy costs more than a loop.
# Requests with thousands of ranges take about as long either way, since their segments are lists.


Column = Sequence[int]


class RowSource(msgspec.Struct, frozen=True):
    """The files with the rows of a request: its own data files, or a part of the file that the sequencer writes.

    ends: for each file, the row after the last row of the request. first_row, first_file: where the request's own row
    and file numbers start to count.
    """

    files: Sequence[DataFile | PendingFile]
    ends: Sequence[int]
    first_row: int = 0
    first_file: int = 0

    def locate(self, file: int, first_row: int) -> tuple[int, int]:
        """Return the index into `files` and the row of the file, for a file and a row as the request numbers them."""
        return file - self.first_file, first_row + self.first_row


class RangeColumns(msgspec.Struct, frozen=True):
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
        topic_index, partition, record_count = ranges.topic_index, ranges.partition, ranges.record_count
        low, high = ranges.min_timestamp_ms, ranges.max_timestamp_ms
        lengths = [len(c) for c in (topic_index, partition, ranges.file, ranges.first_row, record_count, low, high)]
        if lengths.count(lengths[0]) != len(lengths):
            raise InvalidRequest("The columns of the ranges differ in length.", found=lengths)
        file = [number - source.first_file for number in ranges.file]
        first_row = [number + source.first_row for number in ranges.first_row]
        _check_columns(topic_index, partition, file, first_row, record_count, source.ends, partition_counts)
        first_due, last_due = _read_due_times(ranges)
        unit = _number_units(topic_index, partition, first_due, partition_counts)
        return cls(topic_index, partition, file, first_row, record_count, low, high, unit, first_due, last_due)

    @property
    def are_units(self) -> bool:
        """True if each range is a unit of its own, in the order of the units."""
        return _is_increasing(self.unit)

    @property
    def has_waiting(self) -> bool:
        """True if some ranges are delayed."""
        return self.first_due_ms.count(NOT_DELAYED) < len(self.first_due_ms)

    @property
    def waits(self) -> list[bool]:
        """Mask of the delayed ranges, which do not enter the log yet."""
        return [due_ms != NOT_DELAYED for due_ms in self.first_due_ms]

    def list_first_of_units(self) -> list[int]:
        """Return the index of each unit's first range."""
        first = {unit: len(self) - 1 - index for index, unit in enumerate(reversed(self.unit))}
        return [first[unit] for unit in range(len(first))]

    def where(self, mask: Iterable[bool]) -> RangeColumns:
        """Return the ranges that the mask selects."""
        selected = list(mask)
        return RangeColumns(*(list(compress(getattr(self, name), selected)) for name in self.__struct_fields__))

    def __len__(self) -> int:
        return len(self.topic_index)


def _is_increasing(numbers: Column) -> bool:
    """Return whether each number is greater than the one before. True for most requests: one range per partition."""
    return all(map(operator.lt, numbers, islice(numbers, 1, None)))


def _number_units(topic_index: Column, partition: Column, first_due_ms: Column, counts: Sequence[int]) -> Column:
    """Return the number of each range's unit, in the order of topic, partition and whether it waits.

    counts: the number of partitions of each topic.
    """
    if len(topic_index) == 1:
        return [0]
    starts = [0, *accumulate(counts)]
    places = zip(topic_index, partition, first_due_ms, strict=True)
    keys = [2 * (starts[topic] + number) + (due_ms != NOT_DELAYED) for topic, number, due_ms in places]
    if _is_increasing(keys):
        return range(len(keys))
    numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
    return [numbers[key] for key in keys]


def _read_due_times(ranges: Ranges) -> tuple[Column, Column]:
    """Return when the first and the last row of each range are due. Raises InvalidRequest."""
    n, first_due, last_due = len(ranges.topic_index), ranges.first_due_ms, ranges.last_due_ms
    if not (first_due or last_due):
        nothing = [NOT_DELAYED] * n
        return nothing, nothing
    if {len(first_due), len(last_due)} != {n}:
        raise InvalidRequest("The columns of the ranges differ in length.", found="due times", expected=n)
    for first, last in zip(first_due, last_due, strict=True):
        # NOT_DELAYED is -1, which lies in an hour of its own: a range cannot mix delayed rows with others
        if last < first or first // HOUR_MS != last // HOUR_MS:
            raise InvalidRequest(
                "The rows of a range must be due within one hour, in order.", found=f"{first} to {last}"
            )
    return first_due, last_due


def compute_base_offsets(unit: Column, record_count: Column, high_watermarks: Column) -> list[int]:
    """Return the base offset of each range.

    The ranges of a unit follow one another without a gap, starting at its high watermark. high_watermarks: one per
    unit.
    """
    ends, offsets = list(high_watermarks), []
    for number, count in zip(unit, record_count, strict=True):
        offsets.append(ends[number])
        ends[number] += count
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
    topic_count, file_count = len(partition_counts), len(file_rows)
    rows = zip(topic_index, partition, file, first_row, record_count, strict=True)
    for topic, number, index, row, count in rows:
        if (
            0 <= topic < topic_count
            and 0 <= index < file_count
            and 0 <= number < partition_counts[topic]
            and row >= 0
            and count > 0
            and row + count <= file_rows[index]
        ):
            continue
        raise InvalidRequest(
            "A range names a topic, partition, file or row that does not exist.",
            found={"topic": topic, "partition": number, "file": index, "first_row": row, "record_count": count},
            expected=f"{topic_count} topics, {file_count} files, rows within the file",
        )


# The units of a publish, as columns.


class Units(msgspec.Struct, frozen=True):
    """The units of a request as columns, sorted by topic and partition. `unit` of a range is an index into them.

    topic_index: index into the request's topics. partition: the partition, or `waiting_unit` of it for delayed rows.
    sequence: the producer's sequence of the first record; -1 for a request without a producer.
    """

    topic_index: Column
    partition: Column
    record_count: Column
    sequence: Column

    def __len__(self) -> int:
        return len(self.topic_index)

    def high_watermarks(self, topics: Sequence[Topic]) -> list[int]:
        """Return for each unit the offset of its first record; 0 for delayed rows. topics: those of the request."""
        places = zip(self.topic_index, self.partition, strict=True)
        return [topics[index].high_watermarks.item(partition) if partition >= 0 else 0 for index, partition in places]


def build_units(request: Produce, ranges: RangeColumns) -> Units:
    """Return the units of the ranges.

    Raises InvalidRequest if the request has sequences and these do not name exactly the units of the ranges.
    """
    topic_index, partition, record_count = ranges.topic_index, ranges.partition, ranges.record_count
    if ranges.has_waiting:
        partition = [waiting_unit(p) if waits else p for p, waits in zip(partition, ranges.waits, strict=True)]
    if not ranges.are_units:
        first = ranges.list_first_of_units()
        topic_index, partition = [topic_index[i] for i in first], [partition[i] for i in first]
        record_count = [0] * len(first)
        for unit, count in zip(ranges.unit, ranges.record_count, strict=True):
            record_count[unit] += count
    if request.producer is None:
        sequence: Column = [-1] * len(topic_index)
    else:
        sequence = _list_sequences(request.producer, topic_index, partition)
    return Units(topic_index, partition, record_count, sequence)


def _list_sequences(named: ProducerSequences, topic_index: Column, partition: Column) -> Column:
    """Return the sequence of each unit. topic_index, partition: of the units."""
    if (named.topic_index, named.partition, len(named.base_sequence)) == (topic_index, partition, len(partition)):
        return named.base_sequence  # as clients write them
    units = list(zip(topic_index, partition, strict=True))
    by_unit = dict(zip(zip(named.topic_index, named.partition, strict=False), named.base_sequence, strict=False))
    lengths = {len(named.topic_index), len(named.partition), len(named.base_sequence)}
    if lengths != {len(units)} or by_unit.keys() != set(units):
        raise InvalidRequest("The sequences and the ranges must name the same partitions, each once.")
    return [by_unit[unit] for unit in units]


def find_earlier_appends(state: State, request: Produce, units: Units) -> dict[int, UnitAppended]:
    """Return the first append of each unit that was published before, by the number of the unit.

    A unit that is not in the result continues its sequence. Raises UnknownProducerId, InvalidProducerEpoch,
    OutOfOrderSequenceNumber.
    """
    if request.producer is None:
        return {}
    epoch = request.producer.producer_epoch
    producer = check_producer(state, request.producer.producer_id, epoch)
    columns = (units.topic_index, units.partition, units.sequence, units.record_count)
    again = {}
    for unit, (index, partition, sequence, count) in enumerate(zip(*columns, strict=True)):
        topic_id = request.topics[index].topic_id
        if earlier := find_duplicate(producer, epoch, topic_id, partition, sequence, count):
            again[unit] = earlier
    return again


REJECTED_PLACE = (0, -1)
"""The (topic_id, partition) under which a producer's rejected rows are remembered. No topic has it."""


def build_rejected_unit(request: Produce) -> UnitAppended | None:
    """Return the rejected rows of an idempotent producer as a unit, so that a repeat can be recognized.

    Raises InvalidRequest if there are rejected rows without a sequence, or a sequence without rejected rows.
    """
    if request.producer is None:
        return None
    count, sequence = sum(rows.record_count for rows in request.rejected), request.producer.rejected_sequence
    if bool(count) != (sequence is not None):
        raise InvalidRequest(
            "A request needs a sequence for rejected rows if it has such rows, and only then.", found=sequence
        )
    return None if sequence is None else UnitAppended(*REJECTED_PLACE, sequence, count, 0)


def is_repeated_rejection(state: State, request: Produce, unit: UnitAppended | None) -> bool:
    """Return whether exactly these rows were rejected before. Raises what `find_earlier_appends` raises."""
    if unit is None or request.producer is None:
        return False
    epoch = request.producer.producer_epoch
    producer = check_producer(state, request.producer.producer_id, epoch)
    return find_duplicate(producer, epoch, *REJECTED_PLACE, unit.base_sequence, unit.record_count) is not None


def list_log_units(request: Produce, units: Units, base_offsets: Sequence[int]) -> list[Unit]:
    """Return the units that are in the log, as the result names them. base_offsets: one per unit."""
    columns = (units.topic_index, units.partition, base_offsets, units.record_count)
    return [
        Unit(request.topics[index].topic, partition, base_offset, count)
        for index, partition, base_offset, count in zip(*columns, strict=True)
        if partition >= 0
    ]
