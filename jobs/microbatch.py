"""The default job: one micro-batch of everything that waits.

    spark-submit --properties-file conf/spark-defaults.conf --py-files dist/lakemq.zip jobs/microbatch.py --path data/mq

drains `inbox`, publishes the new rows of a Structured Streaming source, decides the waiting requests, updates the
tables, and ends. A scheduler may run it as often as you like. After a kill, the next run continues, and nothing is
published twice. If a sequencer serves the namespace, it decides; otherwise this job does.
"""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING, Any

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.rows.input_rows import COLUMNS
from lakemq.engine.namespace import crash
from lakemq.engine.namespace.extras import needs
from lakemq.errors import NotLeader
from lakemq.jobs.entry import Counts, connect_namespace, make_job_parser, parse_arguments, run, run_as_script

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakemq.engine.client.rows.receipts import PublishedRows

log = logging.getLogger("lakemq.microbatch")

EXAMPLES = """\
--path data/mq --conf conf/lakemq.yaml
--path data/mq --query landing --topic flights --source-format text --source-option path=landing --value value
"""


def parser() -> argparse.ArgumentParser:
    parser = make_job_parser("microbatch", "Drain the inbox and a source, publish, step.", EXAMPLES, needs_spark=True)
    parser.add_argument("--create", action="store_true", help="create the namespace if it does not exist")
    parser.add_argument("--master", help="Spark's master, unless spark-submit sets it")
    parser.add_argument("--no-inbox", action="store_true", help="leave the inbox alone")
    source = parser.add_argument_group("source", "a source of Structured Streaming; needs --topic and --query")
    source.add_argument("--source-format", metavar="FORMAT", help="json, csv, parquet, delta, kafka, ...")
    source.add_argument("--source-option", metavar="KEY=VALUE", action="append", default=[], help="path=..., ...")
    source.add_argument("--source-schema", metavar="DDL", help="columns of files, such as 'id int, name string'")
    source.add_argument("--query", help="permanent name of the stream")
    source.add_argument("--checkpoint", help="checkpoint of the stream (default: streams/<query> in the namespace)")
    source.add_argument("--topic", help="topic or destination to publish to")
    for name in COLUMNS:
        source.add_argument(f"--{name}", metavar="EXPRESSION", help=f"the {name}, as a SQL expression of the source")
    return parser


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the arguments. Exits with a usage message if they contradict each other."""
    made = parser()
    options = parse_arguments(made, arguments)
    if options.source_format is None:
        lonely = [n for n in ("query", "topic", "checkpoint", "source_schema", *COLUMNS) if getattr(options, n)]
        if lonely or options.source_option:
            made.error("--source-format is missing")
    elif not (options.query and options.topic):
        made.error("--source-format needs --query and --topic")
    if bad := [pair for pair in options.source_option if "=" not in pair]:
        made.error(f"--source-option is written KEY=VALUE, found {bad[0]!r}")
    source_options = dict(pair.split("=", 1) for pair in options.source_option)
    if len(source_options) < len(options.source_option):
        made.error("a --source-option occurs twice")
    options.source_options = source_options
    return options


def open_source(spark: SparkSession, options: argparse.Namespace) -> DataFrame:
    """Return the streaming DataFrame that the arguments describe."""
    reader = spark.readStream.format(options.source_format).options(**options.source_options)
    return (reader.schema(options.source_schema) if options.source_schema else reader).load()


def micro_batch(mq: Connection, spark: SparkSession, options: argparse.Namespace) -> Counts:
    """Run one micro-batch. Returns the counts of published rows of the inbox and the source, and of decided letters."""
    from pyspark.sql import functions as F

    from lakemq.engine.client.format.publishing import checkpoint_of_query
    from lakemq.jobs.source_stream import SourceStream

    def publish(batch: DataFrame, stream_id: str, number: int) -> PublishedRows:
        return mq.publish(options.topic, batch, txn_app_id=stream_id, txn_version=number, **columns)

    columns: dict[str, Any] = {name: F.expr(text) for name in COLUMNS if (text := getattr(options, name))}
    counts: dict[str, int] = {}
    with mq.serving():
        if not options.no_inbox:
            drained = mq.drain_inbox()
            counts |= {"inbox_records": drained.record_count, "inbox_rejected": drained.rejected_count}
        if options.source_format:
            source = open_source(spark, options)
            default_checkpoint = checkpoint_of_query(mq.namespace.path, options.query)
            mq.spark_publisher().check(options.topic, source, columns)
            stream = SourceStream(
                mq, options.query, publish, options.checkpoint or default_checkpoint, crash.from_environment()
            )
            stream.publish_available(source)
            counts |= {"batches": stream.batch_count, "records": stream.record_count, "rejected": stream.rejected_count}
    try:
        counts["letters"] = mq.step_until_idle()
    except NotLeader as leader:
        log.info("Another sequencer serves and decides the waiting requests: %s", leader)
    return counts | {"step": mq.state().step}


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)

    def job() -> Counts:
        with needs("spark"):  # not at the top: if the extra is missing, the job must report that in its last line
            from lakemq.jobs.session import silence_error_logs, spark_session
            from lakemq.jobs.source_stream import prepare_session
        silence_error_logs()
        spark = spark_session("lakemq microbatch", options.master)
        prepare_session(spark)
        with connect_namespace(options, spark, options.create) as mq:
            return micro_batch(mq, spark, options)

    return run("microbatch", options, job)


if __name__ == "__main__":
    run_as_script(main)
