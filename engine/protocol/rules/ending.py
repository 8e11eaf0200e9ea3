"""How a transaction ends: by its producer, by an operator, by time, by who takes its id.

All of it ends in one step: markers, offsets, rows in the transaction log.
A commit counts the parts that were accepted: one that was lost, refused or overtaken makes it fail, never incomplete.
"""

from __future__ import annotations

import msgspec

from ..errors import (
    InvalidTxnState,
    TransactionAbortable,
    TransactionalIdNotFound,
)
from ..names import shown
from ..values.base import Done
from ..values.deciding import Decision, Given
from ..values.journal import JournalEntry
from ..values.offsets import OffsetsCommitted
from ..values.segments import Segments, marker_segments
from ..values.state import State
from ..values.transactions import (
    AbortTransaction,
    EndReason,
    EndTransaction,
    MarkersWritten,
    Transaction,
    TransactionEnded,
    TransactionMoved,
    TransactionStatus,
)
from .delays import decide_settled
from .giving_back import transaction_ended
from .identities import (
    fenced_error,
    has_ended,
    holder_of,
    is_current,
    next_identity,
    other_producer_error,
    raise_if_timed_out,
)
from .registries import Rules
from .timers import Time, Timer, Timers

_COMMIT = TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT, "commit"
_ABORT = TransactionStatus.PREPARE_ABORT, TransactionStatus.COMPLETE_ABORT, "abort"
COMPLETE = (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)

_GRACE_MS = 30_000
"""For what keeps a timeout waiting, such as a backlog of letters."""

_Key = tuple[str, int, int]
"""Transactional id, producer id and epoch, which name one transaction for ever."""


def decide_end(state: State, request: EndTransaction, given: Given) -> Decision:
    """Commit or abort, as its producer asks.

    Raises InvalidProducerIdMapping, ProducerFenced, InvalidTxnState, TransactionAbortable (a commit of what can only
    be aborted).
    """
    ref, name = request.transaction, request.transaction.transactional_id
    transaction = holder_of(state, ref)
    if not is_current(transaction, ref):
        return Decision(_ended_before(transaction, request))
    if transaction.status is not TransactionStatus.ONGOING:
        if request.part_count:
            raise _none_open_error(transaction)
        # nothing was published: neither a marker nor an epoch is spent on it
        return Decision(TransactionEnded(transaction.producer_id, transaction.producer_epoch))
    repeated = _is_repeated(transaction, request)
    if request.commit:
        _check_complete(transaction, request)
    committed = request.commit and not repeated
    entries = end(state, name, transaction, committed, EndReason.PRODUCER, request.batch_id if committed else None)
    result = TransactionEnded(
        *next_identity(state, transaction.producer_id, transaction.producer_epoch), duplicate=repeated
    )
    return Decision(result, tuple(entries))


def decide_abort(state: State, request: AbortTransaction, given: Given) -> Decision:
    """An operator's abort. Raises TransactionalIdNotFound, InvalidTxnState."""
    transaction = state.transactions.get(request.transactional_id)
    if transaction is None:
        raise TransactionalIdNotFound(found=shown(request.transactional_id))
    if transaction.status is not TransactionStatus.ONGOING:
        raise _none_open_error(transaction)
    return Decision(Done(), tuple(end(state, request.transactional_id, transaction, False, EndReason.OPERATOR)))


def _open(state: State) -> list[_Key]:
    return [_key(state, name) for name in sorted(state.ongoing)]


def _has_timed_out(state: State, key: _Key, time: Time) -> bool:
    name = key[0]
    if name not in state.ongoing or _key(state, name) != key:
        return False
    return time.waited_ms(key) > state.transactions[name].timeout_ms


def waits_for_patience(state: State, time: Time) -> bool:
    """Whether the leader has yet to see a transaction wait that is older than its timeout by the time of the steps.

    Who leads for moments only has to stay for it: none would ever see a timeout pass. It ends with the transaction, at
    the latest when the leader has waited for much longer in vain.
    """
    waiting = ((key, state.transactions[key[0]]) for key in _open(state))
    return any(
        time.is_over(one.started_at_ms or 0, one.timeout_ms) and time.waited_ms(key) <= one.timeout_ms + _GRACE_MS
        for key, one in waiting
    )


def _key(state: State, name: str) -> _Key:
    transaction = state.transactions[name]
    return name, transaction.producer_id, transaction.producer_epoch


def decide_timeout(state: State, key: _Key) -> list[JournalEntry]:
    return end(state, key[0], state.transactions[key[0]], False, EndReason.TIMEOUT)


