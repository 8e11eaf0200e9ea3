"""A DataFrame is published and fetched unchanged. A row that cannot be a message says why."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.fetch.arrow import FETCHED
from lakemq.engine.client.fetch.spark import FETCHED_DDL, cut_into_blocks
from lakemq.engine.client.publish.executor import WriteMessages
from lakemq.errors import FileTruncated, InvalidRecord, InvalidTimestamp, MessageTooLarge

SCHEMA = "key binary, value binary, headers array<struct<key:string,value:binary>>, timestamp timestamp"
TIMES = [datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)]
ROWS: list[tuple[Any, ...]] = [
    (b"k1", b"v1", [("h", b"1"), ("h", None)], TIMES[0]),
    (None, b"v2", None, TIMES[1]),
    (b"", b"", [], datetime(2024, 2, 29, 12, 0, 0, 123456, UTC)),
    (b"\x00\xff", None, [("", b"")], datetime(2024, 2, 29, tzinfo=UTC)),
]


def frame(spark: SparkSession, rows: list[tuple[Any, ...]], schema: str = SCHEMA) -> DataFrame:
    return spark.createDataFrame(rows, schema)


def build_keyed_rows(spark: SparkSession, count: int) -> DataFrame:
    """Return `count` rows: keys k0 to k99 in turn, the row's number as value."""
    key = F.concat(F.lit("k"), F.col("id") % 100)
    return spark.range(0, count, 1, 4).select(key.alias("key"), F.col("id").cast("string").alias("value"), "id")


def messages(fetched: DataFrame) -> list[tuple[Any, ...]]:
    rows = fetched.orderBy("partition", "offset").collect()
    headers = [None if r.headers is None else [(h.key, h.value) for h in r.headers] for r in rows]
    plain = [(r.key and bytes(r.key), r.value and bytes(r.value), r.timestamp) for r in rows]
    return [(k, v, h or None, t) for (k, v, t), h in zip(plain, headers, strict=True)]


def test_published_dataframe_is_fetched_unchanged(spark: SparkSession, mq: Connection, topic: str) -> None:
    mq.topics.create(topic, partitions=3)
    named_as_in_sql = "Key binary, VALUE binary, Headers array<struct<key:string,value:binary>>, Timestamp timestamp"
    published = mq.publish(topic, frame(spark, ROWS, named_as_in_sql))
    assert sum(unit.record_count for unit in published.units) == len(ROWS)
    fetched = mq.fetch(topic).to_spark()
    expected = [(k or k, v or v, h or None, t.replace(tzinfo=None)) for k, v, h, t in ROWS]
    assert sorted(map(repr, messages(fetched))) == sorted(map(repr, expected))


def test_spark_and_arrow_fetch_the_same_in_the_schema_of_the_kafka_source(
    spark: SparkSession, mq: Connection, topic: str
) -> None:
    mq.topics.create(topic, partitions=4)
    for _ in range(2):
        mq.publish(topic, build_keyed_rows(spark, 500))
    fetched = mq.fetch(topic, start={0: 10, 1: 0, 2: 5, 3: 7})
    in_spark = fetched.to_spark()
    assert in_spark.schema.simpleString() == spark.createDataFrame([], FETCHED_DDL).schema.simpleString()
    rows = in_spark.orderBy("partition", "offset").toArrow().cast(FETCHED)
    assert rows.equals(pa.table(fetched.to_arrow(), schema=FETCHED))
    assert rows.num_rows == fetched.record_count == 1000 - 22


@pytest.mark.extended
def test_runs_of_many_blocks_are_fetched_whole(spark: SparkSession, mq: Connection, topic: str) -> None:
    """A run of rows is joined block by block, and a range may begin and end within a block."""
    mq.topics.create(topic, partitions=2)
    mq.publish(topic, build_keyed_rows(spark, 80_000).coalesce(1))
    fetched = mq.fetch(topic, start={0: 20_000, 1: 0}, end={0: 39_000, 1: 30_001})
    assert fetched.plan.segments.num_rows == 2
    places = cut_into_blocks(fetched.plan).column("place")
    assert len(places) == len(places.unique()) > 4
    rows = fetched.to_spark().orderBy("partition", "offset").toArrow().cast(FETCHED)
    assert rows.equals(pa.table(fetched.to_arrow(), schema=FETCHED))
    assert rows.num_rows == 19_000 + 30_001


