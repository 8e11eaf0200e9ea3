"""Consumers of queue groups: their messages, their acknowledgements, and the owner after they are gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from decided import read_steps
from unit.consuming import RecordingListener, add, list_partitions, texts
from unit.served import new_name, new_topic, served, until, values

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.queue import queue_reader
from lakemq.engine.client.consume.queue.ack_sender import split_into_requests
from lakemq.engine.client.consume.queue.ack_tracker import AckTracker
from lakemq.engine.client.consume.queue.queue_consumer import QueueConsumer
from lakemq.engine.client.consume.queue.queue_reader import QueuePartitions
from lakemq.engine.protocol.values.consuming.groups import LeaveGroup
from lakemq.engine.protocol.values.consuming.offsets import CommitOffsets
from lakemq.engine.protocol.values.producers import InitProducer, TransactionRef
from lakemq.engine.protocol.values.queues.deliveries import (
    MAX_RANGES,
    Acknowledge,
    Acknowledgement,
    AckOutcome,
    Acquire,
    MessagesSettled,
    WantedMessages,
)
from lakemq.engine.protocol.values.queues.stretches import DeliveryStatus
from lakemq.engine.protocol.values.transactions import EndTransaction
from lakemq.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    IllegalState,
    InconsistentGroupProtocol,
    InvalidConfig,
    InvalidRecordState,
    InvalidRequest,
    MailboxFullError,
    NoOffsetForPartition,
    RequestTimedOut,
    TransactionAbortable,
    UnknownMemberId,
)

pytestmark = pytest.mark.slow


def member(mq: Connection, group: str, topic: str, **options: Any) -> QueueConsumer:
    options = {"auto_offset_reset": "earliest", **options}
    consumer = mq.consumer(group, topics=[topic], protocol="queue", **options)
    assert isinstance(consumer, QueueConsumer)
    return consumer


def create_queue_group(mq: Connection, **config: Any) -> str:
    """Create a group with these settings, and return its name. A `_` in a key stands for a dot."""
    group = new_name("g")
    mq.groups.create(
        group, {"group.protocol": "queue", **{key.replace("_", "."): value for key, value in config.items()}}
    )
    return group


def poll_messages(consumer: QueueConsumer, count: int, **options: Any) -> list[Any]:
    """Poll until this many messages have come, and return them."""
    messages: list[Any] = []
    deadline_s = time.monotonic() + 10
    while len(messages) < count and time.monotonic() < deadline_s:
        messages += consumer.poll(**{"timeout_ms": 50, **options})
    return messages


def read(messages: list[Any]) -> list[str]:
    return [message.value.decode() for message in messages]


def settle(*consumers: QueueConsumer, on: Callable[[], bool]) -> None:
    """Poll all consumers until the condition holds. No test publishes meanwhile."""

    def poll() -> bool:
        for consumer in consumers:
            assert not consumer.poll()
        return on()

    until(poll)


def deliveries(mq: Connection, group: str, topic: str) -> dict[int, list[tuple[int, int, str, int]]]:
    """Return the group's view of each partition: first offset, count, status, delivery count."""

    def read_deliveries(state: Any) -> dict[int, list[tuple[int, int, str, int]]]:
        topic_id = state.topic_ids[topic]
        return {
            partition: [
                (stretch.first, stretch.length, stretch.status.value, stretch.deliveries)
                for stretch in partition_deliveries.stretches
            ]
            for (of_topic, partition), partition_deliveries in state.deliveries.get(group, {}).items()
            if of_topic == topic_id
        }

    return mq._fetcher.query_groups(read_deliveries)


def list_dying_ranges(mq: Connection, group: str) -> list[tuple[int, list[tuple[int, int]]]]:
    """Return the ranges that the group gave up, from the journal: dead letters disappear from the state."""
    steps = read_steps(mq.namespace.store)
    settled = [entry.record for step in steps for entry in step.entries if isinstance(entry.record, MessagesSettled)]
    parts = [part for record in settled if record.group == group for part in record.parts]
    return [(part.partition, part.ranges) for part in parts if part.status is DeliveryStatus.DYING]


# -- delivering ---------------------------------------------------------------------------------------------


def test_what_is_acknowledged_is_done_with(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    add(mq, topic, {0: 3, 1: 2})
    with member(mq, group, topic) as consumer:
        batch = consumer.poll(timeout_ms=5_000)
        assert texts(batch) == ["0.0", "0.1", "0.2", "1.0", "1.1"]
        assert consumer.lag() == {(topic, 0): 3, (topic, 1): 2}
        first, *rest = batch
        consumer.ack(first)
        consumer.ack(rest[1:3])
        consumer.flush()
        expected = {0: [(1, 1, "acquired", 1), (2, 1, "acknowledged", 1)], 1: [(1, 1, "acquired", 1)]}
        assert deliveries(mq, group, topic) == expected
        consumer.ack(batch)
        consumer.flush()
        assert consumer.lag() == {(topic, 0): 0, (topic, 1): 0}
        assert {tp: committed.offset for tp, committed in consumer.committed().items()} == {
            (topic, 0): 3,
            (topic, 1): 2,
        }
        assert not consumer.poll()


def test_what_is_given_back_comes_again_before_anything_new(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 5})
    with member(mq, group, topic) as consumer:
        messages = list(consumer.poll(max_records=3, timeout_ms=5_000))
        assert [message.redelivered for message in messages] == [False] * 3
        consumer.ack(messages[0])
        consumer.nack(messages[1:])
        consumer.flush()
        redelivered = poll_messages(consumer, 4)
        assert read(redelivered) == ["0.1", "0.2", "0.3", "0.4"]
        counts = {message.value.decode(): (message.delivery_count, message.redelivered) for message in redelivered}
        assert counts == {"0.1": (2, True), "0.2": (2, True), "0.3": (1, False), "0.4": (1, False)}


