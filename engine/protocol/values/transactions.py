"""Transactions: requests, records, states and transitions."""

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from .assignments import TopicIdPartition
from .base import Count, Number, Request, Result, TransactionRecord, Transitions
from .deliveries import MessageRanges
from .offsets import OffsetCommit
from .producers import TransactionRef


class EndTransaction(Request, frozen=True, tag="end_transaction"):  # Decided by `rules/transactions.py`.
    """Commit or abort a transaction.

    part_count: the number of publishes, and of groups with offsets, that the producer has sent in it; so a lost part is
    noticed. batch_id: the number of a stream's micro-batch. If it is not above the last one committed under this
    transactional id, the transaction is aborted instead.
    """

    transaction: TransactionRef
    commit: bool
    part_count: Count = 0
    batch_id: Number | None = None


class AbortTransaction(Request, frozen=True, tag="abort_transaction"):  # Decided by `rules/transactions.py`.
    """Abort a transaction for an operator. Its producer is fenced."""

    transactional_id: str


class TransactionEnded(Result, frozen=True, tag="transaction_ended"):
    """The producer's id and epoch for its next transaction.

    duplicate: an earlier request has ended the transaction in this way; or its micro-batch was committed before, so the
    repeat was aborted.
    """

    producer_id: int
    producer_epoch: int
    duplicate: bool = False


class TransactionStatus(StrEnum):
    """The states of a transactional id, by Kafka's names. Prepare states last no longer than a step."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


class TransactionEvent(StrEnum):
    """The events that change the state of a transactional id."""

    INIT = "init"
    """A producer takes the id."""
    ADD_PART = "add part"
    PREPARE_COMMIT = "prepare commit"
    PREPARE_ABORT = "prepare abort"
    COMMIT = "commit"
    ABORT = "abort"
    EXPIRE = "expire"
    """No producer has used the id for `transactional.id.expiration.ms`."""


_BETWEEN = {TransactionStatus.EMPTY, TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT}
"""The states of an id without an open transaction."""

TRANSACTION_TRANSITIONS = Transitions(
    "A transactional id",
    (TransactionStatus.DEAD,),
    {
        TransactionEvent.INIT: ({*_BETWEEN, TransactionStatus.DEAD}, TransactionStatus.EMPTY),
        TransactionEvent.ADD_PART: ({*_BETWEEN, TransactionStatus.ONGOING}, TransactionStatus.ONGOING),
        TransactionEvent.PREPARE_COMMIT: ({TransactionStatus.ONGOING}, TransactionStatus.PREPARE_COMMIT),
        TransactionEvent.PREPARE_ABORT: ({TransactionStatus.ONGOING}, TransactionStatus.PREPARE_ABORT),
        TransactionEvent.COMMIT: ({TransactionStatus.PREPARE_COMMIT}, TransactionStatus.COMPLETE_COMMIT),
        TransactionEvent.ABORT: ({TransactionStatus.PREPARE_ABORT}, TransactionStatus.COMPLETE_ABORT),
        TransactionEvent.EXPIRE: (_BETWEEN, TransactionStatus.DEAD),
    },
)
"""Dead stands for an id that does not exist: it was never requested, or has expired."""

_EVENTS = TRANSACTION_TRANSITIONS.find_events_to()


class EndReason(StrEnum):
    """The causes of a transaction's end."""

    PRODUCER = "producer"
    TIMEOUT = "timeout"
    FENCED = "fenced"
    OPERATOR = "operator"


class TransactionMoved(TransactionRecord, frozen=True, tag="transaction_moved"):
    """A transactional id has this state from now on: one row of the transaction log.

    producer_id, producer_epoch: who may continue. partitions, groups: everything that the transaction touches. reason:
    who ended it. batch_id: the micro-batch of a commit. used_up: the producer id that this one replaces because it has
    no epochs left.
    """

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
    def event(self) -> TransactionEvent:
        """The event that leads to this state."""
        return _EVENTS[self.status]


class TransactionFailed(TransactionRecord, frozen=True, tag="transaction_failed"):
    """A part of the transaction was refused, so it can only be aborted."""

    error: str
    message: str


class MarkersWritten(TransactionRecord, frozen=True, tag="markers_written"):
    """A transaction ended in its partitions. The markers are segments of kind `commit` or `abort`."""


class EndedTransaction(msgspec.Struct, frozen=True):
    """The outcome of the last transaction of an id. A producer that repeats its request is answered from it.

    producer_id, producer_epoch: those of the transaction. reason: as in TransactionMoved.
    """

    producer_id: int
    producer_epoch: int
    committed: bool
    reason: EndReason


class Transaction(msgspec.Struct):
    """A transactional id and, while it is Ongoing, its transaction. A struct, because it is stored as a whole.

    status: Prepare states last no longer than a step. part_count: accepted publishes, and groups whose offsets were
    accepted. offsets: by group, with topic ids. acknowledged: messages by queue group. error: why it can only be
    aborted. batch_id: the last committed micro-batch; -1 for none.
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
    acknowledged: dict[str, list[MessageRanges]] = msgspec.field(default_factory=dict)
    error: str | None = None
    ended: EndedTransaction | None = None
    batch_id: int = -1

    def list_partitions(self, group: str) -> Iterator[TopicIdPartition]:
        """Yield the partitions in which the transaction holds offsets or messages of the group."""
        yield from ((topic_id, commit.partition) for topic_id, commit in self.offsets.get(group, ()))
        yield from (part.topic_partition for part in self.acknowledged.get(group, ()))


REQUESTS = (EndTransaction, AbortTransaction)
RESULTS = (TransactionEnded,)
RECORDS = (TransactionMoved, TransactionFailed, MarkersWritten)
