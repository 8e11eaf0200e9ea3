"""Transactions: who has an id, what is open under it, in which state it is, and which states may follow."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import msgspec

from .assignments import Place
from .base import Count, Number, Record, Request, Result
from .deliveries import Taken
from .offsets import OffsetCommit
from .producers import TransactionRef
from .transitions import Transitions


class EndTransaction(Request, frozen=True, tag="end_transaction"):
    """Commit or abort.

    part_count: how many publishes, and groups with offsets, the transaction has, so that none is lost unnoticed;
    batch_id: of a stream's micro-batch; one not above the last that was committed under this transactional id is
    aborted instead.
    """

    transaction: TransactionRef
    commit: bool
    part_count: Count = 0
    batch_id: Number | None = None


class AbortTransaction(Request, frozen=True, tag="abort_transaction"):
    """An operator ends a transaction; its producer is fenced."""

    transactional_id: str


class TransactionEnded(Result, frozen=True, tag="transaction_ended"):
    """The producer's id and epoch for its next transaction.

    duplicate: it had ended so before; or its micro-batch was committed before, and this repeat of it is aborted.
    """

    producer_id: int
    producer_epoch: int
    duplicate: bool = False


class TransactionStatus(str, Enum):
    """The states of a transactional id, by Kafka's names. Prepare states last no longer than a step."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


_BETWEEN = {TransactionStatus.EMPTY, TransactionStatus.ONGOING, TransactionStatus.DEAD}

TRANSITIONS = Transitions(
    "A transactional id",
    {
        TransactionStatus.DEAD: {TransactionStatus.EMPTY},
        TransactionStatus.EMPTY: _BETWEEN,
        TransactionStatus.ONGOING: {
            TransactionStatus.ONGOING,
            TransactionStatus.PREPARE_COMMIT,
            TransactionStatus.PREPARE_ABORT,
        },
        TransactionStatus.PREPARE_COMMIT: {TransactionStatus.COMPLETE_COMMIT},
        TransactionStatus.PREPARE_ABORT: {TransactionStatus.COMPLETE_ABORT},
        TransactionStatus.COMPLETE_COMMIT: _BETWEEN,
        TransactionStatus.COMPLETE_ABORT: _BETWEEN,
    },
)
"""Dead is an id that is not known: never asked for, or expired."""


class EndReason(str, Enum):
    """Who has ended a transaction."""

    PRODUCER = "producer"
    TIMEOUT = "timeout"
    FENCED = "fenced"
    OPERATOR = "operator"


class TransactionMoved(Record, frozen=True, tag="transaction_moved"):
    """A transactional id is in this state from now on: one row of the transaction log.

    producer_id, producer_epoch: who may go on from here; partitions, groups: all that the transaction touches.
    reason: who ended it; batch_id: the micro-batch that a commit carries.
    used_up: the producer id that has given way to this one because it has no epochs left.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    status: TransactionStatus
    timeout_ms: int
    started_at_ms: int | None = None
    partitions: list[tuple[int, int]] = []
    groups: list[str] = []
    reason: EndReason | None = None
    batch_id: int | None = None
    used_up: int | None = None

    @property
    def subject(self) -> str:
        return self.transactional_id


class TransactionFailed(Record, frozen=True, tag="transaction_failed"):
    """Something of the transaction was refused: it can only be aborted."""

    transactional_id: str
    error: str
    message: str

    @property
    def subject(self) -> str:
        return self.transactional_id


class MarkersWritten(Record, frozen=True, tag="markers_written"):
    """A transaction ended in its partitions. The markers are segments of kind `commit` or `abort`."""

    transactional_id: str

    @property
    def subject(self) -> str:
        return self.transactional_id


class Ended(msgspec.Struct, frozen=True):
    """How the last transaction of an id ended, for who did not hear of it.

    producer_id, producer_epoch: of that transaction; reason: as in TransactionMoved.
    """

    producer_id: int
    producer_epoch: int
    committed: bool
    reason: EndReason


class Transaction(msgspec.Struct):
    """A transactional id and, while it is Ongoing, its transaction. A structure of its own because it is stored whole.

    status: Prepare states last no longer than a step; part_count: publishes that were accepted, and groups whose
    offsets were; offsets: by group, with the topics' ids; acknowledged: by queue group, messages; error: why it can
    only be aborted; batch_id: of the last micro-batch committed, -1 before the first.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: TransactionStatus
    seen_at_ms: int
    started_at_ms: int | None = None
    partitions: set[tuple[int, int]] = msgspec.field(default_factory=set)
    offsets: dict[str, list[tuple[int, OffsetCommit]]] = msgspec.field(default_factory=dict)
    part_count: int = 0
    acknowledged: dict[str, list[Taken]] = msgspec.field(default_factory=dict)
    error: str | None = None
    ended: Ended | None = None
    batch_id: int = -1

    def places_of(self, group: str) -> Iterator[Place]:
        """The partitions in which it holds something of the group: offsets, or messages."""
        yield from ((topic_id, one.partition) for topic_id, one in self.offsets.get(group, ()))
        yield from (one.place for one in self.acknowledged.get(group, ()))


REQUESTS = (EndTransaction, AbortTransaction)
RESULTS = (TransactionEnded,)
RECORDS = (TransactionMoved, TransactionFailed, MarkersWritten)
