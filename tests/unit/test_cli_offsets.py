"""`lakemq offsets`: either end of the log, and the first message at or after a time."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from unit.served import Lakemq, new_topic, read_objects

from lakemq.engine.client.connection import Connection

pytestmark = pytest.mark.slow

FIRST_MS = 1_700_000_000_000


@pytest.fixture
def run(mq: Connection) -> Callable[..., list[dict[str, Any]]]:
    return partial(read_objects, mq.namespace.path, "offsets")


def publish_minutes(mq: Connection, topic: str, count: int) -> None:
    """Publish a message per minute to partition 0."""
    with mq.producer() as producer:
        for minute in range(count):
            producer.send(topic, b"v", partition=0, timestamp_ms=FIRST_MS + 60_000 * minute)


def test_the_ends_of_the_log(mq: Connection, run: Any) -> None:
    topic = new_topic(mq, partitions=2)
    publish_minutes(mq, topic, 5)
    mq.topics.delete_records(topic, {0: 2})
    assert [row["offset"] for row in run(topic, "--time", "earliest")] == [2, 0]
    assert [row["offset"] for row in run(topic)] == [5, 0]
    assert run(topic, "--partition", "1") == [{"topic": topic, "partition": 1, "offset": 0, "timestamp": None}]


def test_the_first_message_at_or_after_a_time(mq: Connection, run: Any) -> None:
    topic = new_topic(mq, partitions=2)
    publish_minutes(mq, topic, 5)
    expected = {"topic": topic, "partition": 0, "offset": 3, "timestamp": "2023-11-14T22:16:20.000Z"}
    assert run(topic, "--time", str(FIRST_MS + 150_000))[0] == expected
    rows = run(topic, "--time", "2023-11-14T22:16:20")
    assert rows == [expected, {"topic": topic, "partition": 1, "offset": None, "timestamp": None}]
    assert run(topic, "--time", "2023-11-14T22:18:00")[0]["offset"] is None


def test_wrong_arguments_are_refused(mq: Connection, lake: Lakemq) -> None:
    topic = new_topic(mq)
    assert "earliest or latest" in " ".join(lake("offsets", topic, "--time", "noon", code=2).stderr.split())
    for wrong in ([topic, "--partition", "7"], ["nothing"]):
        assert "UNKNOWN_TOPIC_OR_PARTITION" in lake("offsets", *wrong, code=1).stderr
