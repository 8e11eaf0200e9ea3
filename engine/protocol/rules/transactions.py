"""Transactions (KIP-98; the epoch grows with every one, KIP-890): who may write, how one ends, who is fenced.

Invariants. (producer_id, producer_epoch) names one transaction for ever: a write that comes late finds another epoch
and is refused. All of a transaction ends in one step: markers, offsets, rows in the transaction log. A commit counts
the parts that were accepted: one that was lost, refused or overtaken makes it fail, never incomplete.
"""

from __future__ import annotations

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
from ..names import MAX_LENGTH, shown
from ..values.base import MAX_EPOCH, Done
from ..values.decisions import Decided, Decision
from ..values.given import Given
from ..values.groups import CommitOffsets, OffsetsCommitted
from ..values.log import Produce
from ..values.producers import InitProducer, Producer, ProducerDone, TransactionRef
from ..values.segments import Segments, marker_segments
from ..values.state import State
from ..values.transactions import (
    TRANSITIONS,
    AbortTransaction,
    Ended,
    EndReason,
    EndTransaction,
    MarkersWritten,
    Transaction,
    TransactionEnded,
    TransactionFailed,
    TransactionMoved,
    TransactionStatus,
)
from . import producers
from .tables import Folds, Rules, Time, Timer

_COMMIT = TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT, "commit"
_ABORT = TransactionStatus.PREPARE_ABORT, TransactionStatus.COMPLETE_ABORT, "abort"
_COMPLETE = (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)

_Key = tuple[str, int, int]
"""Transactional id, producer id and epoch, which name one transaction for ever."""

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
            ended = _end(state, name, known, committed=False, reason=EndReason.FENCED)
            before, epoch = _next_identity(state, before, epoch)
        producer_id, epoch = _next_identity(state, before, epoch)
    used_up = before if before != producer_id else None
    moved = TransactionMoved(name, producer_id, epoch, TransactionStatus.EMPTY, request.timeout_ms, used_up=used_up)
    return Decision(ProducerDone(producer_id, epoch, known.batch_id if known else -1), (*ended, Decided(moved)))


def open_transaction(state: State, ref: TransactionRef) -> Transaction:
    """The transaction that takes a publish or an offset commit of this producer; its first one begins it.

    Raises InvalidProducerIdMapping, InvalidProducerEpoch, TransactionAbortable.
    """
    transaction = _known(state, ref)
    if not _is_current(transaction, ref):
        _raise_if_timed_out(transaction, ref)
        if ref.producer_id != transaction.producer_id and not _has_ended(transaction, ref):
            raise _other_producer(transaction, ref)
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
) -> list[Decided]:
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
        there(state, all_partitions),
        sorted(all_groups),
    )
    return [Decided(moved)]


