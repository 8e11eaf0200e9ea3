"""Topics that get more partitions, or fewer, while members of groups consume them."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest
from unit.served import CONFIG, new_name, new_topic, until
from unit.test_group_consumer import RecordingListener, add, list_partitions, member, settle, texts

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.sequencer import sequencer as sequencer_module

pytestmark = [pytest.mark.slow, pytest.mark.extended]


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with pytest.MonkeyPatch.context() as patched, ExitStack() as stack:
        patched.setattr(sequencer_module, "EXPIRY_INTERVAL_MS", 50)
        config = {**CONFIG, "project.interval.ms": 100}
        mq = stack.enter_context(
            lakemq.connect(str(tmp_path_factory.mktemp("scaling") / "mq"), create=True, config=config)
        )
        mq.serving()
        yield mq


def publish_with_keys(mq: Connection, topic: str, mark: str, count: int = 200) -> list[str]:
    values = [f"{mark}{i}" for i in range(count)]
    mq.publish(topic, pa.table({"value": values, "key": [f"k{i % 40}" for i in range(count)]}))
    return values


@pytest.mark.parametrize("protocol", ["cooperative", "queue"])
def test_added_partitions_join_and_no_other_partition_moves(mq: Connection, protocol: str) -> None:
    topic, group = new_topic(mq, 4), new_name("g")
    listeners = [RecordingListener(), RecordingListener()]
    options: dict[str, Any] = {"protocol": protocol, "auto_offset_reset": "earliest"}
    members = [mq.consumer(group, topics=[topic], listener=listener, **options) for listener in listeners]
    read_texts: list[str] = []

    def poll() -> None:
        for consumer in members:
            batch = consumer.poll(max_records=50)
            read_texts.extend(texts(batch))
            if batch:
                consumer.commit(batch)

    until(lambda: poll() or [len(consumer.assignment()) for consumer in members] == [2, 2])
    sent = publish_with_keys(mq, topic, "a")
    until(lambda: poll() or len(read_texts) == len(sent))
    before = {assignment.partition: assignment for assignment in mq.groups.assignments(group)}
    for listener in listeners:
        listener.events.clear()
    sent += publish_with_keys(mq, topic, "b")
    mq.topics.alter(topic, partitions=6)
    sent += publish_with_keys(mq, topic, "c")
    until(
        lambda: (
            poll() or (len(read_texts) >= len(sent) and [len(consumer.assignment()) for consumer in members] == [3, 3])
        )
    )
    assert sorted(read_texts) == sorted(sent), "each once, and none stands still"
    assert sorted(word for listener in listeners for word in listener.events) == [("assigned", [4]), ("assigned", [5])]
    after = {assignment.partition: assignment for assignment in mq.groups.assignments(group)}
    assert {p: after[p] for p in before} == before, "the same owners since the same time"
    assert {p for p, ownership in after.items() if ownership.since_ms >= before[0].since_ms and p not in before} == {
        4,
        5,
    }
    for consumer in members:
        consumer.close()


def test_producers_use_the_remaining_partitions_and_no_message_is_lost(mq: Connection) -> None:
    topic, group = new_topic(mq, 4), new_name("g")
    with member(mq, group, topic) as consumer, mq.producer(linger_ms=0) as producer:
        settle(consumer, on=lambda: len(list_partitions(consumer)) == 4)
        sent = publish_with_keys(mq, topic, "a")
        for i in range(20):
            producer.send(topic, f"p{i}", key=f"k{i}")
        producer.flush()
        ends = mq.topics.describe(topic).end_offsets
        changed = mq.topics.alter(topic, partitions=2, force=True)
        assert changed.partitions == 2
        assert changed.partition_states == ["active", "active", "draining", "draining"]
        futures = [producer.send(topic, f"q{i}", key=f"k{i}") for i in range(40)]
        producer.flush()
        assert {future.result(5).partition for future in futures} == {0, 1}
        sent += [*(f"p{i}" for i in range(20)), *(f"q{i}" for i in range(40)), *publish_with_keys(mq, topic, "b")]
        assert mq.topics.describe(topic).end_offsets[2:] == ends[2:]
        read_texts: list[str] = []
        while len(read_texts) < len(sent):
            batch = consumer.poll(max_records=1000, timeout_ms=5_000)
            read_texts += texts(batch)
            consumer.commit(batch)
        assert sorted(read_texts) == sorted(sent)
        settle(consumer, on=lambda: list_partitions(consumer) == [0, 1])
        assert mq.topics.describe(topic).partition_states == ["active", "active", "ended", "ended"]
        assert len(mq.fetch(topic).to_arrow()) == len(sent), "what has ended can be fetched"
        mq.topics.alter(topic, partitions=3)
        settle(consumer, on=lambda: list_partitions(consumer) == [0, 1, 2])
        add(mq, topic, {2: 3}, "again ")
        batch = consumer.poll(timeout_ms=5_000)
        assert texts(batch) == ["again 2.0", "again 2.1", "again 2.2"]
        assert batch.starts[topic, 2] == ends[2]
