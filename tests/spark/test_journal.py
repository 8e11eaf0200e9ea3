"""Spark reads the journal like any table, and a DataFrame has rows that are only in steps."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.fetch.arrow import FETCHED
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.messages import HEADERS, MESSAGES

pytestmark = pytest.mark.extended

CONFIG = {"checkpoint.interval": 7, "compact.min.files": 5, "project.interval.ms": 0}


def test_spark_reads_the_journal_over_its_checkpoints(spark: SparkSession, tmp_path: Path) -> None:
    with lakemq.connect(str(tmp_path / "ns"), create=True, config=CONFIG) as mq:
        with mq.serving():
            mq.topics.create("t", partitions=2)
            published = publish_until_merge(mq, tmp_path / "ns" / "journal" / "_delta_log")
        handle = mq.namespace.store.open(JOURNAL)
        expected = handle.read().sort_by([("step", "ascending"), ("position", "ascending")])
        journal = spark.read.format("delta").load(mq.namespace.store.uri(JOURNAL))
        # Spark answers from statistics alone, where they are exact
        assert journal.agg(F.min("step"), F.max("step"), F.count("*")).first() == (
            expected["step"][0].as_py(),
            expected["step"][-1].as_py(),
            expected.num_rows,
        )
        in_spark = journal.orderBy("step", "position").toArrow()
        assert in_spark.select(expected.column_names).cast(expected.schema).equals(expected)
        assert journal.where("kind = 'produced'").selectExpr("sum(size(segments))").first()[0] == published
        half = handle.version - 3
        before = spark.read.format("delta").option("versionAsOf", half).load(mq.namespace.store.uri(JOURNAL))
        assert before.count() < expected.num_rows


def publish_until_merge(mq: Connection, log: Path) -> int:
    """Publish messages until the log has a checkpoint, and files of the table were merged. Return how many."""
    for number in range(3000):
        mq.publish("t", pa.table({"value": [f"{number}"]}))
        is_merged = any('"remove"' in entry.read_text() for entry in log.glob("*.json"))
        if is_merged and any(log.glob("*.checkpoint*.parquet")):
            return number + 1
    raise AssertionError("nothing was merged, or no checkpoint made")


def test_dataframe_keeps_rows_of_the_journal(spark: SparkSession, tmp_path: Path) -> None:
    """The DataFrame takes along rows that are in no file yet. Spark reads the others. Later passes change nothing
    of it.
    """
    config = {"project.interval.ms": 3_600_000, "inline.max.bytes": 1000}
    headers = pa.array([[("a", b"1")], None, [], [("b", None), ("c", b"3")]], HEADERS)
    with lakemq.connect(str(tmp_path / "ns"), create=True, config=config, spark=spark) as mq:
        with mq.serving():
            mq.topics.create("t", partitions=2)
            mq.publish("t", pa.table({"value": ["a", "b", "c", "d"], "key": ["1", "2", "3", "4"], "headers": headers}))
            mq.publish("t", pa.table({"value": [f"{number}".ljust(200) for number in range(50)]}))
            mq.publish("t", pa.table({"value": ["last"]}))
            messages = mq.namespace.store.open(MESSAGES)
            assert messages.files() == []
            planned = mq.fetch("t")
            expected, early = planned.to_arrow(), planned.to_spark()
            part = mq.fetch("t", partitions=[1], start=1).to_spark()
            assert expected.num_rows == 55
            assert sort_messages(early) == expected
        assert len(mq.namespace.store.open(MESSAGES).files()) == 2
        assert sort_messages(early) == sort_messages(planned.to_spark()) == expected
        rows_of_partition = expected.filter(pc.equal(expected["partition"], 1))
        assert sort_messages(part) == rows_of_partition.slice(1)


def sort_messages(messages: DataFrame) -> pa.Table:
    table = messages.orderBy("partition", "offset").toArrow()
    return table.cast(FETCHED)