def test_a_table_says_how_often_each_message_was_delivered(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    add(mq, topic, {0: 2, 1: 1})
    with member(mq, group, topic) as consumer:
        batch = consumer.poll(timeout_ms=5_000)
        assert batch.to_arrow()["delivery_count"].to_pylist() == [1, 1, 1]
        consumer.nack(next(iter(batch)))
        consumer.ack(list(batch)[1:])
        redelivered = poll_messages(consumer, 1)
        assert [(message.offset, message.delivery_count) for message in redelivered] == [(0, 2)]


def test_a_message_that_fails_each_time_is_given_up_and_its_neighbours_are_not(mq: Connection) -> None:
    topic, group = new_topic(mq), create_queue_group(mq, max_redelivery_count=2)
    add(mq, topic, {0: 6})
    processed: list[str] = []
    failed = 0
    with member(mq, group, topic) as consumer:
        deadline_s = time.monotonic() + 10
        while len(processed) < 5 and time.monotonic() < deadline_s:
            batch = list(consumer.poll(timeout_ms=20))
            if any(message.value == b"0.2" for message in batch):
                # a consumer that stops at a message acknowledges none of its batch
                failed += 1
                assert len(batch) == 1 or failed < 3
                consumer.nack(batch)
            else:
                consumer.ack(batch)
                processed += read(batch)
        consumer.flush()
        assert (sorted(processed), failed) == (["0.0", "0.1", "0.3", "0.4", "0.5"], 3)
        assert list_dying_ranges(mq, group) == [(0, [(2, 1)])]


def test_a_rejected_message_never_comes_again(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 2})
    with member(mq, group, topic) as consumer:
        messages = poll_messages(consumer, 2)
        consumer.reject(messages[0])
        consumer.ack(messages[1])
        consumer.flush()
        assert list_dying_ranges(mq, group) == [(0, [(0, 1)])]
        assert not consumer.poll(timeout_ms=50)


def test_what_is_given_back_with_a_delay_waits_and_holds_up_its_partition(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 1})
    with member(mq, group, topic) as consumer:
        (message,) = poll_messages(consumer, 1)
        begin_s = time.monotonic()
        consumer.nack(message, delay_ms=300)
        consumer.flush()
        add(mq, topic, {0: 1}, "later ")
        assert read(poll_messages(consumer, 2)) == ["0.0", "later 0.0"]
        assert time.monotonic() - begin_s >= 0.3


def test_offsets_without_messages_need_no_word(mq: Connection) -> None:
    """The offsets are markers and rows of an aborted transaction."""
    topic, group = new_topic(mq), new_name("g")
    for commits in (False, True):
        producer = mq.producer(transactional_id=new_name("tx"))
        producer.begin_transaction()
        producer.send(topic, value=b"committed" if commits else b"aborted")
        producer.commit_transaction() if commits else producer.abort_transaction()
        producer.close()
    with member(mq, group, topic) as consumer:
        messages = poll_messages(consumer, 1)
        assert read(messages) == ["committed"]
        consumer.ack(messages)
        consumer.flush()
        until(lambda: not consumer.poll() and consumer.lag() == {(topic, 0): 0})


@pytest.mark.parametrize("publishes", [True, False])
@pytest.mark.parametrize("expired", [True, False])
def test_a_poll_that_has_passed_offsets_and_shows_nothing_may_be_part_of_a_transaction(
    mq: Connection, expired: bool, publishes: bool
) -> None:
    topic, group = new_topic(mq), new_name("g")
    with mq.producer(transactional_id=new_name("tx")) as producer:
        producer.begin_transaction()
        producer.send(topic, "not shown", ttl_ms=0)
        producer.flush()
        producer.commit_transaction() if expired else producer.abort_transaction()
        with member(mq, group, topic) as consumer:
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


def test_a_poll_takes_from_all_partitions_and_no_more_than_it_may(mq: Connection) -> None:
    topic, group = new_topic(mq, 3), new_name("g")
    add(mq, topic, {0: 10, 1: 10, 2: 1})
    with member(mq, group, topic) as consumer:
        read_texts: list[str] = []
        while len(read_texts) < 21:
            batch = consumer.poll(max_records=5, timeout_ms=5_000)
            assert 1 <= batch.record_count <= 5
            read_texts += texts(batch)
            consumer.ack(batch)
        assert sorted(read_texts) == sorted([f"{p}.{i}" for p in (0, 1) for i in range(10)] + ["2.0"])


def test_nothing_more_comes_while_too_much_is_not_acknowledged(mq: Connection) -> None:
    topic, group = new_topic(mq), create_queue_group(mq, max_delivered_unacked_msgs_per_flow=3)
    add(mq, topic, {0: 10})
    with member(mq, group, topic) as consumer:
        messages = poll_messages(consumer, 3)
        with pytest.raises(IllegalState, match=r"Found '3\b.*max.delivered.unacked"):
            consumer.poll(timeout_ms=30)
        consumer.ack(messages[0])
        assert read(poll_messages(consumer, 1)) == ["0.3"]


def test_a_poll_acknowledges_the_one_before_where_the_group_says_so(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 4})
    with member(mq, group, topic, ack_mode="auto") as consumer:
        assert len(poll_messages(consumer, 2, max_records=2)) == 2
        assert deliveries(mq, group, topic)[0][0][:3:2] == (0, "acquired")
        assert len(poll_messages(consumer, 2, max_records=2)) == 2
        until(lambda: not consumer.poll() and consumer.lag() == {(topic, 0): 0})


