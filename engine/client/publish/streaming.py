"""Publishing the rows of a streaming source: each batch exactly once under its number, also if the job is killed."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from lakemq.tables.specs.applications import APPLICATIONS
from lakemq.tables.storage.files import LocalFiles, open_files

from ...namespace import crash
from ...namespace.namespace import Namespace
from ...protocol.errors import IllegalState, InvalidRequest
from ...protocol.names import is_name
from .checkpoint_copy import CheckpointCopy
from .receipts import PublishedRows

log = logging.getLogger("lakemq.stream")


@dataclass(frozen=True)
class StreamReport:
    """The result of one run. Batches that an earlier, killed run has published count in batch_count only."""

    batch_count: int
    record_count: int
    refused_count: int


def publish_available(
    namespace: Namespace,
    stream: DataFrame,
    query: str,
    target: str,
    publish: Callable[[DataFrame, int], PublishedRows],
    checkpoint: str | None = None,
    reached: crash.Reached = crash.nowhere,
) -> StreamReport:
    """Publish all rows that the source of `stream` has now. Block until that is done.

    stream: a streaming DataFrame without state; query: its permanent name, under which its batches are numbered;
    publish: of a batch and its number, which must be idempotent by that number; checkpoint: where Structured Streaming
    keeps its notes (a scratch folder if not given; the namespace keeps a copy of its own).
    Raises IllegalState (its notes are gone; run twice at once), InvalidRequest, and what `publish` raises.
    """
    if not is_name(query) or query.startswith("."):
        raise InvalidRequest("The name of the query is not valid.", found=query, expected="a name like a topic's")
    if not stream.isStreaming:
        raise InvalidRequest("This DataFrame is not streaming. Publish it with mq.publish.")
    with ExitStack() as stack:
        if checkpoint is None:
            checkpoint = stack.enter_context(tempfile.TemporaryDirectory(prefix="lakemq-stream-"))
        files = open_files(checkpoint, namespace.storage_options)
        progress = CheckpointCopy(namespace.files, query, files)
        if not progress.restore():
            _check_nothing_published(namespace, query, target)
        run = _QueryRun(query, progress, publish, reached)
        run.run(stream, f"file://{files.root}" if isinstance(files, LocalFiles) else files.root)
        return StreamReport(run.batch_count, run.record_count, run.refused_count)


class _QueryRun:
    """A run of a query, with the sums of its batches."""

    def __init__(
        self,
        query: str,
        progress: CheckpointCopy,
        publish: Callable[[DataFrame, int], PublishedRows],
        reached: crash.Reached,
    ) -> None:
        self._query, self._progress, self._publish, self._reached = query, progress, publish, reached
        self._failure: Exception | None = None
        self.batch_count = self.record_count = self.refused_count = 0

    def run(self, stream: DataFrame, checkpoint_uri: str) -> None:
        writer = stream.writeStream.queryName(self._query).option("checkpointLocation", checkpoint_uri)
        try:
            writer.trigger(availableNow=True).foreachBatch(self._publish_batch).start().awaitTermination()
        except PySparkException:
            # what went wrong in a batch comes back as the text of a stack trace
            if self._failure is not None:
                raise self._failure from None
            raise
        self._progress.save(-1)
        self._progress.prune()

    def _publish_batch(self, batch: DataFrame, batch_id: int) -> None:
        try:
            self._progress.save(batch_id)
            self._reached("stream.progress_saved")
            done = self._publish(batch, batch_id)
            self._reached("stream.published")
        except Exception as failure:
            self._failure = failure
            raise
        fields = {"query": self._query, "batch": batch_id, "records": done.record_count, "refused": done.refused_count}
        log.info("batch %d of %s: %d published", batch_id, self._query, done.record_count, extra=fields)
        self.batch_count += 1
        self.record_count += done.record_count
        self.refused_count += done.refused_count


def _check_nothing_published(namespace: Namespace, query: str, target: str) -> None:
    of_query = (pc.field("txn_app_id") == query) & (pc.field("target") == target)
    versions = namespace.store.open(APPLICATIONS).read(["version"], where=of_query)
    if versions.num_rows:
        raise IllegalState(
            f"The checkpoint of stream {query} is lost: its batches would be numbered from 0 again and skipped."
            " Give the query another name to publish all of its source again.",
            found=f"batch {pc.max(versions.column('version')).as_py()} published to {target}",
        )