@pytest.mark.extended
def test_a_fetch_whose_file_is_gone_is_an_error(spark: SparkSession, mq: Connection, topic: str, path: Path) -> None:
    mq.topics.create(topic, partitions=1)
    before = set((path / "messages").glob("*.parquet"))
    mq.publish(topic, build_keyed_rows(spark, 10).coalesce(1))
    file = (set((path / "messages").glob("*.parquet")) - before).pop()
    elsewhere = file.rename(path / "elsewhere.parquet")
    with pytest.raises(FileTruncated, match="gone"):
        mq.fetch(topic).to_spark()
    with pytest.raises(FileTruncated, match="gone"):
        mq.fetch(topic).to_arrow()
    elsewhere.rename(file)
    assert mq.fetch(topic).to_spark().count() == 10


@pytest.mark.extended
def test_order_by_keeps_the_order_of_a_key_after_a_file_scan(
    spark: SparkSession, mq: Connection, topic: str, tmp_path: Path
) -> None:
    mq.topics.create(topic, partitions=4)
    # files of different sizes: a scan reads the largest first
    for first, last in ((0, 100), (100, 4000), (4000, 4500)):
        build_keyed_rows(spark, 4500).where(f"id >= {first} AND id < {last}").coalesce(1).write.mode("append").parquet(
            str(tmp_path / "source")
        )
    mq.publish(topic, spark.read.parquet(str(tmp_path / "source")), order_by="id")
    last: dict[bytes, int] = {}
    for message in mq.fetch(topic):
        assert message.key is not None
        assert message.value is not None
        assert last.get(message.key, -1) < int(message.value)
        last[message.key] = int(message.value)
    assert len(last) == 100


@pytest.mark.extended
def test_fan_out_stores_one_copy_per_partition_count(
    spark: SparkSession, mq: Connection, topic: str, path: Path
) -> None:
    names = [f"{topic}.{i}" for i in range(3)]
    for name, partitions in zip(names, (4, 4, 3), strict=True):
        mq.topics.create(name, partitions=partitions, subscriptions=[f"{topic}/>"])
    before = set((path / "messages").glob("*.parquet"))
    mq.publish(f"{topic}/jfk", build_keyed_rows(spark, 400))
    values = [sorted(r.value for r in mq.fetch(name).to_spark().collect()) for name in names]
    assert len(values[0]) == 400
    assert values[0] == values[1] == values[2]
    written = set((path / "messages").glob("*.parquet")) - before
    assert spark.read.parquet(*map(str, written)).count() == 800
    for name in names:
        mq.topics.delete(name)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        (["1 AS value"], "int"),
        (["'v' AS value", "'h' AS headers"], "string"),
        (["'v' AS value", "array(named_struct('k', 'a', 'value', 'b')) AS headers"], "struct<k:string"),
        (["'v' AS value", "'yesterday' AS timestamp"], "string"),
        (["'v' AS value", "'soon' AS ttl_ms"], "string"),
        (["'v' AS value", "'soon' AS delay_ms"], "string"),
        (["id"], "id"),
    ],
)
def test_columns_that_make_no_message_are_refused_by_name(
    spark: SparkSession, mq: Connection, topic: str, columns: list[str], complaint: str
) -> None:
    mq.topics.create(topic, partitions=2)
    with pytest.raises(InvalidRecord, match=re.escape(complaint)):
        mq.publish(topic, spark.range(3).selectExpr(*columns))
    assert mq.end_offsets(topic) == {0: 0, 1: 0}


def test_a_streaming_dataframe_is_refused(spark: SparkSession, mq: Connection, topic: str) -> None:
    mq.topics.create(topic, partitions=1)
    stream = spark.readStream.format("rate").load().selectExpr("string(value) AS value")
    with pytest.raises(InvalidRecord, match="foreachBatch"):
        mq.publish(topic, stream)


BAD = [
    (b"big", b"x" * 2_000_000, None, TIMES[0], "MESSAGE_TOO_LARGE"),
    (b"early", b"v", None, datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), "INVALID_TIMESTAMP"),
    (b"header", b"v", [(None, b"x")], TIMES[0], "INVALID_RECORD"),
]


@pytest.mark.parametrize(
    ("row", "error"), [(BAD[0], MessageTooLarge), (BAD[1], InvalidTimestamp), (BAD[2], InvalidRecord)]
)
def test_on_error_fail_refuses_all(
    spark: SparkSession, mq: Connection, topic: str, row: tuple[Any, ...], error: type[Exception]
) -> None:
    mq.topics.create(topic, partitions=2)
    with pytest.raises(error, match="Nothing was published, because 1 row is rejected"):
        mq.publish(topic, frame(spark, [row[:4], *ROWS]), on_error="fail")
    assert mq.fetch(topic).record_count == 0


