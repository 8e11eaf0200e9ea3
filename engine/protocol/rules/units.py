"""Units: all rows that one request puts into one (topic, partition). Repeats are recognized unit by unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import InvalidRequest
from ..values.log import Produce, Unit
from ..values.producers import ProducerSequences, UnitAppended
from ..values.state import State
from ..values.topics import Topic
from .producers import check_producer, find_duplicate
from .ranges import Column, RangeColumns

_FEW = 16
"""Up to this number of units a Python loop is faster than numpy, because each call of numpy costs a fixed price."""


@dataclass(frozen=True)
class Units:
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

    def high_watermarks(self, topics: Sequence[Topic]) -> Column:
        """Return for each unit the offset of its first record; 0 for delayed rows. topics: those of the request."""
        if len(self) <= _FEW:
            places = zip(self.topic_index.tolist(), self.partition.tolist(), strict=True)
            ends = [topics[index].high_watermarks[partition] if partition >= 0 else 0 for index, partition in places]
            return np.array(ends, np.int64)
        offsets = np.empty(len(self), np.int64)
        bounds = np.searchsorted(self.topic_index, np.arange(len(topics) + 1)).tolist()
        for topic, low, high in zip(topics, bounds, bounds[1:], strict=False):
            offsets[low:high] = topic.high_watermarks[np.maximum(self.partition[low:high], 0)]
        offsets[self.partition < 0] = 0
        return offsets


def build_units(request: Produce, ranges: RangeColumns) -> Units:
    """Return the units of the ranges.

    Raises InvalidRequest if the request has sequences and these do not name exactly the units of the ranges.
    """
    topic_index, record_count = ranges.topic_index, ranges.record_count
    partition = np.where(ranges.waits, -1 - ranges.partition, ranges.partition)  # as waiting_unit
    if not ranges.are_units:
        first = np.unique(ranges.unit, return_index=True)[1]
        topic_index, partition = topic_index[first], partition[first]
        record_count = np.zeros(len(first), np.int64)
        np.add.at(record_count, ranges.unit, ranges.record_count)
    if request.producer is None:
        sequence = np.full(len(topic_index), -1, np.int64)
    else:
        sequence = _list_sequences(request.producer, list(zip(topic_index.tolist(), partition.tolist(), strict=True)))
    return Units(topic_index, partition, record_count, sequence)


def _list_sequences(named: ProducerSequences, units: list[tuple[int, int]]) -> Column:
    by_unit = dict(zip(zip(named.topic_index, named.partition, strict=False), named.base_sequence, strict=False))
    lengths = {len(named.topic_index), len(named.partition), len(named.base_sequence)}
    if lengths != {len(units)} or by_unit.keys() != set(units):
        raise InvalidRequest("The sequences and the ranges must name the same partitions, each once.")
    return np.array([by_unit[unit] for unit in units], np.int64)


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
    for unit, (index, partition, sequence, count) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
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
    columns = (units.topic_index.tolist(), units.partition.tolist(), base_offsets, units.record_count.tolist())
    return [
        Unit(request.topics[index].topic, partition, base_offset, count)
        for index, partition, base_offset, count in zip(*columns, strict=True)
        if partition >= 0
    ]