def test_a_poll_that_acknowledges_leaves_nothing_to_a_transaction(mq: Connection) -> None:
    """The next poll inside the transaction would acknowledge it, though the transaction may abort."""
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 1})
    with (
        member(mq, group, topic, ack_mode="auto") as consumer,
        mq.producer(transactional_id=new_name("tx")) as producer,
    ):
        batch = consumer.poll(timeout_ms=5_000)
        producer.begin_transaction()
        producer.send_offsets_to_transaction(batch.offsets, batch.group)
        with pytest.raises(TransactionAbortable, match="acknowledge messages"):
            producer.commit_transaction()
        producer.abort_transaction()


def test_where_a_group_begins_is_told_or_refused(mq: Connection) -> None:
    topic = new_topic(mq)
    add(mq, topic, {0: 2})
    with member(mq, new_name("g"), topic, auto_offset_reset="latest") as consumer:
        until(lambda: not consumer.poll() and list_partitions(consumer) == [0])
        add(mq, topic, {0: 1}, "new ")
        assert read(poll_messages(consumer, 1)) == ["new 0.0"]
    with member(mq, new_name("g"), topic, auto_offset_reset="none") as consumer, pytest.raises(NoOffsetForPartition):
        consumer.poll(timeout_ms=5_000)


def test_a_consumer_that_has_nothing_to_do_writes_nothing(tmp_path: Path) -> None:
    """The namespace belongs to this test, and its sequencer writes nothing by itself meanwhile."""
    with served(tmp_path, **{"project.interval.ms": 600_000}) as mq:
        topic, group = new_topic(mq), new_name("g")
        add(mq, topic, {0: 1})
        with member(mq, group, topic) as consumer:
            consumer.ack(poll_messages(consumer, 1))
            consumer.flush()
            written = read_steps(mq.namespace.store)
            for _ in range(10):
                assert not consumer.poll(timeout_ms=5)
            assert read_steps(mq.namespace.store) == written


def test_a_paused_partition_brings_nothing_until_it_is_resumed(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    with member(mq, group, topic) as consumer:
        until(lambda: not consumer.poll() and list_partitions(consumer) == [0, 1])
        consumer.pause([(topic, 0)])
        add(mq, topic, {0: 1, 1: 1})
        assert read(poll_messages(consumer, 1)) == ["1.0"]
        assert not consumer.poll(timeout_ms=30)
        consumer.resume([(topic, 0)])
        assert read(poll_messages(consumer, 1)) == ["0.0"]


def test_where_it_is_is_the_groups_to_say(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 3})
    with member(mq, group, topic) as consumer:
        poll_messages(consumer, 1, max_records=1)
        assert not hasattr(consumer, "seek")
        assert consumer.position(topic, 0) in (1, 2)  # one message may be prefetched
        with pytest.raises(IllegalState, match="not assigned"):
            consumer.position(topic, 1)


def test_a_poll_that_is_interrupted_has_shown_nothing(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 3})
    with member(mq, group, topic) as consumer:
        tell = consumer._ack_sender.send

        def interrupt(*arguments: Any, **more: Any) -> None:
            tell(*arguments, **more)
            if consumer._reader._planner.count_open():
                raise KeyboardInterrupt

        monkeypatch.setattr(consumer._ack_sender, "send", interrupt)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(timeout_ms=5_000)
        monkeypatch.undo()
        assert [(message.offset, message.delivery_count) for message in poll_messages(consumer, 3)] == [
            (0, 1),
            (1, 1),
            (2, 1),
        ]


def test_a_poll_rests_no_longer_than_it_may_wait(mq: Connection) -> None:
    with member(mq, new_name("g"), new_topic(mq)) as consumer:
        begin_s = time.monotonic()
        assert not consumer.poll(timeout_ms=20, poll_ms=2**62)
        assert time.monotonic() - begin_s < 5


def test_a_poll_whose_time_is_over_looks_now_and_then_for_what_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lakemq.connect(tmp_path / "mq", create=True) as mq:
        with mq.serving():
            mq.topics.create("t")
            consumer = member(mq, "g", "t")
            assert not consumer.poll(timeout_ms=100)
            with mq.producer() as producer:
                producer.send("t", "requested, and not delivered").result()
        looks: list[float] = []
        begin_poll = type(consumer._reader).begin_poll

        def count(reader: Any, newest: bool) -> None:
            looks.append(time.monotonic())
            begin_poll(reader, newest)

        monkeypatch.setattr(type(consumer._reader), "begin_poll", count)
        begin_s = time.monotonic()
        assert not consumer.poll(timeout_ms=100)
        assert time.monotonic() - begin_s > 1, "it waits for the answer"
        assert len(looks) < 100
        with mq.serving():
            consumer.close()


# -- acknowledging ------------------------------------------------------------------------------------------


def test_only_what_one_has_can_be_acknowledged(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 3})
    with member(mq, group, topic) as consumer:
        batch = consumer.poll(max_records=2, timeout_ms=5_000)
        first, second = batch
        consumer.ack(first)
        consumer.ack(first)
        consumer.ack([first, second])
        with pytest.raises(InvalidRecordState, match="offsets 9 to 9"):
            consumer.ack([first._replace(offset=9)])
        with pytest.raises(InvalidRecordState):
            consumer.nack(first)
        consumer.ack(first._replace(offset=9))
        with pytest.raises(InvalidRecordState):
            consumer.flush()
        consumer.flush()
        with pytest.raises(FencedMemberEpoch, match=f"{topic}-7"):
            consumer.ack(first._replace(partition=7))
        for nonsense in (5, None, "message", [1], {"a": 1}):
            with pytest.raises(InvalidRequest):
                consumer.ack(nonsense)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            consumer.nack(first, delay_ms=-1)
        with pytest.raises(InvalidRequest, match="Found -1"):
            consumer.commit({(topic, 0): -1})


