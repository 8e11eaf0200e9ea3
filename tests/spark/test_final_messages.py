"""`final_messages` without LakeMQ: a query of one topic reads that topic, and a native stream has each message once."""

from collections import Counter
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from finals import (
    PATIENCE_S,
    are_all_final,
    count_added_places,
    let_readers_move_on,
    read_from_final_files,
    read_places,
)
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from unit.served import served, until

import lakemq
from lakemq.engine.namespace.load import read_watermark
from lakemq.testing import MovableClock, serve, wait_until

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


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_file_of_many_small_messages_becomes_final(spark: SparkSession, tmp_path: Path) -> None:
    """One file of Spark has three row groups, whose rows take more memory than the bytes of the file."""
    hashes = [f"sha2(concat(id, '{part}'), 512)" for part in "ab"]
    values = spark.range(0, 640_000, 1, 1).selectExpr(f"substr(unhex(concat({', '.join(hashes)})), 1, 92) AS value")
    with lakemq.connect(str(tmp_path / "small"), spark=spark, create=True, config=CONFIG) as mq, mq.serving():
        mq.topics.create("a")
        mq.publish("a", values)
        until(lambda: all((t.final_offsets == t.last_stable_offsets).all() for t in mq.state().topics.values()))


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_running_stream_has_all_lives_of_a_topic_once(spark: SparkSession, tmp_path: Path) -> None:
    """The topic is deleted and created again below the stream, with messages that are not final yet."""
    path, sink, values = tmp_path / "lives", tmp_path / "sink", list[bytes]()
    with lakemq.connect(str(path), spark=spark, create=True, config=CONFIG) as mq, mq.serving():

        def publish(value: str) -> None:
            mq.publish(
                "orders", pa.table({"key": [str(i) for i in range(20)], "value": [f"{value} {i}" for i in range(20)]})
            )

        messages = spark.readStream.table(f"{path.name}.final_messages").where("topic = 'orders'")
        writer = messages.writeStream.format("delta").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(processingTime="200 milliseconds").start(str(sink))
        for life in range(1, 4):
            mq.topics.create("orders", life)
            for part in "ab":
                publish(f"{life}{part}")
                until(lambda: are_all_final(mq))
                query.processAllAvailable()  # else its first snapshot may come after the first life
            values += [f"{life}{part} {i}".encode() for part in "ab" for i in range(20)]
            with mq.producer("tx") as producer:
                producer.begin_transaction()
                producer.send("orders", "aborted")
                producer.abort_transaction()
            publish(f"{life}c")  # of these a part becomes final, or none
            mq.topics.delete("orders")
        until(lambda: not DeltaTable(str(path / "final_messages")).to_pyarrow_table().num_rows)
        query.processAllAvailable()
        query.stop()
        copied = DeltaTable(str(sink)).to_pyarrow_table()
        assert Counter(read_places(copied)) == count_added_places(mq)
    assert set(Counter(copied.column("value").to_pylist()).values()) == {1}
    assert {*values} <= {*copied.column("value").to_pylist()}
    assert b"aborted" not in copied.column("value").to_pylist()


@pytest.mark.extended
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


@pytest.mark.extended
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

    with serve(tmp_path / "mq", clock, {**CONFIG, "compact.min.files": 1_000}) as mq:
        mq.topics.create("orders")
        for number in range(3):
            mq.publish("orders", pa.table({"value": [f"{number}{i}" for i in range(10 + 145 * number)]}))
            until(lambda: are_all_final(mq))
        copy_all()
        with pytest.raises(StreamingQueryException):
            copy_halfway(ends=False)
    assert len(read_values(tmp_path / "halfway")) == 10
    with serve(tmp_path / "mq", clock, CONFIG) as mq:
        mq.topics.delete_records("orders", {0: 15})

        def is_merged() -> bool:
            let_readers_move_on(mq, clock)
            return len(DeltaTable(str(path)).file_uris()) == 1

        wait_until(is_merged, "merges", PATIENCE_S)
        copy_halfway(ends=True)
        clock.advance(days=8)
        copy_all()
        mq.publish("orders", pa.table({"value": ["last"]}))
        until(lambda: are_all_final(mq))
        copy_all()
    published = sorted([f"{number}{i}" for number in range(3) for i in range(10 + 145 * number)])
    assert read_values(tmp_path / "halfway") == published
    assert read_values(tmp_path / "all") == [*published, "last"]


