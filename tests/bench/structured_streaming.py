"""The format `lakemq` in batches and streams, beside Delta's format and beside mq.publish and mq.fetch. In one JVM."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator

from figures import Figure, measure_in_turn, median
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from serving import run_sequencer
from with_spark import PARTITIONS, messages

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.spark import register, spark_session

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


def run(count: int, rounds: int) -> Iterator[Figure]:
    folder = tempfile.mkdtemp(prefix="lakemq-bench-")
    spark = spark_session(master="local[2]", app_name="bench")
    register(spark)
    try:
        with run_sequencer(f"{folder}/mq"), lakemq.connect(f"{folder}/mq", spark=spark) as mq:
            bench = Bench(spark, mq, folder, count)
            yield from reads(bench, rounds)
            yield from sinks(bench, rounds)
            yield from small_batches(bench, max(6, 4 * rounds))
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
