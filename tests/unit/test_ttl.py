"""Time to live: expired messages are passed over in logs, and a queue group makes them dead letters."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from unit.consuming import take_messages, texts
from unit.served import new_name, new_topic, run_lakemq, served, until, values

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.engine.client.sql.query import run_query
from lakemq.engine.namespace.data_file import file_name
from lakemq.engine.protocol.codec.few_rows import FewRows
from lakemq.engine.protocol.values.deliveries import DeathReason
from lakemq.engine.protocol.values.log import Produce, Ranges
from lakemq.engine.protocol.values.topics import TopicRef
from lakemq.errors import FileTruncated, InvalidConfig, InvalidRecord
from lakemq.tables.specs.messages import MAX_TTL_MS
from lakemq.testing import MovableClock

LONG_MS, SHORT_MS = 3_600_000, 20_000
CLOCK = MovableClock()
"""The clock of the namespace. It goes ahead when messages are to expire, and sessions of members are longer."""


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with served(tmp_path_factory.mktemp("ttl"), CLOCK, **{"project.interval.ms": 50}) as connection:
        yield connection


def read_all_values(mq: Connection, topic: str) -> list[str]:
    return texts(mq.fetch(topic, include_expired=True))


def age(ms: int = SHORT_MS) -> None:
    CLOCK.advance(seconds=(ms + 1) / 1000)


def publish_with_a_producer(mq: Connection, topic: str) -> None:
    with mq.producer() as producer:
        producer.send(topic, "short", ttl_ms=SHORT_MS)
        producer.send_arrow(topic, pa.table({"value": ["long"], "ttl_ms": [LONG_MS]}))


def publish_a_named_column(mq: Connection, topic: str) -> None:
    mq.publish(topic, pa.table({"v": ["short", "long"], "lives": [SHORT_MS, LONG_MS]}), value="v", ttl_ms="lives")


def publish_a_file(mq: Connection, topic: str) -> None:
    fill = "x" * 3000  # more than rides in a letter
    mq.publish(topic, pa.table({"value": ["short", "long"], "ttl_ms": [SHORT_MS, LONG_MS], "key": [fill, fill]}))


def publish_in_a_transaction(mq: Connection, topic: str) -> None:
    with mq.transaction(new_name("id")) as txn:
        txn.publish(topic, pa.table({"value": ["short"]}), ttl_ms=SHORT_MS)
        txn.publish(topic, pa.table({"value": ["long"]}), ttl_ms=LONG_MS)


def publish_with_the_command(mq: Connection, topic: str) -> None:
    for value, ttl_ms in (("short", SHORT_MS), ("long", LONG_MS)):
        options = ["--topic", topic, "--format", "lines", "--ttl-ms", str(ttl_ms)]
        run_lakemq(mq.namespace.path, "publish", *options, stdin=f"{value}\n".encode())


@pytest.mark.slow
def test_expired_messages_are_skipped_however_they_were_published(mq: Connection) -> None:
    publishes = (
        publish_with_a_producer,
        publish_a_named_column,
        publish_a_file,
        publish_in_a_transaction,
        publish_with_the_command,
    )
    topics = [new_topic(mq) for _ in publishes]
    for publish, topic in zip(publishes, topics, strict=True):
        publish(mq, topic)
    age()
    for publish, topic in zip(publishes, topics, strict=True):
        fetched = mq.fetch(topic)
        assert texts(fetched) == ["long"], publish
        assert read_all_values(mq, topic) == ["short", "long"]
        assert (fetched.record_count, fetched.plan.record_count) == (1, 2)
        assert fetched.to_arrow()["offset"].to_pylist()[0] > 0, "it keeps its offset"


@pytest.mark.slow
def test_topic_sets_the_ttl_of_messages_without_their_own(mq: Connection, topic: str) -> None:
    mq.topics.alter(topic, {"ttl.ms": SHORT_MS})
    mq.publish(topic, pa.table({"value": ["as the topic", "own"], "ttl_ms": [None, LONG_MS]}))
    mq.publish(topic, pa.table({"value": ["plain"]}))
    mq.topics.alter(topic, {"ttl.ms": -1})  # of messages published from now on
    mq.publish(topic, pa.table({"value": ["for ever"]}))
    age()
    assert values(mq, topic) == ["own", "for ever"]


@pytest.mark.slow
def test_ttl_of_a_delayed_message_counts_from_its_release(mq: Connection, topic: str) -> None:
    mq.topics.alter(topic, {"delay.slot.ms": 10})
    mq.delayed.schedule(topic, "short", delay_ms=30_000, ttl_ms=SHORT_MS)
    mq.delayed.schedule(topic, "long", delay_ms=30_000, ttl_ms=LONG_MS)
    age(30_000)
    until(lambda: values(mq, topic) == ["short", "long"])
    age()
    assert values(mq, topic) == ["long"]


def test_fetched_messages_stay_the_same_after_they_expire(mq: Connection, topic: str) -> None:
    mq.publish(topic, pa.table({"value": ["a", "b"], "ttl_ms": [SHORT_MS, None]}))
    fetched = mq.fetch(topic)
    age()
    assert texts(fetched) == ["a", "b"]
    assert [message.value for message in fetched] == [b"a", b"b"]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["cooperative", None])
def test_poll_returns_the_message_behind_thousands_of_expired_ones(mq: Connection, protocol: str | None) -> None:
    """The poll does not wait and wants one message, and thousands before it have expired."""
    topic, group = new_topic(mq, partitions=2), new_name("g")
    if protocol is not None:
        mq.groups.create(group, {"group.protocol": protocol})
    expired_rows = {"partition": [n % 2 for n in range(9_000)], "value": ["gone"] * 9_000, "ttl_ms": [SHORT_MS] * 9_000}
    mq.publish(topic, pa.table(expired_rows))
    mq.publish(topic, pa.table({"partition": [0, 0, 1], "value": ["a", "b", "c"]}))
    age()
    assignment: dict[str, Any] = {"assign": [(topic, 0), (topic, 1)]} if protocol is None else {"topics": [topic]}
    with mq.consumer(group, auto_offset_reset="earliest", **assignment) as consumer:
        first: list[Any] = []
        until(lambda: bool(first.append(consumer.poll(1)) or first[-1].offsets))
        batches = [texts(batch) for batch in (first[-1], *(consumer.poll(1) for _ in range(2)))]
        assert sorted(value for [value] in batches) == ["a", "b", "c"]
        assert consumer.commit() == {(topic, 0): 4_502, (topic, 1): 4_501}


def has_topic(mq: Connection, name: str) -> bool:
    return any(topic.topic == name for topic in mq.topics.list())


# -- queues -------------------------------------------------------------------------------------------------


def member(mq: Connection, topic: str, group: str) -> QueueConsumer:
    return mq.consumer(group, topics=[topic], auto_offset_reset="earliest")


@pytest.mark.slow
def test_queue_makes_an_expired_message_a_dead_letter(mq: Connection, topic: str, group: str) -> None:
    mq.publish(topic, pa.table({"value": ["a", "b", "c"], "ttl_ms": [None, SHORT_MS, None]}))
    age()
    with member(mq, topic, group) as consumer:
        messages = take_messages(consumer, 2)
        assert [message.value for message in messages] == [b"a", b"c"]
        consumer.ack(messages)
        consumer.flush()
        until(lambda: has_topic(mq, f"{topic}.dlq") and values(mq, f"{topic}.dlq") == ["b"])
        until(lambda: mq.groups.describe(group).lag == 0)
    headers = dict(next(iter(mq.fetch(f"{topic}.dlq"))).headers)
    assert (headers["dead-letter.reason"], headers["dead-letter.offset"]) == (DeathReason.EXPIRED.value.encode(), b"1")
    assert mq.groups.describe(group).expired == 1
    age()  # as a dead letter it has no time to live
    assert values(mq, f"{topic}.dlq") == ["b"]
    mq.dead_letters.redrive(f"{topic}.dlq")  # and then as long as before
    assert read_all_values(mq, topic)[-1:] == ["b"]
    age()
    assert values(mq, topic) == ["a", "c"]


@pytest.mark.extended
@pytest.mark.slow
def test_returned_message_expires_before_its_redelivery(mq: Connection, topic: str, group: str) -> None:
    ttl_ms = 10_000  # its member waits so long
    mq.publish(topic, pa.table({"value": ["brief"]}), ttl_ms=ttl_ms)
    with member(mq, topic, group) as consumer:
        consumer.nack(take_messages(consumer, 1), delay_ms=ttl_ms)
        consumer.flush()
        mq.publish(topic, pa.table({"value": ["next"]}))
        assert [message.value for message in take_messages(consumer, 1)] == [b"next"]
        age(ttl_ms)
        until(lambda: not consumer.poll(timeout_ms=20) and mq.groups.describe(group).expired == 1)


# -- SQL ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_views_show_expired_messages_with_their_time(mq: Connection, topic: str) -> None:
    mq.publish(topic, pa.table({"value": ["a", "b"], "ttl_ms": [SHORT_MS, None]}))
    age()
    query = f"SELECT expires_at IS NULL FROM log_committed WHERE topic = '{topic}' ORDER BY 1"
    until(lambda: list(run_query(mq.namespace, query)[1]) == [(False,), (True,)])


@pytest.mark.slow
@pytest.mark.extended
def test_forged_ttl_fails_no_query(mq: Connection, topic: str) -> None:
    ref = TopicRef(topic, mq.topics.describe(topic).topic_id, 1)
    for ttl_ms in (-(2**63), -1, MAX_TTL_MS + 1, 2**63 - 1):
        few = FewRows([topic], [0], [None], [b"forged"], [0], ttl_ms=[ttl_ms])
        ranges = Ranges([0], [0], [-1], [0], [1], [0], [0])
        mq.requester.ask(Produce([ref], ranges, mq.state().step, has_ttl=True), few)
    mq.publish(topic, pa.table({"value": ["good"]}), ttl_ms=MAX_TTL_MS)
    query = f"SELECT expires_at IS NULL FROM log WHERE topic = '{topic}' ORDER BY \"offset\""
    until(lambda: list(run_query(mq.namespace, query)[1]) == [(True,)] * 4 + [(False,)])


# -- refusals -----------------------------------------------------------------------------------------------


def test_bad_ttl_is_refused_in_the_call(mq: Connection) -> None:
    topic, ttl_ms = new_topic(mq), None
    with mq.producer() as producer:
        for ttl_ms in (-1, MAX_TTL_MS + 1, 1.5, float("nan"), "soon", True):
            with pytest.raises(InvalidRecord):
                producer.send(topic, "x", ttl_ms=ttl_ms)  # type: ignore[arg-type]
            with pytest.raises(InvalidRecord):
                mq.publish(topic, pa.table({"value": ["x"]}), ttl_ms=ttl_ms)  # type: ignore[arg-type]
    assert read_all_values(mq, topic) == []
    for ttl_ms in (-2, MAX_TTL_MS + 1):
        with pytest.raises(InvalidConfig):
            mq.topics.alter(topic, {"ttl.ms": ttl_ms})


# -- what cannot be read ------------------------------------------------------------------------------------


def publish_unreadable(mq: Connection, topic: str) -> Path:
    """Publish a message that has expired, and move its file away, so that it cannot be read. Return the new path."""
    mq.publish(topic, pa.table({"value": ["x" * 3000]}), ttl_ms=SHORT_MS)
    (file_id,) = mq.fetch(topic, include_expired=True).plan.segments.column("file_id").to_pylist()
    file = Path(mq.namespace.files.root, file_name(file_id))
    age()
    return file.rename(file.with_suffix(".away"))


@pytest.mark.extended
@pytest.mark.slow
def test_unreadable_message_does_not_count_as_expired(mq: Connection, topic: str, group: str) -> None:
    """The message is shown, so that its consumer can give it up. The messages after it are delivered."""
    moved_file = publish_unreadable(mq, topic)
    mq.publish(topic, pa.table({"value": ["next"]}))
    with member(mq, topic, group) as consumer:
        until(
            lambda: bool(batch := consumer.poll(max_records=1, timeout_ms=20)) and _reject_unreadable(consumer, batch)
        )
        assert [message.value for message in take_messages(consumer, 1)] == [b"next"]
        consumer.commit()
    assert mq.groups.describe(group).expired == 0
    moved_file.rename(moved_file.with_suffix(".parquet"))  # other tests query the namespace


def _reject_unreadable(consumer: QueueConsumer, batch: Any) -> bool:
    with pytest.raises(FileTruncated):
        batch.to_arrow()
    consumer.reject(batch, "cannot be read")
    return True
