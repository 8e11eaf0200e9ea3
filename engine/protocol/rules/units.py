"""Units: all that one request puts into one (topic, partition) is one. Which a request has, which came before."""

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
"""Units that are looked up one by one: numpy's price per call would be more."""


@dataclass(frozen=True)
class Units:
    """The units of a request as columns, in order of topic and partition; a range's `unit` is an index into them.

    topic_index: into the request's topics; partition: of rows that wait, `waiting_unit` of it; sequence: the producer's
    for the first record, -1 for a request without.
    """

    topic_index: Column
    partition: Column
    record_count: Column
    sequence: Column

    def __len__(self) -> int:
        return len(self.topic_index)

    def high_watermarks(self, topics: Sequence[Topic]) -> Column:
        """Per unit the offset its first record gets, 0 for rows that wait. topics: those of the request."""
        if len(self) <= _FEW:
            places = zip(self.topic_index.tolist(), self.partition.tolist(), strict=True)
            ends = [topics[index].high_watermarks[partition] if partition >= 0 else 0 for index, partition in places]
            return np.array(ends, np.int64)
        found = np.empty(len(self), np.int64)
        bounds = np.searchsorted(self.topic_index, np.arange(len(topics) + 1)).tolist()
        for topic, low, high in zip(topics, bounds, bounds[1:], strict=False):
            found[low:high] = topic.high_watermarks[np.maximum(self.partition[low:high], 0)]
        found[self.partition < 0] = 0
        return found


def units_of(request: Produce, ranges: RangeColumns) -> Units:
    """Raises InvalidRequest unless the sequences, where there are any, name just the units of the ranges."""
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
        sequence = _sequences(request.producer, list(zip(topic_index.tolist(), partition.tolist(), strict=True)))
    return Units(topic_index, partition, record_count, sequence)


def _sequences(named: ProducerSequences, units: list[tuple[int, int]]) -> Column:
    by_unit = dict(zip(zip(named.topic_index, named.partition, strict=False), named.base_sequence, strict=False))
    lengths = {len(named.topic_index), len(named.partition), len(named.base_sequence)}
    if lengths != {len(units)} or by_unit.keys() != set(units):
        raise InvalidRequest("The sequences and the ranges do not name the same partitions, each once.")
    return np.array([by_unit[unit] for unit in units], np.int64)


def appended_before(state: State, request: Produce, units: Units) -> dict[int, UnitAppended]:
    """Unit -> what was appended for it when it came before; the other units are the next ones of their sequence.

    Raises UnknownProducerId, InvalidProducerEpoch, OutOfOrderSequenceNumber.
    """
    if request.producer is None:
        return {}
    epoch = request.producer.producer_epoch
    producer = check_producer(state, request.producer.producer_id, epoch)
    columns = (units.topic_index, units.partition, units.sequence, units.record_count)
    again = {}
    for unit, (index, partition, sequence, count) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        topic_id = request.topics[index].topic_id
        if found := find_duplicate(producer, epoch, topic_id, partition, sequence, count):
            again[unit] = found
    return again


REFUSED = (0, -1)
"""Where the rows that a producer had refused count, as if this were their topic_id and partition; no topic has it."""


def refused_unit(request: Produce) -> UnitAppended | None:
    """The refused rows of an idempotent producer as a unit, so that a repeat is told from new ones.

    Raises InvalidRequest unless there is a sequence for them just where there are some.
    """
    if request.producer is None:
        return None
    count, sequence = sum(rows.record_count for rows in request.refused), request.producer.refused_sequence
    if bool(count) != (sequence is not None):
        raise InvalidRequest("The sequences and the refused rows do not go together.", found=sequence)
    return None if sequence is None else UnitAppended(*REFUSED, sequence, count, 0)


def was_refused_before(state: State, request: Produce, unit: UnitAppended | None) -> bool:
    """Whether these very rows were refused before. Raises what `appended_before` raises."""
    if unit is None or request.producer is None:
        return False
    epoch = request.producer.producer_epoch
    producer = check_producer(state, request.producer.producer_id, epoch)
    return find_duplicate(producer, epoch, *REFUSED, unit.base_sequence, unit.record_count) is not None


def named_units(request: Produce, units: Units, base_offsets: Sequence[int]) -> list[Unit]:
    """The units that are in the log, as a result tells them. base_offsets: per unit."""
    columns = (units.topic_index.tolist(), units.partition.tolist(), base_offsets, units.record_count.tolist())
    return [
        Unit(request.topics[index].topic, partition, base_offset, count)
        for index, partition, base_offset, count in zip(*columns, strict=True)
        if partition >= 0
    ]
