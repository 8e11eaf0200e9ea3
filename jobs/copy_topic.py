"""Consume, transform, produce: copy a topic into another, exactly once. A job to start from.

    spark-submit --properties-file conf/spark-defaults.conf --py-files dist/lakemq.zip jobs/copy_topic.py \\
        --path data/mq --from flights --to alerts --where "get_json_object(cast(value AS string), '$.arr_delay') > 60"

Each micro-batch is one transaction: what it publishes and how far the group has read are committed together. Killed
anywhere, the next run goes on where the last commit was; of two that run at once, the older one is fenced. With --group
as many as name the group share the partitions instead, and what one of them leaves the others take over.
"""

from __future__ import annotations

import argparse
import logging
import uuid
from contextlib import suppress
from threading import Event, Thread

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.batch import ConsumerBatch
from lakemq.engine.client.consume.consumer import Consumer
from lakemq.engine.client.transactions.scope import TransactionScope
from lakemq.engine.namespace.extras import needs
from lakemq.errors import GroupIdNotFound, InvalidRequest
from lakemq.jobs.entry import Counts, arguments_of, connected, parsed, run, started, whole
from lakemq.jobs.serve import stopping_signals
from lakemq.jobs.session import spark_session

with needs("spark"):
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

log = logging.getLogger("lakemq.copy")

FOLLOW_WAIT_MS = 1_000
HOUR_MS = 3_600_000


EXAMPLES = """\
--path data/mq --conf conf/lakemq.yaml --from flights --to alerts
--path data/mq --from flights --to alerts --group copies --follow
"""


def parser() -> argparse.ArgumentParser:
    parser = arguments_of("copy_topic", "Copy a topic into another, exactly once.", EXAMPLES)
    parser.add_argument("--master", help="where Spark runs, if spark-submit does not say")
    parser.add_argument("--from", dest="source", required=True, metavar="TOPIC", help="topic to read")
    parser.add_argument("--to", dest="target", required=True, metavar="TOPIC", help="topic to write")
    parser.add_argument("--where", metavar="CONDITION", default="true", help="SQL: which messages are copied")
    parser.add_argument("--key", metavar="EXPRESSION", default="key", help="SQL: the key of a copy")
    parser.add_argument("--value", metavar="EXPRESSION", default="value", help="SQL: the value of a copy")
    parser.add_argument("--id", metavar="NAME", help="transactional id and group (copy-FROM-TO)")
    parser.add_argument("--group", metavar="NAME", help="share the work with all copies that name the same group")
    parser.add_argument("--max-records", type=whole, default=1_000_000, metavar="N", help="most messages of a batch")
    parser.add_argument("--follow", action="store_true", help="wait for more messages instead of ending")
    return parser


def copy(mq: Connection, given: argparse.Namespace, stop: Event) -> int:
    """Copy batch after batch, until all is or it is told to stop; returns the number of messages read.

    Raises ProducerFenced: another copy has started.
    """
    if given.group:
        return share(mq, given, stop)
    name, read, number = given.id or f"copy-{given.source}-{given.target}", 0, 1
    mq.transaction(name)  # takes the id before the offsets are looked up: no predecessor may commit any more
    _keep_offsets(mq, name)
    with mq.consumer(name, assign=[given.source]) as consumer:
        while not stop.is_set() and (batch := _next(consumer, given, stop)):
            with mq.transaction(name) as txn:
                publish_copy(txn, batch.to_spark(), given)
                txn.send_offsets(batch)
            read += batch.record_count
            told = {"batch": number, "records": batch.record_count, "step": mq.state().step}
            log.info("%d read, %d to go", batch.record_count, sum(consumer.lag().values()), extra=told)
            number += 1
    return read


def share(mq: Connection, given: argparse.Namespace, stop: Event) -> int:
    """Copy what the group gives to this process; returns the number of messages read.

    Its transactional id is its own: what fences a copy that has lost its partitions is the group.
    """
    _keep_offsets(mq, given.group)
    stream = mq.stream(given.group, topics=[given.source], auto_offset_reset="earliest", max_poll_interval_ms=HOUR_MS)

    def copied(rows: DataFrame, txn: TransactionScope) -> None:
        publish_copy(txn, rows, given)

    def follow_stop() -> None:
        stop.wait()
        stream.stop()

    Thread(target=follow_stop, name="lakemq-stop", daemon=True).start()
    return stream.foreach_batch(
        copied,
        transactional_id=f"{given.id or given.group}-{uuid.uuid4().hex}",
        max_records=given.max_records,
        available_now=not given.follow,
    )


def publish_copy(txn: TransactionScope, rows: DataFrame, given: argparse.Namespace) -> None:
    """As a part of the transaction, in order."""
    txn.publish(
        given.target,
        transformed(rows, given.where),
        key=F.expr(given.key),
        value=F.expr(given.value),
        order_by=["source_partition", "offset"],
    )


def _keep_offsets(mq: Connection, group: str) -> None:
    """However seldom the job runs, it goes on where it was: what is forgotten would be copied again."""
    keeps = {"offsets.retention.ms": -1}
    try:
        mq.groups.alter(group, keeps)
    except GroupIdNotFound:
        with suppress(InvalidRequest):  # another copy has just made it
            # a batch is one thing, done with or not
            mq.groups.create(group, {**keeps, "group.protocol": "cooperative"})


def _next(consumer: Consumer, given: argparse.Namespace, stop: Event) -> ConsumerBatch | None:
    """The next batch that is not empty; None when there is none and nobody wants to wait."""
    while not stop.is_set():
        batch = consumer.poll(given.max_records, FOLLOW_WAIT_MS if given.follow else 0)
        if batch:
            return batch
        if not given.follow and not any(consumer.lag().values()):
            break
    return None


def transformed(rows: DataFrame, where: str) -> DataFrame:
    """The messages to copy: key, value, headers, timestamp; source_partition and offset to keep their order."""
    # a column `partition` would ask for the same partition of the target
    return rows.withColumnRenamed("partition", "source_partition").where(where)


def main(arguments: list[str] | None = None) -> int:
    given = parsed(parser(), arguments)

    def job() -> Counts:
        spark = spark_session("lakemq copy_topic", given.master)
        with stopping_signals() as stop, connected(given, spark) as mq, mq.serving():
            return {"records": copy(mq, given, stop), "step": mq.state().step}

    return run("copy_topic", given, job)


if __name__ == "__main__":
    started(main)
