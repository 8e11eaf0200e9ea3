"""`final_messages` beside a plain Delta table of the same rows, and fetches of its files beside a bare scan."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from figures import Figure, measure_in_turn, median
from pyspark.sql import DataFrame, SparkSession
from with_spark import PARTITIONS, messages

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.data_file import file_name
from lakemq.spark import spark_session
from lakemq.tables.specs.messages import FINAL_FILES, MESSAGES

TOPICS = 8
QUERIES = {
    "count": "SELECT count(*) FROM {table}",
    "sum of lengths": "SELECT sum(length(value)) FROM {table}",
    f"one topic of {TOPICS}": "SELECT sum(length(value)), max(timestamp) FROM {table} WHERE topic = 't0'",
    "1,000 offsets": "SELECT sum(length(value)) FROM {table} "
    "WHERE topic = 't0' AND partition = 1 AND offset BETWEEN 1000 AND 1999",
}
VIEW_TARGETS = {"sum of lengths": 0.85, f"one topic of {TOPICS}": 0.6}


def publish_and_wait(spark: SparkSession, mq: Connection, count: int) -> float:
    """Publish to all topics, and wait until all is final. Return the processor time of the sequencer's process, in s.

    Spark publishes in other processes.
    """
    source = messages(spark, count // TOPICS, 92).cache()
    source.count()
    started_s = time.process_time()
    for number in range(TOPICS):
        mq.topics.create(f"t{number}", PARTITIONS)
        mq.publish(f"t{number}", source)
    while any((topic.final_offsets < topic.last_stable_offsets).any() for topic in mq.state().topics.values()):
        time.sleep(0.1)
    return time.process_time() - started_s


def compare(other: Callable[[], object], ours: Callable[[], object], rounds: int) -> float:
    """Return the median seconds of the other action over those of ours."""
    other(), ours()
    theirs_s, ours_s = measure_in_turn([other, ours], rounds)
    return median(theirs_s) / median(ours_s)


def wait_for_final_files(mq: Connection) -> None:
    """Wait until all messages are read from final files, and `messages` does not have them any more."""
    published = f"SELECT 1 FROM segments WHERE kind = 'data' AND file_id < {FINAL_FILES} AND topic <> 'ticks'"
    mq.topics.create("ticks", 1)

    def is_waiting() -> bool:
        listed_bytes = sum(file.size_bytes for file in mq.namespace.store.open(MESSAGES).files())
        return listed_bytes > 1 << 20 or mq.sql(published, wait_ms=60_000).num_rows > 0

    while is_waiting():
        mq.publish("ticks", pa.table({"value": ["tick"]}))  # the leader looks again after each step
        time.sleep(1)


def copy_stream(stream: DataFrame, checkpoint: Path) -> None:
    """Read all of a stream."""
    shutil.rmtree(checkpoint, ignore_errors=True)
    writer = stream.selectExpr("key", "value", "offset").writeStream.format("noop")
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def run(count: int, rounds: int) -> Iterator[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="lakemq-bench-"))
    spark = spark_session(master="local[2]", app_name="bench")
    try:
        path, plain = folder / "mq", folder / "plain"
        hot = lakemq.connect(str(folder / "hot"), spark=spark, create=True)
        settings = {"final.interval.ms": 1000, "merge.grace.ms": 2000, "retention.check.interval.ms": 1000}
        with hot, lakemq.connect(str(path), spark=spark, create=True, config=settings) as mq:
            with hot.serving():
                hot.topics.create("t0", PARTITIONS)
                hot.publish("t0", messages(spark, count // TOPICS, 92))
            with mq.serving():
                rate = count / publish_and_wait(spark, mq, count) / 1e6
                wait_for_final_files(mq)
                yield Figure("finalizing", rate, "M rows/s and core", 0.8, ">=", "with all else that a leader does")
            final = spark.read.table(f"{path.name}.final_messages")
            final.write.format("delta").partitionBy("topic").save(str(plain))

            def query(text: str, table: str) -> Callable[[], object]:
                return lambda: spark.sql(text.format(table=table)).collect()

            for name, text in QUERIES.items():
                of_plain = query(text, f"delta.`{plain}`")
                ratio = compare(of_plain, query(text, f"{path.name}.final_messages"), rounds)
                yield Figure(f"final_messages over a plain Delta table: {name}", ratio, "ratio", 0.95, ">=")
                if name in VIEW_TARGETS:
                    ratio = compare(of_plain, query(text, f"{path.name}.log_committed"), rounds)
                    target = VIEW_TARGETS[name]
                    yield Figure(f"log_committed over a plain Delta table: {name}", ratio, "ratio", target, ">=")
            streams = (
                spark.readStream.format("delta").load(str(plain)),
                spark.readStream.table(f"{path.name}.final_messages"),
            )
            copies = [lambda stream=stream: copy_stream(stream, folder / "checkpoint") for stream in streams]
            yield Figure("native stream over one of a plain table", compare(*copies, rounds), "ratio", 0.95, ">=")
            fetched = mq.fetch("t0")
            names = {file_name(file_id, "t0") for file_id in fetched.plan.segments.column("file_id").to_pylist()}

            def total(rows: DataFrame) -> object:
                return rows.selectExpr("sum(length(key) + length(value))", "max(timestamp)", "count(*)").collect()

            def scan() -> object:
                return total(spark.read.parquet(*(str(path / name) for name in names)))

            ratio = compare(scan, lambda: total(mq.fetch("t0").to_spark()), rounds)
            yield Figure("fetch of final rows in Spark over a bare scan", ratio, "ratio", 0.95, ">=")
            ratio = compare(lambda: hot.fetch("t0").to_arrow(), lambda: mq.fetch("t0").to_arrow(), rounds)
            yield Figure("fetch in Arrow of final rows over published ones", ratio, "ratio", 1, ">=")
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