def test_a_word_about_an_earlier_delivery_says_nothing_of_a_later_one(mq: Connection) -> None:
    """A slow thread may acknowledge late, or a caller may repeat itself because its answer came too late."""
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 1})
    with member(mq, group, topic) as consumer:
        (first,) = poll_messages(consumer, 1)
        consumer.nack(first)
        (second,) = poll_messages(consumer, 1)
        assert second.delivery_count == 2
        with pytest.raises(InvalidRecordState):
            consumer.ack([first])
        flow = consumer._trackers[topic, 0]
        flow.requeue(Acknowledgement(flow.topic_id, 0, flow.epoch, AckOutcome.RELEASE, [(0, 1)], None, 1))
        consumer.flush()
        assert deliveries(mq, group, topic) == {0: [(0, 1, "acquired", 2)]}
        consumer.ack(second)
        consumer.flush()
        assert deliveries(mq, group, topic) == {0: []}


@pytest.mark.parametrize("is_late", [False, True])
def test_no_partition_waits_for_those_before_it_when_a_poll_has_not_room_for_all(
    mq: Connection, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """is_late: an answer comes after the poll has looked at its messages, and before it requests more."""
    look = QueuePartitions.read_owned

    def look_late(partitions: QueuePartitions) -> Any:
        result, request = look(partitions), partitions._ack_sender.acquire_request
        if is_late and request is not None:
            wait([request], 5)
        return result

    monkeypatch.setattr(QueuePartitions, "read_owned", look_late)
    topic, group = new_topic(mq, 4), new_name("g")
    add(mq, topic, dict.fromkeys(range(4), 20))
    with member(mq, group, topic) as consumer:
        partitions = []
        while len(partitions) < 12:
            batch = consumer.poll(max_records=1, timeout_ms=5_000)
            consumer.ack(batch)
            partitions += [message.partition for message in batch]
    assert {partition: partitions.count(partition) for partition in range(4)} == dict.fromkeys(range(4), 3)


def test_a_commit_acknowledges_all_up_to_there_and_waits(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 6})
    with member(mq, group, topic) as consumer:
        batch = consumer.poll(max_records=3, timeout_ms=5_000)
        assert consumer.commit({(topic, 0): 2}) == {(topic, 0): 2}
        until(lambda: deliveries(mq, group, topic)[0][0][0] == 2)
        assert consumer.commit(batch) == {(topic, 0): 3}
        last = poll_messages(consumer, 3)[-1]
        consumer.ack_through(last)
        consumer.flush()
        assert deliveries(mq, group, topic) == {0: []}
        assert consumer.commit() == {}
        with pytest.raises(InvalidRequest, match="metadata"):
            consumer.commit(metadata="note")


def test_a_commit_past_the_end_returns_what_was_accepted(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 6})
    with member(mq, group, topic) as consumer:
        consumer.poll(max_records=3, timeout_ms=5_000)
        for _ in range(2):  # the second time, all that was brought is accepted already
            assert consumer.commit({(topic, 0): 1000}) == {(topic, 0): 3}
        assert [message.offset for message in poll_messages(consumer, 3)] == [3, 4, 5]


