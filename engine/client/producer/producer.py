"""The Python producers: they take records and Arrow tables, and publish each exactly once, in the background.

Messages of the transactional producer become visible with its commit.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from ...namespace.clock import Clock
from ...namespace.process import close_after
from ...protocol.errors import LakeMQError
from ..publish.arrow import ArrowPublisher
from ..requests.requester import Requester
from ..transactions.manager import TransactionManager
from .batches import IdempotentBatches, Sender, TransactionBatches
from .options import ProducerOptions
from .record_producer import RecordProducer

_TRANSACTION_CALLS = frozenset(
    {
        "init_transactions",
        "begin_transaction",
        "send_offsets_to_transaction",
        "commit_transaction",
        "abort_transaction",
    }
)
"""Calls of a `TransactionalProducer`. Users of Kafka expect them on every producer."""


class Producer(RecordProducer):
    """Publishes records and tables in the background, per destination in the order of the calls.

    Use it as a context manager. If you do not close a producer, it sends its buffer when the interpreter ends, for at
    most 30 s, and names on stderr the messages not delivered.

    The producer is thread-safe. `flush` waits for everything that any thread sent before, and raises the first error.
    If a batch fails while no thread flushes, the next `flush` or `close` of each thread raises the error, once per
    thread. It does not raise errors that the thread has got from a future or a callback.

    Example:
        >>> with mq.producer() as producer:  # doctest: +SKIP
        ...     producer.send("orders", "a book", key="Ada")
    """

    def __init__(
        self,
        publisher: ArrowPublisher,
        requester: Requester,
        clock: Clock,
        options: ProducerOptions,
        on_close: Callable[[RecordProducer], object] = lambda _: None,
    ) -> None:
        """on_close: called once the producer is closed."""
        super().__init__(clock, options, threading.RLock(), on_close)
        self._batches = IdempotentBatches(publisher, requester, clock, options)
        self._sender = Sender(
            self._buffer,
            self._settler,
            self._batches,
            clock,
            options.delivery_timeout_ms,
            self._stop_accepting,
        )

    if not TYPE_CHECKING:  # for type checkers there is no such attribute, and `hasattr` says so, too

        def __getattr__(self, name: str) -> object:
            """Say what a call of transactions needs. Python calls this for attributes that do not exist."""
            if name in _TRANSACTION_CALLS:
                raise AttributeError(
                    f"This producer has no transactional id, hence no {name}. Expected mq.producer(transactional_id).",
                    name=name,
                    obj=self,
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def close(self) -> None:
        """Send the buffer, and end. Later records are refused. Raises what `flush` raises."""
        self._monitor.check_can_wait()
        self._finish()

    # -- at exit: see OpenProducers ---------------------------------------------------------------------

    def _start_ending(self) -> None:
        """Refuse later records, and send the buffer without waiting for `linger_ms`."""
        with self._lock:
            self._stop_accepting()
            self._buffer.drain()

    def _wait_for_end(self, timeout_s: float) -> None:
        """Wait until all batches are settled after `_start_ending`, or the time is over."""
        self._sender.join(timeout_s)

    def _unsettled_count(self) -> int:
        """Return the number of messages that wait or are on their way."""
        with self._lock:
            return sum(batch.record_count for batch in self._buffer.list_unsettled())

    def _describe_losses(self) -> str | None:
        """Describe messages that failed without any thread getting the error, or have no answer yet; None: none."""
        with self._lock:
            failed, waiting = self._failures.list_unreported(), self._buffer.list_unsettled()
            counts: Counter[str] = Counter()
            for failure in failed:
                counts[failure.destination] += failure.record_count
            for batch in waiting:
                counts[batch.destination] += batch.record_count
        if not counts:
            return None
        topics = ", ".join(f"{count} of {topic!r}" for topic, count in sorted(counts.items()))
        why = str(failed[0].error) if failed else "No sequencer answered."
        return f"Messages were not delivered, or not acknowledged: {topics}. {why}"


class TransactionalProducer(RecordProducer):
    """A producer that sends inside transactions only. It has the methods of confluent-kafka's producer.

    It owns the transactional id from its creation on: an earlier producer with the id is fenced, and its open
    transaction is aborted. Once a commit or an abort has begun, records of other threads are refused until the next
    transaction begins.

    Small transactions need one letter. If all batches still wait in the queue when the commit begins, they are
    detached from it, and their requests travel in the letter of the commit. While a commit has no answer, the detached
    batches have no outcome: `commit_error` says why, `flush` does not wait for them, and a repeated commit sends the
    very same requests. The next successful commit or abort settles them.

    Example:
        >>> with mq.producer("shop") as producer:  # doctest: +SKIP
        ...     producer.begin_transaction()
        ...     producer.send("orders", "a book")
        ...     producer.commit_transaction()
    """

    def __init__(
        self,
        publisher: ArrowPublisher,
        clock: Clock,
        options: ProducerOptions,
        transactions: TransactionManager,
        on_close: Callable[[RecordProducer], object] = lambda _: None,
    ) -> None:
        """on_close: called once the producer is closed."""
        # a record outside a transaction is refused, so each record needs the check
        super().__init__(clock, options, transactions.shared_lock, on_close, check_sendable=transactions.get_accepting)
        self._transactions = transactions
        self._batches = TransactionBatches(publisher, transactions, self._buffer, self._settler, self._monitor, clock)
        self._sender = Sender(
            self._buffer, self._settler, self._batches, clock, options.delivery_timeout_ms, self._stop_accepting
        )

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
            unsettled = self._batches.begin()
        self._batches.settle_as_unknown(unsettled)

    def send_offsets_to_transaction(
        self, offsets: Mapping[tuple[str, int], int], group: str, metadata: str | None = None
    ) -> None:
        """Commit offsets of a group together with the transaction. They are sent now, and pending until it ends.

        An error of this call makes the transaction abort-only, so that it cannot commit without them.

        Args:
            offsets: (topic, partition) -> next offset to consume; usually `batch.offsets`.
            group: the group that consumes.
            metadata: text that is stored with the offsets.

        Raises:
            InvalidRequest, InvalidGroupId, OffsetMetadataTooLarge: an argument is not valid.
            UnknownTopicOrPartition, UnknownTopicId, OffsetOutOfRange: the log does not have an offset.
            FencedMemberEpoch, UnknownMemberId, IllegalGeneration, InvalidRecordState: the member has lost what it read.
            IllegalState, TransactionAbortable, ProducerFenced: the transaction cannot take offsets.
            RequestTimedOut: no sequencer has answered.
        """
        self._monitor.check_can_wait()
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
        self._batches.commit()

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
        self._batches.abort()

    def _has_open_work(self) -> bool:
        """Return whether `close` has a transaction to abort, or something to send."""
        return self._transactions.is_open or super()._has_open_work()

    def close(self) -> None:
        """Close the producer, and abort an open transaction. Without an answer, its timeout aborts it later."""
        self._monitor.check_can_wait()
        self._stop_accepting()
        with close_after(self._finish):
            try:
                self._transactions.wait_while_ending()
                if self._transactions.is_open:
                    with suppress(LakeMQError):
                        self._batches.abort()
            finally:
                self._batches.drop_all()
                self._failures.clear()

    # -- at exit: an open transaction is aborted, so its records need not arrive -------------------------------

    def _describe_losses(self) -> str | None:
        """Describe the transaction that was left open; None: there is none."""
        if not self._transactions.is_open:
            return None
        name = self._transactions.transactional_id
        return f"The transaction of {name!r} was open. It is aborted, with its messages."

    def _end_at_exit(self) -> None:
        """Abort the open transaction. Without an answer, its timeout aborts it later."""
        with suppress(LakeMQError):
            self.close()
