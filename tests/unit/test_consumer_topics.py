"""Topics that change under a consumer: partitions are added, or a topic is deleted and created again."""

from typing import Any

import pytest
from unit.consuming import act_before_fetch, texts
from unit.served import new_name, new_topic, read_committed_offset, send, values

from lakemq.engine.client.connection import Connection
from lakemq.errors import TransactionAbortable, UnknownTopicId

pytestmark = pytest.mark.slow


def recreate_topic(mq: Connection, topic: str, *messages: str, partitions: int = 1) -> None:
    """Delete the topic and create it again between two looks of a consumer, which never sees it missing."""
    mq.topics.delete(topic)
    mq.topics.create(topic, partitions)
    send(mq, topic, *messages)


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_recreated_topic_is_read_from_its_start(mq: Connection, group: str, reset: Any) -> None:
    topic = new_topic(mq)
    send(mq, topic, "old 0", "old 1")
    with mq.consumer(group, assign=[topic], auto_offset_reset=reset) as consumer:
        consumer.commit({(topic, 0): 0})
        assert texts(consumer.poll()) == ["old 0", "old 1"]
        consumer.commit()
        recreate_topic(mq, topic, "new 0", "new 1", "new 2")
        assert read_committed_offset(mq, group, topic) is None
        assert (consumer.lag(), consumer.position(topic, 0)) == ({(topic, 0): 3}, 0)
        assert texts(consumer.poll()) == ["new 0", "new 1", "new 2"]
        consumer.commit()
    assert read_committed_offset(mq, group, topic) == 3


def test_offsets_of_a_deleted_topic_do_not_count_for_its_successor(mq: Connection, group: str) -> None:
    topic = new_topic(mq)
    send(mq, topic, "old 0", "old 1")
    with mq.consumer(group, assign=[topic]) as consumer:
        batch = consumer.poll()
        recreate_topic(mq, topic, "new 0", "new 1", "new 2")
        for progress in (None, batch, batch.offsets, {(topic, 0): 1}):
            with pytest.raises(UnknownTopicId, match=f"{topic} with id"):
                consumer.commit(progress)
        with mq.producer(new_name("id")) as producer:
            producer.begin_transaction()
            with pytest.raises(UnknownTopicId):
                producer.send_offsets_to_transaction(batch.offsets, group)
            with pytest.raises(TransactionAbortable, match="UNKNOWN_TOPIC_ID"):
                producer.commit_transaction()
            producer.abort_transaction()
        with pytest.raises(UnknownTopicId), mq.transaction(new_name("id")) as txn:
            txn.send_offsets(batch)
        assert read_committed_offset(mq, group, topic) is None
        # a name alone means the topic that has the name now
        with mq.transaction(new_name("id")) as txn:
            txn.send_offsets({(topic, 0): 1}, group)
        assert texts(consumer.poll()) == ["new 1", "new 2"]


def test_topic_recreated_during_a_fetch_is_read_from_its_start(mq: Connection, group: str) -> None:
    topic = new_topic(mq, 2)
    send(mq, topic, "old 0", "old 1", partition=1)
    with mq.consumer(group, assign=[topic]) as consumer:

        def recreate() -> None:
            recreate_topic(mq, topic, "new 0", "new 1")
            values(mq, topic)  # another reader of the connection sees the new topic

        consumer.poll(max_records=1)
        act_before_fetch(consumer, recreate)
        batch = consumer.poll()
        assert (texts(batch), batch.offsets) == (["new 0", "new 1"], {(topic, 0): 2})


def test_added_partitions_are_read_from_their_start(mq: Connection, group: str) -> None:
    topic = new_topic(mq)
    with (
        mq.consumer(group, assign=[topic], auto_offset_reset="latest") as consumer,
        mq.consumer(new_name("group"), assign=[(topic, 0)]) as assigned,
    ):
        assert (consumer.lag(), texts(consumer.poll())) == ({(topic, 0): 0}, [])
        mq.topics.alter(topic, partitions=3)
        for partition in range(3):
            send(mq, topic, f"{partition}.0", f"{partition}.1", partition=partition)
        assert consumer.position(topic, 2) == 0
        batch = consumer.poll()
        assert texts(batch) == ["0.0", "0.1", "1.0", "1.1", "2.0", "2.1"]
        assert consumer.commit(batch) == {(topic, 0): 2, (topic, 1): 2, (topic, 2): 2}
        assert texts(assigned.poll()) == ["0.0", "0.1"]


def test_added_partition_is_read_from_the_committed_offset(mq: Connection, group: str) -> None:
    """Another consumer of the group was there before."""
    topic = new_topic(mq)
    with mq.consumer(group, assign=[topic]) as consumer:
        consumer.poll()
        mq.topics.alter(topic, partitions=2)
        send(mq, topic, "1.0", "1.1", partition=1)
        with mq.consumer(group, assign=[(topic, 1)]) as other:
            other.commit(other.poll(max_records=1))
        assert texts(consumer.poll()) == ["1.1"]
