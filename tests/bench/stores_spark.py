"""A fetch in Spark from an object store, beside a bare scan of the same files through the same connector (S3A)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

from counted_store import S3Server, new_path, serve_store
from figures import Figure, measure_in_turn, median
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from with_spark import messages

import lakemq
from lakemq.engine.namespace.data_file import file_name
from lakemq.jobs.s3a_jars import S3A_JARS
from lakemq.spark import spark_session

TOPIC = "measured"


def run(count: int, rounds: int) -> Iterator[Figure]:
    jars = {"spark.jars": ",".join(map(str, S3A_JARS.resolve()))}
    spark = spark_session("lakemq benchmarks", "local[2]", jars)
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, serve_store(folder) as server:
        yield _fetch_over_scan(spark, server, count, rounds)
    spark.stop()


def _fetch_over_scan(spark: SparkSession, server: S3Server, count: int, rounds: int) -> Figure:
    path = new_path(server)
    with lakemq.connect(path, storage_options=server.options, spark=spark, create=True) as mq, mq.serving():
        mq.topics.create(TOPIC, partitions=8)
        mq.publish(TOPIC, messages(spark, count, 92))
        fetched = mq.fetch(TOPIC)
        file_ids = set(fetched.plan.segments.column("file_id").to_pylist())
        uris = [mq.namespace.files.uri(file_name(file_id)) for file_id in file_ids]

        def total(df: DataFrame) -> None:
            sizes = F.sum(F.length("key") + F.length("value")).alias("bytes")
            df.select(sizes, F.max("timestamp"), F.count("*")).collect()

        def scan() -> None:
            total(spark.read.parquet(*uris).select("key", "value", "timestamp"))

        def fetch() -> None:
            total(fetched.to_spark())

        scan(), fetch()
        scans_s, fetches_s = measure_in_turn([scan, fetch], rounds)
    note = f"{count:,} messages; fetch {median(fetches_s):.1f} s"
    return Figure("a bare S3A scan over a fetch in Spark", median(scans_s) / median(fetches_s), "x", 0.75, ">=", note)
