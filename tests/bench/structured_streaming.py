"""The format `lakemq` in batches and streams, beside Delta's own and beside mq.publish and mq.fetch. In one JVM."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from figures import Figure, interleaved, median, percentile
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from serving import served
from with_spark import PARTITIONS, messages

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.spark import register, spark_session
from lakemq.tables.specs.spec import TIME

VALUE_BYTES = 92


class Bench:
    """A topic and a Delta table of the same rows."""

    def __init__(self, spark: SparkSession, mq: Connection, folder: str, count: int) -> None:
        self.spark, self.mq, self.folder, self.count = spark, mq, folder, count
        self.path, self.table = mq.namespace.path, f"{folder}/source"
        # as many files as the topic has row groups: a stream of Delta reads a file with one task
        messages(spark, count, VALUE_BYTES).write.format("delta").save(self.table)
        self.source = spark.read.format("delta").load(self.table)
        mq.topics.create("read", partitions=PARTITIONS)
        mq.publish("read", self.source)

    def read(self, topic: str = "read") -> DataFrame:
        return self.spark.read.format("lakemq").option("path", self.path).option("subscribe", topic).load()

    def stream(self, topic: str = "read", **options: object) -> DataFrame:
        given = {"startingOffsets": "earliest", **options}
        reader = self.spark.readStream.format("lakemq").option("path", self.path).option("subscribe", topic)
        return reader.options(**given).load()

    def drain(self, stream: DataFrame, count: int) -> int:
        """Into a Delta table; how many batches that took."""
        out = tempfile.mkdtemp(dir=self.folder)
        writer = stream.select("key", "value", "timestamp").writeStream.format("delta")
        query = writer.option("checkpointLocation", f"{out}/checkpoint").trigger(availableNow=True).start(f"{out}/t")
        query.awaitTermination()
        assert self.spark.read.format("delta").load(f"{out}/t").count() == count
        shutil.rmtree(out)
        return sum(progress["numInputRows"] > 0 for progress in query.recentProgress)


def total(df: DataFrame) -> None:
    df.select(F.sum(F.length("key") + F.length("value")), F.max("timestamp"), F.count("*")).collect()


def ratio(over: Callable[[], object], of: Callable[[], object], rounds: int) -> float:
    """Median seconds of the first over those of the second."""
    over(), of()
    first, second = interleaved([over, of], rounds)
    return median(first) / median(second)


def reads(bench: Bench, rounds: int) -> Iterator[Figure]:
    fetched = ratio(lambda: total(bench.mq.fetch("read").to_spark()), lambda: total(bench.read()), rounds)
    yield Figure("read over mq.fetch", fetched, "ratio", 0.8, ">=")

    def of_delta(**options: object) -> DataFrame:
        return bench.spark.readStream.format("delta").options(**options).load(bench.table)

    count = bench.count
    one = ratio(lambda: bench.drain(of_delta(), count), lambda: bench.drain(bench.stream(), count), rounds)
    yield Figure("a stream to a Delta table in one batch, over one from Delta", one, "ratio", 0.8, ">=")
    tenth = {"maxOffsetsPerTrigger": count // 10}
    # four files, each a batch: as far as Delta can be cut
    ten = ratio(
        lambda: bench.drain(of_delta(maxFilesPerTrigger=1), count),
        lambda: bench.drain(bench.stream(maxOffsetsPerTrigger=count // 4), count),
        rounds,
    )
    yield Figure("the same in four batches", ten, "ratio", 0.7, ">=")
    batches = bench.drain(bench.stream(**tenth), count)
    assert batches == 10, batches


def sinks(bench: Bench, rounds: int) -> Iterator[Figure]:
    bench.mq.topics.create("written", partitions=PARTITIONS)
    write = bench.source.write.format("lakemq").mode("append").option("path", bench.path).option("topic", "written")
    published = ratio(lambda: bench.mq.publish("written", bench.source), write.save, rounds)
    yield Figure("write over mq.publish", published, "ratio", 0.8, ">=")


def small_batches(bench: Bench, rounds: int) -> Iterator[Figure]:
    """Batches of a few rows, one after the other: what a batch costs whatever is in it."""
    bench.mq.topics.create("few", partitions=1)
    bench.mq.publish("few", bench.source.limit(10 * rounds))
    for name, sink in (("to nowhere", "noop"), ("to another topic", "lakemq")):
        bench.mq.topics.create("few.copy", partitions=1, exist_ok=True)
        writer = bench.stream("few", maxOffsetsPerTrigger=10).select("key", "value").writeStream.format(sink)
        if sink == "lakemq":
            writer = writer.option("path", bench.path).option("topic", "few.copy")
        writer = writer.option("checkpointLocation", tempfile.mkdtemp(dir=bench.folder)).trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination()
        taken = [progress["durationMs"]["triggerExecution"] / 1e3 for progress in query.recentProgress]
        yield Figure(f"a batch of ten rows {name}", median(taken[2:]), "s", 0.4 if sink == "noop" else 1.0, "<=")


def send_at(path: str, rate: int, duration_s: float) -> None:
    with lakemq.connect(path) as mq, mq.producer(linger_ms=5) as producer:
        begin = time.time()
        for number in range(int(rate * duration_s)):
            wait = begin + number / rate - time.time()
            if wait > 0:
                time.sleep(wait)
            producer.send("live", value=b"x" * VALUE_BYTES)


def commit_times_ms(table: Path) -> dict[str, float]:
    """Name of a file -> when the entry of the log appeared that made it part of the table."""
    found = {}
    for entry in (table / "_delta_log").glob("[0-9]*.json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        names = [unquote(action["add"]["path"]).rpartition("/")[2] for action in actions if "add" in action]
        found.update(dict.fromkeys(names, entry.stat().st_mtime * 1000))
    return found


def append_at(table: str, rate: int, duration_s: float) -> None:
    """Such rows to a Delta table, ten times a second: what a stream to Delta takes where there is no queue."""
    begin, done, wanted = time.time(), 0, int(rate * duration_s)
    while done < wanted:
        time.sleep(0.1)
        due = min(int((time.time() - begin) * rate), wanted)
        stamps = pa.array([int((begin + number / rate) * 1e6) for number in range(done, due)], TIME)
        write_deltalake(
            table, pa.table({"value": [b"x" * VALUE_BYTES] * len(stamps), "timestamp": stamps}), mode="append"
        )
        done = due


Send = Callable[[str, int, float], None]


def waited_s(bench: Bench, stream: DataFrame, send: Send, place: str, rate: int, duration_s: float) -> list[float]:
    """Of each row from when it was sent to the commit of the table that has it, but for the first third."""
    out = tempfile.mkdtemp(dir=bench.folder)
    writer = stream.select("value", "timestamp").writeStream.format("delta")
    query = writer.option("checkpointLocation", f"{out}/checkpoint").start(f"{out}/t")
    sender = multiprocessing.get_context("spawn").Process(target=send, args=(place, rate, duration_s))
    sender.start()
    sender.join()
    deadline = time.monotonic() + 60
    while sum(progress["numInputRows"] for progress in query.recentProgress) < int(rate * duration_s):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    query.stop()
    rows = bench.spark.read.format("delta").load(f"{out}/t")
    sent_at = rows.select(F.unix_millis("timestamp").alias("ms"), F.col("_metadata.file_name").alias("file")).collect()
    committed_ms = commit_times_ms(Path(out, "t"))
    warm_ms = min(row.ms for row in sent_at) + duration_s / 3 * 1000
    return [(committed_ms[row.file] - row.ms) / 1e3 for row in sent_at if row.ms >= warm_ms]


def latencies(bench: Bench, rate: int, duration_s: float) -> Iterator[Figure]:
    """From `send` to the commit of the table that has the row; and the same from a Delta table, in the same run."""
    bench.mq.topics.create("live", partitions=PARTITIONS)
    source = f"{bench.folder}/live"
    DeltaTable.create(source, pa.schema([("value", pa.binary()), ("timestamp", TIME)]))
    of_delta = bench.spark.readStream.format("delta").load(source)
    bare = waited_s(bench, of_delta, append_at, source, rate, duration_s)
    taken = waited_s(bench, bench.stream("live"), send_at, bench.path, rate, duration_s)
    name = f"sent -> a row in a Delta table, {rate:,} messages/s"
    for what, share, most_s in (("p50", 0.5, 0.6), ("p99", 0.99, 1.5)):
        note = f"{percentile(bare, share):.2f} s from a Delta table"
        yield Figure(f"{name}, {what}", percentile(taken, share), "s", most_s, "<=", note)


def run(count: int, rounds: int, duration_s: float) -> Iterator[Figure]:
    folder = tempfile.mkdtemp(prefix="lakemq-bench-")
    spark = spark_session(master="local[2]", app_name="bench")
    register(spark)
    try:
        with served(f"{folder}/mq"), lakemq.connect(f"{folder}/mq", spark=spark) as mq:
            bench = Bench(spark, mq, folder, count)
            yield from reads(bench, rounds)
            yield from sinks(bench, rounds)
            yield from small_batches(bench, max(6, 4 * rounds))
            yield from latencies(bench, 1000, duration_s)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
