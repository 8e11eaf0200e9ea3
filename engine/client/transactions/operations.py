"""What an operator asks of transactions, as Kafka's tools do: who has one open, since when, and to end it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...protocol.errors import TransactionalIdNotFound
from ...protocol.hashing import shard
from ...protocol.names import shown
from ...protocol.values.state import State
from ...protocol.values.transactions import TRANSITIONS, AbortTransaction, Transaction, TransactionStatus
from ...protocol.values.transitions import Transitions
from ..arguments import partition_number, text, texts, topic_name, whole_number
from ..requester import Requester

__all__ = ["TRANSITIONS", "TransactionInfo", "Transactions", "Transitions"]


@dataclass(frozen=True)
class TransactionInfo:
    """A transactional id. started_at_ms, partitions, groups, error: of the transaction that is open, if any is.

    shard: as Kafka's coordinators divide the ids; coordinator: the sequencer that leads, empty where none does.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    updated_at_ms: int
    started_at_ms: int | None
    open_ms: int | None
    partitions: tuple[str, ...]
    groups: tuple[str, ...]
    error: str | None
    batch_id: int
    shard: int
    coordinator: str


@dataclass(frozen=True)
class ProducerInfo:
    """A producer that has written to a partition; first_offset: of its open transaction there."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    updated_at_ms: int
    transactional_id: str | None
    first_offset: int | None


class Transactions:
    """Operations on transactions; all but `abort` only read."""

    def __init__(self, requester: Requester, state: Callable[[], State], store_ms: Callable[[], int]) -> None:
        """state: as of the newest step, with producers and transactions; store_ms: the store's time, as the steps'."""
        self._requester, self._state, self._store_ms = requester, state, store_ms

    def all(self, states: tuple[str, ...] = ()) -> list[TransactionInfo]:
        """All transactional ids, or those in one of the states, by name."""
        states, state = tuple(texts("states", states)), self._state()
        now_ms = self._now_ms(state)
        infos = [_info(state, name, one, now_ms) for name, one in sorted(state.transactions.items())]
        return [info for info in infos if not states or info.state in states]

    def describe(self, transactional_id: str) -> TransactionInfo:
        """Raises TransactionalIdNotFound."""
        transactional_id, state = text("transactional_id", transactional_id), self._state()
        known = state.transactions.get(transactional_id)
        if known is None:
            raise TransactionalIdNotFound(found=shown(transactional_id))
        return _info(state, transactional_id, known, self._now_ms(state))

    def find_hanging(self, max_open_ms: int = 900_000) -> list[TransactionInfo]:
        """Transactions that have been open for longer; the oldest first. Consumers wait behind each of them."""
        max_open_ms = whole_number("max_open_ms", max_open_ms)
        hanging = [info for info in self.all(("Ongoing",)) if (info.open_ms or 0) > max_open_ms]
        return sorted(hanging, key=lambda info: -(info.open_ms or 0))

    def describe_producers(self, topic: str, partition: int) -> list[ProducerInfo]:
        """The producers the sequencer remembers of a partition. Raises UnknownTopicOrPartition."""
        topic, partition, state = topic_name("topic", topic), partition_number(partition), self._state()
        known = state.topic(topic)
        known.place(partition)
        firsts = known.open_transactions.get(partition, {})
        found = []
        for producer_id, producer in sorted(state.producers.items()):
            units = producer.units.get((known.topic_id, partition), ())
            if units or producer_id in firsts:
                last = units[-1].base_sequence + units[-1].record_count - 1 if units else -1
                found.append(
                    ProducerInfo(
                        producer_id,
                        producer.epoch,
                        last,
                        producer.seen_at_ms,
                        producer.transactional_id,
                        firsts.get(producer_id),
                    )
                )
        return found

    def abort(self, transactional_id: str) -> None:
        """End an open transaction; its producer is fenced. Raises TransactionalIdNotFound, InvalidTxnState."""
        self._requester.ask(AbortTransaction(text("transactional_id", transactional_id)))

    def _now_ms(self, state: State) -> int:
        """The time of the steps, also while nobody leads; as of the last one for who may only read."""
        try:
            return max(state.now_ms, self._store_ms())
        except OSError:
            return state.now_ms


def _info(state: State, name: str, known: Transaction, now_ms: int) -> TransactionInfo:
    started_at_ms = known.started_at_ms if known.status is TransactionStatus.ONGOING else None
    return TransactionInfo(
        name,
        known.producer_id,
        known.producer_epoch,
        known.status.value,
        known.timeout_ms,
        known.seen_at_ms,
        started_at_ms,
        None if started_at_ms is None else max(0, now_ms - started_at_ms),
        tuple(f"{state.topics[topic_id].topic}-{p}" for topic_id, p in state.there(known.partitions)),
        tuple(sorted(known.offsets)),
        known.error,
        known.batch_id,
        shard(name),
        state.leader,
    )
