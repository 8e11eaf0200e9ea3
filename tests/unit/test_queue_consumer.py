"""Consumers of queue groups: the messages that a poll delivers."""

from typing import Any

import pytest
from queue_world import QueueWorld
from unit.consuming import add, join_queue_group, list_partitions, read_deliveries, read_texts, take_messages, texts
from unit.served import new_name, new_topic, until, values

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.outcomes import AckTracker
from lakemq.engine.protocol.values.deliveries import Deliveries
from lakemq.errors import IllegalState, NoOffsetForPartition

pytestmark = pytest.mark.slow


def test_acknowledged_messages_are_committed_and_not_delivered_again(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    add(mq, topic, {0: 3, 1: 2})
    with join_queue_group(mq, group, topic) as consumer:
        batch = consumer.poll(timeout_ms=5_000)
        assert texts(batch) == ["0.0", "0.1", "0.2", "1.0", "1.1"]
        assert consumer.lag() == {(topic, 0): 3, (topic, 1): 2}
        first, *rest = batch
        consumer.ack(first)
        consumer.ack(rest[1:3])
        consumer.flush()
        expected = {0: [(1, 1, "acquired", 1), (2, 1, "acknowledged", 1)], 1: [(1, 1, "acquired", 1)]}
        assert read_deliveries(mq, group, topic) == expected
        consumer.ack(batch)
        consumer.flush()
        assert consumer.lag() == {(topic, 0): 0, (topic, 1): 0}
        assert {tp: committed.offset for tp, committed in consumer.committed().items()} == {
            (topic, 0): 3,
            (topic, 1): 2,
        }
        assert not consumer.poll()


def test_returned_messages_come_again_before_new_ones_with_their_count(mq: Connection, topic: str, group: str) -> None:
    add(mq, topic, {0: 5})
    with join_queue_group(mq, group, topic) as consumer:
        messages = list(consumer.poll(max_records=3, timeout_ms=5_000))
        assert [message.redelivered for message in messages] == [False] * 3
        consumer.ack(messages[0])
        consumer.nack(messages[1:])
        consumer.flush()
        redelivered = list(batch := consumer.poll(timeout_ms=5_000))
        assert batch.to_arrow()["delivery_count"].to_pylist() == [2, 2, 1, 1][: len(batch)]
        if len(batch) < 4:  # a member that was slow gets fewer at once
            redelivered += take_messages(consumer, 4 - len(batch))
        assert read_texts(redelivered) == ["0.1", "0.2", "0.3", "0.4"]
        counts = {message.value.decode(): (message.delivery_count, message.redelivered) for message in redelivered}
        assert counts == {"0.1": (2, True), "0.2": (2, True), "0.3": (1, False), "0.4": (1, False)}


@pytest.mark.parametrize(("expired", "publishes"), [(True, False), (False, True)])
def test_transaction_takes_batch_that_shows_no_message(mq: Connection, expired: bool, publishes: bool) -> None:
    topic, group = new_topic(mq), new_name("g")
    with mq.producer(transactional_id=new_name("tx")) as producer:
        producer.begin_transaction()
        producer.send(topic, "not shown", ttl_ms=0)
        producer.flush()
        producer.commit_transaction() if expired else producer.abort_transaction()
        with join_queue_group(mq, group, topic) as consumer:
            batches: list[Any] = []
            until(lambda: bool(batches.append(consumer.poll()) or batches[-1].offsets))
            assert not batches[-1]
            consumer.flush()
            producer.begin_transaction()
            if publishes:
                producer.send(topic, "of it")
            producer.send_offsets_to_transaction(batches[-1].offsets, group)
            producer.commit_transaction()
    assert values(mq, topic) == ["of it"] * publishes


def test_poll_acknowledges_the_previous_batch_in_ack_mode_auto(mq: Connection, topic: str, group: str) -> None:
    add(mq, topic, {0: 4})
    with join_queue_group(mq, group, topic, ack_mode="auto") as consumer:
        assert len(take_messages(consumer, 2, max_records=2)) == 2
        assert read_deliveries(mq, group, topic)[0][0][:3:2] == (0, "acquired")
        assert len(take_messages(consumer, 2, max_records=2)) == 2
        until(lambda: not consumer.poll() and consumer.lag() == {(topic, 0): 0})


def test_transaction_refuses_batch_of_ack_mode_auto(mq: Connection, topic: str, group: str) -> None:
    """The next poll inside the transaction would acknowledge it, though the transaction may abort."""
    add(mq, topic, {0: 1})
    with (
        join_queue_group(mq, group, topic, ack_mode="auto") as consumer,
        mq.producer(transactional_id=new_name("tx")) as producer,
    ):
        batch = consumer.poll(timeout_ms=5_000)
        producer.begin_transaction()
        with pytest.raises(IllegalState, match="acknowledge messages"):
            producer.send_offsets_to_transaction(batch.offsets, batch.group)
        producer.abort_transaction()


def test_new_group_begins_at_latest_and_raises_without_reset(mq: Connection, topic: str) -> None:
    add(mq, topic, {0: 2})
    with join_queue_group(mq, new_name("g"), topic, auto_offset_reset="latest") as consumer:
        until(lambda: not consumer.poll() and list_partitions(consumer) == [0])
        add(mq, topic, {0: 1}, "new ")
        assert read_texts(take_messages(consumer, 1)) == ["new 0.0"]
    with (
        join_queue_group(mq, new_name("g"), topic, auto_offset_reset="none") as consumer,
        pytest.raises(NoOffsetForPartition),
    ):
        consumer.poll(timeout_ms=5_000)


def test_interrupted_poll_counts_no_delivery(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 3})
    with join_queue_group(mq, group, topic) as consumer:
        tell = consumer._ack_sender.send

        def interrupt(*arguments: Any, **more: Any) -> None:
            tell(*arguments, **more)
            if consumer._reader.count_open():
                raise KeyboardInterrupt

        monkeypatch.setattr(consumer._ack_sender, "send", interrupt)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(timeout_ms=5_000)
        monkeypatch.undo()
        assert [(message.offset, message.delivery_count) for message in take_messages(consumer, 3)] == [
            (0, 1),
            (1, 1),
            (2, 1),
        ]


