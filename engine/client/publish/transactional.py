"""The transactional producer: what it sends is seen with its commit, together with the offsets it was made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ...namespace.clock import Clock
from ...protocol.errors import LakeMQError, TransactionAborted, UnknownServerError
from ...protocol.values.log import Published
from ..requester import Requester
from ..transactions.manager import TransactionManager
from .arrow import ArrowPublisher, Asked, Body, Prepared
from .delivery import Batch, Outcome
from .options import ProducerOptions
from .producer import Producer, known
from .publication import Publication, Sequences


class Travelling(NamedTuple):
    """A batch that travels with a commit, and its request. What has no request yet is `taken` in the buffer only."""

    batch: Batch
    prepared: Prepared


class TransactionalProducer(Producer):
    """A producer that sends inside transactions only; the calls are those of confluent-kafka's.

    Opened, it has the transactional id: whoever had it before is fenced, and what that one left open is aborted. From
    the moment a commit or an abort begins, what other threads send is refused, until there is another transaction.
    """

    _takes_quickly = False

    def __init__(
        self,
        publisher: ArrowPublisher,
        requester: Requester,
        clock: Clock,
        options: ProducerOptions,
        transactions: TransactionManager,
        closed: Callable[[Producer], object] = lambda _: None,
    ) -> None:
        self._transactions = transactions
        self._travelling: list[Travelling] | None = None
        """What a commit sends, until the transaction that follows begins; None: it may take what the buffer holds."""
        super().__init__(publisher, requester, clock, options, closed, transactions.lock)

    def init_transactions(self) -> None:
        """Nothing is left to do: the id was taken on opening. Raises IllegalState (it is closed)."""
        self._outcomes.check_process()
        self._check_open()

    def begin_transaction(self) -> None:
        """All that is sent from here on is seen with the commit, or never. Raises IllegalState, ProducerFenced."""
        self._outcomes.check_process()
        with self._lock:
            self._check_open()
            ref = self._transactions.begin()
            left = self._buffer.taken()  # the call that ended the transaction before was interrupted
            self._failures.clear()
            self._acknowledged.take()
            self._travelling = None
            # they begin anew with every epoch
            self._sequences = Sequences(ref.producer_id, ref.producer_epoch)
        self._settle_with(left, lambda batch: batch.failure or _UNKNOWN)

    def send_offsets_to_transaction(
        self, offsets: Mapping[tuple[str, int], int], group: str, metadata: str | None = None
    ) -> None:
        """(topic, partition) -> next offset to consume, committed for the group together with the transaction.

        Raises InvalidRequest, InvalidGroupId, IllegalState, TransactionAbortable, ProducerFenced.
        """
        self._outcomes.check_process()
        with self._lock:
            self._check_open()
            self._transactions.add_offsets(group, offsets, metadata)

    def commit_transaction(self) -> None:
        """All of the transaction, now; what was not sent yet travels with the commit.

        Raises TransactionAbortable: abort it, and begin again; ProducerFenced: another process has the transactional
        id; IllegalState; RequestTimedOut: the outcome is unknown, commit again.
        """
        self._outcomes.check_may_wait()
        with self._lock:
            self._check_open()
        with self._transactions.ending(commits=True), self._no_wait_for_taken():
            if self._travelling is None:  # else an earlier call was not answered: the very same is sent again
                self._travelling = self._prepared(self._take_unsent)
            while stale := self._commit(self._travelling):
                self._publisher.forget_routes()
                self._travelling = self._prepared(lambda: stale)

    def abort_transaction(self) -> None:
        """Nothing of the transaction will be seen.

        Raises ProducerFenced, IllegalState, RequestTimedOut; InvalidTxnState: a commit that was not answered has
        committed it.
        """
        self._outcomes.check_may_wait()
        with self._lock:
            self._check_open()
        self._abort()

    def close(self) -> None:
        """End; a transaction that is open is aborted, if not by us then by who comes next, or by its timeout."""
        self._outcomes.check_may_wait()
        self.refuse_more()
        try:
            self._transactions.wait_while_ending()
            if self._transactions.is_open:
                with suppress(LakeMQError):
                    self._abort()
        finally:
            self._drop_queue()
            self._settle_with(self._taken(), lambda batch: batch.failure or _ABORTED)
            self._failures.clear()
            super().close()

    # -- sending ----------------------------------------------------------------------------------------

    def _check_takes(self) -> None:
        self._check_open()
        self._transactions.ref()  # refuses what is sent outside a transaction
        self._failures.raise_untold()

    def _publish(self, batch: Batch, body: Body, asked: Asked, deadline_ms: int) -> tuple[Prepared, Published]:
        left_ms = max(0, deadline_ms - self._clock.steady_ms())
        with self._transactions.part(was_taken=True) as ref:
            publication = Publication(batch.destination, "fail", transaction=ref, sequences=self._sequences)
            return self._publisher.send(publication, body, asked, left_ms)

    def _sending_failed(self, error: BaseException) -> None:
        self._transactions.refused(error)

    # -- ending -----------------------------------------------------------------------------------------

    @contextmanager
    def _no_wait_for_taken(self) -> Iterator[None]:
        """Where the end of the transaction fails, nobody waits for what was taken: it is in doubt until it is ended."""
        try:
            yield
        except BaseException as error:
            with self._lock:
                for batch in self._buffer.taken():
                    batch.doubt = batch.doubt or known(error)
                self._outcomes.changed.notify_all()
            raise

    def _taken(self) -> list[Batch]:
        with self._lock:
            return self._buffer.taken()

    def _take_unsent(self) -> list[Batch]:
        """What may travel with the commit; what may not is sent. Raises what the sending failed with."""
        with self._lock:
            self._buffer.put_back()  # an earlier call was interrupted before it sent what it took
            unsent = self._buffer.take_if_unsent()
            if unsent is None:
                self._wait_for_given()
            return unsent or []

    def _prepared(self, take: Callable[[], Sequence[Batch]]) -> list[Travelling]:
        """What is taken, ready to travel. What does not get as far leaves a transaction that can only be aborted."""
        taken: Sequence[Batch] = ()
        try:
            taken = take()
            return self._requests(taken)
        except BaseException as error:
            self._transactions.refused(error)
            self._settle([(batch, Outcome(error=known(error))) for batch in taken])
            if isinstance(error, Exception):
                self._transactions.raise_if_refused()
            raise

    def _requests(self, batches: Sequence[Batch]) -> list[Travelling]:
        """Their requests; none where two of them reach the same topic: those are sent one after the other."""
        ref, sequences = self._transactions.current(), self._sequences
        assert sequences is not None
        parts = []
        for batch in batches:
            body, asked = batch.rows(self._clock.now_ms())
            publication = Publication(batch.destination, "fail", transaction=ref, sequences=sequences)
            prepared = self._publisher.prepare(publication, body, asked)
            parts.append(Travelling(batch, prepared))
        reached = [topic.topic_id for part in parts for topic in part.prepared.route.topics]
        if len(set(reached)) == len(reached):
            return parts
        with self._lock:
            self._buffer.put_back()
            self._wait_for_given()
        return []

    def _commit(self, parts: Sequence[Travelling]) -> list[Batch]:
        """Send them and the commit; returns those whose topics have changed, without which nothing is committed."""
        assert self._sequences is not None
        sequences = self._sequences
        try:
            with self._lock:
                for part in parts:
                    part.batch.doubt = None
            answers = self._transactions.send_commit([(part.prepared.request, part.prepared.rows) for part in parts])
        except BaseException as error:
            self._commit_failed(parts, known(error))
            raise
        # where all is committed another thread may have begun the next transaction: nothing of that is touched here
        known_parts = [(part, answer) for part, answer in zip(parts, answers, strict=True) if answer is not None]
        self._settle([(part.batch, self._outcome(part.prepared, answer)) for part, answer in known_parts])
        for part, _ in known_parts:
            sequences.advance(part.prepared.route, part.prepared.request.ranges)
        return [part.batch for part, answer in zip(parts, answers, strict=True) if answer is None]

    def _commit_failed(self, parts: Sequence[Travelling], error: LakeMQError) -> None:
        if not self._transactions.may_commit_again:
            self._settle_with([part.batch for part in parts], lambda _: error)

    def _abort(self) -> None:
        with self._transactions.ending(commits=False), self._no_wait_for_taken():
            self._drop_queue()
            with self._lock:
                self._outcomes.changed.wait_for(lambda: not self._buffer.given_to_thread())
            self._transactions.send_abort()
            self._settle_with(self._taken(), lambda _: _ABORTED)

    def _drop_queue(self) -> None:
        """What was not sent never will be."""
        with self._lock:
            unsent = self._buffer.take_queue()
        self._settle_with(unsent, lambda _: _ABORTED)

    def _settle_with(self, batches: Sequence[Batch], error: Callable[[Batch], LakeMQError]) -> None:
        self._settle([(batch, Outcome(error=error(batch), is_news=False)) for batch in batches])


_ABORTED = TransactionAborted()
_UNKNOWN = UnknownServerError("The end of the transaction was interrupted: whether it is committed is unknown.")