def test_offsets_are_not_committed_beside_it(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    with member(mq, group, topic) as consumer, pytest.raises(IllegalState):
        mq.requester.ask(CommitOffsets(group, [], None, consumer.member_id))


def test_settings_of_the_group_are_what_all_agree_on(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    with member(mq, group, topic, ack_mode="auto"):
        with pytest.raises(InvalidConfig, match=r"ack\.mode"):
            member(mq, group, topic, ack_mode="explicit")
        with pytest.raises(InconsistentGroupProtocol):
            mq.consumer(group, topics=[topic], protocol="cooperative")
    with pytest.raises(IllegalState, match="ack_mode"):
        mq.consumer(new_name("g"), topics=[topic], protocol="cooperative", ack_mode="auto")
    with pytest.raises(InvalidConfig):
        member(mq, new_name("g"), topic, ack_mode="sometimes")


def test_messages_acknowledged_in_a_transaction_count_when_it_commits(mq: Connection) -> None:
    topic, out, group = new_topic(mq), new_topic(mq), new_name("g")
    add(mq, topic, {0: 2})
    name = new_name("tx")
    with member(mq, group, topic) as consumer:
        batch = consumer.poll(timeout_ms=5_000)
        with pytest.raises(RuntimeError, match="on purpose"), mq.transaction(name) as txn:  # noqa: PT012
            txn.publish(out, batch.to_arrow().select(["value"]))
            txn.send_offsets(batch)
            raise RuntimeError("on purpose")
        assert values(mq, out) == []
        with mq.transaction(name) as txn:
            txn.publish(out, batch.to_arrow().select(["value"]))
            txn.send_offsets(batch)
        assert values(mq, out) == ["0.0", "0.1"]
        assert deliveries(mq, group, topic) == {0: []}
        assert not consumer.poll()
        assert consumer._reader._planner.count_open() == 0


def test_a_transaction_takes_a_batch_twice(mq: Connection) -> None:
    topic, out, group = new_topic(mq), new_topic(mq), new_name("g")
    add(mq, topic, {0: 2})
    with member(mq, group, topic) as consumer:
        batch = consumer.poll(timeout_ms=5_000)
        with mq.transaction(new_name("tx")) as txn:
            txn.publish(out, batch.to_arrow().select(["value"]))
            txn.send_offsets(batch)
            txn.send_offsets(batch)
        assert (values(mq, out), deliveries(mq, group, topic)) == (["0.0", "0.1"], {0: []})


def test_a_transaction_takes_what_was_partly_acknowledged_and_refuses_what_wholly_was(mq: Connection) -> None:
    topic, out, group = new_topic(mq), new_topic(mq), new_name("g")
    add(mq, topic, {0: 4})
    with member(mq, group, topic) as consumer, mq.producer(transactional_id=new_name("tx")) as producer:
        parts = [consumer.poll(2, timeout_ms=5_000) for _ in range(2)]
        for message in [*parts[0], next(iter(parts[1]))]:
            consumer.ack(message)
        producer.begin_transaction()
        with pytest.raises(InvalidRecordState, match="acknowledged or given back"):
            producer.send_offsets_to_transaction(parts[0].offsets, group)
        producer.send(out, "of it")
        producer.send_offsets_to_transaction(parts[1].offsets, group)
        producer.commit_transaction()
        consumer.flush()
        assert (values(mq, out), deliveries(mq, group, topic)) == (["of it"], {0: []})


def test_a_batch_that_was_committed_is_not_committed_once_more(mq: Connection) -> None:
    """A caller without an answer that repeats the work with the same batch would do it twice."""
    topic, out, group = new_topic(mq), new_topic(mq), new_name("g")
    add(mq, topic, {0: 2})
    with member(mq, group, topic) as consumer, mq.producer(transactional_id=new_name("tx")) as producer:
        batch = consumer.poll(timeout_ms=5_000)
        for is_second_time in (False, True):
            producer.begin_transaction()
            producer.send(out, "of it")
            producer.send_offsets_to_transaction(batch.offsets, group)
            if is_second_time:
                with pytest.raises(TransactionAbortable, match="settled already"):
                    producer.commit_transaction()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        assert values(mq, out) == ["of it"]
        consumer.poll()
        producer.begin_transaction()
        with pytest.raises(InvalidRecordState):
            producer.send_offsets_to_transaction(batch.offsets, group)
        producer.abort_transaction()


def test_a_producers_transaction_takes_what_was_polled(mq: Connection) -> None:
    topic, out, group = new_topic(mq), new_topic(mq), new_name("g")
    add(mq, topic, {0: 2})
    with member(mq, group, topic) as consumer, mq.producer(transactional_id=new_name("tx")) as producer:
        batch = consumer.poll(timeout_ms=5_000)
        producer.begin_transaction()
        for message in batch:
            producer.send(out, value=message.value)
        producer.send_offsets_to_transaction(batch.offsets, batch.group)
        producer.commit_transaction()
        assert (values(mq, out), deliveries(mq, group, topic)) == (["0.0", "0.1"], {0: []})


def test_a_transaction_with_messages_of_a_partition_that_has_moved_is_refused(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), create_queue_group(mq, max_handoff_ms=0)
    add(mq, topic, {0: 1, 1: 1})
    with member(mq, group, topic) as first, mq.producer(transactional_id=new_name("tx")) as producer:
        batch = first.poll(timeout_ms=5_000)
        producer.begin_transaction()
        producer.send_offsets_to_transaction(batch.offsets, batch.group)
        with member(mq, group, topic) as second:
            until(lambda: not first.poll() and second.poll().record_count >= 0 and list_partitions(second) == [1])
            with pytest.raises(TransactionAbortable):
                producer.commit_transaction()
            producer.abort_transaction()


def test_one_bad_object_takes_no_other_acknowledgement_with_it(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 4})
    with member(mq, group, topic) as consumer:
        messages = poll_messages(consumer, 4)
        for bad in ("x", 2**70, None, 1.5, [1]):
            consumer.ack(messages[0])
            with pytest.raises(InvalidRequest):
                consumer.ack(messages[1]._replace(offset=bad))
            with pytest.raises(InvalidRequest):
                consumer.nack([messages[2], messages[1]._replace(offset=bad)])
        consumer.ack(messages[1]._replace(offset=2**63 - 1))
        consumer.ack(messages[3])
        with pytest.raises(InvalidRecordState):
            consumer.flush(2**62)
        consumer.flush()
        assert deliveries(mq, group, topic) == {0: [(1, 2, "acquired", 1), (3, 1, "acknowledged", 1)]}


def test_what_was_right_in_words_that_were_refused_can_be_said_again(mq: Connection) -> None:
    """Acknowledgements of a partition travel together. A transaction that was aborted meanwhile has given some back."""
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 4})
    with member(mq, group, topic) as consumer:
        first, second = consumer.poll(max_records=2, timeout_ms=5_000), consumer.poll(max_records=2, timeout_ms=5_000)
        started = mq.requester.ask(InitProducer(name := new_name("tx"), 60_000))
        ref = TransactionRef(name, started.producer_id, started.producer_epoch)  # type: ignore[union-attr]
        mq.requester.ask(Acknowledge(group, consumer.member_id, first.offsets.messages, ref))  # type: ignore[attr-defined]
        mq.requester.ask(EndTransaction(ref, False))
        consumer.ack([*first, *second])
        with pytest.raises(InvalidRecordState):
            consumer.flush()
        consumer.ack(second)
        consumer.flush()
        assert deliveries(mq, group, topic) == {0: [(0, 2, "available", 1), (2, 2, "acknowledged", 1)]}
        assert [(message.offset, message.delivery_count) for message in poll_messages(consumer, 2)] == [(0, 2), (1, 2)]


