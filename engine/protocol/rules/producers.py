"""Idempotent producers (KIP-98): one sequence per (producer, topic, partition), the last five appends remembered.

A unit is all that one request puts into one partition. The same unit again is answered with its first offset and
appended nowhere; a gap is refused; a new epoch restarts at 0; after 2147483647 comes 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidProducerEpoch, OutOfOrderSequenceNumber, UnknownProducerId
from ..values.deciding import Decision
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

REMEMBERED = 5


def decide_init(state: State) -> Decision:
    """A producer id never given out before, epoch 0."""
    record = ProducerInitialized(state.next_producer_id, 0)
    return Decision(ProducerDone(record.producer_id, record.producer_epoch), (JournalEntry(record),))


def check_producer(state: State, producer_id: int, epoch: int) -> ProducerState:
    """The producer; raises UnknownProducerId, InvalidProducerEpoch (a zombie). A newer epoch takes its place."""
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
    """The remembered unit of this epoch with the same range; None when the unit is the next one.

    Raises OutOfOrderSequenceNumber when it is neither.
    """
    units = producer.units.get((topic_id, partition), ()) if epoch == producer.epoch else ()
    for unit in units:
        if unit.base_sequence == base_sequence and unit.record_count == record_count:
            return unit
    expected = next_sequence(units[-1].base_sequence, units[-1].record_count) if units else 0
    if base_sequence != expected:
        raise OutOfOrderSequenceNumber(
            f"The sequence for {_shown(topic_id, partition)} does not go on where it ended.",
            found=base_sequence,
            expected=expected,
        )
    return None


def _shown(topic_id: int, partition: int) -> str:
    if partition >= 0:
        return f"partition {partition}"
    return f"what waits for partition {waiting_unit(partition)}" if topic_id else "refused rows"


def _is_silent(state: State, producer_id: int, time: Time) -> bool:
    """Not one of a transactional id, with which it is forgotten."""
    known = state.producers.get(producer_id)
    return (
        known is not None
        and known.transactional_id is None
        and time.is_over(known.seen_at_ms, time.limits.producer_id_expiration_ms)
    )


def decide_expiry(state: State, producer_id: int) -> list[JournalEntry]:
    """Producers that were silent for `producer.id.expiration.ms` are forgotten."""
    return [JournalEntry(ProducerExpired(producer_id))]


def evolve_initialized(state: State, record: ProducerInitialized, segments: Segments) -> None:
    state.producers[record.producer_id] = ProducerState(record.producer_epoch, state.now_ms)
    state.next_producer_id = max(state.next_producer_id, record.producer_id + 1)


def evolve_expired(state: State, record: ProducerExpired, segments: Segments) -> None:
    state.producers.pop(record.producer_id, None)


def evolve_appended(state: State, producer_id: int, producer_epoch: int, units: Sequence[UnitAppended]) -> None:
    # total: a reader that follows the tail has no producers loaded
    producer = state.producers.setdefault(producer_id, ProducerState(producer_epoch, state.now_ms))
    producer.seen_at_ms = state.now_ms
    if producer_epoch > producer.epoch:
        producer.epoch, producer.units = producer_epoch, {}
    for unit in units:
        key = (unit.topic_id, unit.partition)
        producer.units[key] = (*producer.units.get(key, ()), unit)[-REMEMBERED:]


DECIDE: Rules = {}
EVOLVE: Folds = {ProducerInitialized: evolve_initialized, ProducerExpired: evolve_expired}
TIMERS: Timers = (Timer(lambda state: list(state.producers), _is_silent, decide_expiry, forgets=True),)
