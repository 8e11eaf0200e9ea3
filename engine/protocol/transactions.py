"""Transactions (KIP-98; the epoch grows with every one, KIP-890): who may write, how one ends, who is fenced.

Invariants. (producer_id, producer_epoch) names one transaction for ever: a write that comes late finds another epoch
and is refused. All of a transaction ends in one step: markers, offsets, rows in the transaction log. A commit counts
the parts that were accepted: one that was lost, refused or overtaken makes it fail, never incomplete.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .decision import Decision
from .errors import (
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
from .limits import Limits
from .names import MAX_LENGTH, shown
from .records import Decided, MarkersWritten, OffsetsCommitted, TransactionFailed, TransactionMoved
from .requests import (
    MAX_EPOCH,
    AbortTransaction,
    CommitOffsets,
    Done,
    EndTransaction,
    InitProducer,
    Produce,
    ProducerDone,
    TransactionEnded,
    TransactionRef,
)
from .segments import NO_SEGMENTS, Segments, marker_segments
from .state import Ended, Producer, State, Transaction

# -- who may write --------------------------------------------------------------------------------------


def decide_init(state: State, request: InitProducer, limits: Limits) -> Decision:
    """The id's producer, one epoch on: whoever had the id is fenced, and its open transaction aborted.

    Raises InvalidRequest, InvalidTransactionTimeout.
    """
    name = request.transactional_id or ""
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
        if known.status == "Ongoing":
            ended = _end(state, name, known, committed=False, reason="fenced")
            before, epoch = _next_identity(state, before, epoch)
        producer_id, epoch = _next_identity(state, before, epoch)
    used_up = before if before != producer_id else None
    moved = TransactionMoved(name, producer_id, epoch, "Empty", request.timeout_ms, used_up=used_up)
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
    if transaction.status != "Ongoing":
        started_at_ms = state.now_ms
    elif len(all_partitions) > len(transaction.partitions) or len(all_groups) > len(transaction.offsets):
        started_at_ms = transaction.started_at_ms or state.now_ms
    else:
        return []
    moved = TransactionMoved(
        ref.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        "Ongoing",
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


def decide_end(state: State, request: EndTransaction) -> Decision:
    """Commit or abort, as its producer asks.

    Raises InvalidProducerIdMapping, ProducerFenced, InvalidTxnState, TransactionAbortable (a commit of what can only
    be aborted).
    """
    ref, name = request.transaction, request.transaction.transactional_id
    transaction = _known(state, ref)
    if not _is_current(transaction, ref):
        return Decision(_ended_before(transaction, request))
    if transaction.status != "Ongoing":
        if request.part_count:
            raise InvalidTxnState("No transaction is open.", found=transaction.status, expected="Ongoing")
        # nothing was published: neither a marker nor an epoch is spent on it
        return Decision(TransactionEnded(transaction.producer_id, transaction.producer_epoch))
    repeated = _is_repeated(transaction, request)
    if request.commit:
        _check_complete(transaction, request)
    committed = request.commit and not repeated
    decided = _end(state, name, transaction, committed, "producer", request.batch_id if committed else None)
    result = TransactionEnded(
        *_next_identity(state, transaction.producer_id, transaction.producer_epoch), duplicate=repeated
    )
    return Decision(result, tuple(decided))


def decide_abort(state: State, request: AbortTransaction) -> Decision:
    """An operator's abort. Raises TransactionalIdNotFound, InvalidTxnState."""
    transaction = state.transactions.get(request.transactional_id)
    if transaction is None:
        raise TransactionalIdNotFound(found=shown(request.transactional_id))
    if transaction.status != "Ongoing":
        raise InvalidTxnState("No transaction is open.", found=transaction.status, expected="Ongoing")
    return Decision(Done(), tuple(_end(state, request.transactional_id, transaction, False, "operator")))


def decide_timeout(state: State, transactional_id: str) -> list[Decided]:
    return _end(state, transactional_id, state.transactions[transactional_id], False, "timeout")


