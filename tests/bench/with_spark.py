"""Publish and fetch on Spark, beside the same work without a queue: a Delta append, a bare Parquet scan."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from figures import Figure, measure_in_turn, median, seconds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.data_file import file_name
from lakemq.spark import spark_session

PARTITIONS = 8


def messages(spark: SparkSession, count: int, value_bytes: int) -> DataFrame:
    """Return `count` rows with a key of 8 bytes out of 100,000 and a value that does not compress."""
    chunks = [F.unhex(F.sha2(F.concat_ws("-", F.col("id"), F.lit(i)), 512)) for i in range(-(-value_bytes // 64))]
    return spark.range(0, count, 1, 4).select(
        F.format_string("k%07d", F.pmod(F.xxhash64("id"), F.lit(100_000))).cast("binary").alias("key"),
        F.substring(F.concat(*chunks), 1, value_bytes).alias("value"),
        F.current_timestamp().alias("timestamp"),
    )


def publish_over_append(
    spark: SparkSession, mq: Connection, folder: str, count: int, value_bytes: int, rounds: int
) -> float:
    """Return the median seconds of a plain Delta append over those of a publish of the same rows."""
    messages(spark, count, value_bytes).write.format("delta").mode("overwrite").save(f"{folder}/source{value_bytes}")
    source = spark.read.format("delta").load(f"{folder}/source{value_bytes}")
    topic = f"bytes{value_bytes}"
    mq.topics.create(topic, partitions=PARTITIONS)

    def append() -> None:
        source.write.format("delta").mode("append").option("compression", "snappy").save(f"{folder}/plain{value_bytes}")

    def publish() -> None:
        mq.publish(topic, source)

    append(), publish()  # the first ones warm up the JVM and the Python workers
    appended, published = measure_in_turn([append, publish], rounds)
    return median(appended) / median(published)


def fetch_over_scan(spark: SparkSession, mq: Connection, folder: str, rounds: int) -> float:
    """Return the median seconds of a bare scan of the same columns and rows over those of a read_committed fetch."""
    fetched = mq.fetch("bytes92", isolation="read_committed")
    file_ids = set(fetched.plan.segments.column("file_id").to_pylist())
    paths = [str(Path(folder, "mq", file_name(file_id))) for file_id in file_ids]

    def total(df: DataFrame) -> object:
        sizes = F.sum(F.length("key") + F.length("value")).alias("bytes")
        return df.select(sizes, F.max("timestamp"), F.count("*")).collect()

    def scan() -> None:
        total(spark.read.parquet(*paths).select("key", "value", "timestamp"))

    def fetch() -> None:
        total(fetched.to_spark())

    scan(), fetch()
    scans_s, fetches_s = measure_in_turn([scan, fetch], rounds)
    return median(scans_s) / median(fetches_s)


def run(count: int, rounds: int) -> Iterator[Figure]:
    folder = tempfile.mkdtemp(prefix="lakemq-bench-")
    spark = spark_session(master="local[2]", app_name="bench")
    try:
        start_s = time.perf_counter()
        with lakemq.connect(f"{folder}/mq", spark=spark, create=True) as mq, mq.serving():
            connected_s = time.perf_counter() - start_s
            yield Figure("first connect of a namespace with Spark", connected_s, "s", 3, "<=", "the session is there")
            ratio = publish_over_append(spark, mq, folder, count, 92, rounds)
            yield Figure(f"publish {count / 1e6:g} M x 100 B over a Delta append", ratio, "ratio", 0.9, ">=")
            large = count // 10
            ratio = publish_over_append(spark, mq, folder, large, 10 * 1024, rounds)
            yield Figure(f"publish {large / 1e3:g} k x 10 KiB over a Delta append", ratio, "ratio", 0.95, ">=")
            ratio = fetch_over_scan(spark, mq, folder, rounds)
            yield Figure("fetch in Spark over a bare Parquet scan", ratio, "ratio", 0.7, ">=")
            mq.topics.create("both", partitions=PARTITIONS)
            source = spark.read.format("delta").load(f"{folder}/source92")

            def both() -> None:
                starts = mq.end_offsets("both")
                mq.publish("both", source)
                mq.fetch("both", start=starts).to_spark().select(F.sum(F.length("value")), F.max("offset")).collect()

            best = min(seconds(both) for _ in range(3))
            yield Figure("publish, then fetch, local[2]", count / best / 1e6, "M messages/s", 0.8, ">=", "best of 3")
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
