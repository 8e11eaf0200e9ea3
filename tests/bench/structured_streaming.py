"""The format `lakemq` in batches and streams, beside Delta's format and beside mq.publish and mq.fetch. In one JVM."""

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
from figures import Figure, measure_in_turn, median, percentile
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from serving import run_sequencer
from with_spark import PARTITIONS, messages

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.spark import register, spark_session
from lakemq.tables.specs.spec import TIME

VALUE_BYTES = 92


class Bench:
    """A topic, and a Delta table with the same rows."""

    def __init__(self, spark: SparkSession, mq: Connection, folder: str, count: int) -> None:
        self.spark, self.mq, self.folder, self.count = spark, mq, folder, count
        self.path, self.table = mq.namespace.path, f"{folder}/source"
        # as many files as the topic has row groups: a stream of Delta reads a file with one task
        messages(spark, count, VALUE_BYTES).write.format("delta").save(self.table)
        self.source = spark.read.format("delta").load(self.table)
        mq.topics.create("read", partitions=PARTITIONS)
        mq.publish("read", self.source)

    def read(self, **options: str) -> DataFrame:
        """Read the topic, or what the options select."""
        return self.spark.read.format("lakemq").options(path=self.path, **(options or {"subscribe": "read"})).load()

    def range_by_options(self, first: int, end: int) -> DataFrame:
        bounds = {"startingOffsets": first, "endingOffsets": end}
        offsets = {name: json.dumps({"read": {"1": offset}}) for name, offset in bounds.items()}
        return self.read(assign='{"read": [1]}', **offsets)

    def stream(self, topic: str = "read", **options: object) -> DataFrame:
        reader_options = {"startingOffsets": "earliest", **options}
        reader = self.spark.readStream.format("lakemq").option("path", self.path).option("subscribe", topic)
        return reader.options(**reader_options).load()

    def drain(self, stream: DataFrame, count: int) -> int:
        """Copy the stream into a Delta table, and return how many batches that took."""
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
    """Return the median seconds of `over` divided by those of `of`."""
    over(), of()
    first, second = measure_in_turn([over, of], rounds)
    return median(first) / median(second)


