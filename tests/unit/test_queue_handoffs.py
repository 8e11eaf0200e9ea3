"""Partitions of queue groups that change hands: what each owner gets, and what becomes of open messages."""

from concurrent.futures import Future
from typing import Any

import pytest
from unit.consuming import (
    RecordingListener,
    add,
    create_queue_group,
    join_queue_group,
    list_partitions,
    read_deliveries,
    read_texts,
    take_messages,
)
from unit.served import new_name, new_topic, until

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.engine.protocol.values.deliveries import Acquire, WantedMessages
from lakemq.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    IllegalState,
    InvalidRequest,
    MailboxFullError,
    RequestTimedOut,
)

pytestmark = pytest.mark.slow


def request_more(consumer: QueueConsumer) -> bool:
    """Request two messages as a poll does, unless a request is under way. Returns false, for use in a condition.

    A poll may see in the journal what a request brought before its answer comes. It then requests nothing more.
    """
    consumer._ack_sender.collect_answers()
    if consumer._ack_sender.acquire_request is None:
        consumer._ack_sender.send(consumer._reader.plan_next(consumer._member.read_owned(), 2))
    return False


def test_handoff_waits_for_the_messages_that_the_owner_has(mq: Connection) -> None:
    """Key A is in partition 0, B in 1.

    At the pause the user has B1, B2 is prefetched, B3 is stored, B4 is under way.
    """
    topic, group, listener = new_topic(mq, 2), new_name("g"), RecordingListener()
    add(mq, topic, {0: 2, 1: 2})
    with join_queue_group(mq, group, topic, listener=listener) as c1, lakemq.connect(mq.namespace.path) as other:
        read_by_c1 = read_texts(list(c1.poll(max_records=2, timeout_ms=5_000)))
        assert read_by_c1 == ["0.0", "1.0"]
        ahead = {0: [(0, 2, "acquired", 1)], 1: [(0, 2, "acquired", 1)]}
        until(lambda: read_deliveries(mq, group, topic) == ahead or request_more(c1))
        with join_queue_group(other, group, topic) as c2:
            until(lambda: [assignment.state for assignment in mq.groups.assignments(group)] == ["ready", "paused"])
            add(mq, topic, {0: 1, 1: 1}, "stored ")
            read_by_c1 += read_texts(take_messages(c1, 3))
            assert listener.events[-1] == ("revoked", [1])
            assert read_by_c1[2:4] == ["0.1", "1.1"]
            assert "stored 1.0" not in read_by_c1
            assert not c2.poll(timeout_ms=50)
            c1.commit()
            add(mq, topic, {0: 1, 1: 1}, "last ")
            assert read_texts(take_messages(c2, 2)) == ["stored 1.0", "last 1.0"]
            read_by_c1 += read_texts(take_messages(c1, 6 - len(read_by_c1)))
            assert [text for text in read_by_c1 if "0.0" in text or text == "0.1"] == [
                "0.0",
                "0.1",
                "stored 0.0",
                "last 0.0",
            ]
            assert list_partitions(c1) == [0]
    assert ("lost", [1]) not in listener.events


def test_unacknowledged_messages_go_to_the_next_owner_when_the_handoff_time_ends(mq: Connection) -> None:
    topic, group, listener = new_topic(mq, 2), create_queue_group(mq, max_handoff_ms=100), RecordingListener()
    add(mq, topic, {0: 2, 1: 2})
    with join_queue_group(mq, group, topic, listener=listener) as first:
        batch = first.poll(timeout_ms=5_000)
        with join_queue_group(mq, group, topic) as second:
            messages = take_messages(second, 2)
            assert [(message.value, message.delivery_count) for message in messages] == [(b"1.0", 2), (b"1.1", 2)]
            late = [message for message in batch if message.partition == 1]
            first.ack(late)
            with pytest.raises(FencedMemberEpoch, match=f"{topic}-1"):
                first.flush()
            until(lambda: not first.poll() and list_partitions(first) == [0])
            with pytest.raises(FencedMemberEpoch, match=f"{topic}-1"):
                first.ack(batch)
            first.ack([message for message in batch if message.partition == 0])
            first.flush()
            second.ack(messages)
            second.flush()
            assert ("lost", [1]) in listener.events
            assert read_deliveries(mq, group, topic) == {0: [], 1: []}


