"""The batches of a producer: a thread takes them out of the buffer when they are due, and publishes them.

They are published by sequence numbers, or in a transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from sys import modules
from typing import NamedTuple

from ...namespace.clock import Clock
from ...namespace.process import start_thread
from ...protocol.errors import LakeMQError, RequestTimedOut, TransactionAborted, UnknownProducerId, UnknownServerError
from ...protocol.values.kinds import AnyResult
from ...protocol.values.log import Published, RejectedRows
from ...protocol.values.producers import InitProducer, ProducerDone
from ..publish.arrow import ArrowPublisher, PreparedPublish, RequestedPartitions
from ..requests.requester import Requester, ask_with_retries
from ..rows.few_rows import Body
from ..rows.publication import OnRejection, Publication, SequenceCounters, describe_rejected_rows
from ..tracing import API, find_links, open_span
from ..transactions.manager import TransactionManager
from .buffer import Buffer
from .delivery import Batch, BatchOutcome, DeliveryMonitor
from .options import ProducerOptions
from .settler import BatchSettler, build_outcome, to_lakemq_error

log = logging.getLogger("lakemq.producer")


class Sender:
    """Sends the batches of a buffer one after the other, in a thread of its own."""

    def __init__(
        self,
        buffer: Buffer,
        settler: BatchSettler,
        batches: IdempotentBatches | TransactionBatches,
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


class IdempotentBatches:
    """Publishes batches under a producer id, which it takes when it needs one. For the sending thread only."""

    def __init__(self, publisher: ArrowPublisher, requester: Requester, clock: Clock, options: ProducerOptions) -> None:
        self._publisher, self._requester, self._clock, self._options = publisher, requester, clock, options
        self._sequences: SequenceCounters | None = None
        self._logged: set[tuple[str, str]] = set()
        """Destinations and errors of rejected rows that were logged."""

    def publish(self, batch: Batch, body: Body, requested: RequestedPartitions, deadline_ms: int) -> BatchOutcome:
        """Publish the rows of a batch, with a new producer id if the sequencer has forgotten the last one.

        deadline_ms: time of the steady clock after which it is not sent again.
        """
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
                text = '%s The table rejected_rows lists them, and later ones. With on_error="fail" flush raises them.'
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


class PreparedBatch(NamedTuple):
    """A batch that travels with a commit, and its request."""

    batch: Batch
    prepared: PreparedPublish


class TransactionBatches:
    """Publishes batches as parts of the open transaction, and ends the transaction.

    If all batches still wait in the queue when a commit begins, they are detached from it, and their requests travel
    in the letter of the commit. While a commit has no answer, the detached batches have no outcome, and a repeated
    commit sends the very same requests. The next successful commit or abort settles them.
    """

    def __init__(
        self,
        publisher: ArrowPublisher,
        transactions: TransactionManager,
        buffer: Buffer,
        settler: BatchSettler,
        monitor: DeliveryMonitor,
        clock: Clock,
    ) -> None:
        self._publisher, self._transactions, self._clock = publisher, transactions, clock
        self._buffer, self._settler, self._monitor = buffer, settler, monitor
        self._lock = monitor.lock
        self._sequences: SequenceCounters | None = None
        self._prepared_batches: list[PreparedBatch] | None = None
        """Requests that a commit sends, until the next transaction begins; None: the commit may detach the queue."""

    # -- as parts ---------------------------------------------------------------------------------------

    def begin(self) -> list[Batch]:
        """Begin a transaction. The lock is held. Return batches that the end of the last one has left unsettled."""
        ref = self._transactions.begin()
        unsettled = self._buffer.list_detached()  # the call that ended the last transaction was interrupted
        self._settler.start_again()
        self._prepared_batches = None
        # sequence numbers begin at 0 in every epoch
        self._sequences = SequenceCounters(ref.producer_id, ref.producer_epoch)
        return unsettled

    def publish(self, batch: Batch, body: Body, requested: RequestedPartitions, deadline_ms: int) -> BatchOutcome:
        """Publish the rows of a batch as a part of the transaction."""
        left_ms = max(0, deadline_ms - self._clock.steady_ms())
        with self._transactions.add_part(was_added=True) as ref:
            publication = Publication(batch.destination, "fail", transaction=ref, sequences=self._sequences)
            prepared, published = self._publisher.send(publication, body, requested, left_ms)
        return self._build_outcome(prepared, published)

    def _build_outcome(self, prepared: PreparedPublish, published: Published) -> BatchOutcome:
        receipts = self._publisher.receipts(prepared, published)
        return build_outcome(prepared, published, receipts, fails_if_rejected=True)

    def note_failure(self, error: BaseException) -> None:
        """Make the transaction abort-only."""
        self._transactions.note_failure(error)

    # -- committing -------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit the transaction. Batches that were not sent yet travel with the commit."""
        transactional_id = self._transactions.transactional_id
        span = open_span("commit", "settle", transactional_id, {"lakemq.transactional_id": transactional_id})
        with span, self._transactions.ending(commits=True), self._mark_unknown_on_error():
            if self._prepared_batches is None:  # else an earlier commit got no answer: send the very same requests
                self._prepared_batches = self._prepare_batches(self._take_unsent)
            while stale := self._commit(self._prepared_batches):
                self._publisher.forget_routes()
                self._prepared_batches = self._prepare_batches(lambda: stale)

    @contextmanager
    def _mark_unknown_on_error(self) -> Iterator[None]:
        """If the end of the transaction fails, mark detached batches as unknown, so that `flush` does not wait."""
        try:
            yield
        except BaseException as error:
            with self._lock:
                for batch in self._buffer.list_detached():
                    batch.commit_error = batch.commit_error or to_lakemq_error(error)
                self._monitor.changed.notify_all()
            raise

    def _take_unsent(self) -> list[Batch]:
        """Return batches that can travel with the commit. If they cannot, send them first, and return none."""
        with self._lock:
            self._buffer.requeue_detached()  # an earlier call was interrupted before it sent them
            unsent = self._buffer.detach_if_nothing_in_flight()
            if unsent is None:
                self._settler.wait_for_sent()
            return unsent or []

    def _prepare_batches(self, take: Callable[[], Sequence[Batch]]) -> list[PreparedBatch]:
        """Build the requests of batches that travel with the commit. On an error the transaction must be aborted."""
        batches: Sequence[Batch] = ()
        try:
            batches = take()
            return self._prepare_requests(batches)
        except BaseException as error:
            self._transactions.note_failure(error)
            self._settler.settle([(batch, BatchOutcome(error=to_lakemq_error(error))) for batch in batches])
            if isinstance(error, Exception):
                self._transactions.parts.check_no_failure()
            raise

    def _prepare_requests(self, batches: Sequence[Batch]) -> list[PreparedBatch]:
        """Build a request per batch. If two reach the same topic, send the batches one after the other instead.

        Requests in one letter get their sequence numbers before any is answered, so they must not share a partition.
        """
        ref, sequences = self._transactions.ref, self._sequences
        assert ref is not None
        assert sequences is not None
        parts = []
        for batch in batches:
            body, requested = batch.rows(self._clock.now_ms())
            publication = Publication(batch.destination, "fail", transaction=ref, sequences=sequences)
            prepared = self._publisher.prepare(publication, body, requested)
            parts.append(PreparedBatch(batch, prepared))
        reached = [topic.topic_id for part in parts for topic in part.prepared.route.topics]
        if len(set(reached)) == len(reached):
            return parts
        with self._lock:
            self._buffer.requeue_detached()
            self._settler.wait_for_sent()
        return []

    def _commit(self, parts: Sequence[PreparedBatch]) -> list[Batch]:
        """Send the requests with the commit. Return batches whose topics have changed: nothing is committed then."""
        assert self._sequences is not None
        sequences = self._sequences
        try:
            with self._lock:
                for part in parts:
                    part.batch.commit_error = None
            answers = self._transactions.send_commit(
                [(part.prepared.request, part.prepared.placed.rows) for part in parts]
            )
        except BaseException as error:
            if not self._transactions.may_commit_again:
                failure = to_lakemq_error(error)
                self._settler.settle_with_error([part.batch for part in parts], lambda _: failure)
            raise
        # after the commit another thread may have begun the next transaction: touch nothing of that one
        answered = [(part, answer) for part, answer in zip(parts, answers, strict=True) if answer is not None]
        self._settler.settle([(part.batch, self._build_outcome(part.prepared, answer)) for part, answer in answered])
        for part, _ in answered:
            sequences.advance(part.prepared.route, part.prepared.request.ranges)
        return [part.batch for part, answer in zip(parts, answers, strict=True) if answer is None]

    # -- aborting ---------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Abort the transaction, with the batches that were not sent."""
        with self._transactions.ending(commits=False), self._mark_unknown_on_error():
            self.drop_queue()
            with self._lock:
                self._monitor.changed.wait_for(lambda: not self._buffer.list_for_sender())
            self._transactions.send_abort()
            self._settler.settle_with_error(self._list_detached(), lambda _: _ABORTED)

    def drop_queue(self) -> None:
        """Fail the batches that were not sent."""
        with self._lock:
            unsent = self._buffer.detach_queue()
        self._settler.settle_with_error(unsent, lambda _: _ABORTED)

    def drop_all(self) -> None:
        """Fail the batches that were not sent, and those that an unanswered commit carried. The producer closes."""
        self.drop_queue()
        self._settler.settle_with_error(self._list_detached(), lambda batch: batch.failure or _ABORTED)

    def settle_as_unknown(self, batches: Sequence[Batch]) -> None:
        """Fail batches whose transaction ended in a call that was interrupted."""
        self._settler.settle_with_error(batches, lambda batch: batch.failure or _UNKNOWN)

    def _list_detached(self) -> list[Batch]:
        with self._lock:
            return self._buffer.list_detached()


_ABORTED = TransactionAborted()
_UNKNOWN = UnknownServerError("The end of the transaction was interrupted: whether it is committed is unknown.")
