"""Delayed messages from DataFrames: released when they are due, in order, and shown in SQL while they wait."""

import time

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemq.engine.client.connection import Connection
from lakemq.errors import InvalidRecord


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def values(mq: Connection, topic: str) -> list[str]:
    return [value.decode() for value in mq.fetch(topic).to_arrow()["value"].to_pylist()]


@pytest.mark.extended
def test_column_delays_each_row(spark: SparkSession, mq: Connection, topic: str) -> None:
    mq.topics.create(topic)
    start_ms = now_ms() + 86_400_000
    text = F.col("id").cast("string")
    rows = spark.range(40).select(text.alias("key"), text.alias("value"), "id")
    at = F.timestamp_millis(F.lit(start_ms) + (39 - F.col("id")) * 10_000)
    with pytest.raises(InvalidRecord, match="both"):
        mq.publish(topic, rows, deliver_at=at, delay_ms=1)
    published = mq.publish(topic, rows, deliver_at=F.when(F.col("id") > 0, at))
    assert sum(unit.record_count for unit in published.waiting) == 39
    assert values(mq, topic) == ["0"]
    query = f"SELECT string(key) AS k, deliver_at FROM pending_delayed_rows WHERE topic = '{topic}' ORDER BY deliver_at"
    waiting = mq.sql(query, wait_ms=120_000).to_pylist()
    assert [row["k"] for row in waiting] == [str(i) for i in range(39, 0, -1)]
    assert 0 <= waiting[0]["deliver_at"].timestamp() * 1000 - start_ms <= 1_000  # a slot
