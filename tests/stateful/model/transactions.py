"""Transactions: docs/semantics.md D10 to D32."""

from stateful.model import producers
from stateful.model.namespace import Namespace, Producer, Refused, Transaction, TransactionalId

from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.log import Produce
from lakemq.engine.protocol.values.offsets import CommitOffsets
from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone, TransactionRef
from lakemq.engine.protocol.values.transactions import AbortTransaction, EndTransaction, TransactionEnded

REPEATABLE = {"STALE_TOPIC_METADATA"}
"""Refusals after which a part can be sent again. After any other one the transaction can only be aborted."""


def init(model: Namespace, request: InitProducer) -> ProducerDone:
    name = request.transactional_id
    if name is None:
        return producers.init(model)
    id_ = model.ids.get(name)
    if id_ is None:
        id_ = model.ids[name] = TransactionalId(producers.init(model, name).producer_id, 0)
    else:
        if id_.open:
            _end(model, name, "aborted", "fenced")
        _advance(model, name)
    id_.timeout_ms, id_.seen_at_ms, id_.last = request.timeout_ms, model.now_ms, None
    return ProducerDone(id_.producer_id, id_.epoch, id_.batch_id)


# -- checks of writers ----------------------------------------------------------------------------------


def check_writer(model: Namespace, ref: TransactionRef) -> None:
    id_ = model.ids.get(ref.transactional_id)
    if id_ is None:
        raise Refused("INVALID_PRODUCER_ID_MAPPING")
    if _is_current(id_, ref):
        if id_.open and id_.open.failed:
            raise Refused("TRANSACTION_ABORTABLE")
        return
    ended_last = id_.last is not None and id_.last.ref == ref
    if ended_last and id_.last and id_.last.ended_by == "timeout":
        raise Refused("TRANSACTION_ABORTABLE")
    if ref.producer_id != id_.producer_id and not ended_last:
        raise Refused("INVALID_PRODUCER_ID_MAPPING")
    raise Refused("INVALID_PRODUCER_EPOCH")


def part(model: Namespace, ref: TransactionRef, group: str | None = None) -> Transaction:
    """Return the transaction after adding one part: a publish, or a group, which counts once."""
    transaction = _ensure_open(model, ref)
    transaction.parts += group is None or group not in transaction.offsets
    return transaction


def note_refusal(model: Namespace, request: object, error: str) -> None:
    """Note a refused part: its transaction can only be aborted."""
    ref = request.transaction if isinstance(request, Produce | CommitOffsets) else None
    id_ = model.ids.get(ref.transactional_id) if ref else None
    if id_ and ref and _is_current(id_, ref) and error not in REPEATABLE:
        _ensure_open(model, ref).failed = True


def _ensure_open(model: Namespace, ref: TransactionRef) -> Transaction:
    id_ = model.ids[ref.transactional_id]
    if id_.open is None:
        id_.open = Transaction(ref, model.now_ms)
    return id_.open


def _is_current(id_: TransactionalId, ref: TransactionRef) -> bool:
    return (id_.producer_id, id_.epoch) == (ref.producer_id, ref.producer_epoch)


# -- how a transaction ends -----------------------------------------------------------------------------


def end(model: Namespace, request: EndTransaction) -> TransactionEnded:
    ref, commit, batch_id = request.transaction, request.commit, request.batch_id
    id_ = model.ids.get(ref.transactional_id)
    if id_ is None:
        raise Refused("INVALID_PRODUCER_ID_MAPPING")
    repeated = commit and batch_id is not None and batch_id <= id_.batch_id
    if not _is_current(id_, ref):
        return _end_again(id_, ref, commit, repeated)
    if id_.open is None:
        if request.part_count:
            raise Refused("INVALID_TXN_STATE")
        return TransactionEnded(id_.producer_id, id_.epoch)
    if commit and id_.open.failed:
        raise Refused("TRANSACTION_ABORTABLE")
    if commit and id_.open.parts != request.part_count:
        raise Refused("INVALID_TXN_STATE")
    if commit and not repeated and batch_id is not None:
        id_.batch_id = batch_id
    _end(model, ref.transactional_id, "committed" if commit and not repeated else "aborted", "producer")
    return TransactionEnded(id_.producer_id, id_.epoch, duplicate=repeated)


def _end_again(id_: TransactionalId, ref: TransactionRef, commit: bool, repeated: bool) -> TransactionEnded:
    if id_.open or id_.last is None or id_.last.ref != ref:
        raise Refused("INVALID_PRODUCER_ID_MAPPING" if ref.producer_id != id_.producer_id else "PRODUCER_FENCED")
    if id_.last.ended_by == "operator":
        raise Refused("PRODUCER_FENCED")
    if id_.last.ended_by == "timeout" and commit:
        raise Refused("TRANSACTION_ABORTABLE")
    committed = id_.last.outcome == "committed"
    if id_.last.ended_by == "producer" and commit != committed and not repeated:
        raise Refused("INVALID_TXN_STATE")
    return TransactionEnded(id_.producer_id, id_.epoch, duplicate=True)


def operator_aborts(model: Namespace, request: AbortTransaction) -> Done:
    id_ = model.ids.get(request.transactional_id)
    if id_ is None:
        raise Refused("TRANSACTIONAL_ID_NOT_FOUND")
    if id_.open is None:
        raise Refused("INVALID_TXN_STATE")
    _end(model, request.transactional_id, "aborted", "operator")
    return Done()


def pass_time(model: Namespace, expiration_ms: int) -> None:
    """Abort transactions that were open for too long, and forget ids that were silent for too long."""
    for name in sorted(model.ids):
        id_ = model.ids[name]
        if id_.open and model.now_ms - id_.open.started_at_ms > id_.timeout_ms:
            _end(model, name, "aborted", "timeout")
        if not id_.open and model.now_ms - id_.seen_at_ms > expiration_ms:
            del model.ids[name], model.producers[id_.producer_id]


def close(model: Namespace, transaction: Transaction, outcome: str) -> None:
    """Apply the end of a transaction to logs and groups. It does not matter who has its id now."""
    transaction.outcome = outcome
    for log in model.logs().values():
        if log.holds(transaction):
            log.add([None], transaction)
    if outcome == "committed":
        for group, offsets in transaction.offsets.items():
            existing = {tp: offset for tp, offset in offsets.items() if model.topics[tp[0]].active}
            if existing:
                model.offsets.setdefault(group, {}).update(existing)


def _end(model: Namespace, name: str, outcome: str, by: str) -> None:
    id_ = model.ids[name]
    transaction = id_.open
    assert transaction
    transaction.ended_by = by
    close(model, transaction, outcome)
    _advance(model, name)
    id_.open, id_.last, id_.seen_at_ms = None, transaction, model.now_ms


def _advance(model: Namespace, name: str) -> None:
    """Move an id to its next epoch, whose sequences start at 0. A producer id whose epochs ran out is replaced by a
    new one.
    """
    id_ = model.ids[name]
    if id_.epoch < model.last_epoch:
        id_.epoch += 1
        model.producers[id_.producer_id] = Producer(id_.epoch, model.now_ms, name)
    else:
        model.producers[id_.producer_id] = Producer(model.last_epoch + 1, model.now_ms)
        id_.producer_id, id_.epoch = producers.init(model, name).producer_id, 0
