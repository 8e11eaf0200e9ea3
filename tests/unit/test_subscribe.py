"""A member that changes its topics while it lives, and one that asks for no topics for a while."""

from typing import Any

import pytest
from targets import extended_but
from unit.consuming import RecordingListener, add, texts
from unit.served import new_name, new_topic, until

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.group_consumer import MemberConsumer
from lakemq.errors import IllegalState, InvalidRegularExpression, InvalidRequest, UnknownTopicOrPartition

pytestmark = pytest.mark.slow

PROTOCOLS = pytest.mark.parametrize("protocol", extended_but(["queue"], ["queue", "cooperative", "classic"]))


def member(mq: Connection, group: str, *topics: str, protocol: str, **options: Any) -> MemberConsumer:
    # otherwise the group waits for a member that leaves
    if protocol != "cooperative" and group not in mq.groups.list():
        delay = {"queue": "rebalance.delay.ms", "classic": "group.initial.rebalance.delay.ms"}[protocol]
        mq.groups.create(group, {"group.protocol": protocol, delay: 0})
    consumer = mq.consumer(group, topics=topics, protocol=protocol, **options)
    assert isinstance(consumer, MemberConsumer)
    return consumer


def poll_until_it_has(consumer: MemberConsumer, *topic_partitions: tuple[str, int]) -> list[str]:
    """Poll until the member owns exactly these partitions, and return the texts that it read meanwhile."""
    read_texts: list[str] = []
    until(lambda: bool(read_texts.extend(texts(consumer.poll())) or consumer.assignment() == sorted(topic_partitions)))
    return read_texts


def read(consumer: MemberConsumer, count: int) -> list[str]:
    read_texts: list[str] = []
    until(lambda: bool(read_texts.extend(texts(consumer.poll(timeout_ms=20))) or len(read_texts) >= count))
    return read_texts


@pytest.mark.extended
@PROTOCOLS
def test_subscribe_swaps_the_partitions_of_other_topics(mq: Connection, protocol: str) -> None:
    group, kept_topic, dropped_topic, new = new_name("g"), new_topic(mq), new_topic(mq), new_topic(mq)
    add(mq, new, {0: 2}, "new ")
    listener = RecordingListener()
    with member(mq, group, kept_topic, dropped_topic, protocol=protocol, listener=listener) as consumer:
        poll_until_it_has(consumer, (kept_topic, 0), (dropped_topic, 0))
        add(mq, kept_topic, {0: 1})
        assert read(consumer, 1) == ["0.0"]
        consumer.commit()
        consumer.subscribe([kept_topic, new])
        assert consumer.subscription() == sorted([kept_topic, new])
        assert consumer.assignment() == sorted([(kept_topic, 0), (dropped_topic, 0)])  # until it polls
        assert consumer.position(kept_topic, 0) == 1
        read_texts = poll_until_it_has(consumer, (kept_topic, 0), (new, 0))
        assert listener.events[1][0] in (
            "revoked",
            "lost",
        )  # a queue's partition is gone at once: no message was left to acknowledge
        assert consumer.position(kept_topic, 0) == 1
        assert read_texts + read(consumer, 2 - len(read_texts)) == ["new 0.0", "new 0.1"]
        add(mq, dropped_topic, {0: 1}, "left ")
        add(mq, kept_topic, {0: 1}, "kept ")
        assert read(consumer, 1) == ["kept 0.0"]
        consumer.commit()
    assert mq.groups.describe(group).state == "Empty"


@pytest.mark.extended
@PROTOCOLS
def test_unsubscribed_member_hands_its_partitions_to_others(mq: Connection, protocol: str) -> None:
    group, topic, listener = new_name("g"), new_topic(mq, 2), RecordingListener()
    with (
        member(mq, group, topic, protocol=protocol, listener=listener) as consumer,
        member(mq, group, topic, protocol=protocol) as other,
    ):
        until(
            lambda: bool(consumer.poll() or other.poll() or len(consumer.assignment()) == len(other.assignment()) == 1)
        )
        ((_, partition),) = consumer.assignment()
        consumer.unsubscribe()
        consumer.unsubscribe()  # again: nothing happens
        assert (consumer.assignment(), consumer.lag(), consumer.subscription()) == ([], {}, [])
        assert listener.events[-1] == ("revoked", [partition])
        with pytest.raises(IllegalState, match="subscribed to nothing"):
            consumer.poll()
        with pytest.raises(IllegalState, match="not assigned"):
            consumer.position(topic, partition)
        assert [info.member_id for info in mq.groups.members(group)] == [other.member_id]
        poll_until_it_has(other, (topic, 0), (topic, 1))
        add(mq, topic, {0: 1, 1: 1}, "first ")
        assert sorted(read(other, 2)) == ["first 0.0", "first 1.0"]
        other.commit()
        other.unsubscribe()
        add(mq, topic, {0: 1, 1: 1}, "then ")
        consumer.subscribe([topic])
        assert sorted(read(consumer, 2)) == ["then 0.0", "then 1.0"]
        consumer.commit()
    assert mq.groups.describe(group).state == "Empty"


@PROTOCOLS
def test_unsubscribed_member_closes_once(mq: Connection, protocol: str) -> None:
    group, topic = new_name("g"), new_topic(mq)
    consumer = member(mq, group, topic, protocol=protocol)
    consumer.unsubscribe()
    consumer.close()
    for call in (lambda: consumer.subscribe([topic]), consumer.unsubscribe):
        with pytest.raises(IllegalState, match="closed"):
            call()


def test_refused_subscribe_keeps_the_subscription(mq: Connection) -> None:
    group, topic = new_name("g"), new_topic(mq)
    with member(mq, group, topic, protocol="cooperative") as consumer:
        for error, arguments in (
            (UnknownTopicOrPartition, {"topics": ["nowhere"]}),
            (InvalidRequest, {}),
            (InvalidRequest, {"topics": [topic], "pattern": "x"}),
            (InvalidRequest, {"topics": topic}),
            (InvalidRegularExpression, {"pattern": "("}),
        ):
            with pytest.raises(error):
                consumer.subscribe(**arguments)  # type: ignore[arg-type]
        assert consumer.subscription() == [topic]
        poll_until_it_has(consumer, (topic, 0))


def test_lost_member_joins_again_with_its_present_topics(mq: Connection) -> None:
    group, before, after = new_name("g"), new_topic(mq), new_topic(mq)
    with member(mq, group, before, protocol="cooperative") as consumer:
        poll_until_it_has(consumer, (before, 0))
        mq.groups.remove_members(group, [consumer.member_id])
        consumer.subscribe([after])
        poll_until_it_has(consumer, (after, 0))


def test_newly_subscribed_topic_begins_at_the_reset_of_the_member(mq: Connection) -> None:
    group, before, after = new_name("g"), new_topic(mq), new_topic(mq)
    add(mq, after, {0: 2}, "old ")
    with member(mq, group, before, protocol="cooperative", auto_offset_reset="latest") as consumer:
        consumer.subscribe([after])
        add(mq, after, {0: 1}, "new ")
        assert read(consumer, 1) == ["new 0.0"]
