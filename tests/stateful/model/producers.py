"""Idempotent producers: docs/semantics.md D1 to D8."""

from stateful.model.namespace import Namespace, Producer, Refused, TopicIdPartition

from lakemq.engine.protocol.values.log import Produce
from lakemq.engine.protocol.values.producers import ProducerDone, ProducerSequences

SEQUENCES = 2**31
REFUSED = (0, -1)
"""The partition under which a producer's rejected rows are counted."""


def init(model: Namespace, transactional_id: str | None = None) -> ProducerDone:
    producer_id = model.next_producer_id
    model.producers[producer_id] = Producer(0, model.now_ms, transactional_id)
    model.next_producer_id += 1
    return ProducerDone(producer_id, 0)


def check_outside(model: Namespace, sequences: ProducerSequences | None) -> None:
    """Refuse a publish outside of transactions by a producer that has a transactional id."""
    producer = model.producers.get(sequences.producer_id) if sequences else None
    if producer and producer.transactional_id is not None:
        raise Refused("INVALID_TXN_STATE")


def find_appended_before(
    model: Namespace, request: Produce, messages: dict[tuple[int, int], list[str]]
) -> dict[tuple[int, int], int]:
    """Return (index of topic, partition) -> offset, of units that were appended before under the same sequences."""
    sequences = request.producer
    if sequences is None:
        return {}
    producer = model.producers.get(sequences.producer_id)
    if producer is None:
        raise Refused("UNKNOWN_PRODUCER_ID")
    if sequences.producer_epoch < producer.epoch:
        raise Refused("INVALID_PRODUCER_EPOCH")
    appended = {}
    for unit in sorted(messages):
        offset = _find_appended_offset(
            model, sequences, _find_tp(request, unit), _sequence(sequences, unit), len(messages[unit])
        )
        if offset is not None:
            appended[unit] = offset
    return appended


def is_rejection_repeated(model: Namespace, request: Produce, count: int) -> bool:
    sequences = request.producer
    if sequences is None:
        return False
    assert sequences.rejected_sequence is not None
    return _find_appended_offset(model, sequences, REFUSED, sequences.rejected_sequence, count) is not None


def remember(model: Namespace, request: Produce, unit: tuple[int, int], count: int, offset: int) -> None:
    if request.producer is not None:
        _note(model, request.producer, _find_tp(request, unit), _sequence(request.producer, unit), count, offset)


def remember_rejection(model: Namespace, request: Produce, count: int) -> None:
    if request.producer is not None:
        sequence = request.producer.rejected_sequence
        assert sequence is not None
        _note(model, request.producer, REFUSED, sequence, count, 0)


def _find_tp(request: Produce, unit: tuple[int, int]) -> TopicIdPartition:
    return request.topics[unit[0]].topic_id, unit[1]


def _sequence(sequences: ProducerSequences, unit: tuple[int, int]) -> int:
    units = list(zip(sequences.topic_index, sequences.partition, strict=True))
    return sequences.base_sequence[units.index(unit)]


def _find_appended_offset(
    model: Namespace, sequences: ProducerSequences, tp: TopicIdPartition, sequence: int, count: int
) -> int | None:
    """Return the offset of a batch that was appended before under this sequence; None if the sequence is the next
    one.
    """
    producer = model.producers[sequences.producer_id]
    last = producer.appended.get(tp, []) if sequences.producer_epoch == producer.epoch else []
    for s, n, offset in last:
        if (s, n) == (sequence, count):
            return offset
    if sequence != ((last[-1][0] + last[-1][1]) % SEQUENCES if last else 0):
        raise Refused("OUT_OF_ORDER_SEQUENCE_NUMBER")
    return None


def _note(
    model: Namespace, sequences: ProducerSequences, tp: TopicIdPartition, sequence: int, count: int, offset: int
) -> None:
    producer = model.producers[sequences.producer_id]
    if sequences.producer_epoch > producer.epoch:
        producer.epoch, producer.appended = sequences.producer_epoch, {}
    producer.seen_at_ms = model.now_ms
    last = producer.appended.setdefault(tp, [])
    last.append((sequence, count, offset))
    del last[:-5]
