"""Publish what a source of Structured Streaming has now: each batch once, and every row.

A stream is identified by its checkpoint, as in the sink of `format("lakemq")`: batch n is published as version n of the
id in the checkpoint. So a killed run is continued, and a lost checkpoint publishes the source again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.format.publishing import read_stream_id
from lakemq.engine.client.rows.receipts import PublishedRows
from lakemq.engine.namespace import crash
from lakemq.errors import IllegalState
from lakemq.tables.storage.object_stores.files import LocalFiles, open_files

log = logging.getLogger("lakemq.stream")

Publish: TypeAlias = Callable[[DataFrame, str, int], PublishedRows]
"""Publishes a batch as this version of this id."""


def prepare_session(spark: SparkSession) -> None:
    """Silence Spark's logs of stack traces per batch: the job reports an error in one line.

    Raises IllegalState: it is a session of Spark Connect.
    """
    if not hasattr(spark, "_jvm"):
        expected = "a classic session: no SPARK_REMOTE, no spark.api.mode"
        raise IllegalState("The job publishes in foreachBatch.", found="Spark Connect", expected=expected)
    log4j = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    for name, level in (
        ("execution.streaming.runtime.MicroBatchExecution", "OFF"),
        ("execution.streaming.runtime.ResolveWriteToStream", "ERROR"),
        ("kafka010.KafkaOffsetReaderAdmin", "ERROR"),
    ):
        log4j.core.config.Configurator.setLevel(f"org.apache.spark.sql.{name}", log4j.Level.valueOf(level))


@dataclass
class SourceStream:
    """A run of a stream. The counts are those of this run.

    record_count and rejected_count leave out batches that an earlier, killed run has published.
    """

    mq: Connection
    query: str
    publish: Publish
    checkpoint: str
    crash_point: crash.CrashPoint
    batch_count: int = 0
    record_count: int = 0
    rejected_count: int = 0
    failure: Exception | None = None

    def publish_available(self, source: DataFrame) -> None:
        """Publish all rows that the source has now. Block until that is done.

        A batch ends with the error of its publish, and is tried again by the next run.

        Raises:
            InvalidConfig: the checkpoint cannot be read.
            LakeMQError: the same errors as `publish`.
        """
        files = open_files(self.checkpoint, self.mq.namespace.storage_options)
        uri = f"file://{files.root}" if isinstance(files, LocalFiles) else files.root
        writer = source.writeStream.queryName(self.query).option("checkpointLocation", uri).trigger(availableNow=True)
        try:
            writer.foreachBatch(self._publish_batch).start().awaitTermination()
        except PySparkException:
            # Spark returns the error of a batch as the text of a stack trace
            if self.failure is not None:
                raise self.failure from None
            raise

    def _publish_batch(self, batch: DataFrame, number: int) -> None:
        try:
            stream_id = read_stream_id(self.checkpoint, self.mq.namespace.storage_options)
            done = self.publish(batch, stream_id, number)
            self.crash_point("stream.published")
        except Exception as failure:
            self.failure = failure
            raise
        fields = {"query": self.query, "batch": number, "records": done.record_count, "rejected": done.rejected_count}
        log.info("batch %d of %s: %d published", number, self.query, done.record_count, extra=fields)
        self.batch_count += 1
        self.record_count += done.record_count
        self.rejected_count += done.rejected_count
