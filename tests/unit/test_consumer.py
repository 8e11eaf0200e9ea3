"""Consumers of assigned partitions: the result of a poll, where a group continues, and the offsets that are skipped."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from unit.consuming import act_before_fetch, add, texts
from unit.served import CONFIG, new_name, new_topic, values

import lakemq
from lakemq import errors
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume import position_reader
from lakemq.engine.protocol import machine
from lakemq.engine.protocol.values.offsets import FetchOffsets


def test_unknown_option_of_a_consumer_is_named(mq: Connection) -> None:
    for options, sentence in (
        ({"foo": 1}, r"Unknown option.*Found 'foo'\. Expected .*isolation"),
        ({"max_poll_records": 5}, r"max_poll_records is no option here: give max_records and timeout_ms to .*poll\(\)"),
        ({"consumer_timeout_ms": 5}, r"consumer_timeout_ms is no option here: loop over consumer\.until_end\(\)"),
        ({"isolations": "read_committed"}, r"did you mean isolation\? Found 'isolations'"),
    ):
        with pytest.raises(errors.InvalidConfig, match=sentence):
            mq.consumer("g", assign=["t"], **options)  # type: ignore[arg-type]


def create_filled_topic(mq: Connection, *counts: int) -> str:
    """Create a topic with this many messages in each partition. A message consists of its partition and number."""
    topic = new_topic(mq, len(counts))
    add(mq, topic, dict(enumerate(counts)))
    return topic


# -- polling --------------------------------------------------------------------------------------------


def test_poll_returns_all_messages_in_order(mq: Connection, group: str):
    topics = [create_filled_topic(mq, 5, 0, 7), create_filled_topic(mq, 3)]
    with mq.consumer(group, assign=topics) as consumer:
        batch = consumer.poll()
        assert [m.topic for m in batch] == sorted(m.topic for m in batch)
        by_topic = sorted(batch, key=lambda m: topics.index(m.topic))
        assert [m.offset for m in by_topic] == [0, 1, 2, 3, 4, *range(7), 0, 1, 2]
        assert [m.value.decode() for m in by_topic] == [
            f"{p}.{i}" for p, n in ((0, 5), (2, 7), (0, 3)) for i in range(n)
        ]
        assert (batch.record_count, bool(batch), texts(batch)) == (15, True, texts(batch))
        assert batch.offsets == {(topics[0], 0): 5, (topics[0], 2): 7, (topics[1], 0): 3}
        nothing = consumer.poll()
        assert (nothing.record_count, bool(nothing), nothing.offsets, list(nothing)) == (0, False, {}, [])
        assert nothing.to_arrow().schema == batch.to_arrow().schema
        with pytest.raises(errors.IllegalState, match="No Spark session"):
            nothing.to_spark()


def test_polls_take_evenly_up_to_max_records(mq: Connection, group: str):
    topic = create_filled_topic(mq, 40, 4, 40)
    with mq.consumer(group, assign=[topic]) as consumer:
        batches = [consumer.poll(max_records=12) for _ in range(8)]
    assert [batch.record_count for batch in batches] == [12] * 7 + [0]
    assert Counter(m.partition for m in batches[0]) == {0: 4, 1: 4, 2: 4}
    assert Counter(m.partition for m in batches[1]) == {0: 6, 2: 6}
    for partition, count in ((0, 40), (1, 4), (2, 40)):
        assert [m.offset for batch in batches for m in batch if m.partition == partition] == list(range(count))


def test_only_assigned_partitions_are_read(mq: Connection, group: str):
    topic = create_filled_topic(mq, 2, 2)
    with mq.consumer(group, assign=[(topic, 1)]) as consumer:
        assert texts(consumer.poll()) == ["1.0", "1.1"]
        for call in (consumer.position, lambda *tp: consumer.seek(*tp, 0)):
            with pytest.raises(errors.IllegalState):
                call(topic, 0)
    with pytest.raises(errors.IllegalState):
        consumer.poll()


def test_bad_partitions_options_and_offsets_are_refused(mq: Connection, group: str):
    topic = create_filled_topic(mq, 1)
    for wrong in ({"assign": [(topic, 1)]}, {"assign": [(topic, -1)]}, {"topics": ["nobody-knows-it"]}):
        with pytest.raises(errors.UnknownTopicOrPartition):
            mq.consumer(group, **wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidRequest, match="one of topics"):
        mq.consumer(group)
    for option in ({"auto_offset_reset": "newest"}, {"isolation": "read_everything"}):
        with pytest.raises(errors.InvalidRequest):
            mq.consumer(group, assign=[topic], **option)
    with mq.consumer(group, assign=[topic]) as consumer:
        with pytest.raises(errors.InvalidRequest):
            consumer.poll(max_records=0)
        with pytest.raises(errors.OffsetOutOfRange):
            consumer.commit({(topic, 0): 2})
        with pytest.raises(errors.UnknownTopicOrPartition):
            consumer.commit({(topic, 1): 0})
        with pytest.raises(errors.OffsetMetadataTooLarge):
            consumer.commit({(topic, 0): 1}, metadata="x" * 5000)
        with pytest.raises(errors.OffsetOutOfRange):
            consumer.seek(topic, 0, 2)
        assert consumer.committed() == {}


def test_bad_group_name_is_refused_in_every_call(mq: Connection, topic: str):
    for call in (
        lambda: mq.consumer("bad group!", assign=[topic]),
        lambda: mq.groups.describe("bad group!"),
        lambda: mq.groups.lag("bad group!"),
        lambda: mq.transaction(topic).__enter__().send_offsets({(topic, 0): 0}, "bad group!"),
    ):
        with pytest.raises(errors.InvalidGroupId, match=r"Found 'bad group!'"):
            call()


# -- markers and transactions ---------------------------------------------------------------------------


def test_poll_waits_for_offsets_of_an_open_transaction(mq: Connection, group: str, monkeypatch: pytest.MonkeyPatch):
    topic = create_filled_topic(mq, 5)
    with mq.producer(new_name("id")) as producer:
        producer.begin_transaction()
        producer.send_offsets_to_transaction({(topic, 0): 3}, group)
        monkeypatch.setattr(position_reader, "HELD_BACK_MS", 30)
        with pytest.raises(errors.UnstableOffsetCommit):
            mq.consumer(group, assign=[topic]).poll()
        monkeypatch.undo()
        timer = threading.Timer(0.1, producer.commit_transaction)
        timer.start()
        assert texts(mq.consumer(group, assign=[topic]).poll()) == ["0.3", "0.4"]
        timer.join()


# -- where a group goes on ------------------------------------------------------------------------------


@pytest.mark.slow
def test_group_continues_at_its_committed_offsets(mq: Connection, group: str):
    topic = create_filled_topic(mq, 4, 4)
    with mq.consumer(group, assign=[topic]) as consumer:
        assert consumer.commit() == {}
        assert consumer.lag() == {(topic, 0): 4, (topic, 1): 4}
        batch = consumer.poll(max_records=4)
        consumer.poll(max_records=2)
        assert consumer.commit(batch) == {(topic, 0): 2, (topic, 1): 2}
        answer = consumer.commit({(topic, 1): 3}, metadata="by hand")
        assert answer == {(topic, 1): 3}
        offsets = consumer.committed()
        assert (offsets[topic, 0].offset, offsets[topic, 1].offset, offsets[topic, 1].metadata) == (2, 3, "by hand")
    with lakemq.connect(mq.namespace.path, config=CONFIG) as other, other.consumer(group, assign=[topic]) as consumer:
        assert texts(consumer.poll()) == ["0.2", "0.3", "1.3"]
        assert consumer.commit() == {(topic, 0): 4, (topic, 1): 4}
    with mq.consumer(group, assign=[topic]) as consumer:
        assert not consumer.poll()
        assert consumer.lag() == {(topic, 0): 0, (topic, 1): 0}


@pytest.mark.slow
def test_fetch_of_offsets_is_repeated_when_the_answer_of_its_letter_is_full(
    mq: Connection, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_filled_topic(mq, 1)
    monkeypatch.setattr(machine, "MAX_OFFSET_ANSWER_BYTES", 0)
    with mq.consumer(group, assign=[topic]) as consumer, ThreadPoolExecutor(8) as threads:
        consumer.commit({(topic, 0): 1})
        shared = [future.exception() for future in mq.requester.submit_all([(FetchOffsets(group), None)] * 3)]
        assert [type(error) for error in shared] == [
            type(None),
            errors.ThrottlingQuotaExceeded,
            errors.ThrottlingQuotaExceeded,
        ]
        offsets = list(threads.map(lambda _: consumer.committed()[topic, 0].offset, range(100)))
    assert offsets == [1] * 100


def test_group_without_offset_and_reset_is_refused(mq: Connection, group: str):
    topic = create_filled_topic(mq, 2, 2)
    with mq.consumer(group, assign=[topic], auto_offset_reset="none") as consumer:
        for call in (consumer.poll, consumer.lag, lambda: consumer.position(topic, 0)):
            with pytest.raises(errors.NoOffsetForPartition):
                call()
        consumer.seek(topic, 0, 1)
        consumer.commit({(topic, 1): 1})
        assert texts(consumer.poll()) == ["0.1", "1.1"]
        mq.topics.delete_records(topic, {0: -1})
        consumer.seek(topic, 0, 2)
        assert not consumer.poll()


@pytest.mark.parametrize(("reset", "expected"), [("earliest", ["0.4", "0.5"]), ("latest", []), ("none", None)])
def test_position_below_the_log_start_moves_as_the_reset_says(
    mq: Connection, group: str, reset: Any, expected: list[str] | None
):
    topic = create_filled_topic(mq, 6)
    with mq.consumer(group, assign=[topic], auto_offset_reset=reset) as consumer:
        consumer.commit({(topic, 0): 0})
        assert len(texts(consumer.poll(max_records=2))) == 2
        mq.topics.delete_records(topic, {0: 4})
        with pytest.raises(errors.OffsetOutOfRange):
            consumer.seek(topic, 0, 3)
        if expected is None:
            with pytest.raises(errors.OffsetOutOfRange):
                consumer.poll()
        else:
            assert texts(consumer.poll()) == expected
            assert consumer.position(topic, 0) == 6


def test_poll_continues_when_messages_are_deleted_meanwhile(mq: Connection, group: str):
    topic = create_filled_topic(mq, 4)
    with mq.consumer(group, assign=[topic]) as consumer:

        def delete() -> None:
            mq.topics.delete_records(topic, {0: 2})
            values(mq, topic)  # another reader of the connection sees that the messages are gone

        act_before_fetch(consumer, delete)
        assert texts(consumer.poll(timeout_ms=5_000)) == ["0.2", "0.3"]


@pytest.mark.slow
def test_two_threads_that_share_a_consumer_get_each_message_once(mq: Connection, group: str):
    """Every message comes to one of them, while others read and write through the same connection."""
    topic = new_topic(mq, 3)
    places_by_thread: list[list[tuple[int, int]]] = [[], []]
    deadline_s = time.monotonic() + 60
    with mq.consumer(group, assign=[topic]) as consumer:

        def read(places: list[tuple[int, int]]) -> None:
            while len(places_by_thread[0]) + len(places_by_thread[1]) < 24 and time.monotonic() < deadline_s:
                batch = consumer.poll(max_records=7, timeout_ms=100, poll_ms=1)
                places += [(m.partition, m.offset) for m in batch]

        threads = [threading.Thread(target=read, args=(places,)) for places in places_by_thread]
        [thread.start() for thread in threads]
        with mq.producer(new_name("id"), linger_ms=0) as producer:
            for number in range(8):
                producer.begin_transaction()
                for i in range(6):
                    producer.send(topic, f"{number}.{i}")
                producer.flush()
                mq.end_offsets(topic)
                producer.commit_transaction() if number % 2 else producer.abort_transaction()
        [thread.join() for thread in threads]
    places = places_by_thread[0] + places_by_thread[1]
    assert sorted(places) == [(m.partition, m.offset) for m in mq.fetch(topic)]
    assert len(set(places)) == len(places) == 24
