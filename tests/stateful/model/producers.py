"""Idempotent producers: docs/semantics.md D1 to D8."""

from __future__ import annotations

from stateful.model.namespace import Namespace, Place, Producer, Refused

from lakemq.engine.protocol.values.log import Produce
from lakemq.engine.protocol.values.producers import ProducerDone, ProducerSequences

SEQUENCES = 2**31
REFUSED = (0, -1)
"""Where a producer's rejected rows count, beside its places."""


def init(model: Namespace, transactional_id: str | None = None) -> ProducerDone:
    producer_id = model.next_producer_id
    model.producers[producer_id] = Producer(0, model.now_ms, transactional_id)
    model.next_producer_id += 1
    return ProducerDone(producer_id, 0)


def check_outside(model: Namespace, named: ProducerSequences | None) -> None:
    """Who has transactions publishes inside of them only."""
    producer = model.producers.get(named.producer_id) if named else None
    if producer and producer.transactional_id is not None:
        raise Refused("INVALID_TXN_STATE")


def appended_before(
    model: Namespace, request: Produce, messages: dict[tuple[int, int], list[str]]
) -> dict[tuple[int, int], int]:
    """(index of topic, partition) -> offset, of what was appended before under the same sequences."""
    named = request.producer
    if named is None:
        return {}
    producer = model.producers.get(named.producer_id)
    if producer is None:
        raise Refused("UNKNOWN_PRODUCER_ID")
    if named.producer_epoch < producer.epoch:
        raise Refused("INVALID_PRODUCER_EPOCH")
    known = {}
    for unit in sorted(messages):
        found = _found(model, named, _place(request, unit), _sequence(named, unit), len(messages[unit]))
        if found is not None:
            known[unit] = found
    return known


def refused_before(model: Namespace, request: Produce, count: int) -> bool:
    named = request.producer
    if named is None:
        return False
    assert named.rejected_sequence is not None
    return _found(model, named, REFUSED, named.rejected_sequence, count) is not None


def remember(model: Namespace, request: Produce, unit: tuple[int, int], count: int, offset: int) -> None:
    if request.producer is not None:
        _note(model, request.producer, _place(request, unit), _sequence(request.producer, unit), count, offset)


def remember_refused(model: Namespace, request: Produce, count: int) -> None:
    if request.producer is not None:
        sequence = request.producer.rejected_sequence
        assert sequence is not None
        _note(model, request.producer, REFUSED, sequence, count, 0)


def _place(request: Produce, unit: tuple[int, int]) -> Place:
    return request.topics[unit[0]].topic_id, unit[1]


def _sequence(named: ProducerSequences, unit: tuple[int, int]) -> int:
    units = list(zip(named.topic_index, named.partition, strict=True))
    return named.base_sequence[units.index(unit)]


def _found(model: Namespace, named: ProducerSequences, place: Place, sequence: int, count: int) -> int | None:
    """The offset of what was appended before under this sequence; None: it is the next."""
    producer = model.producers[named.producer_id]
    last = producer.appended.get(place, []) if named.producer_epoch == producer.epoch else []
    for s, n, offset in last:
        if (s, n) == (sequence, count):
            return offset
    if sequence != ((last[-1][0] + last[-1][1]) % SEQUENCES if last else 0):
        raise Refused("OUT_OF_ORDER_SEQUENCE_NUMBER")
    return None


def _note(model: Namespace, named: ProducerSequences, place: Place, sequence: int, count: int, offset: int) -> None:
    producer = model.producers[named.producer_id]
    if named.producer_epoch > producer.epoch:
        producer.epoch, producer.appended = named.producer_epoch, {}
    producer.seen_at_ms = model.now_ms
    last = producer.appended.setdefault(place, [])
    last.append((sequence, count, offset))
    del last[:-5]