def there(state: State, places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of topics that were not deleted meanwhile, in order."""
    return sorted(place for place in places if place[0] in state.topics)


def decide_failure(state: State, request: Any, error: LakeMQError) -> list[Decided]:
    """A refusal inside a transaction leaves it to be aborted, unless the same may be asked again and succeed."""
    if not isinstance(request, Produce | CommitOffsets) or request.transaction is None or error.retriable:
        return []
    ref = request.transaction
    transaction = state.transactions.get(ref.transactional_id)
    if transaction is None or not _is_current(transaction, ref) or transaction.error is not None:
        return []
    return [*joined(state, ref), Decided(TransactionFailed(ref.transactional_id, error.name, error.refusal().message))]


# -- how one ends ---------------------------------------------------------------------------------------


def decide_end(state: State, request: EndTransaction, given: Given) -> Decision:
    """Commit or abort, as its producer asks.

    Raises InvalidProducerIdMapping, ProducerFenced, InvalidTxnState, TransactionAbortable (a commit of what can only
    be aborted).
    """
    ref, name = request.transaction, request.transaction.transactional_id
    transaction = _known(state, ref)
    if not _is_current(transaction, ref):
        return Decision(_ended_before(transaction, request))
    if transaction.status is not TransactionStatus.ONGOING:
        if request.part_count:
            raise InvalidTxnState(
                "No transaction is open.", found=transaction.status.value, expected=TransactionStatus.ONGOING.value
            )
        # nothing was published: neither a marker nor an epoch is spent on it
        return Decision(TransactionEnded(transaction.producer_id, transaction.producer_epoch))
    repeated = _is_repeated(transaction, request)
    if request.commit:
        _check_complete(transaction, request)
    committed = request.commit and not repeated
    decided = _end(state, name, transaction, committed, EndReason.PRODUCER, request.batch_id if committed else None)
    result = TransactionEnded(
        *_next_identity(state, transaction.producer_id, transaction.producer_epoch), duplicate=repeated
    )
    return Decision(result, tuple(decided))


def decide_abort(state: State, request: AbortTransaction, given: Given) -> Decision:
    """An operator's abort. Raises TransactionalIdNotFound, InvalidTxnState."""
    transaction = state.transactions.get(request.transactional_id)
    if transaction is None:
        raise TransactionalIdNotFound(found=shown(request.transactional_id))
    if transaction.status is not TransactionStatus.ONGOING:
        raise InvalidTxnState(
            "No transaction is open.", found=transaction.status.value, expected=TransactionStatus.ONGOING.value
        )
    return Decision(Done(), tuple(_end(state, request.transactional_id, transaction, False, EndReason.OPERATOR)))


def _open(state: State) -> list[_Key]:
    return [_key(state, name) for name in sorted(state.ongoing)]


def _has_timed_out(state: State, key: _Key, time: Time) -> bool:
    name = key[0]
    if name not in state.ongoing or _key(state, name) != key:
        return False
    return time.waited_ms(key) > state.transactions[name].timeout_ms


def _key(state: State, name: str) -> _Key:
    transaction = state.transactions[name]
    return name, transaction.producer_id, transaction.producer_epoch


def decide_timeout(state: State, key: _Key) -> list[Decided]:
    return _end(state, key[0], state.transactions[key[0]], False, EndReason.TIMEOUT)


def _is_silent(state: State, name: str, time: Time) -> bool:
    known = state.transactions.get(name)
    return (
        known is not None
        and known.status is not TransactionStatus.ONGOING
        and time.is_over(known.seen_at_ms, time.limits.transactional_id_expiration_ms)
    )


def decide_expiry(state: State, name: str) -> list[Decided]:
    """Ids without a transaction that were silent for `transactional.id.expiration.ms` are forgotten."""
    known = state.transactions[name]
    dead = TransactionMoved(name, known.producer_id, known.producer_epoch, TransactionStatus.DEAD, known.timeout_ms)
    return [Decided(dead)]


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
    if ended is None or not _has_ended(transaction, ref) or transaction.status not in _COMPLETE:
        if ref.producer_id != transaction.producer_id:
            raise _other_producer(transaction, ref)
        raise _fenced(transaction, ref)
    if ended.reason is EndReason.TIMEOUT:
        if request.commit:
            _raise_if_timed_out(transaction, ref)
    elif ended.reason is not EndReason.PRODUCER:
        raise _fenced(transaction, ref)
    elif request.commit != ended.committed and not _is_repeated(transaction, request):
        raise InvalidTxnState(
            "The transaction has ended the other way.",
            found=transaction.status.value,
            expected="the same request as before",
        )
    return TransactionEnded(transaction.producer_id, transaction.producer_epoch, duplicate=True)


def _end(
    state: State, name: str, transaction: Transaction, committed: bool, reason: EndReason, batch_id: int | None = None
) -> list[Decided]:
    """All that a commit or an abort does, in one step; nothing of it is to be seen before the others."""
    prepare, complete, kind = _COMMIT if committed else _ABORT
    partitions, groups = there(state, transaction.partitions), sorted(transaction.offsets)
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
    decided = [Decided(prepared)]
    markers = _markers(state, transaction, kind)
    if len(markers):
        decided.append(Decided(MarkersWritten(name), markers))
    if committed:
        for group in groups:
            offsets = [(topic_id, one) for topic_id, one in transaction.offsets[group] if topic_id in state.topics]
            record = OffsetsCommitted(group, [topic_id for topic_id, _ in offsets], [one for _, one in offsets])
            decided.append(Decided(record))
    producer_id, epoch = _next_identity(state, transaction.producer_id, transaction.producer_epoch)
    ended = msgspec.structs.replace(
        prepared,
        status=complete,
        producer_id=producer_id,
        producer_epoch=epoch,
        used_up=transaction.producer_id if producer_id != transaction.producer_id else None,
    )
    decided.append(Decided(ended))
    return decided


def _markers(state: State, transaction: Transaction, kind: str) -> Segments:
    """One marker per partition that holds rows of the transaction."""
    places = [(state.topics[topic_id], partition) for topic_id, partition in there(state, transaction.partitions)]
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
        _take_over(state, record)
        state.transactions[name] = known
    known.status, known.seen_at_ms = record.status, state.now_ms
    if record.status is TransactionStatus.ONGOING:
        state.ongoing.add(name)
        known.started_at_ms = record.started_at_ms
        known.partitions.update(record.partitions)
        for group in record.groups:
            known.offsets.setdefault(group, [])
    elif record.status in _COMPLETE:
        state.ongoing.discard(name)
        _complete(state, known, record)


def _complete(state: State, known: Transaction, record: TransactionMoved) -> None:
    committed = record.status is TransactionStatus.COMPLETE_COMMIT
    known.ended = Ended(known.producer_id, known.producer_epoch, committed, record.reason or EndReason.PRODUCER)
    _take_over(state, record)
    known.producer_id, known.producer_epoch = record.producer_id, record.producer_epoch
    known.started_at_ms, known.part_count, known.error = None, 0, None
    known.partitions, known.offsets = set(), {}
    if record.batch_id is not None:
        known.batch_id = record.batch_id


def _take_over(state: State, record: TransactionMoved) -> None:
    """The id's producer in its new epoch, with sequences from 0; a producer id that was used up stays fenced."""
    if record.used_up is not None:
        state.producers[record.used_up] = Producer(MAX_EPOCH, state.now_ms)
    state.producers[record.producer_id] = Producer(record.producer_epoch, state.now_ms, record.transactional_id)
    state.next_producer_id = max(state.next_producer_id, record.producer_id + 1)


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


# -- identities -----------------------------------------------------------------------------------------


def _next_identity(state: State, producer_id: int, epoch: int) -> tuple[int, int]:
    """Of the next transaction; an id whose epochs are used up gives way to a new one. The last epoch only fences."""
    return (producer_id, epoch + 1) if epoch + 1 < MAX_EPOCH else (state.next_producer_id, 0)


def _known(state: State, ref: TransactionRef) -> Transaction:
    transaction = state.transactions.get(ref.transactional_id)
    if transaction is None:
        raise InvalidProducerIdMapping(
            f"The transactional id {shown(ref.transactional_id)} is not known, or has expired.", found=ref.producer_id
        )
    return transaction


def _is_current(transaction: Transaction, ref: TransactionRef) -> bool:
    return (ref.producer_id, ref.producer_epoch) == (transaction.producer_id, transaction.producer_epoch)


def _has_ended(transaction: Transaction, ref: TransactionRef) -> bool:
    """Whether this is the transaction that ended last."""
    ended = transaction.ended
    return ended is not None and (ref.producer_id, ref.producer_epoch) == (ended.producer_id, ended.producer_epoch)


def _raise_if_timed_out(transaction: Transaction, ref: TransactionRef) -> None:
    ended = transaction.ended
    if ended is not None and ended.reason is EndReason.TIMEOUT and _has_ended(transaction, ref):
        raise TransactionAbortable(
            f"The transaction was open for longer than its timeout of {transaction.timeout_ms} ms and was aborted."
        )


def _other_producer(transaction: Transaction, ref: TransactionRef) -> InvalidProducerIdMapping:
    return InvalidProducerIdMapping(
        f"Another producer has the transactional id {shown(ref.transactional_id)}.",
        found=ref.producer_id,
        expected=f"producer {transaction.producer_id}",
    )


def _fenced(transaction: Transaction, ref: TransactionRef) -> ProducerFenced:
    return ProducerFenced(
        f"The producer of {shown(ref.transactional_id)} is fenced, or the transaction is over.",
        found=f"epoch {ref.producer_epoch}",
        expected=f"epoch {transaction.producer_epoch}",
    )


DECIDE: Rules = {InitProducer: decide_init, EndTransaction: decide_end, AbortTransaction: decide_abort}
EVOLVE: Folds = {TransactionMoved: evolve_moved, TransactionFailed: evolve_failed, MarkersWritten: evolve_markers}
TIMERS = (
    Timer(_open, _has_timed_out, decide_timeout, watched=True),
    Timer(lambda state: list(state.transactions), _is_silent, decide_expiry, forgets=True),
)
