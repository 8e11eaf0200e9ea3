"""The time of SQL: the queries of docs/sql.md's views in both engines, and the start of `spark-sql`."""

import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from figures import Figure, seconds
from serving import run_sequencer
from without_jvm import rows

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.sql import SqlDialect
from lakemq.engine.client.sql.query import run_query
from lakemq.spark import spark_session

PAGE = Path(__file__).parents[2] / "docs/sql.md"
PUBLISHES, COMMITS, PARTITIONS = 200, 1_000, 4


def run(count: int, commits: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder:
        path = f"{folder}/mq"
        with run_sequencer(path), lakemq.connect(path) as mq:
            _fill(mq, count, commits)
            time.sleep(3)  # projection needs a moment
        with lakemq.connect(path) as mq:
            for view, query in _queries():
                best_s = min(seconds(lambda query=query: _ask(mq, query)) for _ in range(3))
                yield Figure(f"lakemq sql, {view}", best_s, "s", 3, "<=", "best of 3")
        yield from _start(path)
        yield from _in_spark(path)


def _queries() -> list[tuple[str, str]]:
    """Return (view, query) of the page's last section."""
    text = PAGE.read_text(encoding="utf-8")
    parts = re.split(r"^### (\w+)$", text, flags=re.MULTILINE)[1:]
    sections = zip(parts[::2], parts[1::2], strict=True)
    return [(name, re.findall(r"^```sql\n(.*?)^```$", part, re.DOTALL | re.MULTILINE)[0]) for name, part in sections]


def _fill(mq: Connection, count: int, commits: int) -> None:
    for topic in ("clicks", "late"):
        mq.topics.create(topic, partitions=PARTITIONS)
    table = rows(count // PUBLISHES)
    for _ in range(PUBLISHES):
        mq.publish("clicks", table)
    mq.publish("late", rows(1_000), delay_ms=3_600_000)
    mq.publish("late", pa.table({"value": ["refused"], "partition": [99]}))
    with mq.producer(transactional_id="teller") as producer:
        for _ in range(20):
            producer.begin_transaction()
            producer.send("clicks", b"x")
            producer.commit_transaction()
    with mq.consumer("reports", assign=["clicks"]) as consumer:
        for nth in range(commits):
            consumer.commit({("clicks", nth % PARTITIONS): nth})
    with mq.consumer("map", topics=["clicks"], auto_offset_reset="earliest") as consumer:
        for message in consumer.poll(timeout_ms=5_000):
            consumer.reject(message)
        consumer.flush()


def _ask(mq: Connection, query: str) -> None:
    for _ in run_query(mq.namespace, query, dialect=SqlDialect.spark)[1]:
        pass


def _start(path: str) -> Iterator[Figure]:
    """Measure processor seconds, because other figures vary on a busy machine."""
    command = [sys.executable, "-m", "lakemq.jobs.cli", "--path", path, "spark-sql", "--", "-e", "SELECT 1"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    took_s = seconds(lambda: subprocess.run(command, check=True, capture_output=True))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    yield Figure("lakemq spark-sql, until its first answer", cpu_s, "s of CPU", 30, "<=", f"{took_s:.1f} s")


def _in_spark(path: str) -> Iterator[Figure]:
    spark = spark_session("sql bench", "local[2]")
    with lakemq.connect(path, spark=spark):
        spark.sql("USE mq")
        for view, query in _queries():
            best_s = min(seconds(lambda query=query: spark.sql(query).collect()) for _ in range(3))
            yield Figure(f"Spark, {view}", best_s, "s", 15, "<=", "best of 3")
    spark.stop()
