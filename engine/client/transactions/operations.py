"""Operations on transactions, as in Kafka's tools: list who has one open and since when, and end one."""

from collections.abc import Callable
from dataclasses import dataclass

from ...namespace.process import ProcessBound
from ...protocol.errors import TransactionalIdNotFound
from ...protocol.hashing import find_shard
from ...protocol.names import shorten
from ...protocol.values.state import State
from ...protocol.values.transactions import (
    AbortTransaction,
    Transaction,
    TransactionStatus,
)
from ..arguments import parse_partition, parse_text, parse_texts, parse_topic_name, parse_whole_number
from ..requests.requester import Requester


@dataclass(frozen=True)
class TransactionInfo:
    """A transactional id. started_at_ms, open_ms, partitions, groups, error: of its open transaction, if any.

    shard: as Kafka's coordinators divide the ids; coordinator: the sequencer that leads, "" if none does.
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
    """A producer that has written to a partition. first_offset: of its open transaction there."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    updated_at_ms: int
    transactional_id: str | None
    first_offset: int | None


class Transactions(ProcessBound):
    """Operations on transactions. All but `abort` only read."""

    def __init__(self, requester: Requester, state: Callable[[], State], store_ms: Callable[[], int]) -> None:
        """state: returns the newest state, with producers and transactions; store_ms: returns the store's time."""
        self._requester, self._state, self._store_ms = requester, state, store_ms

    def all(self, states: tuple[str, ...] = ()) -> list[TransactionInfo]:
        """Return all transactional ids, or those in one of the states, by name."""
        states, state = tuple(parse_texts("states", states)), self._state()
        now_ms = self._now_ms(state)
        infos = [_info(state, name, transaction, now_ms) for name, transaction in sorted(state.transactions.items())]
        return [info for info in infos if not states or info.state in states]

    def describe(self, transactional_id: str) -> TransactionInfo:
        """Return a transactional id. Raises TransactionalIdNotFound."""
        transactional_id, state = parse_text("transactional_id", transactional_id), self._state()
        transaction = state.transactions.get(transactional_id)
        if transaction is None:
            raise TransactionalIdNotFound(found=shorten(transactional_id))
        return _info(state, transactional_id, transaction, self._now_ms(state))

    def find_hanging(self, max_open_ms: int = 900_000) -> list[TransactionInfo]:
        """Return transactions that have been open for longer, the oldest first. Consumers wait behind each of them."""
        max_open_ms = parse_whole_number("max_open_ms", max_open_ms)
        hanging = [info for info in self.all(("Ongoing",)) if (info.open_ms or 0) > max_open_ms]
        return sorted(hanging, key=lambda info: -(info.open_ms or 0))

    def describe_producers(self, topic: str, partition: int) -> list[ProducerInfo]:
        """Return the producers that have written to a partition. Raises UnknownTopicOrPartition."""
        topic, partition, state = parse_topic_name("topic", topic), parse_partition(partition), self._state()
        topic_state = state.topic(topic)
        topic_state.find_partition(partition)
        firsts = topic_state.open_transactions.get(partition, {})
        producers = []
        for producer_id, producer in sorted(state.producers.items()):
            units = producer.units.get((topic_state.topic_id, partition), ())
            if units or producer_id in firsts:
                last = units[-1].base_sequence + units[-1].record_count - 1 if units else -1
                producers.append(
                    ProducerInfo(
                        producer_id,
                        producer.epoch,
                        last,
                        producer.seen_at_ms,
                        producer.transactional_id,
                        firsts.get(producer_id),
                    )
                )
        return producers

    def abort(self, transactional_id: str) -> None:
        """Abort an open transaction and fence its producer. Raises TransactionalIdNotFound, InvalidTxnState."""
        self._requester.ask(AbortTransaction(parse_text("transactional_id", transactional_id)))

    def _now_ms(self, state: State) -> int:
        """Return the time of steps, also while no sequencer leads.

        A user who may only read gets that of the last step.
        """
        try:
            return max(state.now_ms, self._store_ms())
        except OSError:
            return state.now_ms


def _info(state: State, name: str, transaction: Transaction, now_ms: int) -> TransactionInfo:
    started_at_ms = transaction.started_at_ms if transaction.status is TransactionStatus.ONGOING else None
    return TransactionInfo(
        name,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.status.value,
        transaction.timeout_ms,
        transaction.seen_at_ms,
        started_at_ms,
        None if started_at_ms is None else max(0, now_ms - started_at_ms),
        tuple(
            f"{state.topics[topic_id].topic}-{p}" for topic_id, p in state.existing_partitions(transaction.partitions)
        ),
        tuple(sorted(transaction.offsets)),
        transaction.error,
        transaction.batch_id,
        find_shard(name),
        state.leader,
    )
