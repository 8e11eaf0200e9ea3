"""Transactions: docs/semantics.md D10 to D32."""

from __future__ import annotations

from stateful.model import producers
from stateful.model.namespace import Namespace, Producer, Refused, Transaction, TransactionalId

from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.log import Produce
from lakemq.engine.protocol.values.offsets import CommitOffsets
from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone, TransactionRef
from lakemq.engine.protocol.values.transactions import AbortTransaction, EndTransaction, TransactionEnded

MAY_BE_ASKED_AGAIN = {"STALE_TOPIC_METADATA"}
"""Any other refusal of a part leaves its transaction to be aborted."""


def init(model: Namespace, request: InitProducer) -> ProducerDone:
    name = request.transactional_id
    if name is None:
        return producers.init(model)
    one = model.ids.get(name)
    if one is None:
        one = model.ids[name] = TransactionalId(producers.init(model, name).producer_id, 0)
    else:
        if one.open:
            _end(model, name, "aborted", "fenced")
        _advance(model, name)
    one.timeout_ms, one.seen_at_ms, one.last = request.timeout_ms, model.now_ms, None
    return ProducerDone(one.producer_id, one.epoch, one.batch_id)


# -- who may write --------------------------------------------------------------------------------------


def check_writer(model: Namespace, ref: TransactionRef) -> None:
    one = model.ids.get(ref.transactional_id)
    if one is None:
        raise Refused("INVALID_PRODUCER_ID_MAPPING")
    if _is_current(one, ref):
        if one.open and one.open.failed:
            raise Refused("TRANSACTION_ABORTABLE")
        return
    ended_last = one.last is not None and one.last.ref == ref
    if ended_last and one.last and one.last.ended_by == "timeout":
        raise Refused("TRANSACTION_ABORTABLE")
    if ref.producer_id != one.producer_id and not ended_last:
        raise Refused("INVALID_PRODUCER_ID_MAPPING")
    raise Refused("INVALID_PRODUCER_EPOCH")


def part(model: Namespace, ref: TransactionRef, group: str | None = None) -> Transaction:
    """The transaction with one part more: a publish, or a group, which counts once."""
    transaction = _opened(model, ref)
    transaction.parts += group is None or group not in transaction.offsets
    return transaction


def hear_of_refusal(model: Namespace, request: object, error: str) -> None:
    """A part that was refused leaves a transaction that can only be aborted."""
    ref = request.transaction if isinstance(request, Produce | CommitOffsets) else None
    one = model.ids.get(ref.transactional_id) if ref else None
    if one and ref and _is_current(one, ref) and error not in MAY_BE_ASKED_AGAIN:
        _opened(model, ref).failed = True


def _opened(model: Namespace, ref: TransactionRef) -> Transaction:
    one = model.ids[ref.transactional_id]
    if one.open is None:
        one.open = Transaction(ref, model.now_ms)
    return one.open


def _is_current(one: TransactionalId, ref: TransactionRef) -> bool:
    return (one.producer_id, one.epoch) == (ref.producer_id, ref.producer_epoch)


# -- how one ends ---------------------------------------------------------------------------------------


def end(model: Namespace, request: EndTransaction) -> TransactionEnded:
    ref, commit, batch_id = request.transaction, request.commit, request.batch_id
    one = model.ids.get(ref.transactional_id)
    if one is None:
        raise Refused("INVALID_PRODUCER_ID_MAPPING")
    repeated = commit and batch_id is not None and batch_id <= one.batch_id
    if not _is_current(one, ref):
        return _end_again(one, ref, commit, repeated)
    if one.open is None:
        if request.part_count:
            raise Refused("INVALID_TXN_STATE")
        return TransactionEnded(one.producer_id, one.epoch)
    if commit and one.open.failed:
        raise Refused("TRANSACTION_ABORTABLE")
    if commit and one.open.parts != request.part_count:
        raise Refused("INVALID_TXN_STATE")
    if commit and not repeated and batch_id is not None:
        one.batch_id = batch_id
    _end(model, ref.transactional_id, "committed" if commit and not repeated else "aborted", "producer")
    return TransactionEnded(one.producer_id, one.epoch, duplicate=repeated)


def _end_again(one: TransactionalId, ref: TransactionRef, commit: bool, repeated: bool) -> TransactionEnded:
    if one.open or one.last is None or one.last.ref != ref:
        raise Refused("INVALID_PRODUCER_ID_MAPPING" if ref.producer_id != one.producer_id else "PRODUCER_FENCED")
    if one.last.ended_by == "operator":
        raise Refused("PRODUCER_FENCED")
    if one.last.ended_by == "timeout" and commit:
        raise Refused("TRANSACTION_ABORTABLE")
    committed = one.last.outcome == "committed"
    if one.last.ended_by == "producer" and commit != committed and not repeated:
        raise Refused("INVALID_TXN_STATE")
    return TransactionEnded(one.producer_id, one.epoch, duplicate=True)


def operator_aborts(model: Namespace, request: AbortTransaction) -> Done:
    one = model.ids.get(request.transactional_id)
    if one is None:
        raise Refused("TRANSACTIONAL_ID_NOT_FOUND")
    if one.open is None:
        raise Refused("INVALID_TXN_STATE")
    _end(model, request.transactional_id, "aborted", "operator")
    return Done()


def pass_time(model: Namespace, expiration_ms: int) -> None:
    """Transactions that were open for too long are aborted, ids that were silent for too long forgotten."""
    for name in sorted(model.ids):
        one = model.ids[name]
        if one.open and model.now_ms - one.open.started_at_ms > one.timeout_ms:
            _end(model, name, "aborted", "timeout")
        if not one.open and model.now_ms - one.seen_at_ms > expiration_ms:
            del model.ids[name], model.producers[one.producer_id]


def close(model: Namespace, transaction: Transaction, outcome: str) -> None:
    """What its end does to logs and groups, whoever has its id from now on."""
    transaction.outcome = outcome
    for log in model.logs().values():
        if log.holds(transaction):
            log.add([None], transaction)
    if outcome == "committed":
        for group, offsets in transaction.offsets.items():
            there = {place: offset for place, offset in offsets.items() if model.topics[place[0]].active}
            if there:
                model.offsets.setdefault(group, {}).update(there)


def _end(model: Namespace, name: str, outcome: str, by: str) -> None:
    one = model.ids[name]
    transaction = one.open
    assert transaction
    transaction.ended_by = by
    close(model, transaction, outcome)
    _advance(model, name)
    one.open, one.last, one.seen_at_ms = None, transaction, model.now_ms


def _advance(model: Namespace, name: str) -> None:
    """The id's next epoch, whose sequences begin at 0; a producer id without epochs left gives way to a new one."""
    one = model.ids[name]
    if one.epoch < model.last_epoch:
        one.epoch += 1
        model.producers[one.producer_id] = Producer(one.epoch, model.now_ms, name)
    else:
        model.producers[one.producer_id] = Producer(model.last_epoch + 1, model.now_ms)
        one.producer_id, one.epoch = producers.init(model, name).producer_id, 0
