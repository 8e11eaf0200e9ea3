"""Consume, transform, produce: copy a topic into another, exactly once. A job to start from.

    spark-submit --properties-file conf/spark-defaults.conf --py-files dist/lakemq.zip jobs/copy_topic.py \\
        --path data/mq --from flights --to alerts --where "get_json_object(cast(value AS string), '$.arr_delay') > 60"

Each micro-batch is one transaction, which commits the copies and the offsets of the group together. After a kill, the
next run continues after the last commit. If two run at once, the older one is fenced. With --group, all copies that
name the same group share the partitions, and take over from each other.
"""

from __future__ import annotations

import argparse
import uuid
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.transactions.scope import TransactionScope
from lakemq.engine.namespace.extras import needs
from lakemq.errors import GroupIdNotFound, InvalidRequest
from lakemq.jobs import entry
from lakemq.jobs.serve import catch_stop_signals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOUR_MS = 3_600_000


EXAMPLES = """\
--path data/mq --conf conf/lakemq.yaml --from flights --to alerts
--path data/mq --from flights --to alerts --group copies --follow
"""


def parser() -> argparse.ArgumentParser:
    parser = entry.make_job_parser("copy_topic", "Copy a topic into another, exactly once.", EXAMPLES, needs_spark=True)
    parser.add_argument("--master", help="Spark's master, unless spark-submit sets it")
    parser.add_argument("--from", dest="source", required=True, metavar="TOPIC", help="topic to read")
    parser.add_argument("--to", dest="target", required=True, metavar="TOPIC", help="topic to write")
    parser.add_argument("--where", metavar="CONDITION", default="true", help="SQL: copy messages for which it holds")
    parser.add_argument("--key", metavar="EXPRESSION", default="key", help="SQL: the key of a copy")
    parser.add_argument("--value", metavar="EXPRESSION", default="value", help="SQL: the value of a copy")
    parser.add_argument("--id", metavar="NAME", help="transactional id and group (copy-FROM-TO)")
    parser.add_argument("--group", metavar="NAME", help="share the work with all copies of the same group")
    parser.add_argument(
        "--max-records", type=entry.whole_number, default=1_000_000, metavar="N", help="most messages of a batch"
    )
    parser.add_argument("--follow", action="store_true", help="wait for more messages instead of ending")
    return parser


def copy(mq: Connection, options: argparse.Namespace, stop: Event) -> int:
    """Copy batch after batch until all messages are copied or `stop` is set. Returns the number of messages read.

    Without --group, the copy fences an earlier one that has not ended. With it, each process has a transactional id of
    its own, and the group's generation fences one that has lost its partitions.

    Raises ProducerFenced: another copy has started.
    """
    name = options.id or f"copy-{options.source}-{options.target}"
    group = options.group or name
    _keep_offsets(mq, group)
    stream = mq.stream(group, topics=[options.source], auto_offset_reset="earliest", max_poll_interval_ms=HOUR_MS)

    def copy_rows(rows: DataFrame, txn: TransactionScope) -> None:
        publish_copy(txn, rows, options)

    def follow_stop() -> None:
        stop.wait()
        stream.stop()

    Thread(target=follow_stop, name="lakemq-stop", daemon=True).start()
    return stream.foreach_batch(
        copy_rows,
        transactional_id=f"{options.id or group}-{uuid.uuid4().hex}" if options.group else name,
        max_records=options.max_records,
        available_now=not options.follow,
    )


def publish_copy(txn: TransactionScope, rows: DataFrame, options: argparse.Namespace) -> None:
    """Publish the copies of the rows in order, as part of the transaction."""
    from pyspark.sql import functions as F

    txn.publish(
        options.target,
        select_messages(rows, options.where),
        key=F.expr(options.key),
        value=F.expr(options.value),
        order_by=["source_partition", "offset"],
    )


def _keep_offsets(mq: Connection, group: str) -> None:
    """Keep the group's offsets forever: a job that runs rarely would copy messages again if they expired."""
    keeps = {"offsets.retention.ms": -1}
    try:
        mq.groups.alter(group, keeps)
    except GroupIdNotFound:
        with suppress(InvalidRequest):  # another copy has just created it
            # not a queue group: a batch is acknowledged as a whole
            mq.groups.create(group, {**keeps, "group.protocol": "cooperative"})


def select_messages(rows: DataFrame, where: str) -> DataFrame:
    """Return the messages to copy, with source_partition and offset, which keep their order."""
    # publishing would use a column `partition` as the target's partition
    return rows.withColumnRenamed("partition", "source_partition").where(where)


def main(arguments: list[str] | None = None) -> int:
    options = entry.parse_arguments(parser(), arguments)

    def job() -> entry.Counts:
        with needs("spark"):  # not at the top: if the extra is missing, the job must report that in its last line
            from lakemq.jobs.session import spark_session
        spark = spark_session("lakemq copy_topic", options.master)
        with catch_stop_signals() as stop, entry.connect_namespace(options, spark) as mq, mq.serving():
            return {"records": copy(mq, options, stop), "step": mq.state().step}

    return entry.run("copy_topic", options, job)


if __name__ == "__main__":
    entry.run_as_script(main)
