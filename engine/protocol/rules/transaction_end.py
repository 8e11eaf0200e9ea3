"""The end of a transaction: by its producer, by an operator, by a timeout, or by a new producer with the same id.

All effects come in one step: markers, offsets, and the rows of the transaction log. A commit names how many parts it
has. If a part was lost, refused or fenced, the numbers differ and the commit fails, so a commit is never incomplete.
"""

from __future__ import annotations

import msgspec

from ..errors import (
    InvalidTxnState,
    TransactionAbortable,
    TransactionalIdNotFound,
)
from ..names import shorten
from ..values.base import Done
from ..values.consuming.offsets import OffsetsCommitted
from ..values.decision import Decision, DecisionInputs
from ..values.journal import JournalEntry
from ..values.segments import Segments, build_marker_segments
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
from .delayed.delays import decide_delays_of_transaction
from .identities import (
    fenced_error,
    find_transaction,
    is_current,
    is_last_transaction,
    next_identity,
    other_producer_error,
    raise_if_timed_out,
)
from .queues.redelivery import settle_pending
from .registries import Rules
from .timers import Time, Timer, Timers

# the two states that an end passes through, and the kind of its markers
_COMMIT = TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT, "commit"
_ABORT = TransactionStatus.PREPARE_ABORT, TransactionStatus.COMPLETE_ABORT, "abort"
COMPLETE = (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)

_GRACE_MS = 30_000
"""How late a timeout may be decided, for example because many letters wait."""

_TransactionKey = tuple[str, int, int]
"""Transactional id, producer id and epoch: the name of one transaction, never used again."""


def decide_end(state: State, request: EndTransaction, inputs: DecisionInputs) -> Decision:
    """Commit or abort a transaction for its producer.

    Raises InvalidProducerIdMapping, ProducerFenced, InvalidTxnState, TransactionAbortable (a commit of a transaction
    that can only be aborted).
    """
    ref, name = request.transaction, request.transaction.transactional_id
    transaction = find_transaction(state, ref)
    if not is_current(transaction, ref):
        return Decision(_answer_repeat(transaction, request))
    if transaction.status is not TransactionStatus.ONGOING:
        if request.part_count:
            raise _not_open_error(transaction)
        # the transaction is empty: it needs no markers and no new epoch
        return Decision(TransactionEnded(transaction.producer_id, transaction.producer_epoch))
    repeated = _repeats_batch(transaction, request)
    if request.commit:
        _check_complete(transaction, request)
    committed = request.commit and not repeated
    entries = build_end_entries(
        state, name, transaction, committed, EndReason.PRODUCER, request.batch_id if committed else None
    )
    result = TransactionEnded(
        *next_identity(state, transaction.producer_id, transaction.producer_epoch), duplicate=repeated
    )
    return Decision(result, tuple(entries))


def decide_abort(state: State, request: AbortTransaction, inputs: DecisionInputs) -> Decision:
    """Abort a transaction for an operator. Raises TransactionalIdNotFound, InvalidTxnState."""
    transaction = state.transactions.get(request.transactional_id)
    if transaction is None:
        raise TransactionalIdNotFound(found=shorten(request.transactional_id))
    if transaction.status is not TransactionStatus.ONGOING:
        raise _not_open_error(transaction)
    return Decision(
        Done(), tuple(build_end_entries(state, request.transactional_id, transaction, False, EndReason.OPERATOR))
    )


def _list_open_keys(state: State) -> list[_TransactionKey]:
    return [_build_key(state, name) for name in sorted(state.ongoing)]


def _has_timed_out(state: State, key: _TransactionKey, time: Time) -> bool:
    name = key[0]
    if name not in state.ongoing or _build_key(state, name) != key:
        return False
    return time.waited_ms(key) > state.transactions[name].timeout_ms


def has_unobserved_timeout(state: State, time: Time) -> bool:
    """Return whether a transaction is past its timeout by stored times, but this leader has not yet observed that.

    A leader aborts a transaction only after it has itself seen it open for the whole timeout. So a leader that would
    lead for a single step must stay: otherwise no leader would ever observe a timeout. It stays until the transaction
    has ended, and at most _GRACE_MS longer than the timeout.
    """
    waiting = ((key, state.transactions[key[0]]) for key in _list_open_keys(state))
    return any(
        time.is_over(transaction.started_at_ms or 0, transaction.timeout_ms)
        and time.waited_ms(key) <= transaction.timeout_ms + _GRACE_MS
        for key, transaction in waiting
    )


def _build_key(state: State, name: str) -> _TransactionKey:
    transaction = state.transactions[name]
    return name, transaction.producer_id, transaction.producer_epoch


