"""Identities of transactions: the pair (producer_id, producer_epoch) names one transaction and is never used again.

So a request that arrives late, after its transaction has ended, is recognized and refused.
"""

from __future__ import annotations

from ..errors import (
    InvalidProducerIdMapping,
    ProducerFenced,
    TransactionAbortable,
)
from ..names import shorten
from ..values.base import MAX_EPOCH
from ..values.producers import ProducerState, TransactionRef
from ..values.state import State
from ..values.transactions import (
    EndReason,
    Transaction,
    TransactionMoved,
)


def next_identity(state: State, producer_id: int, epoch: int) -> tuple[int, int]:
    """Return the producer id and epoch of the next transaction.

    When the epochs of an id are used up, a new id follows. The last epoch is never given out: it only fences.
    """
    return (producer_id, epoch + 1) if epoch + 1 < MAX_EPOCH else (state.next_producer_id, 0)


def set_next_producer(state: State, record: TransactionMoved) -> None:
    """Set the producer of a transactional id to the epoch of the record, with sequence numbers from 0.

    If the record replaces a producer id that has no epochs left, that id stays fenced.
    """
    if record.used_up is not None:
        state.set_producer(record.used_up, ProducerState(MAX_EPOCH, state.now_ms))
    producer = ProducerState(record.producer_epoch, state.now_ms, record.transactional_id)
    state.set_producer(record.producer_id, producer)
    state.next_producer_id = max(state.next_producer_id, record.producer_id + 1)


def find_transaction(state: State, ref: TransactionRef) -> Transaction:
    transaction = state.transactions.get(ref.transactional_id)
    if transaction is None:
        raise InvalidProducerIdMapping(
            f"The transactional id {shorten(ref.transactional_id)} does not exist, or has expired.",
            found=ref.producer_id,
        )
    return transaction


def is_current(transaction: Transaction, ref: TransactionRef) -> bool:
    return (ref.producer_id, ref.producer_epoch) == (transaction.producer_id, transaction.producer_epoch)


def is_last_transaction(transaction: Transaction, ref: TransactionRef) -> bool:
    """Return whether this is the transaction that ended last."""
    ended = transaction.ended
    return ended is not None and (ref.producer_id, ref.producer_epoch) == (ended.producer_id, ended.producer_epoch)


def raise_if_timed_out(transaction: Transaction, ref: TransactionRef) -> None:
    ended = transaction.ended
    if ended is not None and ended.reason is EndReason.TIMEOUT and is_last_transaction(transaction, ref):
        raise TransactionAbortable(
            f"The transaction was open for longer than its timeout of {transaction.timeout_ms} ms and was aborted."
        )


def other_producer_error(transaction: Transaction, ref: TransactionRef) -> InvalidProducerIdMapping:
    return InvalidProducerIdMapping(
        f"Another producer has the transactional id {shorten(ref.transactional_id)}.",
        found=ref.producer_id,
        expected=f"producer {transaction.producer_id}",
    )


def fenced_error(transaction: Transaction, ref: TransactionRef) -> ProducerFenced:
    return ProducerFenced(
        f"The producer of {shorten(ref.transactional_id)} is fenced, or the transaction is over.",
        found=f"epoch {ref.producer_epoch}",
        expected=f"epoch {transaction.producer_epoch}",
    )
