"""Delayed messages from DataFrames: released when they are due, in order, and shown in SQL while they wait."""

import time

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemq.engine.client.connection import Connection
from lakemq.errors import InvalidRecord, InvalidTimestamp


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def values(mq: Connection, topic: str) -> list[str]:
    return [value.decode() for value in mq.fetch(topic).to_arrow()["value"].to_pylist()]


def test_column_delays_each_row(spark: SparkSession, mq: Connection, topic: str) -> None:
    mq.topics.create(topic)
    start_ms = now_ms() + 86_400_000
    text = F.col("id").cast("string")
    rows = spark.range(40).select(text.alias("key"), text.alias("value"), "id")
    at = F.timestamp_millis(F.lit(start_ms) + (39 - F.col("id")) * 10_000)
    published = mq.publish(topic, rows, deliver_at=F.when(F.col("id") > 0, at))
    assert sum(unit.record_count for unit in published.waiting) == 39
    assert values(mq, topic) == ["0"]
    query = f"SELECT string(key) AS k, deliver_at FROM pending_delayed_rows WHERE topic = '{topic}' ORDER BY deliver_at"
    waiting = mq.sql(query, wait_ms=120_000).to_pylist()
    assert [row["k"] for row in waiting] == [str(i) for i in range(39, 0, -1)]
    assert 0 <= waiting[0]["deliver_at"].timestamp() * 1000 - start_ms <= 1_000  # a slot


@pytest.mark.extended
def test_wrong_delay_is_refused(spark: SparkSession, mq: Connection, topic: str) -> None:
    mq.topics.create(topic)
    rows = spark.createDataFrame([("a", -1), ("b", 2**62), ("c", None), ("d", 10**9)], "value string, delay_ms long")
    published = mq.publish(topic, rows)
    assert (published.rejected_count, sum(unit.record_count for unit in published.waiting)) == (2, 1)
    assert values(mq, topic) == ["c"]
    published = mq.publish(topic, rows.withColumn("deliver_at", F.lit(10**13)))
    assert (published.rejected_count, sum(unit.record_count for unit in published.waiting)) == (3, 1)
    with pytest.raises(InvalidRecord, match="both"):
        mq.publish(topic, rows, delay_ms=1, deliver_at=1)
    with pytest.raises(InvalidRecord, match="wrong type"):
        mq.publish(topic, rows, delay_ms="value")
    with pytest.raises(InvalidTimestamp):
        mq.publish(topic, rows, delay_ms=-1)


def test_header_delays_message(spark: SparkSession, mq: Connection, topic: str) -> None:
    mq.topics.create(topic)
    headers = "array(named_struct('key', 'h', 'value', 'x'), named_struct('key', 'DELAY_MS', 'value', '1000000000'))"
    rows = spark.sql(f"SELECT 'a' AS value, {headers} AS headers UNION ALL SELECT 'b', array()")
    assert sum(unit.record_count for unit in mq.publish(topic, rows).waiting) == 1
    assert values(mq, topic) == ["b"]
    assert mq.delayed.cancel_where(topic, predicate="headers[1].key = 'h' AND len(headers) = 1").num_rows == 1
