"""Idempotent producers: ids, epochs, and the sequences that identify a repeat."""

from dataclasses import dataclass, field

import msgspec

from .base import MAX_SEQUENCE, Count, Epoch, Number, Record, Request, Result, Sequence, UnitPartition


class InitProducer(Request, frozen=True, tag="init_producer"):  # Decided by `rules/transactions.py`.
    """Ask for a producer id. With a transactional id, the producer that had it before is fenced.

    timeout_ms: transaction.timeout.ms, how long a transaction may stay open.
    """

    transactional_id: str | None = None
    timeout_ms: int = 60_000


class TransactionRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The transaction that a request belongs to. Only one transaction ever has this (producer_id, epoch)."""

    transactional_id: str
    producer_id: Number
    producer_epoch: Epoch


class ProducerSequences(msgspec.Struct, frozen=True):
    """The sequence of the first record of each unit. A unit is all that a request puts into one (topic, partition).

    topic_index: index into the request's topics. partition: for delayed rows the `waiting_unit` of it.
    rejected_sequence: sequence of the first rejected row. Rejected rows are a unit of their own; None without rejected
    rows.
    """

    producer_id: Number
    producer_epoch: Epoch
    topic_index: list[Count]
    partition: list[UnitPartition]
    base_sequence: list[Sequence]
    rejected_sequence: Sequence | None = None


def waiting_unit(partition: int) -> int:
    """Return the number that stands for a partition in a unit of delayed rows; applied twice, return the partition.

    Delayed rows have sequences of their own: they enter the log later than rows sent after them.
    """
    return -1 - partition


def next_sequence(base_sequence: int, record_count: int) -> int:
    """Return the sequence that follows `record_count` records from `base_sequence` on."""
    return (base_sequence + record_count) % (MAX_SEQUENCE + 1)


class ProducerDone(Result, frozen=True, tag="producer"):
    """The producer's id and epoch. batch_id: the last micro-batch committed under the transactional id; -1 for none."""

    producer_id: int
    producer_epoch: int
    batch_id: int = -1


class UnitAppended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The rows that a producer's request put into one partition.

    For delayed rows, partition is the `waiting_unit` of it, and there is no offset: base_offset is the first row. For
    rows that travelled in the letter, file_id is their file.
    """

    topic_id: int
    partition: int
    base_sequence: int
    record_count: int
    base_offset: int
    file_id: int | None = None


class ProducerInitialized(Record, frozen=True, tag="producer_initialized"):
    producer_id: int
    producer_epoch: int

    @property
    def subject(self) -> str:
        return str(self.producer_id)


class ProducerExpired(Record, frozen=True, tag="producer_expired"):
    producer_id: int

    @property
    def subject(self) -> str:
        return str(self.producer_id)


@dataclass
class ProducerState:
    """An idempotent producer with its last five appends per (topic_id, partition), oldest first.

    transactional_id: the id that it belongs to. They are forgotten together.
    """

    epoch: int
    seen_at_ms: int
    transactional_id: str | None = None
    units: dict[tuple[int, int], tuple[UnitAppended, ...]] = field(default_factory=dict)


REQUESTS = (InitProducer,)
RESULTS = (ProducerDone,)
RECORDS = (ProducerInitialized, ProducerExpired)