# -- what a poll costs, on a clock that the test moves --------------------------------------------------------


@pytest.mark.parametrize("handoff_ms", [0, 3_000])
def test_idle_consumer_sends_nothing_and_looks_only_at_partitions_that_change(
    monkeypatch: pytest.MonkeyPatch, handoff_ms: int
) -> None:
    world, followed = QueueWorld(partitions=100), list[int]()
    world.publish(dict.fromkeys(range(100), 1))
    consumer = world.consumer(max_handoff_ms=handoff_ms)
    consumer.ack(consumer.poll(timeout_ms=20))
    consumer.flush()
    consumer.poll()
    follow = AckTracker.follow

    def note_follow(tracker: AckTracker, deliveries: Deliveries) -> None:
        followed.append(tracker.partition)
        follow(tracker, deliveries)

    monkeypatch.setattr(AckTracker, "follow", note_follow)
    step_count = len(world.core.steps)
    for _ in range(10):
        assert not consumer.poll(timeout_ms=5)
    assert len(world.core.steps) == step_count
    assert not followed
    world.publish({7: 1})
    assert [message.partition for message in consumer.poll(timeout_ms=20)] == [7]
    assert set(followed) == {7}


def test_poll_past_its_timeout_waits_for_its_answer_and_looks_seldom() -> None:
    world = QueueWorld()
    consumer = world.consumer()
    assert not consumer.poll(timeout_ms=100)
    world.publish({0: 1})
    world.holds_letters = True
    look_count, begin_ms = world.look_count, world.clock.ms
    assert not consumer.poll(timeout_ms=100)
    assert world.clock.ms - begin_ms > 1_000, "it waits for the answer"
    assert world.look_count - look_count < 100
