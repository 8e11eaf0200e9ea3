"""`format("lakemq")` in Spark: batches and streams, read and written."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from targets import extended_but

from lakemq.engine.client.connection import Connection
from lakemq.spark import register


@pytest.fixture(scope="module", autouse=True)
def register_format(spark: SparkSession) -> None:
    register(spark)


def read_topic(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    reader = spark.read.format("lakemq").option("path", str(path))
    return reader.options(**options).load()


def numbers(count: int, begin: int = 0) -> pa.Table:
    names = [str(i) for i in range(begin, begin + count)]
    return pa.table({"key": names, "value": names})


def test_batch_of_the_format_equals_a_fetch(spark: SparkSession, mq: Connection, path: Path, topic: str) -> None:
    mq.topics.create(topic, partitions=3)
    mq.publish(topic, numbers(1000))
    with mq.producer() as producer:
        producer.send(topic, value="rides", headers=[("h", b"1")])
    frame = read_topic(spark, path, subscribe=topic, includeHeaders="true")
    fetched = mq.fetch(topic).to_spark()
    assert frame.dtypes == fetched.dtypes
    rows, expected = (sorted(df.collect(), key=lambda row: (row.partition, row.offset)) for df in (frame, fetched))
    assert len(rows) == 1001
    assert rows == expected


@pytest.fixture(scope="module")
def forty(spark: SparkSession, mq: Connection, path: Path) -> DataFrame:
    """Return a DataFrame of ten messages in each of four partitions. The temporary view `forty` shows it."""
    mq.topics.create("forty", partitions=4)
    mq.publish("forty", numbers(40).append_column("partition", pa.array([i % 4 for i in range(40)])))
    frame = read_topic(spark, path, subscribe="forty")
    frame.createOrReplaceTempView("forty")
    return frame


REUSES = {
    "a filter": ("SELECT count(*) FROM forty WHERE partition = 1", (10,)),
    "all, after a filter": ("SELECT count(*) FROM forty", (40,)),
    "a self join": (
        "SELECT count(*) FROM forty a JOIN forty b USING (offset) WHERE a.partition = 1 AND b.partition = 2",
        (10,),
    ),
    "scalar subqueries": (
        "SELECT (SELECT count(*) FROM forty WHERE partition = 1), (SELECT count(*) FROM forty WHERE offset < 5), "
        "(SELECT count(*) FROM forty)",
        (10, 20, 40),
    ),
    "a common table expression": (
        "WITH part AS (SELECT * FROM forty WHERE partition = 1) "
        "SELECT count(*), count_if(part.key IS NULL) FROM forty LEFT JOIN part USING (key)",
        (40, 30),
    ),
}
"""A query of the view for each kind of reuse, and the counts that it returns."""


@pytest.mark.parametrize("reuse", extended_but(["a self join"], REUSES))
def test_each_scan_of_a_view_has_its_own_rows(spark: SparkSession, forty: DataFrame, reuse: str) -> None:
    query, counts = REUSES[reuse]
    assert [tuple(row) for row in spark.sql(query).collect()] == [counts]


@pytest.mark.extended
def test_a_cached_part_and_a_batch_of_a_stream_leave_the_dataframe_whole(
    spark: SparkSession, forty: DataFrame, path: Path, tmp_path: Path
) -> None:
    part = forty.where("partition = 1").cache()
    assert (part.count(), forty.count(), part.count()) == (10, 40, 10)
    part.unpersist()
    counts: list[tuple[int, ...]] = []

    def count(batch: DataFrame, _: int) -> None:
        counts.append((batch.where("partition = 2").count(), batch.count()))

    reader = spark.readStream.format("lakemq").option("path", str(path)).option("subscribe", "forty")
    writer = reader.option("startingOffsets", "earliest").load().writeStream.foreachBatch(count)
    writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    assert counts == [(10, 40)]


@pytest.mark.extended
def test_a_dataframe_keeps_its_messages_and_the_next_load_sees_new_ones(
    spark: SparkSession, mq: Connection, path: Path, topic: str
) -> None:
    mq.topics.create(topic)
    mq.publish(topic, numbers(3))
    frame, view = read_topic(spark, path, subscribe=topic), f"view_{topic}"
    create_view = f"VIEW {view} USING lakemq OPTIONS (path '{path}', subscribe '{topic}')"
    spark.sql(f"CREATE TEMPORARY {create_view}")
    assert (frame.count(), spark.table(view).count()) == (3, 3)
    mq.publish(topic, numbers(1, begin=3))
    assert (frame.count(), spark.table(view).where("offset >= 0").count()) == (3, 3)
    spark.sql(f"CREATE OR REPLACE TEMPORARY {create_view}")
    assert (read_topic(spark, path, subscribe=topic).count(), spark.table(view).count()) == (4, 4)


@pytest.mark.extended
def test_rows_inserted_into_a_view_are_published(spark: SparkSession, mq: Connection, path: Path, topic: str) -> None:
    mq.topics.create(topic)
    options = f"OPTIONS (path '{path}', subscribe '{topic}', topic '{topic}')"
    spark.sql(f"CREATE TEMPORARY VIEW view_{topic} USING lakemq {options}")
    spark.sql(f"INSERT INTO view_{topic} (key, value) VALUES (X'01', CAST('a' AS BINARY))")
    spark.sql(f"INSERT INTO view_{topic} BY NAME SELECT CAST('b' AS BINARY) AS value")
    assert {m.value: m.key for m in mq.fetch(topic)} == {b"a": b"\x01", b"b": None}
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE table_{topic} USING lakemq {options}")


@pytest.mark.extended
def test_error_of_a_wrong_read_reaches_the_user(spark: SparkSession, mq: Connection, path: Path, topic: str) -> None:
    with pytest.raises(PySparkException, match="did you mean subscribe"):
        read_topic(spark, path, subscrbe=topic)
    with pytest.raises(PySparkException, match="UNKNOWN_TOPIC_OR_PARTITION"):
        read_topic(spark, path, subscribe=topic).count()
    with pytest.raises(PySparkException, match="has one schema"):
        spark.read.format("lakemq").schema("value string").option("path", str(path)).load().count()
