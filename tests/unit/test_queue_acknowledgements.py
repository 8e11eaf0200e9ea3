"""Acknowledgements of queue consumers: which count, in a transaction or not, and which are refused."""

from typing import Any

import pytest
from unit.consuming import add, join_queue_group, read_deliveries, take_messages
from unit.served import new_name, new_topic, until, values

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.outcomes import split_into_requests
from lakemq.engine.protocol.values.deliveries import MAX_RANGES, Acknowledgement, AckOutcome
from lakemq.errors import (
    FencedMemberEpoch,
    IllegalState,
    InconsistentGroupProtocol,
    InvalidConfig,
    InvalidRecordState,
    InvalidRequest,
    TransactionAbortable,
)

pytestmark = pytest.mark.slow


def test_only_messages_of_the_member_can_be_acknowledged(mq: Connection, topic: str, group: str) -> None:
    add(mq, topic, {0: 3})
    with join_queue_group(mq, group, topic) as consumer:
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
        for nonsense in (5, None, "message", [1], {"a": 1}, first._replace(offset="x")):
            with pytest.raises(InvalidRequest):
                consumer.ack(nonsense)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            consumer.nack(first, delay_ms=-1)
        with pytest.raises(InvalidRequest, match="Found -1"):
            consumer.commit({(topic, 0): -1})


def test_small_polls_take_from_all_partitions_in_turn(mq: Connection) -> None:
    topic, group = new_topic(mq, 4), new_name("g")
    add(mq, topic, dict.fromkeys(range(4), 20))
    with join_queue_group(mq, group, topic) as consumer:
        partitions = []
        while len(partitions) < 12:
            batch = consumer.poll(max_records=1, timeout_ms=5_000)
            consumer.ack(batch)
            partitions += [message.partition for message in batch]
    assert {partition: partitions.count(partition) for partition in range(4)} == dict.fromkeys(range(4), 3)


def test_commit_acknowledges_up_to_the_offset_and_waits(mq: Connection, topic: str, group: str) -> None:
    add(mq, topic, {0: 6})
    with join_queue_group(mq, group, topic) as consumer:
        batch = consumer.poll(max_records=3, timeout_ms=5_000)
        assert consumer.commit({(topic, 0): 2}) == {(topic, 0): 2}
        until(lambda: read_deliveries(mq, group, topic)[0][0][0] == 2)
        assert consumer.commit(batch) == {(topic, 0): 3}
        last = take_messages(consumer, 3)[-1]
        consumer.ack_through(last)
        consumer.flush()
        assert read_deliveries(mq, group, topic) == {0: []}
        assert consumer.commit() == {}
        with pytest.raises(InvalidRequest, match="metadata"):
            consumer.commit(metadata="note")


def test_member_with_other_settings_than_its_group_is_refused(mq: Connection, topic: str, group: str) -> None:
    with join_queue_group(mq, group, topic, ack_mode="auto"):
        with pytest.raises(InvalidConfig, match=r"ack\.mode"):
            join_queue_group(mq, group, topic, ack_mode="explicit")
        with pytest.raises(InconsistentGroupProtocol):
            mq.consumer(group, topics=[topic], protocol="cooperative")
    with pytest.raises(IllegalState, match="ack_mode"):
        mq.consumer(new_name("g"), topics=[topic], protocol="cooperative", ack_mode="auto")
    with pytest.raises(InvalidConfig):
        join_queue_group(mq, new_name("g"), topic, ack_mode="sometimes")


def test_transaction_refuses_batch_that_another_one_has_committed(mq: Connection) -> None:
    """A caller without an answer that repeats the work with the same batch would do it twice."""
    topic, out, group = new_topic(mq), new_topic(mq), new_name("g")
    add(mq, topic, {0: 2})
    with join_queue_group(mq, group, topic) as consumer, mq.producer(transactional_id=new_name("tx")) as producer:
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


def test_interrupted_flush_loses_no_acknowledgement(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 3})

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with join_queue_group(mq, group, topic) as consumer:
        messages = take_messages(consumer, 3)
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
        assert read_deliveries(mq, group, topic) == {0: []}


def test_large_acknowledgements_are_split_into_requests() -> None:
    ranges = [(2 * i, 1) for i in range(MAX_RANGES + 10)]
    parts = [Acknowledgement(1, p, 5, AckOutcome.ACK, ranges, 7) for p in range(2)]
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
