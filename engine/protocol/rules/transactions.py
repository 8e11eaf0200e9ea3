"""Transactions: who has a transactional id, the parts of a transaction, and when ids expire.

They follow KIP-98, and KIP-890: the producer epoch grows with each transaction.

Row of docs/architecture.md: end of a transaction 3.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from ..errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    InvalidTxnState,
    LakeMQError,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdNotFound,
)
from ..names import MAX_LENGTH, shorten
from ..values.base import MAX_EPOCH, Done
from ..values.decision import Decision, DecisionInputs
from ..values.deliveries import Acknowledge
from ..values.journal import JournalEntry
from ..values.log import Produce
from ..values.offsets import CommitOffsets, OffsetsCommitted
from ..values.producers import InitProducer, ProducerDone, ProducerState, TransactionRef
from ..values.segments import Segments, build_marker_segments
from ..values.state import State
from ..values.transactions import (
    TRANSACTION_TRANSITIONS,
    AbortTransaction,
    EndedTransaction,
    EndReason,
    EndTransaction,
    MarkersWritten,
    Transaction,
    TransactionEnded,
    TransactionFailed,
    TransactionMoved,
    TransactionStatus,
)
from . import clients
from .delays import decide_delays_of_transaction
from .redelivery import settle_pending
from .timers import Folds, Rules, Time, Timer, Timers

# Identities of transactions: the pair (producer_id, producer_epoch) names one transaction and is never used again.
#
# So a request that arrives late, after its transaction has ended, is recognized and refused.


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


# The end of a transaction: by its producer, by an operator, by a timeout, or by a new producer with the same id.
#
# All effects come in one step: markers, offsets, and the rows of the transaction log. A commit names how many parts it
# has. If a part was lost, refused or fenced, the numbers differ and the commit fails, so a commit is never incomplete.


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


# -- deciding -------------------------------------------------------------------------------------------


def decide_init(state: State, request: InitProducer, inputs: DecisionInputs) -> Decision:
    """Give the producer of a transactional id the next epoch; without a transactional id, give out a new producer id.

    The new epoch fences the id's earlier producer, and aborts the transaction that it has left open. Raises
    InvalidRequest, InvalidTransactionTimeout.
    """
    name, limits = request.transactional_id, inputs.limits
    if name is None:
        return clients.decide_init(state)
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


DECIDE: Rules = {
    EndTransaction: decide_end,
    AbortTransaction: decide_abort,
    InitProducer: decide_init,
}

EVOLVE: Folds = {
    TransactionMoved: move_transaction,
    TransactionFailed: fail_transaction,
    MarkersWritten: append_markers,
}

TIMERS: Timers = (
    Timer(_list_open_keys, _has_timed_out, decide_timeout, watched=True),
    Timer(lambda state: list(state.transactions), _is_silent, decide_expiry, is_expiry=True),
)
