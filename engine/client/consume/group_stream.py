"""A stream of micro-batches that a group works on. Each process that runs one is a member of the group."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from ...namespace.clock import Clock
from ...namespace.process import ProcessBound
from ...protocol.errors import (
    FencedMemberEpoch,
    IllegalGeneration,
    InvalidRecordState,
    RebalanceInProgress,
    TransactionAbortable,
    UnknownMemberId,
)
from ..arguments import invalid_argument, parse_flag, parse_text, parse_whole_number
from ..transactions.scope import TransactionScope
from .batch import ConsumerBatch
from .group_consumer import MemberConsumer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("lakemq.consumer")

_WAIT_MS = 500

_MOVED_ERRORS = (
    FencedMemberEpoch,
    IllegalGeneration,
    InvalidRecordState,
    RebalanceInProgress,
    TransactionAbortable,
    UnknownMemberId,
)
"""Errors that mean part of the batch now belongs to another member."""


class GroupStream(ProcessBound):
    """Made by `mq.stream`. The group's committed offsets say how far it has come; there is no checkpoint."""

    def __init__(
        self,
        consumer: Callable[[], MemberConsumer],
        transaction: Callable[[str], TransactionScope],
        clock: Clock,
        has_spark: bool,
    ) -> None:
        """consumer: joins the group; has_spark: batches are DataFrames, else Arrow tables."""
        self._consumer, self._transaction, self._clock, self._has_spark = consumer, transaction, clock, has_spark
        self._stopped = threading.Event()

    def foreach_batch(
        self,
        function: Callable[..., object],
        *,
        transactional_id: str | None = None,
        max_records: int = 1_000_000,
        every_ms: int = 0,
        available_now: bool = False,
    ) -> int:
        """Call the function with the rows of one batch after the other, until `stop`.

        When the function returns, the batch is committed. If some of its partitions have moved to other members
        meanwhile, those read that part again. When the function raises, this method raises the same, and another
        member reads the batch again.

        With a transactional id the function is called with (rows, transaction). The commit of the transaction commits
        the batch together with all that the function published in it. If a part of the batch has moved to another
        member meanwhile, none of it is committed, and the rest is read again.

        Args:
            function: works on the rows: a DataFrame if there is a Spark session, else an Arrow table.
            transactional_id: each process that runs at the same time needs its own.
            max_records: the most rows of a batch.
            every_ms: the least time from one batch to the next.
            available_now: end when the group has read all that was there at first, as `until_end` of a consumer does.

        Returns:
            The number of rows.

        Raises:
            EndNotReached: as `until_end` of a consumer does.
            Exception: an error of joining the group, or of the function.
        """
        if not callable(function):
            raise invalid_argument("function", function, "a function of the rows of a batch")
        name = None if transactional_id is None else parse_text("transactional_id", transactional_id)
        max_records, every_ms = (
            parse_whole_number("max_records", max_records, 1),
            parse_whole_number("every_ms", every_ms, 0),
        )
        available_now, count = parse_flag("available_now", available_now), 0
        if name is not None:
            # Fence the predecessor before the offsets are read, so that it cannot commit any more.
            self._transaction(name)
        with self._consumer() as consumer:
            for batch in self._poll_batches(consumer, max_records, available_now):
                began_ms = self._clock.steady_ms()
                count += self._process(consumer, batch, function, name)
                self._stopped.wait(max(0, began_ms + every_ms - self._clock.steady_ms()) / 1000)
        return count

    def _poll_batches(self, consumer: MemberConsumer, max_records: int, available_now: bool) -> Iterator[ConsumerBatch]:
        """Yield batches until `stop`, or until the group has read what was there at first."""
        if available_now:
            yield from consumer.until_end(max_records, stopped=self._stopped.is_set)
            return
        while not self._stopped.is_set():
            if batch := consumer._poll(max_records, _WAIT_MS):  # it looks for `stop` between its polls
                yield batch

    def stop(self) -> None:
        """End after the batch that the function is working on. Any thread may call this."""
        self._stopped.set()

    def _process(
        self, consumer: MemberConsumer, batch: ConsumerBatch, function: Callable[..., object], name: str | None
    ) -> int:
        """Process and commit a batch; return the number of rows that count as processed."""
        if name is None:
            function(self._to_rows(batch))
            try:
                consumer.commit(batch)
            except _MOVED_ERRORS as error:  # the offsets of all other partitions are committed
                log.warning("Part of a batch is read again by the member that has its partitions now: %s", error)
            return batch.record_count
        try:
            with self._transaction(name) as txn:
                function(self._to_rows(batch), txn)
                txn.send_offsets(batch)
        except _MOVED_ERRORS as error:
            if consumer.go_back(batch):
                raise  # no partition has moved, so the next attempt would fail for the same reason
            log.warning("A batch was not committed, because part of it belongs to another member: %s", error)
            return 0
        return batch.record_count

    def _to_rows(self, batch: ConsumerBatch) -> DataFrame | pa.Table:
        return batch.to_spark() if self._has_spark else batch.to_arrow()