def test_an_interrupt_loses_nothing_that_was_said_before(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 3})

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with member(mq, group, topic) as consumer:
        messages = poll_messages(consumer, 3)
        places = (
            (consumer._member.membership, "submit"),
            (consumer._trackers[topic, 0], "record"),
            (consumer._ack_sender, "_apply_answer"),
        )
        for message, (place, name) in zip(messages, places, strict=True):
            consumer._ack_sender.sent_at_ms = consumer._clock.steady_ms() + 60_000  # it collects acknowledgements
            consumer.ack(message)
            monkeypatch.setattr(place, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                consumer.flush()
            monkeypatch.undo()
        consumer.flush()
        assert deliveries(mq, group, topic) == {0: []}


def test_more_words_than_a_request_bears_travel_in_several() -> None:
    ranges = [(2 * i, 1) for i in range(MAX_RANGES + 10)]
    parts = [Acknowledgement(1, p, 5, AckOutcome.ACCEPT, ranges, 7) for p in range(2)]
    shares = split_into_requests(parts)
    assert [sum(len(part.ranges) for part in share) <= MAX_RANGES for share in shares] == [True] * len(shares)
    for part in parts:
        acknowledgements = [
            acknowledgement
            for share in shares
            for acknowledgement in share
            if acknowledgement.partition == part.partition
        ]
        assert [pair for acknowledgement in acknowledgements for pair in acknowledgement.ranges] == ranges
        assert {
            (acknowledgement.topic_id, acknowledgement.epoch, acknowledgement.outcome, acknowledgement.delay_ms)
            for acknowledgement in acknowledgements
        } == {(1, 5, AckOutcome.ACCEPT, 7)}


# -- changing hands -------------------------------------------------------------------------------------------


def request_more(consumer: QueueConsumer) -> bool:
    """Request two messages as a poll does, unless a request is under way. Returns false, for use in a condition.

    A poll may see in the journal what a request brought before its answer comes. It then requests nothing more.
    """
    consumer._ack_sender.collect_answers()
    if consumer._ack_sender.acquire_request is None:
        consumer._ack_sender.send(consumer._reader._planner.plan_next(consumer._partitions.read_owned(), 2, ()))
    return False


def test_the_example_of_the_handoff(mq: Connection) -> None:
    """Key A is in partition 0, B in 1.

    At the pause the user has B1, B2 is prefetched, B3 is stored, B4 is under way.
    """
    topic, group, listener = new_topic(mq, 2), new_name("g"), RecordingListener()
    add(mq, topic, {0: 2, 1: 2})
    with member(mq, group, topic, listener=listener) as c1, lakemq.connect(mq.namespace.path) as other:
        read_by_c1 = read(list(c1.poll(max_records=2, timeout_ms=5_000)))
        assert read_by_c1 == ["0.0", "1.0"]
        ahead = {0: [(0, 2, "acquired", 1)], 1: [(0, 2, "acquired", 1)]}
        until(lambda: deliveries(mq, group, topic) == ahead or request_more(c1))
        with member(other, group, topic) as c2:
            until(lambda: [assignment.state for assignment in mq.groups.assignments(group)] == ["ready", "paused"])
            add(mq, topic, {0: 1, 1: 1}, "stored ")
            read_by_c1 += read(poll_messages(c1, 3))
            assert listener.events[-1] == ("revoked", [1])
            assert read_by_c1[2:4] == ["0.1", "1.1"]
            assert "stored 1.0" not in read_by_c1
            assert not c2.poll(timeout_ms=50)
            c1.commit()
            add(mq, topic, {0: 1, 1: 1}, "last ")
            assert read(poll_messages(c2, 2)) == ["stored 1.0", "last 1.0"]
            read_by_c1 += read(poll_messages(c1, 6 - len(read_by_c1)))
            assert [text for text in read_by_c1 if "0.0" in text or text == "0.1"] == [
                "0.0",
                "0.1",
                "stored 0.0",
                "last 0.0",
            ]
            assert list_partitions(c1) == [0]
    assert ("lost", [1]) not in listener.events


def test_what_is_not_acknowledged_in_time_is_delivered_to_the_next_one_and_late_words_count_for_nothing(
    mq: Connection,
) -> None:
    topic, group, listener = new_topic(mq, 2), create_queue_group(mq, max_handoff_ms=100), RecordingListener()
    add(mq, topic, {0: 2, 1: 2})
    with member(mq, group, topic, listener=listener) as first:
        batch = first.poll(timeout_ms=5_000)
        with member(mq, group, topic) as second:
            messages = poll_messages(second, 2)
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
            assert deliveries(mq, group, topic) == {0: [], 1: []}


def test_a_flush_tells_of_all_that_was_refused_since_the_one_before(mq: Connection) -> None:
    """Each refusal is raised once, however often the caller acknowledges the message."""
    topic, group = new_topic(mq, 4), create_queue_group(mq, max_handoff_ms=100)
    add(mq, topic, dict.fromkeys(range(4), 1))
    with member(mq, group, topic) as first:
        messages = poll_messages(first, 4)
        with member(mq, group, topic) as second:
            assert {message.partition for message in poll_messages(second, 2)} == {2, 3}
            for partition in (2, 3, 2):
                first.ack([message for message in messages if message.partition == partition])
            with pytest.raises(FencedMemberEpoch, match=f"{topic}-2") as raised:
                first.flush()
            assert isinstance(raised.value.__cause__, FencedMemberEpoch)
            assert raised.value.__cause__.found == [f"{topic}-3"]
            assert raised.value.__cause__.__cause__ is None
            first.flush()


def test_who_closes_gives_back_what_it_has_and_what_nobody_saw_was_not_delivered(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 4})
    consumer = member(mq, group, topic)
    first, _ = consumer.poll(max_records=2, timeout_ms=5_000)
    until(lambda: deliveries(mq, group, topic) == {0: [(0, 4, "acquired", 1)]} or request_more(consumer))
    consumer.ack(first)
    consumer.close()
    with pytest.raises(IllegalState):
        consumer.poll()
    with pytest.raises(FencedMemberEpoch):
        consumer.ack(first)
    with member(mq, group, topic) as second:
        redelivered = [(message.offset, message.delivery_count) for message in poll_messages(second, 3)]
        assert redelivered == [(1, 2), (2, 1), (3, 1)]


