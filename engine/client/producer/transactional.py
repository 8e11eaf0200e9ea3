"""The transactional producer: its messages and the offsets of their input become visible with its commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ...namespace.processes.clock import Clock
from ...protocol.errors import LakeMQError, TransactionAborted, UnknownServerError
from ...protocol.values.log import Published
from ..publish.arrow import ArrowPublisher, Body, PreparedPublish, RequestedPartitions
from ..requester import Requester
from ..rows.publication import Publication, SequenceCounters
from ..tracing.spans import open_span
from ..transactions.manager import TransactionManager
from .delivery import Batch, BatchOutcome
from .options import ProducerOptions
from .producer import Producer, to_lakemq_error


class PreparedBatch(NamedTuple):
    """A batch that travels with a commit, and its request. Without a request yet, it is only detached in the buffer."""

    batch: Batch
    prepared: PreparedPublish


class TransactionalProducer(Producer):
    """A producer that sends inside transactions only. It has the methods of confluent-kafka's producer.

    It owns the transactional id from its creation on: an earlier producer with the id is fenced, and its open
    transaction is aborted. Once a commit or an abort has begun, records of other threads are refused until the next
    transaction begins.

    Small transactions need one letter. If all batches still wait in the queue when the commit begins, they are
    detached from it, and their requests travel in the letter of the commit. While a commit has no answer, the detached
    batches have no outcome: `commit_error` says why, `flush` does not wait for them, and a repeated commit sends the
    very same requests. The next successful commit or abort settles them.
    """

    _uses_fast_path = False

    def __init__(
        self,
        publisher: ArrowPublisher,
        requester: Requester,
        clock: Clock,
        options: ProducerOptions,
        transactions: TransactionManager,
        on_close: Callable[[Producer], object] = lambda _: None,
    ) -> None:
        self._transactions = transactions
        self._prepared_batches: list[PreparedBatch] | None = None
        """Requests that a commit sends, until the next transaction begins; None: the commit may detach the queue."""
        super().__init__(publisher, requester, clock, options, on_close, transactions.lock)

    def init_transactions(self) -> None:
        """Do nothing: the producer owns its id from its creation on. Raises IllegalState if it is closed."""
        self._monitor.check_process()
        self._check_open()

    def begin_transaction(self) -> None:
        """Begin a transaction. Later records become visible with its commit, or never.

        Raises:
            IllegalState: a transaction is open, or the producer is closed.
            ProducerFenced: another producer has the transactional id.
        """
        self._monitor.check_process()
        with self._lock:
            self._check_open()
            ref = self._transactions.begin()
            unsettled = self._buffer.list_detached()  # the call that ended the last transaction was interrupted
            self._failures.clear()
            self._acknowledged.take()
            self._prepared_batches = None
            # sequence numbers begin at 0 in every epoch
            self._sequences = SequenceCounters(ref.producer_id, ref.producer_epoch)
        self._settle_with_error(unsettled, lambda batch: batch.failure or _UNKNOWN)

    def send_offsets_to_transaction(
        self, offsets: Mapping[tuple[str, int], int], group: str, metadata: str | None = None
    ) -> None:
        """Commit offsets of a group together with the transaction.

        Args:
            offsets: (topic, partition) -> next offset to consume; usually `batch.offsets`.
            group: the group that consumes.
            metadata: text that is stored with the offsets.

        Raises:
            InvalidRequest, InvalidGroupId, UnknownTopicOrPartition, OffsetOutOfRange, OffsetMetadataTooLarge: an
                argument is not valid. The transaction continues without these offsets.
            IllegalState, TransactionAbortable, ProducerFenced: the transaction cannot take offsets.
        """
        self._monitor.check_process()
        with self._lock:
            self._check_open()
            self._transactions.add_offsets(group, offsets, metadata)

    def commit_transaction(self) -> None:
        """Commit the transaction. Records that were not sent yet travel with the commit.

        Raises:
            TransactionAbortable: the transaction cannot commit. Abort it, and begin again.
            ProducerFenced: another process has the transactional id.
            RequestTimedOut: the outcome is unknown. Commit again.
            IllegalState: no transaction is open.
        """
        self._monitor.check_can_wait()
        with self._lock:
            self._check_open()
        transactional_id = self._transactions.transactional_id
        span = open_span("commit", "settle", transactional_id, {"lakemq.transactional_id": transactional_id})
        with span, self._transactions.ending(commits=True), self._mark_unknown_on_error():
            if self._prepared_batches is None:  # else an earlier commit got no answer: send the very same requests
                self._prepared_batches = self._prepare_batches(self._take_unsent)
            while stale := self._commit(self._prepared_batches):
                self._publisher.forget_routes()
                self._prepared_batches = self._prepare_batches(lambda: stale)

    def abort_transaction(self) -> None:
        """Abort the transaction: none of its messages and offsets become visible.

        Raises:
            InvalidTxnState: an earlier commit without an answer has committed it.
            RequestTimedOut: the outcome is unknown. Abort again.
            ProducerFenced, IllegalState: as `commit_transaction`.
        """
        self._monitor.check_can_wait()
        with self._lock:
            self._check_open()
        self._abort()

    def has_open_work(self) -> bool:
        """Return whether `close` has a transaction to abort."""
        return self._transactions.is_open or super().has_open_work()

    def close(self) -> None:
        """Close the producer, and abort an open transaction. Without an answer, its timeout aborts it later."""
        self._monitor.check_can_wait()
        self.stop_accepting()
        try:
            self._transactions.wait_while_ending()
            if self._transactions.is_open:
                with suppress(LakeMQError):
                    self._abort()
        finally:
            self._drop_queue()
            self._settle_with_error(self._list_detached(), lambda batch: batch.failure or _ABORTED)
            self._failures.clear()
            super().close()

    # -- at exit ----------------------------------------------------------------------------------------

    def start_ending(self) -> None:
        """Refuse later records. The buffer belongs to a transaction, which `end_at_exit` aborts."""
        self.stop_accepting()

    def wait_for_end(self, timeout_s: float) -> None:
        """Return at once: an open transaction is aborted, so its records need not arrive."""

    def unsettled_count(self) -> int:
        """Return 0: records without a commit are aborted."""
        return 0

    def describe_losses(self) -> str | None:
        """Describe the transaction that was left open; None: there is none."""
        if not self._transactions.is_open:
            return None
        name = self._transactions.transactional_id
        return f"The transaction of {name!r} was open when the program ended. It is aborted, with its messages."

    def end_at_exit(self) -> None:
        """Abort the open transaction. Without an answer, its timeout aborts it later."""
        with suppress(LakeMQError):
            self.close()

    # -- sending ----------------------------------------------------------------------------------------

    def _check_accepts(self) -> None:
        self._check_open()
        self._transactions.ref()  # refuses what is sent outside a transaction
        self._failures.raise_unreported()

    def _publish(
        self, batch: Batch, body: Body, requested: RequestedPartitions, deadline_ms: int
    ) -> tuple[PreparedPublish, Published]:
        left_ms = max(0, deadline_ms - self._clock.steady_ms())
        with self._transactions.add_part(was_added=True) as ref:
            publication = Publication(batch.destination, "fail", transaction=ref, sequences=self._sequences)
            return self._publisher.send(publication, body, requested, left_ms)

    def _on_send_error(self, error: BaseException) -> None:
        self._transactions.note_failure(error)

    # -- ending -----------------------------------------------------------------------------------------

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

    def _list_detached(self) -> list[Batch]:
        with self._lock:
            return self._buffer.list_detached()

    def _take_unsent(self) -> list[Batch]:
        """Return batches that can travel with the commit. If they cannot, send them first, and return none."""
        with self._lock:
            self._buffer.requeue_detached()  # an earlier call was interrupted before it sent them
            unsent = self._buffer.detach_if_nothing_in_flight()
            if unsent is None:
                self._wait_for_sent()
            return unsent or []

    def _prepare_batches(self, take: Callable[[], Sequence[Batch]]) -> list[PreparedBatch]:
        """Build the requests of batches that travel with the commit. On an error the transaction must be aborted."""
        batches: Sequence[Batch] = ()
        try:
            batches = take()
            return self._prepare_requests(batches)
        except BaseException as error:
            self._transactions.note_failure(error)
            self._settle([(batch, BatchOutcome(error=to_lakemq_error(error))) for batch in batches])
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
            self._wait_for_sent()
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
        self._settle([(part.batch, self._outcome(part.prepared, answer)) for part, answer in answered])
        for part, _ in answered:
            sequences.advance(part.prepared.route, part.prepared.request.ranges)
        return [part.batch for part, answer in zip(parts, answers, strict=True) if answer is None]

    def _on_commit_error(self, parts: Sequence[PreparedBatch], error: LakeMQError) -> None:
        if not self._transactions.may_commit_again:
            self._settle_with_error([part.batch for part in parts], lambda _: error)

    def _abort(self) -> None:
        with self._transactions.ending(commits=False), self._mark_unknown_on_error():
            self._drop_queue()
            with self._lock:
                self._monitor.changed.wait_for(lambda: not self._buffer.list_for_sender())
            self._transactions.send_abort()
            self._settle_with_error(self._list_detached(), lambda _: _ABORTED)

    def _drop_queue(self) -> None:
        """Fail the batches that were not sent."""
        with self._lock:
            unsent = self._buffer.detach_queue()
        self._settle_with_error(unsent, lambda _: _ABORTED)

    def _settle_with_error(self, batches: Sequence[Batch], error: Callable[[Batch], LakeMQError]) -> None:
        self._settle([(batch, BatchOutcome(error=error(batch), is_reported_later=False)) for batch in batches])


_ABORTED = TransactionAborted()
_UNKNOWN = UnknownServerError("The end of the transaction was interrupted: whether it is committed is unknown.")
