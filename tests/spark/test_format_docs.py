"""docs/structured-streaming.md: the job that moves from Kafka differs only in its marked lines, and runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakemq.engine.client.connection import Connection
from lakemq.spark import register

pytestmark = pytest.mark.extended

PAGE = (Path(__file__).parents[2] / "docs/structured-streaming.md").read_text(encoding="utf-8")

KAFKAS = {"kafka.bootstrap.servers", "subscribe", "startingOffsets", "topic", "checkpointLocation"}
"""The job's options in Spark's guide to Kafka. Kafka's jar is not here, so they are not tried."""


class RecordingSession:
    """Stands for the session of the old job: it notes formats and options, and does nothing."""

    def __init__(self) -> None:
        self.formats: list[str] = []
        self.options: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: object, **__: object) -> RecordingSession:
        return self

    def format(self, name: str) -> RecordingSession:
        self.formats.append(name)
        return self

    def option(self, name: str, value: str) -> RecordingSession:
        self.options[name] = value
        return self


def job(mark: str) -> str:
    """Return the job with the lines of one side of the change."""
    (changed,) = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return "".join(line[1:] + "\n" for line in changed.splitlines() if line[0] in f" {mark}")


def test_job_of_the_guide_runs_with_kafka_and_with_lakemq(
    spark: SparkSession, mq: Connection, path: Path, tmp_path: Path
) -> None:
    before = RecordingSession()
    exec(job("-"), {"spark": before, "checkpoint": "checkpoint"})
    assert before.formats == ["kafka", "kafka"]
    assert before.options.keys() == KAFKAS
    register(spark)
    for topic in ("clicks", "pages"):
        mq.topics.create(topic, partitions=2)
    mq.publish("clicks", pa.table({"key": ["ann", "bob"], "value": ["/tea", "/milk"]}))
    code = job("+").replace('"data/mq"', repr(str(path)))
    exec(code, {"spark": spark, "checkpoint": str(tmp_path)})
    for query in spark.streams.active:
        query.awaitTermination()
    assert sorted((m.key, m.value) for m in mq.fetch("pages")) == [(b"ann", b"/TEA"), (b"bob", b"/MILK")]
