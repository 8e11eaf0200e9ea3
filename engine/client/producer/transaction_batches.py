"""The batches of a transactional producer: sent as parts of the transaction, or together with its commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ...namespace.processes.clock import Clock
from ...protocol.errors import LakeMQError, TransactionAborted, UnknownServerError
from ...protocol.values.log import Published
from ..publish.arrow import ArrowPublisher, Body, PreparedPublish, RequestedPartitions
from ..rows.publication import Publication, SequenceCounters
from ..tracing.spans import open_span
from ..transactions.manager import TransactionManager
from .buffer import Buffer
from .delivery import Batch, BatchOutcome, DeliveryMonitor
from .settler import BatchSettler, build_outcome, to_lakemq_error


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
                self._transactions.check_no_failure()
            raise

    def _prepare_requests(self, batches: Sequence[Batch]) -> list[PreparedBatch]:
        """Build a request per batch. If two reach the same topic, send the batches one after the other instead.

        Requests in one letter get their sequence numbers before any is answered, so they must not share a partition.
        """
        ref, sequences = self._transactions.get_ref(), self._sequences
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
            answers = self._transactions.send_commit([(part.prepared.request, part.prepared.rows) for part in parts])
        except BaseException as error:
            self._on_commit_error(parts, to_lakemq_error(error))
            raise
        # after the commit another thread may have begun the next transaction: touch nothing of that one
        answered = [(part, answer) for part, answer in zip(parts, answers, strict=True) if answer is not None]
        self._settler.settle([(part.batch, self._build_outcome(part.prepared, answer)) for part, answer in answered])
        for part, _ in answered:
            sequences.advance(part.prepared.route, part.prepared.request.ranges)
        return [part.batch for part, answer in zip(parts, answers, strict=True) if answer is None]

    def _on_commit_error(self, parts: Sequence[PreparedBatch], error: LakeMQError) -> None:
        if not self._transactions.may_commit_again:
            self._settler.settle_with_error([part.batch for part in parts], lambda _: error)

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
