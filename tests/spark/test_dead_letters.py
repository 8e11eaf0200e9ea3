"""Dead letters in Spark: their headers, and the view that shows the reasons."""

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from unit.served import until

from lakemq.engine.client.connection import Connection


@pytest.mark.extended
def test_spark_shows_dead_letters_with_their_errors(
    spark: SparkSession, mq: Connection, topic: str, wait_for_projection: Callable[[], None]
) -> None:
    mq.topics.create(topic)
    mq.publish(topic, spark.createDataFrame([("a",), ("b",)], "value string"))
    with mq.consumer(f"{topic}.g", topics=[topic], protocol="queue", auto_offset_reset="earliest") as consumer:
        consumer.reject(consumer.poll(timeout_ms=10_000), error="late")
        consumer.flush()
        until(lambda: not any(consumer.lag().values()))
    rows = mq.fetch(f"{topic}.dlq").to_spark().orderBy("offset").collect()
    assert [bytes(row.value) for row in rows] == [b"a", b"b"]
    headers = [{header.key: bytes(header.value).decode() for header in row.headers} for row in rows]
    assert [header["dead-letter.offset"] for header in headers] == ["0", "1"]
    assert headers[0]["dead-letter.error"] == "late"
    assert mq.fetch(f"{topic}.dlq").to_arrow()["headers"].to_pylist() == [
        [{"key": header.key, "value": bytes(header.value)} for header in row.headers] for row in rows
    ]
    wait_for_projection()
    view = spark.table("mq.dead_lettered").where(F.col("topic") == f"{topic}.dlq").orderBy("source_offset").collect()
    assert [(row.source_topic, row.source_offset, row.reason, row.error, row.delivery_count) for row in view] == [
        (topic, 0, "rejected", "late", 1),
        (topic, 1, "rejected", "late", 1),
    ]
