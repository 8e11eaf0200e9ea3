"""`format("lakemq")` in Spark: batches and streams, read and written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lakemq.engine.client.connection import Connection


def reading(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    reader = spark.read.format("lakemq").option("path", str(path))
    return reader.options(**options).load()


def numbers(count: int, begin: int = 0) -> pa.Table:
    names = [str(i) for i in range(begin, begin + count)]
    return pa.table({"key": names, "value": names})


def test_a_batch_is_what_a_fetch_is(spark: SparkSession, mq: Connection, path: Path, topic: str) -> None:
    mq.topics.create(topic, partitions=3)
    mq.publish(topic, numbers(1000))
    with mq.producer() as producer:
        producer.send(topic, value="rides", headers=[("h", b"1")])
    found = reading(spark, path, subscribe=topic, includeHeaders="true")
    fetched = mq.fetch(topic).to_spark()
    assert found.dtypes == fetched.dtypes
    assert found.exceptAll(fetched).count() == fetched.exceptAll(found).count() == 0
    part = found.where("partition = 1 and offset >= 10 and offset < 20").select("partition", "offset")
    assert sorted(map(tuple, part.collect())) == [(1, offset) for offset in range(10, 20)]
    at = found.agg({"timestamp": "max"}).first()[0]  # type: ignore[index]
    assert found.where(found.timestamp == at).count() >= 1


def test_what_cannot_be_read_is_said(spark: SparkSession, mq: Connection, path: Path, topic: str) -> None:
    with pytest.raises(PySparkException, match="did you mean subscribe"):
        reading(spark, path, subscrbe=topic)
    with pytest.raises(PySparkException, match="UNKNOWN_TOPIC_OR_PARTITION"):
        reading(spark, path, subscribe=topic).count()
    with pytest.raises(PySparkException, match="has one schema"):
        spark.read.format("lakemq").schema("value string").option("path", str(path)).load().count()


def drained(stream: DataFrame, checkpoint: Path) -> dict[int, list[str]]:
    """What the stream has by now: number of each batch -> its values."""
    batches: dict[int, list[str]] = {}

    def look(batch: DataFrame, number: int) -> None:
        batches[number] = sorted(bytes(row.value).decode() for row in batch.select("value").collect())

    writer = stream.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.foreachBatch(look).start().awaitTermination()
    return batches


def test_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, mq: Connection, path: Path, topic: str, tmp_path: Path
) -> None:
    mq.topics.create(topic, partitions=1)
    mq.publish(topic, numbers(5))
    reader = spark.readStream.format("lakemq").option("path", str(path)).option("subscribe", topic)
    stream = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "3").load()
    assert drained(stream, tmp_path) == {0: ["0", "1", "2"], 1: ["3", "4"]}
    assert drained(stream, tmp_path) == {}
    # as if the driver had been killed before the batch was done with
    for name in ("1", ".1.crc"):
        (tmp_path / "commits" / name).unlink()
    mq.publish(topic, numbers(1, begin=5))
    assert drained(stream, tmp_path) == {1: ["3", "4"], 2: ["5"]}
