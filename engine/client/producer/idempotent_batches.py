"""The batches of a producer without transactions, each published exactly once by its sequence numbers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from sys import modules

from ...namespace.processes.clock import Clock
from ...protocol.errors import UnknownProducerId
from ...protocol.values.kinds import AnyResult
from ...protocol.values.log import RejectedRows
from ...protocol.values.producers import InitProducer, ProducerDone
from ..publish.arrow import ArrowPublisher, Body, RequestedPartitions
from ..requests.attempts import ask_with_retries
from ..requests.requester import Requester
from ..rows.publication import OnRejection, Publication, SequenceCounters, describe_rejected_rows
from ..tracing.headers import find_links
from ..tracing.spans import API, open_span
from .delivery import Batch, BatchOutcome
from .options import ProducerOptions
from .settler import build_outcome

log = logging.getLogger("lakemq.producer")


class IdempotentBatches:
    """Publishes batches under a producer id, which it takes when it needs one. For the sending thread only."""

    def __init__(self, publisher: ArrowPublisher, requester: Requester, clock: Clock, options: ProducerOptions) -> None:
        self._publisher, self._requester, self._clock, self._options = publisher, requester, clock, options
        self._sequences: SequenceCounters | None = None
        self._logged: set[tuple[str, str]] = set()
        """Destinations and errors of rejected rows that were logged."""

    def publish(self, batch: Batch, body: Body, requested: RequestedPartitions, deadline_ms: int) -> BatchOutcome:
        """Publish the rows of a batch, with a new producer id if the sequencer has forgotten the last one."""
        # with on_error="fail", a bad record fails alone through its future; a table fails as a whole
        alone = batch.records is not None and self._options.on_error == "fail"
        on_error: OnRejection = "leave_out" if alone else self._options.on_error
        if API not in modules:  # no application can have set a tracer
            return self._publish_until_known(batch, body, requested, deadline_ms, on_error)
        named = {"destination.name": batch.destination, "batch.message_count": body.num_rows}
        # The producer's thread has no span of the application. The batch continues those in which records were sent.
        with open_span(
            "publish", "send", batch.destination, named, "PRODUCER", find_links=lambda: find_links(body.headers)
        ):
            return self._publish_until_known(batch, body, requested, deadline_ms, on_error)

    def _publish_until_known(
        self,
        batch: Batch,
        body: Body,
        requested: RequestedPartitions,
        deadline_ms: int,
        on_error: OnRejection,
    ) -> BatchOutcome:
        while True:
            is_new = self._sequences is None
            sequences = self._ensure_sequences(deadline_ms)
            left_ms = max(0, deadline_ms - self._clock.steady_ms())
            try:
                publication = Publication(batch.destination, on_error, sequences=sequences)
                prepared, published = self._publisher.send(publication, body, requested, left_ms)
            except UnknownProducerId:
                if is_new or not self._options.idempotent:
                    raise
                self._sequences = None  # the id was idle for too long; the batch had no effect
            else:
                self._log_rejected_rows(prepared.request.rejected)
                receipts = self._publisher.receipts(prepared, published)
                return build_outcome(prepared, published, receipts, self._options.on_error == "fail")

    def _log_rejected_rows(self, rejected: Sequence[RejectedRows]) -> None:
        """Log rejected rows, once per destination and error. `flush` only counts them."""
        for destination, error in dict.fromkeys((rows.source, rows.error) for rows in rejected):
            if (destination, error) not in self._logged:
                self._logged.add((destination, error))
                rows = [rows for rows in rejected if (rows.source, rows.error) == (destination, error)]
                text = "%s The table rejected_rows lists them, and later ones. Set on_error to fail to get errors."
                log.warning(text, describe_rejected_rows(rows))

    def note_failure(self, error: BaseException) -> None:
        """Drop the producer id.

        If the batch was published after all, its numbers are taken, and new records would pass for repeats. So the next
        batch gets a new producer id, after any error.
        """
        self._sequences = None

    def _ensure_sequences(self, deadline_ms: int) -> SequenceCounters | None:
        if self._options.idempotent and self._sequences is None:
            done = self._request_producer_id(deadline_ms)
            self._sequences = SequenceCounters(done.producer_id, done.producer_epoch)
        return self._sequences

    def _request_producer_id(self, deadline_ms: int) -> ProducerDone:
        # a repeat is harmless: an id that is never used expires
        def ask() -> AnyResult:
            return self._requester.ask(InitProducer(), timeout_ms=deadline_ms - self._clock.steady_ms())

        done = ask_with_retries(ask, self._clock, deadline_ms)
        assert isinstance(done, ProducerDone)
        return done
