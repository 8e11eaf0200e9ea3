"""Transactions (KIP-98, and KIP-890: the epoch grows with each one): ids, their parts, and when they are forgotten.

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
    take_over,
)
from .registries import Folds, Rules
from .timers import Time, Timer, Timers
from .transaction_end import COMPLETE, build_end_entries

# -- deciding -------------------------------------------------------------------------------------------


def decide_init(state: State, request: InitProducer, inputs: DecisionInputs) -> Decision:
    """Give the transactional id's producer the next epoch.

    This fences the producer before it and aborts its transaction. Without a transactional id, a new producer id is
    given out. Raises InvalidRequest, InvalidTransactionTimeout.
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
    transaction, ended = state.transactions.get(name), []
    if transaction is None:
        before, (producer_id, epoch) = None, (state.next_producer_id, 0)
    else:
        before, epoch = transaction.producer_id, transaction.producer_epoch
        if transaction.status is TransactionStatus.ONGOING:
            ended = build_end_entries(state, name, transaction, committed=False, reason=EndReason.FENCED)
            before, epoch = next_identity(state, before, epoch)
        producer_id, epoch = next_identity(state, before, epoch)
    used_up = before if before != producer_id else None
    moved = TransactionMoved(name, producer_id, epoch, TransactionStatus.EMPTY, request.timeout_ms, used_up=used_up)
    return Decision(
        ProducerDone(producer_id, epoch, transaction.batch_id if transaction else -1), (*ended, JournalEntry(moved))
    )


def open_transaction(state: State, ref: TransactionRef) -> Transaction:
    """Return the transaction that takes a publish or an offset commit of this producer.

    It begins with its first part, see `join_transaction`. Raises InvalidProducerIdMapping, InvalidProducerEpoch,
    TransactionAbortable.
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
    return transaction


def join_transaction(
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
        state.existing_places(all_partitions),
        sorted(all_groups),
    )
    return [JournalEntry(moved)]


def decide_failure(state: State, request: Any, error: LakeMQError) -> list[JournalEntry]:
    """Mark the transaction as abortable only after a refusal in it, unless the same request may succeed later."""
    if not isinstance(request, Produce | CommitOffsets | Acknowledge) or request.transaction is None or error.retriable:
        return []
    ref = request.transaction
    transaction = state.transactions.get(ref.transactional_id)
    if transaction is None or not is_current(transaction, ref) or transaction.error is not None:
        return []
    failed = TransactionFailed(ref.transactional_id, error.name, error.refusal().message)
    return [*join_transaction(state, ref), JournalEntry(failed)]


def _is_silent(state: State, name: str, time: Time) -> bool:
    transaction = state.transactions.get(name)
    return (
        transaction is not None
        and transaction.status is not TransactionStatus.ONGOING
        and time.is_over(transaction.seen_at_ms, time.limits.transactional_id_expiration_ms)
    )


def decide_expiry(state: State, name: str) -> list[JournalEntry]:
    """Forget a transactional id without an open transaction that was silent for `transactional.id.expiration.ms`."""
    transaction = state.transactions[name]
    dead = TransactionMoved(
        name, transaction.producer_id, transaction.producer_epoch, TransactionStatus.DEAD, transaction.timeout_ms
    )
    return [JournalEntry(dead)]


# -- folding --------------------------------------------------------------------------------------------


def set_status(state: State, record: TransactionMoved, segments: Segments) -> None:
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
        ended = transaction
        transaction = Transaction(record.producer_id, record.producer_epoch, record.timeout_ms, status, state.now_ms)
        transaction.batch_id = ended.batch_id if ended else -1
        take_over(state, record)
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
    take_over(state, record)
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
EVOLVE: Folds = {TransactionMoved: set_status, TransactionFailed: fail_transaction, MarkersWritten: append_markers}
TIMERS: Timers = (
    *transaction_end.TIMERS,
    Timer(lambda state: list(state.transactions), _is_silent, decide_expiry, is_expiry=True),
)
