"""Idempotent producers: ids, epochs, and the sequences by which a repeat is known."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from .base import MAX_SEQUENCE, Count, Epoch, Number, Record, Request, Result, Sequence, UnitPartition


class InitProducer(Request, frozen=True, tag="init_producer"):
    """Ask for a producer id. With a transactional id it is that id's, and whoever had it before is fenced.

    timeout_ms: transaction.timeout.ms, how long a transaction may stay open.
    """

    transactional_id: str | None = None
    timeout_ms: int = 60_000


class TransactionRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who asks for something inside a transaction; no transaction begins twice under one (producer_id, epoch)."""

    transactional_id: str
    producer_id: Number
    producer_epoch: Epoch


class ProducerSequences(msgspec.Struct, frozen=True):
    """Sequence of the first record per unit, a unit being all a request puts into one (topic, partition).

    topic_index: into the request's topics; partition: of rows that wait, `waiting_unit` of it; refused_sequence: of the
    first of its refused rows, which are a unit of their own; None: it has none.
    """

    producer_id: Number
    producer_epoch: Epoch
    topic_index: list[Count]
    partition: list[UnitPartition]
    base_sequence: list[Sequence]
    refused_sequence: Sequence | None = None


def waiting_unit(partition: int) -> int:
    """Instead of its partition, of a unit whose rows wait, as it has sequences of its own; and back."""
    return -1 - partition


def next_sequence(base_sequence: int, record_count: int) -> int:
    """The sequence after `record_count` records from `base_sequence` on."""
    return (base_sequence + record_count) % (MAX_SEQUENCE + 1)


class ProducerDone(Result, frozen=True, tag="producer"):
    """`batch_id`: the last micro-batch that was committed under the transactional id, -1 before the first."""

    producer_id: int
    producer_epoch: int
    batch_id: int = -1


class UnitAppended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a producer's request put into one partition.

    Of rows that wait, partition is `waiting_unit` of it, and there is no offset: base_offset is the first row, and
    file_id the file, of those that rode in the letter.
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
    """An idempotent producer: its last five appends per (topic_id, partition), oldest first.

    transactional_id: the id it belongs to, and with which it is forgotten.
    """

    epoch: int
    seen_at_ms: int
    transactional_id: str | None = None
    units: dict[tuple[int, int], tuple[UnitAppended, ...]] = field(default_factory=dict)


REQUESTS = (InitProducer,)
RESULTS = (ProducerDone,)
RECORDS = (ProducerInitialized, ProducerExpired)
