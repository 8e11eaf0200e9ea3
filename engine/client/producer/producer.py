"""The Python producer: it takes records and Arrow tables, and publishes each exactly once, in the background."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from sys import modules
from typing import Any

import pyarrow as pa

from ...namespace.processes import process
from ...namespace.processes.clock import Clock
from ...namespace.processes.process import start_thread
from ...namespace.storage_error import storage_error
from ...protocol.errors import (
    BufferFull,
    IllegalState,
    InvalidRecord,
    LakeMQError,
    RequestTimedOut,
    UnknownProducerId,
    UnknownServerError,
)
from ...protocol.values.log import Published
from ...protocol.values.producers import InitProducer, ProducerDone
from ..attempts import ask_with_retries
from ..publish.arrow import ArrowPublisher, Body, PreparedPublish, RequestedPartitions
from ..requester import Requester
from ..rows.few_rows import few_body_from_table
from ..rows.publication import OnRejection, Publication, SequenceCounters
from ..rows.record import MAX_BYTES, Header, check_callback, check_size, parse_bytes, parse_destination, parse_extras
from ..rows.request import build_body
from ..tracing.headers import add_trace_to_record, add_trace_to_table
from ..tracing.spans import API
from .batch_span import trace_batch
from .buffer import Buffer
from .delivery import Batch, BatchOutcome, DeliveryMonitor, OnDelivery, Placement, RecordFuture, run_callbacks
from .flush_report import FlushCounter, FlushReport
from .options import ProducerOptions

log = logging.getLogger("lakemq.producer")

_RECORD_BYTES = 32
"""Approximate bytes of a record beside its key, value and headers."""

_MAX_CHECKED_NAMES = 10_000
"""Most destination names that are remembered as valid."""


class Producer:
    """Publishes records and tables in the background, per destination in the order of the calls.

    Use it as a context manager. If you do not close a producer, it sends its buffer when the interpreter ends, for at
    most 30 s, and names on stderr what was not delivered.

    The producer is thread-safe. `flush` waits for everything that any thread sent before, and raises the first error.
    If a batch fails while no thread flushes, the next `send`, `flush` or `close` of each thread raises the error, once
    per thread. It does not raise errors that the thread has got from a future or a callback.
    """

    _uses_fast_path = True
    """Whether `send` may skip its checks while the buffer has slack. In a transaction, each record needs the checks."""

    def __init__(
        self,
        publisher: ArrowPublisher,
        requester: Requester,
        clock: Clock,
        options: ProducerOptions,
        on_close: Callable[[Producer], object] = lambda _: None,
        lock: Any = None,
    ) -> None:
        """on_close: called once the producer is closed; lock: an RLock to share."""
        self._publisher, self._requester, self._clock, self._options = publisher, requester, clock, options
        self._on_close = on_close
        self._sequences: SequenceCounters | None = None
        self._lock = lock or threading.RLock()
        self._monitor = DeliveryMonitor(self._lock)
        self._buffer = Buffer(options, clock, self._monitor, self._uses_fast_path)
        self._pid = process.current_id
        self._destinations: set[str] = set()
        self._timed_out_ms = -1
        """When a batch last got no answer within its delivery_timeout_ms. See `_deliver`."""
        self._is_closed = False
        self._failures, self._acknowledged = self._monitor.failures, FlushCounter()
        self._thread = start_thread(self._run, "lakemq-producer")

    # -- sending, as callers see it ---------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Sequence[Header] | Mapping[str, bytes] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        deliver_at: datetime | int | None = None,
        delay_ms: int | None = None,
        ttl_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> RecordFuture:
        """Put one record into the buffer, and return its future.

        Args:
            topic: a topic, or a destination that topics subscribe to.
            value: the payload. Text is encoded as UTF-8.
            key: decides the partition. Records of a key keep their order.
            headers: (name, value) pairs, or a mapping.
            partition: the partition, instead of one by the key.
            timestamp_ms: epoch milliseconds. Default: when the batch is sent.
            deliver_at: delay the message until this time (with a time zone, or epoch milliseconds).
            delay_ms: delay the message by so long after its timestamp.
            ttl_ms: how long the message is delivered after it came into the log.
            on_delivery: called with (error, None) or (None, metadata) once the outcome is known.

        Raises:
            InvalidTopic, InvalidRecord, InvalidTimestamp, MessageTooLarge: an argument is not valid.
            BufferFull: the buffer had no room within `max_block_ms`.
            IllegalState: the producer is closed.
            LakeMQError: an earlier batch has failed, and this thread has not got the error yet. The record is not sent.
        """
        if type(topic) is not str or topic not in self._destinations:
            topic = self._parse_destination(topic)
        if type(value) is not bytes:
            value = parse_bytes("value", value)
        if type(key) is not bytes:
            key = parse_bytes("key", key)
        size = (len(value) if value else 0) + (len(key) if key else 0) + _RECORD_BYTES
        if API in modules:
            headers = add_trace_to_record(headers)
        extras = None
        timed = deliver_at is not None or delay_ms is not None or ttl_ms is not None
        if timed or headers is not None or partition is not None or timestamp_ms is not None:
            extras, more = parse_extras(headers, partition, timestamp_ms, deliver_at, delay_ms, ttl_ms)
            size += more
        if on_delivery is not None:
            check_callback("on_delivery", on_delivery)
        if size > MAX_BYTES:
            check_size(size)
        if process.current_id != self._pid:
            self._monitor.check_process()
        with self._lock:
            if extras is None and on_delivery is None and self._failures.is_up_to_date:
                quick = self._buffer.add_fast(topic, size, key, value)
                if quick is not None:
                    return quick
            self._make_room(size)
            future = RecordFuture(*self._buffer.add_record(topic, size, key, value, extras))
            if on_delivery is not None:
                future.on_delivery(on_delivery)
        return future

    def send_arrow(self, topic: str, table: pa.Table) -> None:
        """Put a table into the buffer, as one batch: its rows are published together or not at all.

        Args:
            topic: a topic, or a destination that topics subscribe to.
            table: column `value`, and optionally `key`, `headers`, `timestamp`, `partition`, `deliver_at`, `delay_ms`
                and `ttl_ms`.

        Raises:
            LakeMQError: the same errors as `send`.
        """
        self._monitor.check_process()
        topic = self._parse_destination(topic)
        if not isinstance(table, pa.Table):
            raise InvalidRecord(
                "The table is not a table of Arrow.", found=type(table).__name__, expected="a pyarrow.Table"
            )
        now_ms, table = self._clock.now_ms(), add_trace_to_table(table)
        body, requested = few_body_from_table(table, topic, now_ms) or build_body(table, topic, now_ms)
        size = body.nbytes
        with self._lock:
            self._make_room(size)
            if body.num_rows == 0:
                return
            self._buffer.add_table(topic, size, body, requested)

    def _parse_destination(self, topic: object) -> str:
        name = parse_destination(topic)
        if len(self._destinations) < _MAX_CHECKED_NAMES:
            self._destinations.add(name)
        return name

    def _make_room(self, size: int) -> None:
        """Wait for room in the buffer. The lock is held. Raises what refuses a record now."""
        self._check_accepts()
        if not self._buffer.has_room(size):
            self._wait_for_room(size)

    def _check_accepts(self) -> None:
        self._check_open()
        self._failures.raise_unreported()

    def _check_open(self) -> None:
        if self._is_closed:
            raise IllegalState("The producer is closed.")

    def _wait_for_room(self, size: int) -> None:
        """Wait for room. The producer or its transaction may end while we wait, so check both again."""
        self._monitor.check_can_wait()
        deadline_ms = self._clock.steady_ms() + self._options.max_block_ms
        while not self._buffer.has_room(size):
            left_ms = deadline_ms - self._clock.steady_ms()
            if left_ms <= 0:
                raise BufferFull(
                    f"The producer's buffer had no room within {self._options.max_block_ms} ms (max_block_ms).",
                    found=f"{self._buffer.held_bytes} bytes waiting",
                    expected=f"room for {size} within {self._options.buffer_memory}",
                )
            self._monitor.changed.wait(left_ms / 1000)
            self._check_accepts()

    # -- waiting ----------------------------------------------------------------------------------------

    def flush(self) -> FlushReport:
        """Send the buffer now, and wait until everything sent before this call, by any thread, is acknowledged.

        Returns:
            What was acknowledged since the last flush of any thread, per partition.

        Raises:
            LakeMQError: the first error of the batches that were waited for, or of batches that have failed since this
                thread's last call.
        """
        self._monitor.check_can_wait()
        with self._lock:
            self._check_open()
            self._wait_for_sent()
            return self._acknowledged.take()

    def _wait_for_sent(self) -> None:
        """Wait until all batches are settled. Raises their first error, or one that this thread has not got yet.

        A batch with a `commit_error` is not waited for: its outcome stays unknown until the caller commits again or
        aborts, which only the waiting thread may be there to do.
        """
        self._failures.start_tracking()
        last_number, awaited = self._buffer.last_number, self._buffer.start_flush()
        waiting = awaited
        while waiting := [batch for batch in waiting if self._buffer.holds(batch) and batch.commit_error is None]:
            self._monitor.changed.wait()
        self._failures.raise_unreported(last_number)
        for batch in awaited:
            if (error := batch.failure) and not self._was_reported_by_callback(batch):
                raise error.with_traceback(None)

    def _was_reported_by_callback(self, batch: Batch) -> bool:
        """Return whether this thread has got the error of the batch from a callback or a future."""
        return (
            batch.outcome is not None and batch.outcome.is_reported_later and self._failures.has_reported(batch.number)
        )

    def close(self) -> None:
        """Send the buffer, and end. Later records are refused. Raises what `flush` raises."""
        self._monitor.check_can_wait()
        with self._lock:
            self._failures.start_tracking()
            self.stop_accepting()
            self._buffer.drain()
        self._thread.join()
        self._on_close(self)
        with self._lock:
            self._failures.raise_unreported()

    def check_can_wait(self) -> None:
        """Raise IllegalState where the producer cannot be closed: in a forked process, or in its own callback."""
        self._monitor.check_can_wait()

    def has_open_work(self) -> bool:
        """Return whether `close` has something to send that a sequencer must answer."""
        with self._lock:
            return self._buffer.held_bytes > 0

    def stop_accepting(self) -> None:
        """Refuse later records. What is in the buffer is still sent."""
        with self._lock:
            self._is_closed = True
            self._buffer.disable_fast_path()
            self._monitor.changed.notify_all()  # wakes threads that wait for room

    # -- at exit: see OpenProducers ---------------------------------------------------------------------

    def start_ending(self) -> None:
        """Refuse later records, and send the buffer without waiting for `linger_ms`."""
        with self._lock:
            self.stop_accepting()
            self._buffer.drain()

    def wait_for_end(self, timeout_s: float) -> None:
        """Wait until all batches are settled after `start_ending`, or the time is over."""
        self._thread.join(timeout_s)

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
        why = str(failed[0].error) if failed else "No sequencer answered before the program ended."
        return (
            f"Messages were not delivered, or not acknowledged, when the program ended: {topics}. {why} Call flush() "
            "or close(), or use the producer in a `with` block, to get the error in your program."
        )

    def end_at_exit(self) -> None:
        """Finish at exit, once everything is sent. Nothing is left to do here."""

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()

    # -- transactions: only TransactionalProducer has them ----------------------------------------------

    def init_transactions(self) -> None:
        """Raises IllegalState: this producer has no transactional id."""
        raise IllegalState("This producer has no transactional id.", expected="mq.producer(transactional_id)")

    def begin_transaction(self) -> None:
        """Raises IllegalState: this producer has no transactional id."""
        Producer.init_transactions(self)

    def send_offsets_to_transaction(
        self, offsets: Mapping[tuple[str, int], int], group: str, metadata: str | None = None
    ) -> None:
        """Raises IllegalState: this producer has no transactional id."""
        Producer.init_transactions(self)

    def commit_transaction(self) -> None:
        """Raises IllegalState: this producer has no transactional id."""
        Producer.init_transactions(self)

    def abort_transaction(self) -> None:
        """Raises IllegalState: this producer has no transactional id."""
        Producer.init_transactions(self)

    # -- sending: in the producer's thread --------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (batch := self._next()) is not None:
                try:
                    outcome = self._deliver(batch)
                except BaseException as error:  # the callers of this batch get it; other batches are still sent
                    outcome = BatchOutcome(error=to_lakemq_error(error))
                self._settle([(batch, outcome)])
        except BaseException as error:
            log.exception("The sending thread of a producer has failed. The producer takes no more records.")
            self._fail_all(to_lakemq_error(error))

    def _fail_all(self, error: LakeMQError) -> None:
        """Fail all batches of the sending thread, which has ended, and refuse later records."""
        with self._lock:
            self.stop_accepting()
            batches = self._buffer.list_for_sender()
        self._settle([(batch, BatchOutcome(error=error)) for batch in batches])

    def _next(self) -> Batch | None:
        with self._lock:
            return self._buffer.next()

    def _deliver(self, batch: Batch) -> BatchOutcome:
        """Publish a batch, and return its outcome.

        While no sequencer answers, batches queue up behind the one that is tried. Once that one has timed out, those
        that are overdue by then fail without an attempt. Otherwise each would wait for one attempt, and `flush` would
        take many times `delivery_timeout_ms`. A batch that is overdue for another reason still gets its attempt.
        """
        now_ms, deadline_ms = self._clock.steady_ms(), batch.created_ms + self._options.delivery_timeout_ms
        try:
            if batch.created_ms <= self._timed_out_ms and now_ms > deadline_ms:
                raise RequestTimedOut(
                    "The records were not sent: earlier ones got no answer until these were overdue, too "
                    "(delivery_timeout_ms)."
                )
            body, requested = batch.rows(self._clock.now_ms())
            return self._outcome(*self._publish(batch, body, requested, deadline_ms))
        except BaseException as error:
            if isinstance(error, RequestTimedOut) and now_ms <= deadline_ms:  # it had its full time
                self._timed_out_ms = self._clock.steady_ms()
            self._on_send_error(error)
            raise

    def _publish(
        self, batch: Batch, body: Body, requested: RequestedPartitions, deadline_ms: int
    ) -> tuple[PreparedPublish, Published]:
        # with on_error="fail", a bad record fails alone through its future; a table fails as a whole
        alone = batch.records is not None and self._options.on_error == "fail"
        on_error: OnRejection = "leave_out" if alone else self._options.on_error
        with trace_batch(batch.destination, body):
            return self._publish_until_known(batch, body, requested, deadline_ms, on_error)

    def _publish_until_known(
        self,
        batch: Batch,
        body: Body,
        requested: RequestedPartitions,
        deadline_ms: int,
        on_error: OnRejection,
    ) -> tuple[PreparedPublish, Published]:
        while True:
            is_new = self._sequences is None
            sequences = self._ensure_sequences(deadline_ms)
            left_ms = max(0, deadline_ms - self._clock.steady_ms())
            try:
                return self._publisher.send(
                    Publication(batch.destination, on_error, sequences=sequences), body, requested, left_ms
                )
            except UnknownProducerId:
                if is_new or not self._options.idempotent:
                    raise
                self._sequences = None  # the id was idle for too long; the batch had no effect

    def _on_send_error(self, error: BaseException) -> None:
        # If the batch was published after all, its numbers are taken, and new records would pass for repeats. So the
        # next batch gets a new producer id, after any error.
        self._sequences = None

    def _ensure_sequences(self, deadline_ms: int) -> SequenceCounters | None:
        if self._options.idempotent and self._sequences is None:
            done = self._request_producer_id(deadline_ms)
            self._sequences = SequenceCounters(done.producer_id, done.producer_epoch)
        return self._sequences

    def _request_producer_id(self, deadline_ms: int) -> ProducerDone:
        # a repeat is harmless: an id that is never used expires
        done = ask_with_retries(lambda: self._requester.ask(InitProducer()), self._clock, deadline_ms)
        assert isinstance(done, ProducerDone)
        return done

    # -- outcomes ---------------------------------------------------------------------------------------

    def _outcome(self, prepared: PreparedPublish, published: Published) -> BatchOutcome:
        placement = Placement(
            prepared.route.topics[0].topic,
            prepared.partition,
            prepared.timestamps_us,
            published.units,
            prepared.due_ms,
            self._publisher.receipts(prepared, published),
            prepared.reasons,
        )
        return BatchOutcome(
            published, placement, placement.first_refusal() if self._options.on_error == "fail" else None
        )

    def _settle(self, settled: Sequence[tuple[Batch, BatchOutcome]]) -> None:
        """Settle batches: set their futures, run callbacks, then release threads in `flush` or waiting for room.

        A batch that has an outcome keeps it. All steps are repeatable and run again in `finally`, so that an interrupt
        of the main thread (which commits and aborts itself) leaves no thread waiting.
        """
        calls: list[Callable[[], object]] = []
        try:
            self._record_outcomes(settled, calls)
            with self._monitor.in_callback():
                run_callbacks(calls)
        finally:
            self._record_outcomes(settled, calls)  # in case the first call was interrupted
            self._release([batch for batch, _ in settled])

    def _release(self, batches: Sequence[Batch]) -> None:
        with self._lock:
            for batch in batches:
                if self._buffer.holds(batch):
                    self._buffer.remove(batch)
            self._monitor.changed.notify_all()

    def _record_outcomes(
        self, settled: Sequence[tuple[Batch, BatchOutcome]], calls: list[Callable[[], object]]
    ) -> None:
        """Give each batch its outcome, and add its callbacks to `calls`."""
        with self._lock:
            for batch, outcome in settled:
                if not batch.is_settled:
                    self._record_outcome(batch, outcome, calls)
            self._monitor.changed.notify_all()

    def _record_outcome(self, batch: Batch, outcome: BatchOutcome, calls: list[Callable[[], object]]) -> None:
        failure, callback_records = batch.build_failure(outcome), batch.callback_records
        calls += batch.settle(outcome)
        if outcome.published is not None:
            self._acknowledged.add(outcome.published)
        if failure is not None:
            self._failures.add(failure)
            self._failures.mark_records_reported(batch.number, callback_records)


def to_lakemq_error(error: BaseException) -> LakeMQError:
    """Return the error as a LakeMQError. The texts of other errors are dropped: they may repeat the payload."""
    if isinstance(error, LakeMQError):
        return error
    if isinstance(error, OSError):
        # its text may name what the rows hold
        converted: LakeMQError = storage_error(
            "The rows could not be stored.", error, error.strerror or type(error).__name__
        )
    else:
        converted = UnknownServerError("The sending failed.", found=type(error).__name__)
    converted.__cause__ = error
    return converted
