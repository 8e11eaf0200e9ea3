"""`for message in consumer`: a message counts as read when the loop gets it, not before."""

import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from unit.consuming import add, list_partitions, name_what_to_read, new_group, read_texts
from unit.served import new_name, new_topic, read_committed_offset, until

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume import consumer as consumer_module
from lakemq.engine.client.consume.consumer import Consumer
from lakemq.engine.client.consume.group_consumer import MemberConsumer
from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.engine.client.fetch.fetch_result import FetchResult, Message, Row
from lakemq.errors import StorageError

pytestmark = [pytest.mark.slow, pytest.mark.extended]

WITH_POSITIONS = pytest.mark.parametrize("protocol", [None, "cooperative", "classic"])
ALL = pytest.mark.parametrize("protocol", [None, "queue", "cooperative", "classic"])


def create_consumer(mq: Connection, group: str, topic: str, protocol: str | None, **options: Any) -> Consumer:
    return mq.consumer(group, **name_what_to_read(topic, protocol), **options)


@pytest.mark.parametrize(
    ("protocol", "ack_mode"),
    [(None, None), ("cooperative", None), ("classic", None), ("queue", "explicit"), ("queue", "auto")],
)
def test_messages_that_could_not_be_read_come_in_the_next_loop(
    mq: Connection, monkeypatch: pytest.MonkeyPatch, protocol: str | None, ack_mode: str | None
) -> None:
    topic, group = new_topic(mq), new_group(mq, protocol)
    add(mq, topic, {0: 5})
    if ack_mode is not None:
        mq.groups.create(group, {"ack.mode": ack_mode})
    read, failures = FetchResult._rows, [StorageError("The store gives no answer.")]

    def fail_once(fetched: FetchResult) -> Iterator[Row]:
        if fetched.record_count and failures:
            raise failures.pop()
        return read(fetched)

    monkeypatch.setattr(FetchResult, "_rows", fail_once)
    with create_consumer(mq, group, topic, protocol) as consumer:
        with pytest.raises(StorageError):
            list(consumer)
        assert read_texts(islice(consumer, 5)) == [f"0.{n}" for n in range(5)]


@WITH_POSITIONS
def test_commit_in_the_loop_ends_with_the_current_message(mq: Connection, protocol: str | None) -> None:
    topic, group = new_topic(mq), new_group(mq, protocol)
    add(mq, topic, {0: 5})
    with create_consumer(mq, group, topic, protocol) as consumer:
        for message in consumer:
            assert consumer.position(topic, 0) == message.offset + 1
            if message.offset == 2:
                consumer.commit()
                break
        assert read_committed_offset(mq, group, topic) == 3
        assert consumer.lag() == {(topic, 0): 2}
        assert read_texts(consumer.poll(timeout_ms=5_000)) == ["0.3", "0.4"]


@WITH_POSITIONS
def test_seek_and_pause_in_the_loop_apply_to_the_next_message(mq: Connection, protocol: str | None) -> None:
    topic = new_topic(mq, 2)
    add(mq, topic, {0: 4, 1: 2})
    with create_consumer(mq, new_group(mq, protocol), topic, protocol) as consumer:
        read_values = []
        for message in consumer:
            read_values.append(*read_texts([message]))
            if read_values == ["0.0", "0.1"]:
                consumer.seek(topic, 0, 0)
            elif read_values[-1] == "1.0" and len(read_values) == 3:
                consumer.pause([(topic, 1)])
            elif read_values.count("0.3") == 1 and read_values[-1] == "0.3":
                consumer.resume([(topic, 1)])
            elif len(read_values) == 8:
                break
        assert read_values == ["0.0", "0.1", "1.0", "0.0", "0.1", "0.2", "0.3", "1.1"]


@ALL
def test_loop_ends_when_the_consumer_is_closed(mq: Connection, protocol: str | None) -> None:
    topic = new_topic(mq)
    add(mq, topic, {0: 3})
    consumer, messages = create_consumer(mq, new_group(mq, protocol), topic, protocol), list[Message]()
    for message in consumer:
        messages.append(message)
        if len(messages) == 2:
            consumer.close()
    assert read_texts(messages) == ["0.0", "0.1"]
    other, messages = create_consumer(mq, new_group(mq, protocol), topic, protocol), []
    closing = threading.Timer(0.05, other.close)
    for message in other:
        messages.append(message)
        if len(messages) == 3:
            closing.start()
    assert read_texts(messages) == ["0.0", "0.1", "0.2"]
    closing.join()


def test_queue_messages_that_the_loop_did_not_reach_are_undelivered(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 5})
    with create_consumer(mq, group, topic, "queue") as consumer:
        assert isinstance(consumer, QueueConsumer)
        first, second = islice(consumer, 2)
        consumer.ack(first)
        assert read_texts(islice(consumer, 1)) == ["0.2"]
        batch = consumer.poll(timeout_ms=5_000)
        assert [(message.offset, message.delivery_count) for message in batch] == [(3, 1), (4, 1)]
        consumer.ack(batch)
        consumer.ack(second)
        consumer.flush()
        assert consumer.lag() == {(topic, 0): 1}


def test_loop_in_ack_mode_auto_acknowledges_the_messages_it_got(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 6})
    with create_consumer(mq, group, topic, "queue", ack_mode="auto") as consumer:
        assert isinstance(consumer, QueueConsumer)
        assert read_texts(islice(consumer, 2)) == ["0.0", "0.1"]
        assert read_texts(islice(consumer, 1)) == ["0.2"]  # its poll acknowledges the two messages before
        consumer.flush()
        assert consumer.lag() == {(topic, 0): 4}
    with create_consumer(mq, group, topic, "queue") as after:
        assert [(message.offset, message.delivery_count) for message in islice(after, 4)] == [
            (2, 2),
            (3, 1),
            (4, 1),
            (5, 1),
        ]


@pytest.mark.parametrize("protocol", ["queue", "cooperative"])
def test_slow_loop_gives_up_partitions_between_two_messages(
    mq: Connection, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "_KEEP_UP_MS", 0)
    monkeypatch.setattr(consumer_module, "POLL_RECORDS", 20)
    topic, group = new_topic(mq, 2), new_name("g")
    # A handoff waits for the messages that the owner was given, but no longer than this: no commit may be fenced here.
    mq.groups.create(group, {"group.protocol": protocol, "max.handoff.ms": 600_000})
    add(mq, topic, {0: 300, 1: 300})
    with create_consumer(mq, group, topic, protocol) as first:
        assert isinstance(first, MemberConsumer)
        messages = iter(first)
        read_messages = [next(messages)]
        with create_consumer(mq, group, topic, protocol) as second:
            assert isinstance(second, MemberConsumer)

            def is_shared_evenly() -> bool:
                message = next(messages)
                read_messages.append(message)
                first.commit({(message.topic, message.partition): message.offset + 1})
                second.poll(max_records=1)
                return len(list_partitions(first)) == len(list_partitions(second)) == 1

            until(is_shared_evenly)
            (kept_partition,) = list_partitions(first)
            assert {message.partition for message in islice(messages, 5)} == {kept_partition}