def _none_open_error(transaction: Transaction) -> InvalidTxnState:
    expected = TransactionStatus.ONGOING.value
    return InvalidTxnState("No transaction is open.", found=transaction.status.value, expected=expected)


def _is_repeated(transaction: Transaction, request: EndTransaction) -> bool:
    """Whether this is the commit of a micro-batch that was committed before."""
    return request.commit and request.batch_id is not None and request.batch_id <= transaction.batch_id


def _check_complete(transaction: Transaction, request: EndTransaction) -> None:
    if transaction.error is not None:
        raise TransactionAbortable(found=transaction.error)
    if request.part_count != transaction.part_count:
        raise InvalidTxnState(
            "Not all that was sent for this transaction is part of it.",
            found=f"{transaction.part_count} parts",
            expected=f"{request.part_count} parts",
        )


def _ended_before(transaction: Transaction, request: EndTransaction) -> TransactionEnded:
    """The answer to who asks for an end that has come already, by itself or by others."""
    ref, ended = request.transaction, transaction.ended
    if ended is None or not has_ended(transaction, ref) or transaction.status not in COMPLETE:
        if ref.producer_id != transaction.producer_id:
            raise other_producer_error(transaction, ref)
        raise fenced_error(transaction, ref)
    if ended.reason is EndReason.TIMEOUT:
        if request.commit:
            raise_if_timed_out(transaction, ref)
    elif ended.reason is not EndReason.PRODUCER:
        raise fenced_error(transaction, ref)
    elif request.commit != ended.committed and not _is_repeated(transaction, request):
        raise InvalidTxnState(
            "The transaction has ended the other way.",
            found=transaction.status.value,
            expected="the same request as before",
        )
    return TransactionEnded(transaction.producer_id, transaction.producer_epoch, duplicate=True)


def end(
    state: State, name: str, transaction: Transaction, committed: bool, reason: EndReason, batch_id: int | None = None
) -> list[JournalEntry]:
    """All that a commit or an abort does, in one step; nothing of it is to be seen before the others."""
    prepare, complete, kind = _COMMIT if committed else _ABORT
    partitions, groups = state.there(transaction.partitions), sorted(transaction.offsets)
    prepared = TransactionMoved(
        name,
        transaction.producer_id,
        transaction.producer_epoch,
        prepare,
        transaction.timeout_ms,
        transaction.started_at_ms,
        partitions,
        groups,
        reason,
        batch_id,
    )
    entries = [JournalEntry(prepared)]
    markers = _markers(state, transaction, kind)
    if len(markers):
        entries.append(JournalEntry(MarkersWritten(name), markers))
    entries += decide_settled(state, name, transaction.producer_id, transaction.producer_epoch, committed)
    if committed:
        for group in groups:
            if group in transaction.acknowledged:
                continue  # a queue group has no other offsets
            offsets = [(topic_id, one) for topic_id, one in transaction.offsets[group] if topic_id in state.topics]
            record = OffsetsCommitted(group, [topic_id for topic_id, _ in offsets], [one for _, one in offsets])
            entries.append(JournalEntry(record))
    for group, taken in sorted(transaction.acknowledged.items()):
        entries += map(JournalEntry, transaction_ended(state, group, taken, committed))
    producer_id, epoch = next_identity(state, transaction.producer_id, transaction.producer_epoch)
    ended = msgspec.structs.replace(
        prepared,
        status=complete,
        producer_id=producer_id,
        producer_epoch=epoch,
        used_up=transaction.producer_id if producer_id != transaction.producer_id else None,
    )
    entries.append(JournalEntry(ended))
    return entries


def _markers(state: State, transaction: Transaction, kind: str) -> Segments:
    """One marker per partition that holds rows of the transaction."""
    places = [(state.topics[topic_id], partition) for topic_id, partition in state.there(transaction.partitions)]
    producer_id = transaction.producer_id
    return marker_segments(
        kind,
        producer_id,
        transaction.producer_epoch,
        topic_id=[topic.topic_id for topic, _ in places],
        topic=[topic.topic for topic, _ in places],
        partition=[partition for _, partition in places],
        offset=[int(topic.high_watermarks[partition]) for topic, partition in places],
        first_offset=[topic.open_transactions[partition][producer_id] for topic, partition in places],
    )


DECIDE: Rules = {EndTransaction: decide_end, AbortTransaction: decide_abort}
TIMERS: Timers = (Timer(_open, _has_timed_out, decide_timeout, watched=True),)
