"""Offsets of Kafka are found again in copies. tests/spark/test_mirror.py runs the mirror itself."""

import json
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from unit.served import new_name, new_topic, until

from lakemq.engine.client.connection import Connection
from lakemq.errors import IllegalState, RequestTimedOut, StorageError
from lakemq.jobs.mirror import OFFSET_HEADER, Mirror, MirrorOptions, find_copy, list_redriven

FARTHEST = 40


class FakeKafka:
    """A cluster with an empty topic, which fails first. Real ones: tests/spark/test_mirror.py."""

    def __init__(self, topic: str) -> None:
        self.topics, self.ids, self.errors = {topic: 1}, {"": "the cluster", topic: "created"}, list[Exception]()

    def list_topics(self, pattern: Any) -> dict[str, int]:
        if self.errors:
            raise self.errors.pop()
        return self.topics

    def read_ids(self, topics: Any) -> dict[str, str]:
        return self.ids

    def read_settings(self, topic: str) -> dict[str, str]:
        return {}

    def read_bounds(self, topics: Any) -> Any:
        bounds = {(topic, 0): 0 for topic in topics}
        return bounds, bounds

    def list_groups(self, pattern: Any) -> list[str]:
        return []


def build_mirror(
    mq: Connection, kafka: Any, name: str, steady_s: Callable[[], float] = time.monotonic, **options: Any
) -> Mirror:
    topics = "|".join(kafka.topics)
    spark: Any = None
    return Mirror(mq, spark, kafka, MirrorOptions("", topics, name=name, until_caught_up=True, **options), steady_s)


def publish_copies(mq: Connection, topic: str, kafka_offsets: list[int]) -> None:
    own = OFFSET_HEADER, b"of its producer"
    headers = [[own, (OFFSET_HEADER, str(offset).encode())] for offset in kafka_offsets]
    mq.publish(topic, pa.table({"value": ["v"] * len(headers), "headers": pa.array(headers, HEADERS)}))


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@given(st.sets(st.integers(0, FARTHEST), min_size=1).map(sorted), st.integers(0, 3))
@examples(30)
def test_group_continues_at_the_first_copy_that_is_not_below_its_offset(
    mq: Connection, kafka_offsets: list[int], deleted_count: int
) -> None:
    topic = new_topic(mq)
    publish_copies(mq, topic, kafka_offsets)
    first = min(deleted_count, len(kafka_offsets))
    mq.topics.delete_records(topic, {0: first})
    for offset in range(FARTHEST + 2):
        assert find_copy(mq, topic, 0, offset) == max(first, bisect_left(kafka_offsets, offset))


def test_group_at_the_end_of_kafka_continues_before_messages_that_are_no_copies(mq: Connection) -> None:
    topic = new_topic(mq)
    publish_copies(mq, topic, [5, 8])
    mq.publish(topic, pa.table({"value": ["new"]}))
    assert [find_copy(mq, topic, 0, offset) for offset in (0, 6, 9, 1000)] == [0, 1, 2, 2]


def test_group_continues_before_no_copy_that_it_has_not_read_if_producers_send_between_copies(mq: Connection) -> None:
    topic = new_topic(mq)
    publish_copies(mq, topic, list(range(20)))
    mq.publish(topic, pa.table({"value": ["new"] * 30}))
    publish_copies(mq, topic, list(range(20, 25)))
    for offset in range(26):
        place = find_copy(mq, topic, 0, offset)
        assert place == offset if offset <= 20 else 20 <= place <= 30 + offset


