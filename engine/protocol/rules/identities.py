"""Whose a transaction is: (producer_id, producer_epoch) names one for ever, so that what comes late is refused."""

from __future__ import annotations

from ..errors import (
    InvalidProducerIdMapping,
    ProducerFenced,
    TransactionAbortable,
)
from ..names import shown
from ..values.base import MAX_EPOCH
from ..values.producers import ProducerState, TransactionRef
from ..values.state import State
from ..values.transactions import (
    EndReason,
    Transaction,
    TransactionMoved,
)


def next_identity(state: State, producer_id: int, epoch: int) -> tuple[int, int]:
    """Of the next transaction; an id whose epochs are used up gives way to a new one. The last epoch only fences."""
    return (producer_id, epoch + 1) if epoch + 1 < MAX_EPOCH else (state.next_producer_id, 0)


def take_over(state: State, record: TransactionMoved) -> None:
    """The id's producer in its new epoch, with sequences from 0; a producer id that was used up stays fenced."""
    if record.used_up is not None:
        state.producers[record.used_up] = ProducerState(MAX_EPOCH, state.now_ms)
    state.producers[record.producer_id] = ProducerState(record.producer_epoch, state.now_ms, record.transactional_id)
    state.next_producer_id = max(state.next_producer_id, record.producer_id + 1)


def holder_of(state: State, ref: TransactionRef) -> Transaction:
    transaction = state.transactions.get(ref.transactional_id)
    if transaction is None:
        raise InvalidProducerIdMapping(
            f"The transactional id {shown(ref.transactional_id)} is not known, or has expired.", found=ref.producer_id
        )
    return transaction


def is_current(transaction: Transaction, ref: TransactionRef) -> bool:
    return (ref.producer_id, ref.producer_epoch) == (transaction.producer_id, transaction.producer_epoch)


def has_ended(transaction: Transaction, ref: TransactionRef) -> bool:
    """Whether this is the transaction that ended last."""
    ended = transaction.ended
    return ended is not None and (ref.producer_id, ref.producer_epoch) == (ended.producer_id, ended.producer_epoch)


def raise_if_timed_out(transaction: Transaction, ref: TransactionRef) -> None:
    ended = transaction.ended
    if ended is not None and ended.reason is EndReason.TIMEOUT and has_ended(transaction, ref):
        raise TransactionAbortable(
            f"The transaction was open for longer than its timeout of {transaction.timeout_ms} ms and was aborted."
        )


def other_producer_error(transaction: Transaction, ref: TransactionRef) -> InvalidProducerIdMapping:
    return InvalidProducerIdMapping(
        f"Another producer has the transactional id {shown(ref.transactional_id)}.",
        found=ref.producer_id,
        expected=f"producer {transaction.producer_id}",
    )


def fenced_error(transaction: Transaction, ref: TransactionRef) -> ProducerFenced:
    return ProducerFenced(
        f"The producer of {shown(ref.transactional_id)} is fenced, or the transaction is over.",
        found=f"epoch {ref.producer_epoch}",
        expected=f"epoch {transaction.producer_epoch}",
    )
