"""A stream of micro-batches that a group works on: each process that runs one is a member."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from ...namespace.clock import Clock
from ...protocol.errors import (
    FencedMemberEpoch,
    IllegalGeneration,
    InvalidRecordState,
    RebalanceInProgress,
    TransactionAbortable,
    UnknownMemberId,
)
from ..arguments import flag, refused, text, whole_number
from ..transactions.scope import TransactionScope
from .batch import ConsumerBatch
from .group_consumer import GroupConsumer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("lakemq.consumer")

_WAIT_MS = 500

_TAKEN = (
    FencedMemberEpoch,
    IllegalGeneration,
    InvalidRecordState,
    RebalanceInProgress,
    TransactionAbortable,
    UnknownMemberId,
)
"""What a batch ends with of which something is another member's by then."""


class GroupStream:
    """Made by `mq.stream`. How far the group has come is in its own tables: there is no checkpoint."""

    def __init__(
        self,
        consumer: Callable[[], GroupConsumer],
        transaction: Callable[[str], TransactionScope],
        clock: Clock,
        has_spark: bool,
    ) -> None:
        """consumer: joins the group; has_spark: rows are DataFrames, otherwise tables of Arrow."""
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
        """Call the function with the rows of one batch after the other, until `stop`; returns how many rows there were.

        When it returns, the batch is done with, but for what was given to another member meanwhile, to whom that comes
        again; when it raises, this ends with that, and the batch is another member's. With a transactional id it is
        called with (rows, transaction), and the batch is done with by the commit of that transaction, together with all
        that was published in it; if a part of it was given to another member meanwhile, nothing of it is, and what is
        left comes again.

        transactional_id: each process that runs at the same time needs its own; max_records: of a batch; every_ms: the
        least time from one batch to the next; available_now: end when nothing is left of its partitions. Raises what
        joining and the function raise.
        """
        if not callable(function):
            raise refused("function", function, "a function of the rows of a batch")
        name = None if transactional_id is None else text("transactional_id", transactional_id)
        max_records, every_ms = whole_number("max_records", max_records, 1), whole_number("every_ms", every_ms, 0)
        available_now, count = flag("available_now", available_now), 0
        if name is not None:
            self._transaction(name)  # taken before the offsets are looked up: no predecessor may commit any more
        with self._consumer() as consumer:
            while not self._stopped.is_set():
                batch = consumer.poll(max_records, timeout_ms=_WAIT_MS)
                if batch:
                    began_ms = self._clock.steady_ms()
                    count += self._done(consumer, batch, function, name)
                    self._stopped.wait(max(0, began_ms + every_ms - self._clock.steady_ms()) / 1000)
                elif available_now and self._is_done(consumer):
                    break
        return count

    def _is_done(self, consumer: GroupConsumer) -> bool:
        """Before it was given partitions it knows nothing of what is left; it may be one too many, and have none."""
        knows = bool(consumer.assignment()) or not consumer.may_get_some()
        return knows and not any(consumer.lag().values())

    def stop(self) -> None:
        """End after the batch that is being worked on."""
        self._stopped.set()

    def _done(
        self, consumer: GroupConsumer, batch: ConsumerBatch, function: Callable[..., object], name: str | None
    ) -> int:
        """How many rows the function has worked on, and that count."""
        if name is None:
            function(self._rows(batch))
            try:
                consumer.commit(batch)
            except _TAKEN as error:  # the rest is noted
                log.warning("A part of a batch comes again, to the member that has it now: %s", error)
            return batch.record_count
        try:
            with self._transaction(name) as txn:
                function(self._rows(batch), txn)
                txn.send_offsets(batch)
        except _TAKEN as error:
            if consumer.go_back(batch):
                raise  # nobody has taken anything: it would fail again
            log.warning("A batch is not done with, for a part of it is another member's: %s", error)
            return 0
        return batch.record_count

    def _rows(self, batch: ConsumerBatch) -> DataFrame | pa.Table:
        return batch.to_spark() if self._has_spark else batch.to_arrow()
