"""Idempotent producers (KIP-98): a sequence per (producer, topic, partition), with the last five appends remembered.

A unit is all that one request puts into one partition. A repeated unit gets its first answer again and is not appended.
A gap is refused. A new epoch starts again at 0. After 2147483647 comes 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidProducerEpoch, OutOfOrderSequenceNumber, UnknownProducerId
from ..values.decision import Decision
from ..values.journal import JournalEntry
from ..values.producers import (
    ProducerDone,
    ProducerExpired,
    ProducerInitialized,
    ProducerState,
    UnitAppended,
    next_sequence,
    waiting_unit,
)
from ..values.segments import Segments
from ..values.state import State
from .registries import Folds, Rules
from .timers import Time, Timer, Timers

MAX_REMEMBERED_UNITS = 5


def decide_init(state: State) -> Decision:
    """Give out a new producer id with epoch 0."""
    record = ProducerInitialized(state.next_producer_id, 0)
    return Decision(ProducerDone(record.producer_id, record.producer_epoch), (JournalEntry(record),))


def check_producer(state: State, producer_id: int, epoch: int) -> ProducerState:
    """Return the producer. A newer epoch is accepted and takes the place of the older one.

    Raises UnknownProducerId; InvalidProducerEpoch for an older epoch (a zombie).
    """
    producer = state.producers.get(producer_id)
    if producer is None:
        raise UnknownProducerId(found=producer_id, expected="an id from init_producer that has not expired")
    if epoch < producer.epoch:
        raise InvalidProducerEpoch(
            f"Producer {producer_id} is fenced.", found=epoch, expected=f"epoch {producer.epoch} or later"
        )
    return producer


def find_duplicate(
    producer: ProducerState, epoch: int, topic_id: int, partition: int, base_sequence: int, record_count: int
) -> UnitAppended | None:
    """Return the remembered unit with the same sequences; None if the unit continues the sequence.

    Raises OutOfOrderSequenceNumber if it is neither.
    """
    units = producer.units.get((topic_id, partition), ()) if epoch == producer.epoch else ()
    for unit in units:
        if unit.base_sequence == base_sequence and unit.record_count == record_count:
            return unit
    expected = next_sequence(units[-1].base_sequence, units[-1].record_count) if units else 0
    if base_sequence != expected:
        raise OutOfOrderSequenceNumber(
            f"The sequence for {_describe_unit(topic_id, partition)} does not continue where it ended.",
            found=base_sequence,
            expected=expected,
        )
    return None


def _describe_unit(topic_id: int, partition: int) -> str:
    if partition >= 0:
        return f"partition {partition}"
    return f"what waits for partition {waiting_unit(partition)}" if topic_id else "rejected rows"


def _is_silent(state: State, producer_id: int, time: Time) -> bool:
    """Return whether the producer has expired. One with a transactional id expires together with that id."""
    producer = state.producers.get(producer_id)
    return (
        producer is not None
        and producer.transactional_id is None
        and time.is_over(producer.seen_at_ms, time.limits.producer_id_expiration_ms)
    )


def decide_expiry(state: State, producer_id: int) -> list[JournalEntry]:
    """Forget a producer that was silent for `producer.id.expiration.ms`."""
    return [JournalEntry(ProducerExpired(producer_id))]


def add_producer(state: State, record: ProducerInitialized, segments: Segments) -> None:
    state.set_producer(record.producer_id, ProducerState(record.producer_epoch, state.now_ms))
    state.next_producer_id = max(state.next_producer_id, record.producer_id + 1)


def remove_producer(state: State, record: ProducerExpired, segments: Segments) -> None:
    state.remove_producer(record.producer_id)


def remember_units(state: State, producer_id: int, producer_epoch: int, units: Sequence[UnitAppended]) -> None:
    producer = state.change_producer(producer_id)
    if producer is None:  # a reader follows the steps without loading producers
        producer = ProducerState(producer_epoch, state.now_ms)
        state.set_producer(producer_id, producer)
    producer.seen_at_ms = state.now_ms
    if producer_epoch > producer.epoch:
        producer.epoch, producer.units = producer_epoch, {}
    for unit in units:
        key = (unit.topic_id, unit.partition)
        producer.units[key] = (*producer.units.get(key, ()), unit)[-MAX_REMEMBERED_UNITS:]


DECIDE: Rules = {}
EVOLVE: Folds = {ProducerInitialized: add_producer, ProducerExpired: remove_producer}
TIMERS: Timers = (Timer(lambda state: list(state.producers), _is_silent, decide_expiry, is_expiry=True),)