def reads(bench: Bench, rounds: int) -> Iterator[Figure]:
    fetched = ratio(lambda: total(bench.mq.fetch("read").to_spark()), lambda: total(bench.read()), rounds)
    yield Figure("read over mq.fetch", fetched, "ratio", 0.8, ">=")
    first = bench.mq.end_offsets("read")[1] // 2
    condition = f"partition = 1 AND offset >= {first} AND offset < {first + 1000}"
    ranges = ratio(
        lambda: total(bench.range_by_options(first, first + 1000)), lambda: total(bench.read().where(condition)), rounds
    )
    yield Figure("1,000 offsets by options, over a condition", ranges, "ratio", 1, "<=")

    def stream_delta(**options: object) -> DataFrame:
        return bench.spark.readStream.format("delta").options(**options).load(bench.table)

    count = bench.count
    one_batch = ratio(lambda: bench.drain(stream_delta(), count), lambda: bench.drain(bench.stream(), count), rounds)
    yield Figure("a stream to a Delta table in one batch, over one from Delta", one_batch, "ratio", 0.8, ">=")
    tenth = {"maxOffsetsPerTrigger": count // 10}
    # four files, each a batch: as far as Delta can be cut
    four_batches = ratio(
        lambda: bench.drain(stream_delta(maxFilesPerTrigger=1), count),
        lambda: bench.drain(bench.stream(maxOffsetsPerTrigger=count // 4), count),
        rounds,
    )
    yield Figure("the same in four batches", four_batches, "ratio", 0.7, ">=")
    batches = bench.drain(bench.stream(**tenth), count)
    assert batches == 10, batches


def sinks(bench: Bench, rounds: int) -> Iterator[Figure]:
    bench.mq.topics.create("written", partitions=PARTITIONS)
    write = bench.source.write.format("lakemq").mode("append").option("path", bench.path).option("topic", "written")
    published = ratio(lambda: bench.mq.publish("written", bench.source), write.save, rounds)
    yield Figure("write over mq.publish", published, "ratio", 0.8, ">=")


def small_batches(bench: Bench, rounds: int) -> Iterator[Figure]:
    """Measure batches of a few rows, one after the other: the cost of a batch itself."""
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
        durations_s = [progress["durationMs"]["triggerExecution"] / 1e3 for progress in query.recentProgress]
        yield Figure(f"a batch of ten rows {name}", median(durations_s[2:]), "s", 0.4 if sink == "noop" else 1.0, "<=")


def send_at(path: str, rate: int, duration_s: float) -> None:
    with lakemq.connect(path) as mq, mq.producer(linger_ms=5) as producer:
        begin = time.time()
        for number in range(int(rate * duration_s)):
            wait = begin + number / rate - time.time()
            if wait > 0:
                time.sleep(wait)
            producer.send("live", value=b"x" * VALUE_BYTES)


def commit_times_ms(table: Path) -> dict[str, float]:
    """Return name of a data file -> when the log entry appeared that made it part of the table."""
    times_ms = {}
    for entry in (table / "_delta_log").glob("[0-9]*.json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        names = [unquote(action["add"]["path"]).rpartition("/")[2] for action in actions if "add" in action]
        times_ms.update(dict.fromkeys(names, entry.stat().st_mtime * 1000))
    return times_ms


def append_at(table: str, rate: int, duration_s: float) -> None:
    """Append such rows to a Delta table ten times a second, as a source for a stream of Delta."""
    begin, appended, total_rows = time.time(), 0, int(rate * duration_s)
    while appended < total_rows:
        time.sleep(0.1)
        due = min(int((time.time() - begin) * rate), total_rows)
        stamps = pa.array([int((begin + number / rate) * 1e6) for number in range(appended, due)], TIME)
        write_deltalake(
            table, pa.table({"value": [b"x" * VALUE_BYTES] * len(stamps), "timestamp": stamps}), mode="append"
        )
        appended = due


Send = Callable[[str, int, float], None]


def measure_waits_s(
    bench: Bench, stream: DataFrame, send: Send, place: str, rate: int, duration_s: float
) -> list[float]:
    """Return the seconds from the sending of each row to the commit of the table that has it, without the first
    third.
    """
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
    """Measure from `send` to the commit of the table that has the row, and the same from a Delta table in the same
    run.
    """
    bench.mq.topics.create("live", partitions=PARTITIONS)
    source = f"{bench.folder}/live"
    DeltaTable.create(source, pa.schema([("value", pa.binary()), ("timestamp", TIME)]))
    delta_stream = bench.spark.readStream.format("delta").load(source)
    bare = measure_waits_s(bench, delta_stream, append_at, source, rate, duration_s)
    waits_s = measure_waits_s(bench, bench.stream("live"), send_at, bench.path, rate, duration_s)
    name = f"sent -> a row in a Delta table, {rate:,} messages/s"
    for label, share, most_s in (("p50", 0.5, 0.6), ("p99", 0.99, 1.5)):
        note = f"{percentile(bare, share):.2f} s from a Delta table"
        yield Figure(f"{name}, {label}", percentile(waits_s, share), "s", most_s, "<=", note)


def run(count: int, rounds: int, duration_s: float) -> Iterator[Figure]:
    folder = tempfile.mkdtemp(prefix="lakemq-bench-")
    spark = spark_session(master="local[2]", app_name="bench")
    register(spark)
    try:
        with run_sequencer(f"{folder}/mq"), lakemq.connect(f"{folder}/mq", spark=spark) as mq:
            bench = Bench(spark, mq, folder, count)
            yield from reads(bench, rounds)
            yield from sinks(bench, rounds)
            yield from small_batches(bench, max(6, 4 * rounds))
            yield from latencies(bench, 1000, duration_s)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
