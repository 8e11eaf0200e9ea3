"""Transactions: transactional ids, the parts of a transaction, and when ids expire.

They follow KIP-98, and KIP-890: the producer epoch grows with each transaction.

`transaction_end` decides how a transaction ends. `identities` decides who owns an id and how it changes hands.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import (
    InvalidProducerEpoch,
    InvalidRequest,
    InvalidTransactionTimeout,
    LakeMQError,
    TransactionAbortable,
)
from ..names import MAX_LENGTH, shorten
from ..values.consuming.offsets import CommitOffsets
from ..values.decision import Decision, DecisionInputs
from ..values.journal import JournalEntry
from ..values.log import Produce
from ..values.producers import InitProducer, ProducerDone, TransactionRef
from ..values.queues.deliveries import Acknowledge
from ..values.segments import Segments
from ..values.state import State
from ..values.transactions import (
    TRANSACTION_TRANSITIONS,
    EndedTransaction,
    EndReason,
    MarkersWritten,
    Transaction,
    TransactionFailed,
    TransactionMoved,
    TransactionStatus,
)
from . import producers, transaction_end
from .identities import (
    find_transaction,
    is_current,
    is_last_transaction,
    next_identity,
    other_producer_error,
    raise_if_timed_out,
    set_next_producer,
)
from .registries import Folds, Rules
from .timers import Time, Timer, Timers
from .transaction_end import COMPLETE, build_end_entries

# -- deciding -------------------------------------------------------------------------------------------


def decide_init(state: State, request: InitProducer, inputs: DecisionInputs) -> Decision:
    """Give the producer of a transactional id the next epoch; without a transactional id, give out a new producer id.

    The new epoch fences the id's earlier producer, and aborts the transaction that it has left open. Raises
    InvalidRequest, InvalidTransactionTimeout.
    """
    name, limits = request.transactional_id, inputs.limits
    if name is None:
        return producers.decide_init(state)
    if not 1 <= len(name) <= MAX_LENGTH:
        raise InvalidRequest(
            "This is not a transactional id.", found=shorten(name), expected=f"1 to {MAX_LENGTH} characters"
        )
    if not 1 <= request.timeout_ms <= limits.transaction_max_timeout_ms:
        raise InvalidTransactionTimeout(
            found=request.timeout_ms, expected=f"1 to {limits.transaction_max_timeout_ms} (transaction.max.timeout.ms)"
        )
    transaction, end_entries = state.transactions.get(name), []
    if transaction is None:
        before, (producer_id, epoch) = None, (state.next_producer_id, 0)
    else:
        before, epoch = transaction.producer_id, transaction.producer_epoch
        if transaction.status is TransactionStatus.ONGOING:
            end_entries = build_end_entries(state, name, transaction, committed=False, reason=EndReason.FENCED)
            before, epoch = next_identity(state, before, epoch)
        producer_id, epoch = next_identity(state, before, epoch)
    used_up = before if before != producer_id else None
    moved = TransactionMoved(name, producer_id, epoch, TransactionStatus.EMPTY, request.timeout_ms, used_up=used_up)
    return Decision(
        ProducerDone(producer_id, epoch, transaction.batch_id if transaction else -1),
        (*end_entries, JournalEntry(moved)),
    )


def check_can_join(state: State, ref: TransactionRef) -> None:
    """Check that this producer may add a part to its transaction: a publish, offsets or acknowledgements.

    The transaction begins with its first part (`build_join_entries`), so it need not be open yet. Raises
    InvalidProducerIdMapping, InvalidProducerEpoch, TransactionAbortable.
    """
    transaction = find_transaction(state, ref)
    if not is_current(transaction, ref):
        raise_if_timed_out(transaction, ref)
        if ref.producer_id != transaction.producer_id and not is_last_transaction(transaction, ref):
            raise other_producer_error(transaction, ref)
        raise InvalidProducerEpoch(
            f"The transaction of {shorten(ref.transactional_id)} under this epoch is over.",
            found=ref.producer_epoch,
            expected=f"epoch {transaction.producer_epoch}",
        )
    if transaction.error is not None:
        raise TransactionAbortable(found=transaction.error)


def build_join_entries(
    state: State, ref: TransactionRef, partitions: Iterable[tuple[int, int]] = (), groups: Iterable[str] = ()
) -> list[JournalEntry]:
    """Return the entry that adds partitions and groups to the transaction; none if they all belong to it already."""
    transaction = state.transactions[ref.transactional_id]
    all_partitions, all_groups = transaction.partitions.union(partitions), set(transaction.offsets).union(groups)
    if transaction.status is not TransactionStatus.ONGOING:
        started_at_ms = state.now_ms
    elif len(all_partitions) > len(transaction.partitions) or len(all_groups) > len(transaction.offsets):
        started_at_ms = transaction.started_at_ms or state.now_ms
    else:
        return []
    moved = TransactionMoved(
        ref.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        TransactionStatus.ONGOING,
        transaction.timeout_ms,
        started_at_ms,
        state.existing_partitions(all_partitions),
        sorted(all_groups),
    )
    return [JournalEntry(moved)]


def decide_failure(state: State, request: Any, error: LakeMQError) -> list[JournalEntry]:
    """Return the entries that make a transaction abort-only after one of its parts was refused.

    There are none if the same request may succeed later, or if the transaction is abort-only already.
    """
    if not isinstance(request, Produce | CommitOffsets | Acknowledge) or request.transaction is None or error.retriable:
        return []
    ref = request.transaction
    transaction = state.transactions.get(ref.transactional_id)
    if transaction is None or not is_current(transaction, ref) or transaction.error is not None:
        return []
    failed = TransactionFailed(ref.transactional_id, error.name, error.refusal().message)
    return [*build_join_entries(state, ref), JournalEntry(failed)]


def _is_silent(state: State, name: str, time: Time) -> bool:
    transaction = state.transactions.get(name)
    return (
        transaction is not None
        and transaction.status is not TransactionStatus.ONGOING
        and time.is_over(transaction.seen_at_ms, time.limits.transactional_id_expiration_ms)
    )


def decide_expiry(state: State, name: str) -> list[JournalEntry]:
    """Forget a transactional id that no producer has used for `transactional.id.expiration.ms`."""
    transaction = state.transactions[name]
    dead = TransactionMoved(
        name, transaction.producer_id, transaction.producer_epoch, TransactionStatus.DEAD, transaction.timeout_ms
    )
    return [JournalEntry(dead)]


# -- folding --------------------------------------------------------------------------------------------


def move_transaction(state: State, record: TransactionMoved, segments: Segments) -> None:
    """Apply a transition: a producer takes the id, a part is added, the transaction ends, or the id expires."""
    name, transaction = record.transactional_id, state.change_transaction(record.transactional_id)
    status = record.status
    if state.has_transactions:
        before = TransactionStatus.DEAD if transaction is None else transaction.status
        status = TRANSACTION_TRANSITIONS.move(before, record.event)
    if status is TransactionStatus.DEAD:
        if transaction is not None:
            state.remove_transaction(name)
            state.remove_producer(transaction.producer_id)
        return
    if transaction is None or status is TransactionStatus.EMPTY:
        previous = transaction
        transaction = Transaction(record.producer_id, record.producer_epoch, record.timeout_ms, status, state.now_ms)
        transaction.batch_id = previous.batch_id if previous else -1
        set_next_producer(state, record)
        state.set_transaction(name, transaction)
    transaction.status, transaction.seen_at_ms = status, state.now_ms
    if status is TransactionStatus.ONGOING:
        state.ongoing.add(name)
        transaction.started_at_ms = record.started_at_ms
        transaction.partitions.update(record.partitions)
        for group in record.groups:
            transaction.offsets.setdefault(group, [])
    elif status in COMPLETE:
        state.ongoing.discard(name)
        _complete_transaction(state, transaction, record)


def _complete_transaction(state: State, transaction: Transaction, record: TransactionMoved) -> None:
    committed = record.status is TransactionStatus.COMPLETE_COMMIT
    transaction.ended = EndedTransaction(
        transaction.producer_id, transaction.producer_epoch, committed, record.reason or EndReason.PRODUCER
    )
    set_next_producer(state, record)
    transaction.producer_id, transaction.producer_epoch = record.producer_id, record.producer_epoch
    transaction.started_at_ms, transaction.part_count, transaction.error = None, 0, None
    transaction.partitions, transaction.offsets, transaction.acknowledged = set(), {}, {}
    if record.batch_id is not None:
        transaction.batch_id = record.batch_id


def fail_transaction(state: State, record: TransactionFailed, segments: Segments) -> None:
    if transaction := state.change_transaction(record.transactional_id):
        transaction.error, transaction.seen_at_ms = f"{record.error}: {record.message}".rstrip(": "), state.now_ms


def append_markers(state: State, record: MarkersWritten, segments: Segments) -> None:
    state.change_partitions(segments)
    names = ("topic_id", "partition", "base_offset", "producer_id")
    for topic_id, partition, offset, producer_id in zip(*(segments.column(n) for n in names), strict=True):
        topic = state.topics[topic_id]
        topic.high_watermarks[partition] = offset + 1
        firsts = topic.open_transactions.get(partition, {})
        firsts.pop(producer_id, None)
        if not firsts:
            topic.open_transactions.pop(partition, None)


DECIDE: Rules = {InitProducer: decide_init, **transaction_end.DECIDE}
EVOLVE: Folds = {
    TransactionMoved: move_transaction,
    TransactionFailed: fail_transaction,
    MarkersWritten: append_markers,
}
TIMERS: Timers = (
    *transaction_end.TIMERS,
    Timer(lambda state: list(state.transactions), _is_silent, decide_expiry, is_expiry=True),
)
