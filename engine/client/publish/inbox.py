"""Draining `inbox`: rows that SQL inserted are published exactly once.

The commits of the table are the identity of its rows: a batch is what the commits after the last drained one inserted,
and its last commit is the application version of the publish. Publishing and noting progress are therefore one
commit, that of the step; a batch that does not follow the last one is refused, so that two drains at once cannot
overlap. The rows themselves are removed from the table afterwards, for room only.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from lakemq.tables.specs.messages import INBOX
from lakemq.tables.storage.delta.catalog import columns_ddl
from lakemq.tables.storage.delta.commits import CommitConflict
from lakemq.tables.storage.delta.leftovers import Leftovers
from lakemq.tables.storage.delta.store import Insertion, NotATable, TableHandle, read_insertion

from ...namespace import crash
from ...namespace.namespace import Namespace
from ...protocol.errors import IllegalState, NamespaceError, StaleApplicationVersion
from ...protocol.values.log import ApplicationVersion
from .arrow import find_last_version
from .spark import SparkPublisher

log = logging.getLogger("lakemq.inbox")

APP_ID = "inbox"
MAX_BATCH_BYTES = 1 << 30


@dataclass(frozen=True)
class DrainReport:
    """Rows published and rows rejected, of all batches of one drain."""

    record_count: int = 0
    rejected_count: int = 0


@dataclass(frozen=True)
class InboxBatch:
    """The files inserted by commits `after` < commit <= `version`."""

    after: int
    version: int
    files: tuple[str, ...]


class Inbox:
    """Drains the inbox of a namespace, batch by batch."""

    def __init__(
        self,
        namespace: Namespace,
        publisher: SparkPublisher,
        spark: SparkSession,
        crash_point: crash.CrashPoint = crash.nowhere,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        self._ns, self._publisher, self._spark, self._crash_point = namespace, publisher, spark, crash_point
        self._max_batch_bytes = max_batch_bytes

    def drain(self) -> DrainReport:
        """Publish all that was inserted by now. Raises IllegalState, NamespaceError: table or log are not whole."""
        try:
            handle = self._ns.store.open(INBOX)
        except NotATable as error:
            raise NamespaceError(f"The inbox cannot be read: {error}") from None
        after, total = self._drained_version(handle.table_id), DrainReport()
        while batch := self._next_batch(after, handle.version):
            try:
                done = self._publish(batch, handle.table_id)
            except StaleApplicationVersion as stale:
                log.info("drained further than the tables say yet: %s", stale)
                after = int(stale.found)
                continue
            after = batch.version
            fields = {"batch": after, "records": done.record_count, "rejected": done.rejected_count}
            log.info("inbox up to commit %d: %d published", after, done.record_count, extra=fields)
            total = DrainReport(total.record_count + done.record_count, total.rejected_count + done.rejected_count)
        self._crash_point("inbox.drained")
        if after >= handle.version:
            self._delete_drained_rows(handle)
        return total

    def _drained_version(self, table_id: str) -> int:
        """Return the last drained version, from the tables and the newer steps."""
        return find_last_version(self._ns.store, self._publisher.state(), APP_ID, table_id)

    def _next_batch(self, after: int, newest: int) -> InboxBatch | None:
        """Return the next commits that inserted rows, up to the allowed size; None if there are none."""
        files: list[str] = []
        size_bytes, version = 0, after
        for insertion_ in self._insertions(after, newest):
            if files and size_bytes + insertion_.size_bytes > self._max_batch_bytes:
                break
            files += insertion_.files
            size_bytes, version = size_bytes + insertion_.size_bytes, insertion_.version
        return InboxBatch(after, version, tuple(files)) if files else None

    def _insertions(self, after: int, newest: int) -> Iterator[Insertion]:
        for version in range(after + 1, newest + 1):
            try:
                yield read_insertion(self._ns.files, INBOX, version)
            except FileNotFoundError:
                raise IllegalState(
                    "The log of the inbox was cleaned of commits that are not drained.",
                    found=f"no commit {version}",
                    expected=f"all after {after}",
                ) from None

    def _publish(self, batch: InboxBatch, table_id: str) -> DrainReport:
        rows = self._read(batch)
        names = sorted(row.topic for row in rows.select("topic").distinct().collect() if row.topic is not None)
        application = ApplicationVersion(APP_ID, batch.version, table_id, follows=batch.after)
        published = self._publisher.publish_by_topic(rows, names, INBOX.name, application)
        self._crash_point("inbox.published")
        return DrainReport(published.record_count, published.rejected_count)

    def _read(self, batch: InboxBatch) -> DataFrame:
        paths = [self._ns.files.uri(name) for name in batch.files]
        return self._spark.read.schema(columns_ddl(INBOX.stored_schema)).parquet(*paths)

    def _delete_drained_rows(self, handle: TableHandle) -> None:
        """Remove all rows, which are drained at the handle's version, and now and then leftovers of older ones."""
        files = handle.files()
        if not files:
            return
        leftovers = Leftovers(self._ns.files)
        if handle.version - handle.log.checkpointed_version() >= self._ns.config.number("checkpoint.interval"):
            # at a drained version: no commit after it is ever forgotten by cleaning the log
            handle.checkpoint()
            handle.expire_log()
            leftovers.delete(INBOX.name, self._ns.config.ms("publish.max.duration.ms"), handle.open_newest)
        leftovers.announce(INBOX.name, [file.path for file in files])
        try:
            handle.replace_at(handle.version, [], files)
        except CommitConflict:
            log.info("rows came in meanwhile; the drained ones go with the next drain")
