"""Offsets of Kafka are found again in copies. tests/spark/test_mirror.py runs the mirror itself."""

import json
from bisect import bisect_left
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
from lakemq.errors import IllegalState
from lakemq.jobs.mirror import OFFSET_HEADER, Mirror, MirrorOptions, find_copy, list_redriven

FARTHEST = 40


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

    class Kafka:
        def list_topics(self, pattern: Any) -> dict[str, int]:
            return {topic: 1}

    spark: Any = None
    cluster: Any = Kafka()
    mirror = Mirror(mq, spark, cluster, MirrorOptions("", topic, name=name, until_caught_up=True))
    with pytest.raises(IllegalState, match=topic):
        mirror.run(Event())
    assert topic not in {t.topic for t in mq.topics.list()}
