"""`final_messages` without LakeMQ: a query of one topic reads that topic, and a native stream has each message once."""

from collections import Counter
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from finals import are_all_final, fetch_published
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from unit.served import served, until

import lakemq
from lakemq.spark import register
from lakemq.testing import MovableClock

CONFIG = {"project.interval.ms": 50, "final.interval.ms": 200, "compact.min.files": 2, "merge.grace.ms": 100}
DIFFICULT = (
    *(
        "orders",
        "Orders",
        "ORDERS.v2",
        "..a",
        ".hidden",
        "...",
        "_under",
        "-dash",
        "a-b.c_d-e",
        "x" * 249,
        "data",
        "true",
    ),
    *("1", "007", "1.0", "1e5", "0x10", "2026-01-01", "null", "None", "NaN", "inf", "__HIVE_DEFAULT_PARTITION__"),
)
"""Names that look like files, numbers, dates and missing values. Of other signs a topic's name has none."""


def copy_to_delta(messages: DataFrame, sink: Path, checkpoint: Path) -> None:
    """Copy what a stream has now."""
    writer = messages.writeStream.format("delta").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start(str(sink)).awaitTermination()


@pytest.mark.timeout(300)
def test_native_stream_has_each_message_of_a_topic_once(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    sink, checkpoint = tmp_path / "sink", tmp_path / "checkpoint"
    path = tmp_path / "final"
    with lakemq.connect(str(path), spark=spark, create=True, config=CONFIG) as mq, mq.serving():
        for topic in ("orders", "others"):
            mq.topics.create(topic, 2)

        def publish(values: list[str]) -> None:
            for topic in ("orders", "others"):
                mq.publish(topic, pa.table({"key": values, "value": [f"{topic} {value}" for value in values]}))
            until(lambda: are_all_final(mq))

        messages = spark.readStream.table(f"{path.name}.final_messages").where("topic = 'orders'")
        publish([str(i) for i in range(50)])
        copy_to_delta(messages, sink, checkpoint)
        publish([str(i) for i in range(50, 60)])
        mq.topics.delete_records("orders", {0: -1, 1: -1})
        mq.topics.delete("others")
        until(lambda: not DeltaTable(str(path / "final_messages")).to_pyarrow_table().num_rows)
        mq.topics.create("others")
        publish([str(i) for i in range(60, 70)])
        copy_to_delta(messages, sink, checkpoint)
        copied = DeltaTable(str(sink)).to_pyarrow_table().column("value").to_pylist()
        expected = [f"orders {i}".encode() for i in (*range(50), *range(60, 70))]
        # a stream that comes after a removal does not see what was removed before it was read
        assert sorted(set(copied) - {f"orders {i}".encode() for i in range(50, 60)}) == sorted(expected)
        assert len(copied) == len(set(copied))
        query = spark.sql(f"SELECT value FROM {path.name}.final_messages WHERE topic = 'orders'")
        assert query.count() == 10
        assert all("/topic=orders/" in name for name in query.inputFiles())


@pytest.mark.timeout(300)
def test_engines_agree_on_topics_with_difficult_names(spark: SparkSession, tmp_path: Path) -> None:
    expected = {name: count for count, name in enumerate(DIFFICULT, 1)}
    with served(tmp_path, **{**CONFIG, "compact.min.files": 1_000}) as mq:
        for name, count in expected.items():
            mq.topics.create(name)
            mq.publish(name, pa.table({"value": [name] * count}))
        until(lambda: are_all_final(mq))
    path = str(tmp_path / "mq" / "final_messages")
    table, in_polars = DeltaTable(path), pl.scan_delta(path)
    messages = table.to_pyarrow_dataset()  # which DuckDB finds by this name
    in_spark = spark.read.format("delta").load(path)
    assert expected == {
        row.topic: row.messages
        for row in in_spark.groupBy("topic", "value").agg(F.count("*").alias("messages")).collect()
        if row.value.decode() == row.topic
    }
    assert in_spark.where(F.col("topic").isin(*DIFFICULT[::2])).count() == sum([*expected.values()][::2])
    assert Counter(table.to_pyarrow_table().column("topic").to_pylist()) == expected
    duck = duckdb.connect()
    assert (
        dict(duck.execute("SELECT topic, count(*) FROM messages WHERE decode(value) = topic GROUP BY topic").fetchall())
        == expected
    )
    hive_null = "__HIVE_DEFAULT_PARTITION__"  # polars reads partitions from paths, where this means null
    assert dict(in_polars.group_by(pl.col("topic").fill_null(hive_null)).len().collect().iter_rows()) == expected
    for name, count in expected.items():
        assert messages.count_rows(filter=pc.field("topic") == name) == count
        assert duck.execute("SELECT count(*) FROM messages WHERE topic = ?", [name]).fetchone() == (count,)
        assert name == hive_null or in_polars.filter(pl.col("topic") == name).collect().height == count


def read_values(sink: Path) -> list[str]:
    return sorted(value.decode() for value in DeltaTable(str(sink)).to_pyarrow_table().column("value").to_pylist())


@pytest.mark.timeout(300)
def test_native_stream_goes_on_after_merges_and_retention(spark: SparkSession, tmp_path: Path) -> None:
    """One stream has read everything, another one a part of its first snapshot. Later there are no new messages."""
    clock, path = MovableClock(), tmp_path / "mq" / "final_messages"

    def read() -> DataFrame:
        return spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(path))

    def copy_halfway(ends: bool) -> None:
        def write(batch: DataFrame, number: int) -> None:
            assert ends or not number, "killed"
            writer = batch.write.format("delta").mode("append")
            writer.option("txnAppId", "halfway").option("txnVersion", number).save(str(tmp_path / "halfway"))

        writer = read().writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "half"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def copy_all() -> None:
        copy_to_delta(read(), tmp_path / "all", tmp_path / "checkpoint")

    with served(tmp_path, clock, **{**CONFIG, "compact.min.files": 1_000}) as mq:
        mq.topics.create("orders")
        for number in range(3):
            mq.publish("orders", pa.table({"value": [f"{number}{i}" for i in range(10)]}))
            until(lambda: are_all_final(mq))
        copy_all()
        with pytest.raises(StreamingQueryException):
            copy_halfway(ends=False)
    assert len(read_values(tmp_path / "halfway")) == 10
    with served(tmp_path, clock, **CONFIG) as mq:
        mq.topics.delete_records("orders", {0: 15})
        until(lambda: len(DeltaTable(str(path)).file_uris()) == 1)
        until(lambda: are_all_final(mq))
        copy_halfway(ends=True)
        clock.ahead_ms = 8 * 86_400_000
        copy_all()
        mq.publish("orders", pa.table({"value": ["last"]}))
        until(lambda: are_all_final(mq))
        copy_all()
    published = sorted([f"{number}{i}" for number in range(3) for i in range(10)])
    assert read_values(tmp_path / "halfway") == published
    assert read_values(tmp_path / "all") == [*published, "last"]


