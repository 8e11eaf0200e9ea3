"""`lakemq offsets`: either end of the log, and the first message at or after a time."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from unit.served import new_topic

from lakemq.engine.client.connection import Connection
from lakemq.jobs.cli import app

pytestmark = pytest.mark.slow

FIRST_MS = 1_700_000_000_000


def run(mq: Connection, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    path = str(Path(mq.namespace.path))
    result = CliRunner().invoke(app, ["--path", path, "--output", "json", "offsets", *arguments])
    assert result.exit_code == code, (result.stdout, result.stderr)
    return [json.loads(line) for line in result.stdout.splitlines()] if code == 0 else [{"error": result.stderr}]


def publish_minutes(mq: Connection, topic: str, count: int) -> None:
    """Publish a message per minute to partition 0."""
    with mq.producer() as producer:
        for minute in range(count):
            producer.send(topic, b"v", partition=0, timestamp_ms=FIRST_MS + 60_000 * minute)


def test_the_ends_of_the_log(mq: Connection) -> None:
    topic = new_topic(mq, partitions=2)
    publish_minutes(mq, topic, 5)
    mq.topics.delete_records(topic, {0: 2})
    assert [row["offset"] for row in run(mq, topic, "--time", "earliest")] == [2, 0]
    assert [row["offset"] for row in run(mq, topic)] == [5, 0]
    assert run(mq, topic, "--partition", "1") == [{"topic": topic, "partition": 1, "offset": 0, "timestamp": None}]


def test_the_first_message_at_or_after_a_time(mq: Connection) -> None:
    topic = new_topic(mq, partitions=2)
    publish_minutes(mq, topic, 5)
    expected = {"topic": topic, "partition": 0, "offset": 3, "timestamp": "2023-11-14T22:16:20.000Z"}
    assert run(mq, topic, "--time", str(FIRST_MS + 150_000))[0] == expected
    rows = run(mq, topic, "--time", "2023-11-14T22:16:20")
    assert rows == [expected, {"topic": topic, "partition": 1, "offset": None, "timestamp": None}]
    assert run(mq, topic, "--time", "2023-11-14T22:18:00")[0]["offset"] is None


def test_wrong_arguments_are_refused(mq: Connection) -> None:
    topic = new_topic(mq)
    assert "earliest or latest" in " ".join(run(mq, topic, "--time", "noon", code=2)[0]["error"].split())
    assert "UNKNOWN_TOPIC_OR_PARTITION" in run(mq, topic, "--partition", "7", code=1)[0]["error"]
    assert "UNKNOWN_TOPIC_OR_PARTITION" in run(mq, "nothing", code=1)[0]["error"]
