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
                    self._batches.note_failure(error)
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
        """Publish a batch, and return its outcome. A batch that waited for longer than its time is not sent."""
        deadline_ms = batch.created_ms + self._delivery_timeout_ms
        if self._clock.steady_ms() > deadline_ms:
            raise RequestTimedOut(
                f"The records were not sent: earlier ones had no answer for {self._delivery_timeout_ms} ms "
                "(delivery_timeout_ms). Is a sequencer running (lakemq serve)?"
            )
        body, requested = batch.rows(self._clock.now_ms())
        return self._batches.publish(batch, body, requested, deadline_ms)
