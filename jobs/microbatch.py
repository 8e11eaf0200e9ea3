"""The default job: one micro-batch of all that waits.

    spark-submit --properties-file conf/spark-defaults.conf --py-files dist/lakemq.zip jobs/microbatch.py --path data/mq

drains `inbox`, publishes what a source of Structured Streaming has by now, decides what waits in the mailbox, projects,
and ends. Run by a scheduler as often as wished: whatever was killed is taken up by the next run, and nothing is
published twice. Where a sequencer serves the namespace, that one decides; otherwise this job does.
"""

from __future__ import annotations

import argparse
import logging

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.publish.request import COLUMNS
from lakemq.engine.namespace.extras import needs
from lakemq.errors import NotLeader
from lakemq.jobs.entry import Counts, arguments_of, connected, parsed, run, started
from lakemq.jobs.session import spark_session

with needs("spark"):
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F

log = logging.getLogger("lakemq.microbatch")

EXAMPLES = """\
--path data/mq --conf conf/lakemq.yaml
--path data/mq --query landing --topic flights --source-format text --source-option path=landing --value value
"""


def parser() -> argparse.ArgumentParser:
    parser = arguments_of("microbatch", "Drain the inbox and a source, publish, step.", EXAMPLES)
    parser.add_argument("--create", action="store_true", help="make the namespace if it is not there")
    parser.add_argument("--master", help="where Spark runs, if spark-submit does not say")
    parser.add_argument("--no-inbox", action="store_true", help="leave the inbox alone")
    source = parser.add_argument_group("source", "what Structured Streaming can read; --topic and --query go with it")
    source.add_argument("--source-format", metavar="FORMAT", help="json, csv, parquet, delta, kafka, ...")
    source.add_argument("--source-option", metavar="KEY=VALUE", action="append", default=[], help="path=..., ...")
    source.add_argument("--source-schema", metavar="DDL", help="columns of files, as in 'id int, name string'")
    source.add_argument("--query", help="name of the stream, for ever: its batches are numbered under it")
    source.add_argument("--checkpoint", help="where Structured Streaming keeps its notes (else a scratch folder)")
    source.add_argument("--topic", help="topic or destination to publish to")
    for name in COLUMNS:
        source.add_argument(f"--{name}", metavar="EXPRESSION", help=f"the {name}, as a SQL expression of the source")
    return parser


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The arguments; ends with a usage message where they do not go together."""
    made = parser()
    given = parsed(made, arguments)
    if given.source_format is None:
        lonely = [n for n in ("query", "topic", "checkpoint", "source_schema", *COLUMNS) if getattr(given, n)]
        if lonely or given.source_option:
            made.error("--source-format is missing")
    elif not (given.query and given.topic):
        made.error("--source-format needs --query and --topic")
    if bad := [pair for pair in given.source_option if "=" not in pair]:
        made.error(f"--source-option is written KEY=VALUE, found {bad[0]!r}")
    options = dict(pair.split("=", 1) for pair in given.source_option)
    if len(options) < len(given.source_option):
        made.error("a --source-option stands twice")
    given.source_options = options
    return given


def open_source(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """The streaming DataFrame the arguments describe."""
    reader = spark.readStream.format(given.source_format).options(**given.source_options)
    return (reader.schema(given.source_schema) if given.source_schema else reader).load()


def micro_batch(mq: Connection, spark: SparkSession, given: argparse.Namespace) -> Counts:
    """One micro-batch; what was published of the inbox and of the source, and the letters decided besides."""
    counts: dict[str, int] = {}
    with mq.serving():
        if not given.no_inbox:
            drained = mq.drain_inbox()
            counts |= {"inbox_records": drained.record_count, "inbox_refused": drained.refused_count}
        if given.source_format:
            columns = {name: F.expr(text) for name in COLUMNS if (text := getattr(given, name))}
            source = open_source(spark, given)
            done = mq.publish_stream(given.topic, source, query=given.query, checkpoint=given.checkpoint, **columns)
            counts |= {"batches": done.batch_count, "records": done.record_count, "refused": done.refused_count}
    try:
        counts["letters"] = mq.step_until_idle()
    except NotLeader as leader:
        log.info("the mailbox is left to the sequencer that serves: %s", leader)
    return counts | {"step": mq.state().step}


def _quiet(spark: SparkSession) -> None:
    """What goes wrong is said once, in a line; Spark would log the stack trace of every batch and column first."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    log4j = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    streaming = "org.apache.spark.sql.execution.streaming.runtime"
    for name, level in (("MicroBatchExecution", "OFF"), ("ResolveWriteToStream", "ERROR")):
        log4j.core.config.Configurator.setLevel(f"{streaming}.{name}", log4j.Level.valueOf(level))


def main(arguments: list[str] | None = None) -> int:
    given = parse(arguments)

    def job() -> Counts:
        spark = spark_session("lakemq microbatch", given.master)
        _quiet(spark)
        with connected(given, spark, given.create) as mq:
            return micro_batch(mq, spark, given)

    return run("microbatch", given, job)


if __name__ == "__main__":
    started(main)
