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
from unit.served import new_name, new_topic

from lakemq.engine.client.connection import Connection
from lakemq.errors import IllegalState
from lakemq.jobs.mirror import OFFSET_HEADER, Mirror, MirrorOptions, find_copy

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
