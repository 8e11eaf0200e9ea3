"""Transactions of DataFrames show with their commit, in Spark, in Arrow and in SQL alike."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.fetch.plan import Isolation


class Undo(Exception):
    pass


def numbers(spark: SparkSession, first: int, count: int) -> DataFrame:
    ids = spark.range(first, first + count, 1, 2)
    return ids.select(F.col("id").cast("string").alias("value"), F.expr("cast(id % 7 AS string)").alias("key"))


def read_in_arrow(mq: Connection, topic: str, isolation: Isolation) -> list[int]:
    return sorted(int(m.value or b"") for m in mq.fetch(topic, isolation=isolation))


def read_in_spark(mq: Connection, topic: str, isolation: Isolation) -> list[int]:
    rows = mq.fetch(topic, isolation=isolation).to_spark().select(F.col("value").cast("string").cast("int"))
    return sorted(row[0] for row in rows.collect())


def read_in_sql(spark: SparkSession, view: str, topic: str) -> list[int]:
    rows = spark.sql(f"SELECT CAST(CAST(value AS STRING) AS INT) FROM mq.{view} WHERE topic = '{topic}'")
    return sorted(row[0] for row in rows.collect())


@pytest.mark.extended
def test_all_ways_to_read_see_what_was_committed(
    spark: SparkSession, mq: Connection, topic: str, wait_for_projection: Callable[[], None]
) -> None:
    mq.topics.create(topic, partitions=3)
    mq.publish(topic, numbers(spark, 0, 10))
    with mq.transaction(topic) as txn:
        txn.publish(topic, numbers(spark, 10, 10))
        txn.publish(topic, numbers(spark, 20, 10))
    with suppress(Undo), mq.transaction(topic) as txn:
        txn.publish(topic, numbers(spark, 30, 10))
        raise Undo
    mq.publish(topic, numbers(spark, 40, 10))
    committed = [*range(30), *range(40, 50)]
    with suppress(Undo), mq.transaction(topic) as txn:
        txn.publish(topic, numbers(spark, 50, 10))
        mq.publish(topic, numbers(spark, 60, 10))
        wait_for_projection()
        assert read_in_arrow(mq, topic, "read_committed") == read_in_spark(mq, topic, "read_committed") == committed
        assert read_in_sql(spark, "log_committed", topic) == committed
        assert (
            read_in_arrow(mq, topic, "read_uncommitted") == read_in_spark(mq, topic, "read_uncommitted") == [*range(70)]
        )
        assert read_in_sql(spark, "log", topic) == [*range(70)]
        (row,) = spark.sql(f"SELECT * FROM mq.open_transactions WHERE transactional_id = '{topic}'").collect()
        assert sorted(row.topics) == [f"{topic}-{p}" for p in range(3)]
        raise Undo
    wait_for_projection()
    committed += range(60, 70)
    assert read_in_arrow(mq, topic, "read_committed") == read_in_spark(mq, topic, "read_committed") == committed
    assert read_in_sql(spark, "log_committed", topic) == committed
    states = spark.sql(
        "SELECT state, reason, count(*) AS n FROM mq.transaction_history"
        f" WHERE transactional_id = '{topic}' AND state LIKE 'Complete%' GROUP BY 1, 2"
    ).collect()
    assert {tuple(row) for row in states} == {("CompleteCommit", "producer", 1), ("CompleteAbort", "producer", 2)}
