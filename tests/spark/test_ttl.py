"""Time to live in Spark: set by a column or for all rows, heeded by DataFrames, shown by the views."""

import time
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from unit.served import values

from lakemq.engine.client.connection import Connection

pytestmark = pytest.mark.extended

SHORT_MS, LONG_MS = 20, 3_600_000


def age(mq: Connection, topic: str) -> None:
    time.sleep(0.05)
    mq.topics.alter(topic, config={"max.message.bytes": 100_000})  # a step of a later time


@pytest.mark.parametrize("ttl_ms", ["lives", "column", "number"])
def test_ttl_of_a_dataframe_expires_its_rows(spark: SparkSession, mq: Connection, topic: str, ttl_ms: str) -> None:
    mq.topics.create(topic)
    ttl: Any = {"lives": "lives", "column": F.col("lives") + 0, "number": SHORT_MS}[ttl_ms]
    rows = spark.createDataFrame([("a", SHORT_MS), ("b", LONG_MS), ("c", None)], "value string, lives int")
    mq.publish(topic, rows, ttl_ms=ttl)
    age(mq, topic)
    expected = [] if ttl_ms == "number" else ["b", "c"]
    assert values(mq, topic) == expected
    shown = sorted(row.value.decode() for row in mq.fetch(topic).to_spark().collect())
    assert shown == expected
    assert mq.fetch(topic, include_expired=True).to_spark().count() == 3