@pytest.mark.extended
def test_a_version_not_above_the_last_is_not_published_again(spark: SparkSession, mq: Connection, topic: str) -> None:
    mq.topics.create(topic, partitions=2)
    first = [
        mq.publish(topic, build_keyed_rows(spark, 10), txn_app_id="a", txn_version=v).duplicate for v in (3, 3, 2, 4)
    ]
    assert first == [False, True, True, False]
    failing = build_keyed_rows(spark, 1).withColumn("value", F.raise_error(F.lit("computed")).cast("string"))
    assert mq.publish(topic, failing, txn_app_id="a", txn_version=4).duplicate, "a repeat is not computed"
    assert not mq.publish(topic, build_keyed_rows(spark, 10), txn_app_id="b", txn_version=0).duplicate
    assert mq.fetch(topic).record_count == 30


@pytest.mark.extended
def test_rows_of_tasks_are_spread_over_partitions_added_meanwhile(
    spark: SparkSession, mq: Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq.topics.create(topic, partitions=2)
    ask = mq.requester.submit
    stale: list[str] = []

    def add_partitions_first(request: Any, rows: Any = None) -> Any:
        if not stale:
            stale.append("once")
            monkeypatch.setattr(mq.requester, "submit", ask)
            mq.topics.alter(topic, partitions=5)
        return ask(request, rows)

    monkeypatch.setattr(mq.requester, "submit", add_partitions_first)
    mq.publish(topic, build_keyed_rows(spark, 300))
    assert stale
    fetched = mq.fetch(topic).to_spark()
    assert fetched.count() == 300
    assert fetched.where(F.pmod(F.xxhash64("key"), F.lit(5)) != F.col("partition")).count() == 0
    assert {unit.partition for unit in mq.publish(topic, build_keyed_rows(spark, 300)).units} == set(range(5))


def lose_attempt(lost: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give all batches, and fail then if this is the attempt to lose."""
    yield from batches
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == lost:
        raise RuntimeError("lost")


class LosesSecondAttempt(WriteMessages):
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return lose_attempt(1, super().__call__(batches))


@pytest.mark.extended
def test_a_dataframe_is_published_once_whatever_becomes_of_tasks(
    spark: SparkSession,
    mq: Connection,
    topic: str,
    path: Path,
    wait_for_projection: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first attempt is lost when it has read its rows, the second when it has written them to a file."""
    mq.topics.create(topic, partitions=3)
    wait_for_projection()
    before = set((path / "messages").glob("*.parquet"))
    monkeypatch.setattr("lakemq.engine.client.publish.spark.WriteMessages", LosesSecondAttempt)
    rows = build_keyed_rows(spark, 100).coalesce(1).select("key", "value")
    mq.publish(topic, rows.mapInArrow(partial(lose_attempt, 0), "key string, value string"))
    fetched = mq.fetch(topic)
    assert sorted(int(message.value or b"") for message in fetched) == list(range(100))
    (named,) = set(fetched.plan.segments["file_id"].to_pylist())
    written = {int(file.stem, 16) for file in set((path / "messages").glob("*.parquet")) - before}
    assert len(written - {named}) == len(written) - 1 == 1


@pytest.mark.extended
def test_a_delay_is_a_column_or_a_constant_and_goes_before_columns_of_these_names(
    spark: SparkSession, mq: Connection, topic: str
) -> None:
    mq.topics.create(topic)
    rows = build_keyed_rows(spark, 3).withColumn("delay_ms", F.lit(0))
    due = datetime(2099, 1, 1, tzinfo=UTC)
    some = F.when(F.col("id") > 0, F.lit(due))
    for both in ({"deliver_at": some, "delay_ms": 1}, {"deliver_at": due, "delay_ms": "delay_ms"}):
        with pytest.raises(InvalidRecord, match="both"):
            mq.publish(topic, rows, **both)
    for delay, count in ({"deliver_at": some}, 2), ({"deliver_at": due}, 3), ({"delay_ms": 86_400_000}, 3):
        assert sum(unit.record_count for unit in mq.publish(topic, rows, **delay).waiting) == count
    assert [message.value for message in mq.fetch(topic)] == [b"0"]