def test_closing_member_returns_messages_and_unseen_ones_count_as_undelivered(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 4})
    consumer = join_queue_group(mq, group, topic)
    first, _ = consumer.poll(max_records=2, timeout_ms=5_000)
    until(lambda: read_deliveries(mq, group, topic) == {0: [(0, 4, "acquired", 1)]} or request_more(consumer))
    consumer.ack(first)
    consumer.close()
    with pytest.raises(IllegalState):
        consumer.poll()
    with pytest.raises(FencedMemberEpoch):
        consumer.ack(first)
    with join_queue_group(mq, group, topic) as second:
        redelivered = [(message.offset, message.delivery_count) for message in take_messages(second, 3)]
        assert redelivered == [(1, 2), (2, 1), (3, 1)]


def test_fenced_member_learns_that_its_acknowledgements_do_not_count(mq: Connection, topic: str, group: str) -> None:
    add(mq, topic, {0: 1})
    first = join_queue_group(mq, group, topic, instance_id="i")
    (message,) = take_messages(first, 1)
    first._ack_sender.sent_at_ms = first._clock.steady_ms() + 60_000  # it collects acknowledgements
    first.ack(message)
    with lakemq.connect(mq.namespace.path) as other, join_queue_group(other, group, topic, instance_id="i") as second:
        with pytest.raises(FencedInstanceId):
            first.poll()
        with pytest.raises(FencedMemberEpoch):
            first.flush()
        assert [(message.offset, message.delivery_count) for message in take_messages(second, 1)] == [(0, 2)]


def test_flush_after_close_raises_for_acknowledgements_that_were_not_answered(
    mq: Connection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(mq)
    add(mq, topic, {0: 1})
    consumer = join_queue_group(mq, new_name("g"), topic)
    messages = take_messages(consumer, 1)
    failed = Future[Any]()
    failed.set_exception(MailboxFullError())
    monkeypatch.setattr(consumer._member.membership, "submit", lambda requests, _: [failed for _ in requests])
    consumer.ack(messages)
    consumer.close()
    assert "a consumer that is closed have failed: REQUEST_TIMED_OUT" in caplog.text
    with pytest.raises(RequestTimedOut, match="was closed before"):
        consumer.flush()
    consumer.flush()


def test_deleted_messages_do_not_hold_up_a_last_delivery(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), create_queue_group(mq, max_redelivery_count=1)
    add(mq, topic, {0: 1, 1: 3})
    with join_queue_group(mq, group, topic) as consumer:
        first = take_messages(consumer, 2, max_records=2)
        flow = consumer._trackers[topic, 1]
        mq.requester.ask(
            Acquire(group, consumer.member_id, [WantedMessages(flow.topic_id, 1, flow.epoch, 2)])
        )  # if it has not done so yet
        assert read_deliveries(mq, group, topic)[1] == [(0, 3, "acquired", 1)]
        consumer.nack(first[0])
        consumer.ack(first[1])
        consumer.flush()
        mq.topics.delete_records(topic, {1: 3})
        add(mq, topic, {1: 1}, "new ")
        (last,) = take_messages(consumer, 1)
        assert (last.partition, last.delivery_count) == (0, 2)
        consumer.ack(last)
        assert read_texts(take_messages(consumer, 1)) == ["new 1.0"]


def test_members_read_with_the_isolation_level_of_their_group(mq: Connection) -> None:
    topic, group = new_topic(mq), create_queue_group(mq, isolation_level="read_uncommitted")
    with join_queue_group(mq, group, topic) as consumer, mq.producer(transactional_id=new_name("tx")) as producer:
        producer.begin_transaction()
        producer.send(topic, value=b"open")
        producer.flush()
        assert read_texts(take_messages(consumer, 1)) == ["open"]
        mq.groups.alter(group, {"isolation.level": "read_committed"})
        producer.send(topic, value=b"later")
        producer.flush()
        assert not consumer.poll()
        producer.abort_transaction()


def test_assigned_reader_is_refused_while_the_group_has_members(mq: Connection, topic: str, group: str) -> None:
    """Its commits would be those of the members, which acknowledge messages."""
    add(mq, topic, {0: 2})
    with join_queue_group(mq, group, topic) as consumer:
        assert len(take_messages(consumer, 1)) >= 1
        with pytest.raises(InvalidRequest, match="has members"):
            mq.consumer(group, assign=[topic])
    with mq.consumer(group, assign=[topic], auto_offset_reset="earliest") as reader:
        assert len(list(reader.poll(timeout_ms=1_000))) == 2
