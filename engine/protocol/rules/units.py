"""Units: all rows that one request puts into one (topic, partition). Repeats are recognized unit by unit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import InvalidRequest
from ..values.log import Produce, Unit
from ..values.producers import ProducerSequences, UnitAppended, waiting_unit
from ..values.state import State
from ..values.topics import Topic
from .producers import check_producer, find_duplicate
from .ranges import Column, RangeColumns


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