@pytest.mark.extended
def test_headers_of_redriven_and_forwarded_copies_do_not_tell_where_a_group_continues(mq: Connection) -> None:
    topic, group = new_topic(mq), new_name("g")
    mq.groups.create(group, {"group.protocol": "queue"})
    publish_copies(mq, topic, list(range(20)))
    with mq.consumer(group, topics=[topic], auto_offset_reset="earliest") as consumer:
        consumer.reject(list(consumer.poll(timeout_ms=10_000))[:3], error="no good")
        consumer.flush()
    until(lambda: f"{topic}.dlq" in {t.topic for t in mq.topics.list()})
    mq.dead_letters.redrive(f"{topic}.dlq")
    until(lambda: mq.end_offsets(topic)[0] == 23)
    headers = [[(OFFSET_HEADER, value)] for value in (b"offset 7", None)]
    mq.publish(topic, pa.table({"value": ["forwarded"] * 2, "headers": pa.array(headers, HEADERS)}))
    redriven = list_redriven(mq)[topic, 0]
    assert [find_copy(mq, topic, 0, offset, redriven) for offset in (0, 2, 10, 20, 30)] == [0, 2, 10, 20, 20]


def test_group_of_a_topic_without_copies_continues_at_its_end(mq: Connection) -> None:
    assert find_copy(mq, new_topic(mq), 0, 7) == 0


def test_mirror_whose_copy_is_deleted_does_not_begin_a_new_one_in_its_middle(mq: Connection) -> None:
    topic, name = new_name("t"), new_name("mirror")
    offsets = Path(mq.namespace.path) / "streams" / name / "offsets" / "0"
    offsets.parent.mkdir(parents=True)
    offsets.write_text(f"v1\n{{}}\n{json.dumps({topic: {'0': 5}})}")

    with pytest.raises(IllegalState, match=topic):
        build_mirror(mq, FakeKafka(topic), name).run(Event())
    assert topic not in {t.topic for t in mq.topics.list()}


@pytest.mark.extended
def test_name_of_a_mirror_belongs_to_one_cluster_and_its_topics(mq: Connection) -> None:
    topic, name = new_name("t"), new_name("mirror")
    kafka = FakeKafka(topic)
    assert build_mirror(mq, kafka, name).run(Event())["topics"] == 1
    kafka.ids[topic] = "created again"  # nothing of the first one was copied
    build_mirror(mq, kafka, name).run(Event())
    publish_copies(mq, topic, [0])
    kafka.ids[topic] = "created a third time"
    with pytest.raises(IllegalState, match="was deleted in Kafka and created again"):
        build_mirror(mq, kafka, name).run(Event())
    other = FakeKafka(new_name("t"))
    other.ids[""] = "another cluster"
    with pytest.raises(IllegalState, match="copies another cluster"):
        build_mirror(mq, other, name).run(Event())
    build_mirror(mq, other, new_name("mirror")).run(Event())


class Pauses(Event):
    """Is never set. A wait passes at once, on the clock that it is."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.lengths.append(timeout or 0)
        return False

    def time(self) -> float:
        return sum(self.lengths)


def test_mirror_waits_longer_and_longer_for_an_answer_and_ends_after_its_time(
    mq: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    kafka, pauses = FakeKafka(new_name("t")), Pauses()

    def run() -> None:
        build_mirror(mq, kafka, new_name("mirror"), pauses.time, outage_timeout_ms=10_000).run(pauses)

    kafka.errors = [StorageError("The disk is full.")] * 3
    run()
    assert pauses.lengths == [1, 2, 4]
    kafka.errors, pauses.lengths = [RequestTimedOut()] * 9, []
    with pytest.raises(RequestTimedOut, match="waited for 10 s"):
        run()
    assert pauses.lengths == [1, 2, 4, 3]
    assert "The disk is full. Retrying may help. The mirror tries again in 1 s, and ends after 10 s." in caplog.text


def test_mirror_that_is_stopped_waits_for_no_answer(mq: Connection) -> None:
    kafka, stop = FakeKafka(new_name("t")), Event()
    stop.set()
    kafka.errors = [RequestTimedOut()]
    with pytest.raises(RequestTimedOut):
        build_mirror(mq, kafka, new_name("mirror")).run(stop)