@pytest.mark.extended
def test_a_member_that_was_lost_is_back_with_what_it_had(mq: Connection) -> None:
    """There was no beat for a while: the leader counts the member as lost, and its next poll joins again."""
    topic, group, listener = new_topic(mq, 2), create_queue_group(mq, rebalance_delay_ms=60_000), RecordingListener()
    add(mq, topic, {0: 2, 1: 2})
    with member(mq, group, topic, listener=listener, session_timeout_ms=6_000, heartbeat_interval_ms=1_000) as consumer:
        batch = consumer.poll(timeout_ms=5_000)
        assert consumer._member.membership._heartbeat is not None
        consumer._member.membership._heartbeat.stop()
        lost_s = time.monotonic()
        until_s = lost_s + 9
        while mq.groups.members(group) and time.monotonic() < until_s:
            time.sleep(0.05)
        assert [info.state for info in mq.groups.assignments(group)] == ["unbound", "unbound"]
        consumer.ack([next(iter(batch))])
        with pytest.raises(UnknownMemberId, match="joins again"):
            consumer.flush()
        assert not consumer.poll(timeout_ms=100)
        consumer.ack(batch)
        consumer.flush()
        assert deliveries(mq, group, topic) == {0: [], 1: []}
        assert listener.events == [("assigned", [0, 1])]


