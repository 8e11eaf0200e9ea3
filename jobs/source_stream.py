"""Publish what a source of Structured Streaming has now: each batch once, and every row.

A stream is identified by its checkpoint, as in the sink of `format("lakemq")`: batch n is published as version n of the
id in the checkpoint. So a killed run is continued, and a lost checkpoint publishes the source again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.format.publishing import read_stream_id
from lakemq.engine.namespace import crash
from lakemq.tables.storage.object_stores.files import LocalFiles, open_files

log = logging.getLogger("lakemq.stream")


@dataclass
class SourceStream:
    """A run of a stream. The counts are those of this run.

    record_count and rejected_count leave out batches that an earlier, killed run has published.
    """

    mq: Connection
    query: str
    topic: str
    columns: Mapping[str, Any]
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
        self.mq.spark_publisher().check(self.topic, source, self.columns)
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
            done = self.mq.publish(self.topic, batch, txn_app_id=stream_id, txn_version=number, **self.columns)
            self.crash_point("stream.published")
        except Exception as failure:
            self.failure = failure
            raise
        fields = {"query": self.query, "batch": number, "records": done.record_count, "rejected": done.rejected_count}
        log.info("batch %d of %s: %d published", number, self.query, done.record_count, extra=fields)
        self.batch_count += 1
        self.record_count += done.record_count
        self.rejected_count += done.rejected_count