def decide_expiry(state: State, expiration_ms: int, now_ms: int) -> list[Decided]:
    """Ids without a transaction that were silent for `transactional.id.expiration.ms` are forgotten."""
    return [
        Decided(TransactionMoved(name, one.producer_id, one.producer_epoch, "Dead", one.timeout_ms))
        for name, one in state.transactions.items()
        if one.status != "Ongoing" and now_ms - one.seen_at_ms > expiration_ms
    ]


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
    if ended is None or not _has_ended(transaction, ref) or not transaction.status.startswith("Complete"):
        if ref.producer_id != transaction.producer_id:
            raise _other_producer(transaction, ref)
        raise _fenced(transaction, ref)
    if ended.reason == "timeout":
        if request.commit:
            _raise_if_timed_out(transaction, ref)
    elif ended.reason != "producer":
        raise _fenced(transaction, ref)
    elif request.commit != ended.committed and not _is_repeated(transaction, request):
        raise InvalidTxnState(
            "The transaction has ended the other way.", found=transaction.status, expected="the same request as before"
        )
    return TransactionEnded(transaction.producer_id, transaction.producer_epoch, duplicate=True)


def _end(
    state: State, name: str, transaction: Transaction, committed: bool, reason: str, batch_id: int | None = None
) -> list[Decided]:
    """All that a commit or an abort does, in one step; nothing of it is to be seen before the others."""
    outcome, kind = ("Commit", "commit") if committed else ("Abort", "abort")
    partitions, groups = there(state, transaction.partitions), sorted(transaction.offsets)
    about = (transaction.timeout_ms, transaction.started_at_ms, partitions, groups, reason, batch_id)
    current = (transaction.producer_id, transaction.producer_epoch)
    decided = [Decided(TransactionMoved(name, *current, f"Prepare{outcome}", *about))]  # type: ignore[arg-type]
    markers = _markers(state, transaction, kind)
    if len(markers):
        decided.append(Decided(MarkersWritten(name), markers))
    if committed:
        for group in groups:
            offsets = [(topic_id, one) for topic_id, one in transaction.offsets[group] if topic_id in state.topics]
            record = OffsetsCommitted(group, [topic_id for topic_id, _ in offsets], [one for _, one in offsets])
            decided.append(Decided(record))
    following = _next_identity(state, *current)
    used_up = transaction.producer_id if following[0] != transaction.producer_id else None
    ended = TransactionMoved(name, *following, f"Complete{outcome}", *about, used_up)  # type: ignore[arg-type]
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


def evolve_moved(state: State, record: TransactionMoved) -> None:
    name, known = record.transactional_id, state.transactions.get(record.transactional_id)
    if record.status == "Dead":
        if known is not None:
            del state.transactions[name]
            state.producers.pop(known.producer_id, None)
        return
    if known is None or record.status == "Empty":
        ended = known
        known = Transaction(record.producer_id, record.producer_epoch, record.timeout_ms, record.status, state.now_ms)
        known.batch_id = ended.batch_id if ended else -1
        _take_over(state, record)
        state.transactions[name] = known
    known.status, known.seen_at_ms = record.status, state.now_ms
    if record.status == "Ongoing":
        state.ongoing.add(name)
        known.started_at_ms = record.started_at_ms
        known.partitions.update(record.partitions)
        for group in record.groups:
            known.offsets.setdefault(group, [])
    elif record.status in ("CompleteCommit", "CompleteAbort"):
        state.ongoing.discard(name)
        _complete(state, known, record)


def _complete(state: State, known: Transaction, record: TransactionMoved) -> None:
    committed = record.status == "CompleteCommit"
    known.ended = Ended(known.producer_id, known.producer_epoch, committed, record.reason or "producer")
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


def evolve_failed(state: State, record: TransactionFailed) -> None:
    if known := state.transactions.get(record.transactional_id):
        known.error, known.seen_at_ms = f"{record.error}: {record.message}".rstrip(": "), state.now_ms


def evolve_markers(state: State, segments: Segments = NO_SEGMENTS) -> None:
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
    if ended is not None and ended.reason == "timeout" and _has_ended(transaction, ref):
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