@pytest.mark.extended
def test_spark_reads_final_files_without_a_join(spark: SparkSession, tmp_path: Path) -> None:
    clock, order = MovableClock(), [("partition", "ascending"), ("offset", "ascending")]
    with serve(tmp_path / "scanned", clock, CONFIG) as mq:
        for topic in ("orders", "others"):
            mq.topics.create(topic, 3)
        for _ in range(2):
            keys = [str(i) for i in range(30)]
            mq.publish("others", pa.table({"key": keys, "value": keys}))
            mq.publish("orders", pa.table({"key": keys, "value": keys, "ttl_ms": [1, *[None] * 29]}))
            with mq.producer("tx") as producer:
                producer.begin_transaction()
                producer.send("orders", "committed", key="1")
                producer.commit_transaction()
        until(lambda: are_all_final(mq))
        ends = mq.end_offsets("orders")
        starts = [{0: 0, 1: 0, 2: 0}, {0: 3, 2: ends[2] - 5}]
        published = [mq.fetch("orders", start=start).to_arrow().to_pylist() for start in starts]
        lakemq.connect(mq.namespace.path, spark=spark).close()
        earlier = spark.table("scanned.log_committed").where("topic = 'orders'")
        in_view = sorted(map(str, earlier.collect()))
        read_from_final_files(mq, clock)
    with lakemq.connect(str(tmp_path / "scanned"), spark=spark) as mq:
        for start, expected in zip(starts, published, strict=True):
            fetched = mq.fetch("orders", start=start).to_spark()
            assert fetched.toArrow().sort_by(order).to_pylist() == expected
            assert all("/final_messages/topic=orders/" in name for name in fetched.inputFiles())
        plan = mq.fetch("orders").to_spark()._jdf.queryExecution().executedPlan().toString()
        assert "Join" not in plan
        for messages in (earlier, spark.table("scanned.log_committed").where("topic = 'orders'")):
            assert sorted(map(str, messages.collect())) == in_view
            assert not any("topic=others" in name for name in messages.inputFiles())


@pytest.mark.extended
def test_spark_shows_the_newest_message_of_each_key_of_a_compacted_topic(spark: SparkSession, tmp_path: Path) -> None:
    clock, path = MovableClock(), tmp_path / "compacted"
    with serve(path, clock, {**CONFIG, "merge.grace.ms": 9_000}) as mq:
        mq.topics.create("t", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
        for number in range(3):
            mq.publish("t", pa.table({"key": ["a", "b", f"c{number}"], "value": [f"{number}"] * 3}))
            until(lambda: are_all_final(mq))

        def is_compacted() -> bool:
            let_readers_move_on(mq, clock)
            return len(mq.fetch("t")) == 5

        wait_until(is_compacted, "compaction", PATIENCE_S)
        read_from_final_files(mq, clock)
    with lakemq.connect(str(path), spark=spark) as mq:
        expected = [(2, b"c0", b"0"), (5, b"c1", b"1"), (6, b"a", b"2"), (7, b"b", b"2"), (8, b"c2", b"2")]
        stored = spark.read.format("lakemq").option("path", str(path)).option("subscribe", "t").load()
        views = spark.table("compacted.log_committed"), spark.table("compacted.log")
        native = spark.table("compacted.final_messages").where("coalesce(ttl_ms, 0) >= 0")
        for messages in (mq.fetch("t").to_spark(), stored, *views, native):
            shown = messages.select("offset", "key", "value").orderBy("offset").collect()
            assert [tuple(row) for row in shown] == expected
        mq.serving()
        mq.publish("t", pa.table({"key": ["a"], "value": ["hot"]}))
        assert mq.fetch("t").to_spark().count() == mq.fetch("t", start={0: 6}).to_spark().count() + 2 == 6


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_queries_have_each_message_once_while_it_moves_to_final_files(spark: SparkSession, tmp_path: Path) -> None:
    """A query reads three tables, one after the other. The sequencer changes them meanwhile."""
    path, settings = tmp_path / "moving", {**CONFIG, "merge.grace.ms": 10_000, "retention.check.interval.ms": 1_000}
    with lakemq.connect(str(path), spark=spark, create=True, config=settings) as mq, mq.serving():
        mq.topics.create("orders", 1)
        query = (
            f"SELECT count(*) AS count, count(DISTINCT offset) AS distinct, max(offset) + 1 AS end FROM {path.name}."
        )
        switched, count = 0, 0
        while switched < 2 or count < 6:
            count += 1
            mq.publish("orders", pa.table({"value": ["x"] * 5}))
            until(lambda: read_watermark(mq.namespace.store).step >= mq.state().step)
            for view in ("log", "log_committed"):
                row = spark.sql(query + view).collect()[0]
                assert [*row] == [5 * count] * 3
            switched = mq.sql("SELECT count(*) AS n FROM segments WHERE kind = 'final'").column("n")[0].as_py()
