"""`final_messages` in Spark: a query of one topic reads that topic, and a native stream has each message once."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from finals import are_all_final, fetch_published
from pyspark.sql import DataFrame, SparkSession
from unit.served import until

import lakemq
from lakemq.spark import register

CONFIG = {"project.interval.ms": 50, "final.interval.ms": 200, "compact.min.files": 2, "merge.grace.ms": 100}


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


def test_fetched_dataframe_scans_final_files_without_a_join(spark: SparkSession, tmp_path: Path) -> None:
    with lakemq.connect(str(tmp_path / "mq"), spark=spark, create=True, config=CONFIG) as mq, mq.serving():
        mq.topics.create("orders", 3)
        for _ in range(2):
            keys = [str(i) for i in range(30)]
            mq.publish("orders", pa.table({"key": keys, "value": keys, "ttl_ms": [1, *[None] * 29]}))
            with mq.producer("tx") as producer:
                producer.begin_transaction()
                producer.send("orders", "committed", key="1")
                producer.commit_transaction()
            until(lambda: are_all_final(mq))
    with lakemq.connect(str(tmp_path / "mq"), spark=spark) as mq:
        ends = mq.end_offsets("orders")
        for starts in ({0: 0, 1: 0, 2: 0}, {0: 3, 2: ends[2] - 5}):
            found, published = mq.fetch("orders", start=starts), fetch_published(mq, "orders", starts)
            order = [("partition", "ascending"), ("offset", "ascending")]
            rows = found.to_spark().toArrow()
            assert rows.sort_by(order).to_pylist() == published.to_arrow().to_pylist()
            assert all("/final_messages/" in name for name in found.to_spark().inputFiles())
        plan = mq.fetch("orders").to_spark()._jdf.queryExecution().executedPlan().toString()
        assert "Join" not in plan