def test_fetched_dataframe_scans_final_files_without_a_join(spark: SparkSession, tmp_path: Path) -> None:
    with lakemq.connect(str(tmp_path / "scanned"), spark=spark, create=True, config=CONFIG) as mq, mq.serving():
        mq.topics.create("orders", 3)
        for _ in range(2):
            keys = [str(i) for i in range(30)]
            mq.publish("orders", pa.table({"key": keys, "value": keys, "ttl_ms": [1, *[None] * 29]}))
            with mq.producer("tx") as producer:
                producer.begin_transaction()
                producer.send("orders", "committed", key="1")
                producer.commit_transaction()
            until(lambda: are_all_final(mq))
    with lakemq.connect(str(tmp_path / "scanned"), spark=spark) as mq:
        ends = mq.end_offsets("orders")
        for starts in ({0: 0, 1: 0, 2: 0}, {0: 3, 2: ends[2] - 5}):
            fetched, published = mq.fetch("orders", start=starts), fetch_published(mq, "orders", starts)
            order = [("partition", "ascending"), ("offset", "ascending")]
            rows = fetched.to_spark().toArrow()
            assert rows.sort_by(order).to_pylist() == published.to_arrow().to_pylist()
            assert all("/final_messages/" in name for name in fetched.to_spark().inputFiles())
        plan = mq.fetch("orders").to_spark()._jdf.queryExecution().executedPlan().toString()
        assert "Join" not in plan
