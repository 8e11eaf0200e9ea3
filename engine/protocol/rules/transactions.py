"""Transactions (KIP-98; the epoch grows with every one, KIP-890): who has an id, what is a part, who is forgotten.

How one ends is in `ending`; whose it is, and how an id changes hands, in `identities`.
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
from ..names import MAX_LENGTH, shown
from ..values.deciding import Decision, Given
from ..values.deliveries import Acknowledge
from ..values.journal import JournalEntry
from ..values.log import Produce
from ..values.offsets import CommitOffsets
from ..values.producers import InitProducer, ProducerDone, TransactionRef
from ..values.segments import Segments
from ..values.state import State
from ..values.transactions import (
    TRANSITIONS,
    Ended,
    EndReason,
    MarkersWritten,
    Transaction,
    TransactionFailed,
    TransactionMoved,
    TransactionStatus,
)
from . import ending, producers
from .ending import COMPLETE, end
from .identities import (
    has_ended,
    holder_of,
    is_current,
    next_identity,
    other_producer_error,
    raise_if_timed_out,
    take_over,
)
from .registries import Folds, Rules
from .timers import Time, Timer, Timers

# -- who may write --------------------------------------------------------------------------------------


def decide_init(state: State, request: InitProducer, given: Given) -> Decision:
    """The id's producer, one epoch on: whoever had the id is fenced, and its open transaction aborted.

    Without an id it is a new producer. Raises InvalidRequest, InvalidTransactionTimeout.
    """
    name, limits = request.transactional_id, given.limits
    if name is None:
        return producers.decide_init(state)
    if not 1 <= len(name) <= MAX_LENGTH:
        raise InvalidRequest(
            "This is not a transactional id.", found=shown(name), expected=f"1 to {MAX_LENGTH} characters"
        )
    if not 1 <= request.timeout_ms <= limits.transaction_max_timeout_ms:
        raise InvalidTransactionTimeout(
            found=request.timeout_ms, expected=f"1 to {limits.transaction_max_timeout_ms} (transaction.max.timeout.ms)"
        )
    known, ended = state.transactions.get(name), []
    if known is None:
        before, (producer_id, epoch) = None, (state.next_producer_id, 0)
    else:
        before, epoch = known.producer_id, known.producer_epoch
        if known.status is TransactionStatus.ONGOING:
            ended = end(state, name, known, committed=False, reason=EndReason.FENCED)
            before, epoch = next_identity(state, before, epoch)
        producer_id, epoch = next_identity(state, before, epoch)
    used_up = before if before != producer_id else None
    moved = TransactionMoved(name, producer_id, epoch, TransactionStatus.EMPTY, request.timeout_ms, used_up=used_up)
    return Decision(ProducerDone(producer_id, epoch, known.batch_id if known else -1), (*ended, JournalEntry(moved)))


def open_transaction(state: State, ref: TransactionRef) -> Transaction:
    """The transaction that takes a publish or an offset commit of this producer; its first one begins it.

    Raises InvalidProducerIdMapping, InvalidProducerEpoch, TransactionAbortable.
    """
    transaction = holder_of(state, ref)
    if not is_current(transaction, ref):
        raise_if_timed_out(transaction, ref)
        if ref.producer_id != transaction.producer_id and not has_ended(transaction, ref):
            raise other_producer_error(transaction, ref)
        raise InvalidProducerEpoch(
            f"The transaction of {shown(ref.transactional_id)} under this epoch is over.",
            found=ref.producer_epoch,
            expected=f"epoch {transaction.producer_epoch}",
        )
    if transaction.error is not None:
        raise TransactionAbortable(found=transaction.error)
    return transaction


def joined(
    state: State, ref: TransactionRef, partitions: Iterable[tuple[int, int]] = (), groups: Iterable[str] = ()
) -> list[JournalEntry]:
    """What the transaction touches from now on; nothing when it does so already."""
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
        state.there(all_partitions),
        sorted(all_groups),
    )
    return [JournalEntry(moved)]


def decide_failure(state: State, request: Any, error: LakeMQError) -> list[JournalEntry]:
    """A refusal inside a transaction leaves it to be aborted, unless the same may be asked again and succeed."""
    if not isinstance(request, Produce | CommitOffsets | Acknowledge) or request.transaction is None or error.retriable:
        return []
    ref = request.transaction
    transaction = state.transactions.get(ref.transactional_id)
    if transaction is None or not is_current(transaction, ref) or transaction.error is not None:
        return []
    failed = TransactionFailed(ref.transactional_id, error.name, error.refusal().message)
    return [*joined(state, ref), JournalEntry(failed)]


def _is_silent(state: State, name: str, time: Time) -> bool:
    known = state.transactions.get(name)
    return (
        known is not None
        and known.status is not TransactionStatus.ONGOING
        and time.is_over(known.seen_at_ms, time.limits.transactional_id_expiration_ms)
    )


def decide_expiry(state: State, name: str) -> list[JournalEntry]:
    """Ids without a transaction that were silent for `transactional.id.expiration.ms` are forgotten."""
    known = state.transactions[name]
    dead = TransactionMoved(name, known.producer_id, known.producer_epoch, TransactionStatus.DEAD, known.timeout_ms)
    return [JournalEntry(dead)]


# -- folding --------------------------------------------------------------------------------------------


def evolve_moved(state: State, record: TransactionMoved, segments: Segments) -> None:
    name, known = record.transactional_id, state.transactions.get(record.transactional_id)
    if known is not None:  # a reader has none loaded
        TRANSITIONS.check(known.status, record.status)
    if record.status is TransactionStatus.DEAD:
        if known is not None:
            del state.transactions[name]
            state.producers.pop(known.producer_id, None)
        return
    if known is None or record.status is TransactionStatus.EMPTY:
        ended = known
        known = Transaction(record.producer_id, record.producer_epoch, record.timeout_ms, record.status, state.now_ms)
        known.batch_id = ended.batch_id if ended else -1
        take_over(state, record)
        state.transactions[name] = known
    known.status, known.seen_at_ms = record.status, state.now_ms
    if record.status is TransactionStatus.ONGOING:
        state.ongoing.add(name)
        known.started_at_ms = record.started_at_ms
        known.partitions.update(record.partitions)
        for group in record.groups:
            known.offsets.setdefault(group, [])
    elif record.status in COMPLETE:
        state.ongoing.discard(name)
        _complete(state, known, record)


def _complete(state: State, known: Transaction, record: TransactionMoved) -> None:
    committed = record.status is TransactionStatus.COMPLETE_COMMIT
    known.ended = Ended(known.producer_id, known.producer_epoch, committed, record.reason or EndReason.PRODUCER)
    take_over(state, record)
    known.producer_id, known.producer_epoch = record.producer_id, record.producer_epoch
    known.started_at_ms, known.part_count, known.error = None, 0, None
    known.partitions, known.offsets, known.acknowledged = set(), {}, {}
    if record.batch_id is not None:
        known.batch_id = record.batch_id


def evolve_failed(state: State, record: TransactionFailed, segments: Segments) -> None:
    if known := state.transactions.get(record.transactional_id):
        known.error, known.seen_at_ms = f"{record.error}: {record.message}".rstrip(": "), state.now_ms


def evolve_markers(state: State, record: MarkersWritten, segments: Segments) -> None:
    names = ("topic_id", "partition", "base_offset", "producer_id")
    for topic_id, partition, offset, producer_id in zip(*(segments.column(n) for n in names), strict=True):
        topic = state.own(topic_id)
        topic.high_watermarks[partition] = offset + 1
        firsts = topic.open_transactions.get(partition, {})
        firsts.pop(producer_id, None)
        if not firsts:
            topic.open_transactions.pop(partition, None)


DECIDE: Rules = {InitProducer: decide_init, **ending.DECIDE}
EVOLVE: Folds = {TransactionMoved: evolve_moved, TransactionFailed: evolve_failed, MarkersWritten: evolve_markers}
TIMERS: Timers = (
    *ending.TIMERS,
    Timer(lambda state: list(state.transactions), _is_silent, decide_expiry, forgets=True),
)