def decide_timeout(state: State, key: _TransactionKey) -> list[JournalEntry]:
    return build_end_entries(state, key[0], state.transactions[key[0]], False, EndReason.TIMEOUT)


def _not_open_error(transaction: Transaction) -> InvalidTxnState:
    expected = TransactionStatus.ONGOING.value
    return InvalidTxnState("No transaction is open.", found=transaction.status.value, expected=expected)


def _repeats_batch(transaction: Transaction, request: EndTransaction) -> bool:
    """Return whether this commits a micro-batch that is committed already."""
    return request.commit and request.batch_id is not None and request.batch_id <= transaction.batch_id


def _check_complete(transaction: Transaction, request: EndTransaction) -> None:
    if transaction.error is not None:
        raise TransactionAbortable(found=transaction.error)
    if request.part_count != transaction.part_count:
        raise InvalidTxnState(
            "Some of the parts that were sent for this transaction are missing.",
            found=f"{transaction.part_count} parts",
            expected=f"{request.part_count} parts",
        )


def _answer_repeat(transaction: Transaction, request: EndTransaction) -> TransactionEnded:
    """Return the answer for a transaction that has ended already, by the same request or in another way."""
    ref, ended = request.transaction, transaction.ended
    if ended is None or not is_last_transaction(transaction, ref) or transaction.status not in COMPLETE:
        if ref.producer_id != transaction.producer_id:
            raise other_producer_error(transaction, ref)
        raise fenced_error(transaction, ref)
    if ended.reason is EndReason.TIMEOUT:
        if request.commit:
            raise_if_timed_out(transaction, ref)
    elif ended.reason is not EndReason.PRODUCER:
        raise fenced_error(transaction, ref)
    elif request.commit != ended.committed and not _repeats_batch(transaction, request):
        raise InvalidTxnState(
            "The transaction has already ended in the other way.",
            found=transaction.status.value,
            expected="the same request as before",
        )
    return TransactionEnded(transaction.producer_id, transaction.producer_epoch, duplicate=True)


def build_end_entries(
    state: State, name: str, transaction: Transaction, committed: bool, reason: EndReason, batch_id: int | None = None
) -> list[JournalEntry]:
    """Return all entries of a commit or an abort. They belong to one step: a reader sees all of them or none."""
    prepare, complete, kind = _COMMIT if committed else _ABORT
    partitions, groups = state.existing_partitions(transaction.partitions), sorted(transaction.offsets)
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
    markers = _build_markers(state, transaction, kind)
    if len(markers):
        entries.append(JournalEntry(MarkersWritten(name), markers))
    entries += decide_delays_of_transaction(state, name, transaction.producer_id, transaction.producer_epoch, committed)
    if committed:
        for group in groups:
            if group in transaction.acknowledged:
                continue  # a queue group commits by acknowledging, see below
            offsets = [
                (topic_id, commit) for topic_id, commit in transaction.offsets[group] if topic_id in state.topics
            ]
            record = OffsetsCommitted(group, [topic_id for topic_id, _ in offsets], [commit for _, commit in offsets])
            entries.append(JournalEntry(record))
    for group, parts in sorted(transaction.acknowledged.items()):
        entries += map(JournalEntry, settle_pending(state, group, parts, committed))
    producer_id, epoch = next_identity(state, transaction.producer_id, transaction.producer_epoch)
    completed = msgspec.structs.replace(
        prepared,
        status=complete,
        producer_id=producer_id,
        producer_epoch=epoch,
        used_up=transaction.producer_id if producer_id != transaction.producer_id else None,
    )
    entries.append(JournalEntry(completed))
    return entries


def _build_markers(state: State, transaction: Transaction, kind: str) -> Segments:
    """Return one marker for each partition that holds rows of the transaction."""
    topic_partitions = [
        (state.topics[topic_id], partition) for topic_id, partition in state.existing_partitions(transaction.partitions)
    ]
    producer_id = transaction.producer_id
    return build_marker_segments(
        kind,
        producer_id,
        transaction.producer_epoch,
        topic_id=[topic.topic_id for topic, _ in topic_partitions],
        topic=[topic.topic for topic, _ in topic_partitions],
        partition=[partition for _, partition in topic_partitions],
        offset=[int(topic.high_watermarks[partition]) for topic, partition in topic_partitions],
        first_offset=[topic.open_transactions[partition][producer_id] for topic, partition in topic_partitions],
    )


DECIDE: Rules = {EndTransaction: decide_end, AbortTransaction: decide_abort}
TIMERS: Timers = (Timer(_list_open_keys, _has_timed_out, decide_timeout, watched=True),)