@pytest.mark.extended
def test_members_in_threads_do_everything_once_while_they_come_and_go(mq: Connection) -> None:
    """A member that acknowledges its work before it closes gets none of it again."""
    topic, group, total = new_topic(mq, 4), create_queue_group(mq, rebalance_delay_ms=50), 400
    processed: list[str] = []
    lock, stop = threading.Lock(), threading.Event()
    errors: list[BaseException] = []

    def work(rounds: int) -> None:
        try:
            for _ in range(rounds):
                with member(mq, group, topic) as consumer:
                    until_s = time.monotonic() + 0.4
                    while time.monotonic() < until_s and not stop.is_set():
                        batch = consumer.poll(max_records=20, timeout_ms=5)
                        for message in batch:
                            consumer.ack(message)
                        consumer.flush()
                        with lock:
                            processed.extend(texts(batch))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rounds,)) for rounds in (3, 4, 40)]
    for thread in threads:
        thread.start()
    for i in range(total // 40):
        add(mq, topic, dict.fromkeys(range(4), 10), f"{i} ")
    deadline_s = time.monotonic() + 30
    while len(processed) < total and time.monotonic() < deadline_s and threads[2].is_alive():
        time.sleep(0.02)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not errors
    assert sorted(processed) == sorted(
        {f"{i} {p}.{n}" for i in range(total // 40) for p in range(4) for n in range(10)}
    )


def test_a_member_whose_joining_again_was_not_answered_goes_on_with_a_later_poll(
    mq: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = new_topic(mq), create_queue_group(mq, rebalance_delay_ms=60_000)
    add(mq, topic, {0: 2})
    with member(mq, group, topic) as consumer:
        messages = poll_messages(consumer, 2)
        mq.requester.ask(LeaveGroup(group, [consumer.member_id]))
        consumer.ack(messages[0])
        with pytest.raises(UnknownMemberId):
            consumer.flush()
        join = consumer._member.membership.join

        def submit_late(*arguments: Any) -> None:
            join(*arguments)
            raise RequestTimedOut("No answer; the outcome is unknown.")

        monkeypatch.setattr(consumer._member.membership, "join", submit_late)
        with pytest.raises(RequestTimedOut):
            consumer.poll()
        monkeypatch.undo()
        redelivered = poll_messages(consumer, 2)
        consumer.ack(redelivered)
        with suppress(FencedMemberEpoch):  # acknowledged before the member was lost
            consumer.flush()
        consumer.flush()
        assert deliveries(mq, group, topic) == {0: []}


def test_who_is_fenced_is_told_that_its_words_do_not_count(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 1})
    first = member(mq, group, topic, instance_id="i")
    (message,) = poll_messages(first, 1)
    first._ack_sender.sent_at_ms = first._clock.steady_ms() + 60_000  # it collects acknowledgements
    first.ack(message)
    with lakemq.connect(mq.namespace.path) as other, member(other, group, topic, instance_id="i") as second:
        with pytest.raises(FencedInstanceId):
            first.poll()
        with pytest.raises(FencedMemberEpoch):
            first.flush()
        assert [(message.offset, message.delivery_count) for message in poll_messages(second, 1)] == [(0, 2)]


def test_an_acknowledgement_of_a_partition_that_is_lost_meanwhile_is_refused(mq: Connection) -> None:
    topic = new_topic(mq)
    add(mq, topic, {0: 1})
    with member(mq, new_name("g"), topic) as consumer:
        (message,) = poll_messages(consumer, 1)
        trackers = consumer._trackers

        class LostMeanwhile(list[int]):
            """Acknowledged offsets of a partition that a poll in another thread loses."""

            def append(self, offset: int) -> None:
                super().append(offset)
                del trackers[topic, 0]  # type: ignore[attr-defined]

        trackers[topic, 0].single_acks = LostMeanwhile()
        with pytest.raises(FencedMemberEpoch):
            consumer.ack(message)


def test_a_flush_looks_at_what_other_threads_change_only_with_the_lock(
    mq: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(mq)
    add(mq, topic, {0: 1})
    with member(mq, new_name("g"), topic) as consumer:
        (message,) = poll_messages(consumer, 1)
        looks: list[bool] = []
        build = AckTracker.build_acknowledgements

        def look(tracker: AckTracker) -> list[Acknowledgement]:
            looks.append(consumer._lock.own._is_owned())  # type: ignore[union-attr]
            return build(tracker)

        monkeypatch.setattr(AckTracker, "build_acknowledgements", look)
        consumer.ack(message)
        consumer.flush()
        assert looks
        assert all(looks)


def test_a_flush_does_not_wait_for_what_other_threads_acknowledge_meanwhile(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 5_000})
    with member(mq, group, topic) as consumer:
        messages = poll_messages(consumer, 5_000, max_records=5_000)
        has_begun, ends = threading.Event(), threading.Event()

        def acknowledge() -> None:
            for message in messages[1:]:
                if ends.is_set():
                    break
                consumer.ack([message])
                has_begun.set()
                time.sleep(0.002)

        consumer.ack([messages[0]])
        other = threading.Thread(target=acknowledge)
        other.start()
        try:
            assert has_begun.wait(10)
            consumer.flush(60_000)
            assert other.is_alive()
        finally:
            ends.set()
            other.join()
        assert deliveries(mq, group, topic)[0][0][0] > 0


def test_an_acknowledgement_that_is_refused_while_its_consumer_closes_is_logged_and_raised_by_flush(
    mq: Connection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_reader, "ANSWER_MS", 30_000)  # a busy machine answers late
    topic, group = new_topic(mq, 2), create_queue_group(mq, max_handoff_ms=100)
    add(mq, topic, {0: 1, 1: 1})
    with member(mq, group, topic) as first:
        messages = poll_messages(first, 2)
        with member(mq, group, topic) as second:
            (moved,) = poll_messages(second, 1)
            first.ack([message for message in messages if message.partition == moved.partition])
            first.close()
            with pytest.raises(FencedMemberEpoch, match=f"{topic}-{moved.partition}"):
                first.flush()
            first.flush()
    assert "a consumer that is closed have failed: FENCED_MEMBER_EPOCH" in caplog.text


@pytest.mark.parametrize("error", [MailboxFullError(), RuntimeError("of a thread that has ended")])
def test_a_flush_tells_of_acknowledgements_that_could_not_be_repeated_because_the_consumer_closed(
    mq: Connection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    topic = new_topic(mq)
    add(mq, topic, {0: 1})
    consumer = member(mq, new_name("g"), topic)
    messages = poll_messages(consumer, 1)
    failed = Future[Any]()
    failed.set_exception(error)
    monkeypatch.setattr(consumer._member.membership, "submit", lambda requests, _: [failed for _ in requests])
    consumer.ack(messages)
    consumer.close()
    assert "a consumer that is closed have failed: REQUEST_TIMED_OUT" in caplog.text
    with pytest.raises(RequestTimedOut, match="was closed before"):
        consumer.flush()
    consumer.flush()


def test_what_is_on_its_way_to_who_closes_was_not_delivered(mq: Connection) -> None:
    topic, group = new_topic(mq), create_queue_group(mq, max_redelivery_count=0)
    add(mq, topic, {0: 5})
    for offset in range(5):
        with member(mq, group, topic) as consumer:
            batch = list(consumer.poll(max_records=1, timeout_ms=5_000))  # and requests the next one
            consumer.ack(batch)
        assert [(message.offset, message.delivery_count) for message in batch] == [(offset, 1)]
    assert deliveries(mq, group, topic) == {0: []}


def test_what_was_deleted_ahead_of_a_member_does_not_hold_up_a_last_delivery(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), create_queue_group(mq, max_redelivery_count=1)
    add(mq, topic, {0: 1, 1: 3})
    with member(mq, group, topic) as consumer:
        first = poll_messages(consumer, 2, max_records=2)
        flow = consumer._trackers[topic, 1]
        mq.requester.ask(
            Acquire(group, consumer.member_id, [WantedMessages(flow.topic_id, 1, flow.epoch, 2)])
        )  # if it has not done so yet
        assert deliveries(mq, group, topic)[1] == [(0, 3, "acquired", 1)]
        consumer.nack(first[0])
        consumer.ack(first[1])
        consumer.flush()
        mq.topics.delete_records(topic, {1: 3})
        add(mq, topic, {1: 1}, "new ")
        (last,) = poll_messages(consumer, 1)
        assert (last.partition, last.delivery_count) == (0, 2)
        consumer.ack(last)
        assert read(poll_messages(consumer, 1)) == ["new 1.0"]


def test_the_group_says_what_its_members_see_of_open_transactions(mq: Connection) -> None:
    topic, group = new_topic(mq), create_queue_group(mq, isolation_level="read_uncommitted")
    with member(mq, group, topic) as consumer, mq.producer(transactional_id=new_name("tx")) as producer:
        producer.begin_transaction()
        producer.send(topic, value=b"open")
        producer.flush()
        assert read(poll_messages(consumer, 1)) == ["open"]
        mq.groups.alter(group, {"isolation.level": "read_committed"})
        producer.send(topic, value=b"later")
        producer.flush()
        assert not consumer.poll()
        sent = mq.requester._number
        assert not consumer.poll(timeout_ms=100)
        assert mq.requester._number == sent
        producer.abort_transaction()


def test_who_reads_for_itself_is_refused_while_the_group_has_members(mq: Connection) -> None:
    """Its commits would be those of the members, which acknowledge messages."""
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 2})
    with member(mq, group, topic) as consumer:
        assert len(poll_messages(consumer, 1)) >= 1
        with pytest.raises(InvalidRequest, match="has members"):
            mq.consumer(group, assign=[topic])
    with mq.consumer(group, assign=[topic], auto_offset_reset="earliest") as reader:
        assert len(list(reader.poll(timeout_ms=1_000))) == 2
