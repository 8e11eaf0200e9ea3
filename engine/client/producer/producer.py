"""The Python producer: it takes records and Arrow tables, and publishes each exactly once, in the background."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...namespace.processes.clock import Clock
from ..publish.arrow import ArrowPublisher
from ..requests.requester import Requester
from .idempotent_batches import IdempotentBatches
from .options import ProducerOptions
from .record_producer import RecordProducer
from .sender import Sender

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
    most 30 s, and names on stderr what was not delivered.

    The producer is thread-safe. `flush` waits for everything that any thread sent before, and raises the first error.
    If a batch fails while no thread flushes, the next `flush` or `close` of each thread raises the error, once per
    thread. It does not raise errors that the thread has got from a future or a callback.
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
            self.stop_accepting,
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

    def has_open_work(self) -> bool:
        """Return whether `close` has something to send that a sequencer must answer."""
        with self._lock:
            return self._buffer.held_bytes > 0

    # -- at exit: see OpenProducers ---------------------------------------------------------------------

    def start_ending(self) -> None:
        """Refuse later records, and send the buffer without waiting for `linger_ms`."""
        with self._lock:
            self.stop_accepting()
            self._buffer.drain()

    def wait_for_end(self, timeout_s: float) -> None:
        """Wait until all batches are settled after `start_ending`, or the time is over."""
        self._sender.join(timeout_s)

    def unsettled_count(self) -> int:
        """Return the number of messages that wait or are on their way."""
        with self._lock:
            return sum(batch.record_count for batch in self._buffer.list_unsettled())

    def describe_losses(self) -> str | None:
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

    def end_at_exit(self) -> None:
        """Finish at exit, once everything is sent. Nothing is left to do here."""
