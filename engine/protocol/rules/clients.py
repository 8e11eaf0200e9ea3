"""Clients, the leader and producers: who may ask, and when an id expires.

A client numbers its letters from 1, and each letter is decided once, in this order. A listing of the mailbox may show
letters late or out of order; the numbers put them right.
"""

from collections.abc import Sequence
from enum import Enum

from ..errors import InvalidProducerEpoch, OutOfOrderSequenceNumber, UnknownProducerId
from ..values.clients import Answered, Client, ClientRemoved, LeaderElected, Unreadable
from ..values.decision import Decision, DecisionInputs
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
from .timers import Folds, Rules, Time, Timer, Timers


class Turn(Enum):
    """The ways to treat a letter."""

    DECIDE = "it is the client's next one"
    REPEAT = "it was decided before: answer again, decide nothing"
    WAIT = "an earlier one has not been seen yet"
    REFUSE = "the gap before it has lasted too long: the client is at an end"


def find_turn(state: State, client_id: str, number: int, waited_ms: int, gap_ms: int) -> Turn:
    """Return what to do with a letter. waited_ms: how long the sequencer has seen it wait for an earlier one."""
    client = state.clients.get(client_id)
    last = client.number if client else 0
    if number <= last:
        return Turn.REPEAT
    if number == last + 1:
        return Turn.DECIDE
    return Turn.WAIT if waited_ms <= gap_ms else Turn.REFUSE


def decide_unreadable(state: State, request: Unreadable, inputs: DecisionInputs) -> Decision:
    """Refuse a request that cannot be read. The other requests of its letter are decided."""
    return Decision(request.refusal)


def _is_client_silent(state: State, client_id: str, time: Time) -> bool:
    client = state.clients.get(client_id)
    return client is not None and time.is_over(client.seen_at_ms, time.limits.client_expiration_ms)


def decide_client_expiry(state: State, client_id: str) -> list[JournalEntry]:
    """Forget a client that was silent for `client.expiration.ms`."""
    return [JournalEntry(ClientRemoved(client_id, "expired"))]


def keep_answer(state: State, record: Answered, segments: Segments) -> None:
    state.set_client(record.client_id, Client(record.number, record.results, state.now_ms))


def remove_client(state: State, record: ClientRemoved, segments: Segments) -> None:
    state.remove_client(record.client_id)


# The lease: one sequencer leads. A standby takes over when no step came for the length of a lease.


def decide_take_over(state: State, leader: str, lease_ms: int) -> JournalEntry:
    """Let `leader` lead under the next epoch.

    This is legal at any time. The fence is the step log: a step is put only if its number is free, so of two sequencers
    that believe they lead one fails to put it.
    """
    return JournalEntry(LeaderElected(leader, state.leader_epoch + 1, lease_ms))


def decide_renew(state: State) -> JournalEntry:
    """Show that the leader is alive although it has nothing to decide."""
    return JournalEntry(LeaderElected(state.leader, state.leader_epoch, state.lease_ms))


def decide_resign(state: State) -> JournalEntry:
    """Give the lease back, so that a standby need not wait until it runs out."""
    return JournalEntry(LeaderElected("", state.leader_epoch, state.lease_ms))


def may_lead(state: State, leader: str | None, no_step_for_ms: int) -> bool:
    """Return whether `leader` may take the lease.

    leader: None for a process that has never led. no_step_for_ms: how long no step came, by the
    caller's own monotonic clock.
    """
    return state.leader in ("", leader) or no_step_for_ms > state.lease_ms


def set_leader(state: State, record: LeaderElected, segments: Segments) -> None:
    state.leader, state.leader_epoch, state.lease_ms = record.leader, record.epoch, record.lease_ms


# Idempotent producers (KIP-98): a sequence per (producer, topic, partition), with the last five appends remembered.
#
# A unit is all that one request puts into one partition. A repeated unit gets its first answer again and is not
# appended. A gap is refused. A new epoch starts again at 0. After 2147483647 comes 0.


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


def _is_producer_silent(state: State, producer_id: int, time: Time) -> bool:
    """Return whether the producer has expired. One with a transactional id expires together with that id."""
    producer = state.producers.get(producer_id)
    return (
        producer is not None
        and producer.transactional_id is None
        and time.is_over(producer.seen_at_ms, time.limits.producer_id_expiration_ms)
    )


def decide_producer_expiry(state: State, producer_id: int) -> list[JournalEntry]:
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


DECIDE: Rules = {Unreadable: decide_unreadable}

EVOLVE: Folds = {
    Answered: keep_answer,
    ClientRemoved: remove_client,
    LeaderElected: set_leader,
    ProducerInitialized: add_producer,
    ProducerExpired: remove_producer,
}

TIMERS: Timers = (
    Timer(lambda state: list(state.clients), _is_client_silent, decide_client_expiry, is_expiry=True),
    Timer(lambda state: list(state.producers), _is_producer_silent, decide_producer_expiry, is_expiry=True),
)
