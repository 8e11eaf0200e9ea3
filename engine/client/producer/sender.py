"""The sending thread of a producer: it takes batches out of the buffer when they are due, and publishes them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from ...namespace.processes.clock import Clock
from ...namespace.processes.process import start_thread
from ...protocol.errors import LakeMQError, RequestTimedOut
from ..publish.arrow import Body, RequestedPartitions
from .buffer import Buffer
from .delivery import Batch, BatchOutcome
from .settler import BatchSettler, to_lakemq_error

log = logging.getLogger("lakemq.producer")


class BatchPublisher(Protocol):
    """Publishes the batches of one producer, each exactly once. The sending thread calls it."""

    def publish(self, batch: Batch, body: Body, requested: RequestedPartitions, deadline_ms: int) -> BatchOutcome:
        """Publish the rows of a batch. deadline_ms: time of the steady clock after which it is not sent again."""
        ...

    def note_failure(self, error: BaseException) -> None:
        """Note that a batch has failed, or that its outcome is unknown."""
        ...


class Sender:
    """Sends the batches of a buffer one after the other, in a thread of its own."""

    def __init__(
        self,
        buffer: Buffer,
        settler: BatchSettler,
        batches: BatchPublisher,
        clock: Clock,
        delivery_timeout_ms: int,
        stop_accepting: Callable[[], object],
    ) -> None:
        """Start the thread. stop_accepting: makes the producer refuse records, if the thread fails."""
        self._buffer, self._settler, self._batches = buffer, settler, batches
        self._lock = settler.lock
        self._clock, self._delivery_timeout_ms = clock, delivery_timeout_ms
        self._stop_accepting = stop_accepting
        self._timed_out_ms = -1
        """When a batch last got no answer within its delivery_timeout_ms. See `_deliver`."""
        self._thread = start_thread(self._run, "lakemq-producer")

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the buffer has ended and is sent, or the time is over."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while (batch := self._next()) is not None:
                try:
                    outcome = self._deliver(batch)
                except BaseException as error:  # the callers of this batch get it; other batches are still sent
                    outcome = BatchOutcome(error=to_lakemq_error(error))
                self._settler.settle([(batch, outcome)])
        except BaseException as error:
            log.exception("The sending thread of a producer has failed. The producer takes no more records.")
            self._fail_all(to_lakemq_error(error))

    def _fail_all(self, error: LakeMQError) -> None:
        """Fail all batches of the sending thread, which has ended, and refuse later records."""
        with self._lock:
            self._stop_accepting()
            batches = self._buffer.list_for_sender()
        self._settler.settle([(batch, BatchOutcome(error=error)) for batch in batches])

    def _next(self) -> Batch | None:
        with self._lock:
            return self._buffer.next()

    def _deliver(self, batch: Batch) -> BatchOutcome:
        """Publish a batch, and return its outcome.

        While no sequencer answers, batches queue up behind the one that is being sent. When that one has timed out, all
        batches that are overdue as well fail without an attempt. Otherwise each would wait for one attempt, and `flush`
        would take many times `delivery_timeout_ms`. A batch that is overdue for another reason still gets its attempt.
        """
        now_ms, deadline_ms = self._clock.steady_ms(), batch.created_ms + self._delivery_timeout_ms
        try:
            if batch.created_ms <= self._timed_out_ms and now_ms > deadline_ms:
                raise RequestTimedOut(
                    "The records were not sent: earlier ones got no answer until these were overdue, too "
                    "(delivery_timeout_ms)."
                )
            body, requested = batch.rows(self._clock.now_ms())
            return self._batches.publish(batch, body, requested, deadline_ms)
        except BaseException as error:
            if isinstance(error, RequestTimedOut) and now_ms <= deadline_ms:  # it had its full time
                self._timed_out_ms = self._clock.steady_ms()
            self._batches.note_failure(error)
            raise
