"""Topics: docs/semantics.md A."""

from stateful.model.namespace import Log, Namespace, Refused, Topic

from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.topics import AlterTopic, CreateTopic, DeleteRecords, DeleteTopic, TopicDone


def create(model: Namespace, request: CreateTopic) -> TopicDone:
    if any(topic.topic == request.topic for topic in model.active()):
        raise Refused("TOPIC_ALREADY_EXISTS")
    topic_id = max(model.topics, default=0) + 1
    logs = [Log() for _ in range(request.partitions)]
    model.topics[topic_id] = Topic(topic_id, request.topic, request.subscriptions, logs, request.partitions)
    if any(topic.subscriptions for topic in model.active()):
        model.routing_step = model.step
    return TopicDone(topic_id, request.partitions)


def alter(model: Namespace, request: AlterTopic) -> TopicDone:
    topic = model.find_topic(request.topic)
    partitions = request.partitions or topic.partitions
    if partitions < topic.partitions and not request.force:
        raise Refused("INVALID_PARTITIONS")
    topic.logs += [Log() for _ in range(partitions - len(topic.logs))]
    topic.partitions = partitions
    if request.subscriptions is not None and request.subscriptions != topic.subscriptions:
        topic.subscriptions = request.subscriptions
        model.routing_step = model.step
    return TopicDone(topic.topic_id, partitions)


def delete(model: Namespace, request: DeleteTopic) -> Done:
    topic = model.find_topic(request.topic)
    topic.active = False
    for group, committed in list(model.offsets.items()):
        remaining = {tp: offset for tp, offset in committed.items() if tp[0] != topic.topic_id}
        model.offsets[group] = remaining
        if not remaining:
            del model.offsets[group]
    return Done()


def outgrow(model: Namespace, topic_id: int, cuts: dict[int, int]) -> None:
    """Move log starts as a look at old messages demands, but not beyond the stable offset."""
    for partition, offset in cuts.items():
        log = model.topics[topic_id].logs[partition]
        log.start = max(log.start, min(offset, log.stable))


def delete_records(model: Namespace, request: DeleteRecords) -> Done:
    topic = model.find_topic(request.topic)
    for partition, before in request.before.items():
        if before > len(model.log(model.find_partition(topic, partition))):
            raise Refused("OFFSET_OUT_OF_RANGE")
    for partition, before in request.before.items():
        log = topic.logs[partition]
        log.start = max(log.start, len(log) if before == -1 else before)
    return Done()
