"""The calls that both kinds of producer have in common: they fill the buffer, and wait until it is sent.

Rows of docs/architecture.md: publish 1.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from sys import modules
from typing import Any, TypeVar

import pyarrow as pa

from ...namespace import process
from ...namespace.clock import Clock
from ...namespace.process import ProcessBound
from ...protocol.errors import BufferFull, IllegalState, InvalidRecord
from ..arguments import parse_whole_number
from ..rows.few_rows import build_body
from ..rows.record import MAX_BYTES, check_callback, check_size, parse_bytes, parse_destination, parse_extras
from ..tracing import API, add_trace_to_record, add_trace_to_table
from .batches import Sender
from .buffer import Buffer
from .delivery import DeliveryMonitor, OnDelivery, RecordFuture
from .failures import FlushReport
from .options import ProducerOptions
from .settler import BatchSettler

log = logging.getLogger("lakemq.producer")

P = TypeVar("P", bound="RecordProducer")

_RECORD_BYTES = 32
"""Approximate bytes of a record beside its key, value and headers."""

_MAX_CHECKED_NAMES = 10_000
"""Most destination names that are remembered as valid."""


class RecordProducer(ProcessBound, ABC):
    """A producer, as `mq.producer` returns it: a `Producer`, or with a transactional id a `TransactionalProducer`.

    Thread-safe. Use it as a context manager. `flush` waits for everything that any thread sent before, and raises the
    first error.
    """

    def __init__(
        self,
        clock: Clock,
        options: ProducerOptions,
        lock: Any,
        on_close: Callable[[RecordProducer], object],
        check_sendable: Callable[[], object] | None = None,
    ) -> None:
        """Create the buffer and the settler of its batches. The subclass adds the sender.

        Args:
            clock: for delays and timeouts.
            options: of the producer.
            lock: an RLock, which all parts share.
            on_close: called once the producer is closed.
            check_sendable: raises the reason why an open producer takes no record now. It is called for each record.
                None: there is no such reason, and `send` skips its checks while the buffer has slack.
        """
        self._clock, self._options, self._lock = clock, options, lock
        self._on_close, self._check_sendable = on_close, check_sendable
        self._monitor = DeliveryMonitor(lock)
        self._failures = self._monitor.failures
        self._buffer = Buffer(options, clock, self._monitor, has_fast_path=check_sendable is None)
        self._settler = BatchSettler(self._buffer, self._monitor, clock)
        self._pid = process.current_id
        self._destinations: set[str] = set()
        self._is_closed = False
        self._sender: Sender

    # -- sending ----------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Sequence[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None] | None = None,
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
            headers: (name, value) pairs, or a mapping. Text is encoded as UTF-8.
            partition: the partition, instead of one by the key.
            timestamp_ms: epoch milliseconds. Default: when the batch is sent.
            deliver_at: delay the message until this time (with a time zone, or epoch milliseconds).
            delay_ms: delay the message by so long after it is sent.
            ttl_ms: how long the message is delivered after it came into the log.
            on_delivery: called with (error, None) or (None, metadata) once the outcome is known.

        Raises:
            InvalidTopic, InvalidRecord, InvalidTimestamp, MessageTooLarge: an argument is not valid.
            BufferFull: the buffer had no room within `max_block_ms`.
            IllegalState: the producer is closed.
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
            if extras is None and on_delivery is None and self._failures.is_tracking:
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
        body, requested = build_body(table, topic, now_ms)
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
        """Wait until the buffer has room. The lock is held. Raises the error of `send` if a record is refused now."""
        self._check_accepts()
        self._failures.start_tracking()
        for failure in self._failures.take_unseen():
            text = (
                "Records to '%s' were not published, and maybe later ones. `flush` raises their errors. The first: %s"
            )
            log.warning(text, failure.destination, failure.error)
        if not self._buffer.has_room(size):
            self._wait_for_room(size)

    def _check_accepts(self) -> None:
        self._check_open()
        if self._check_sendable is not None:
            self._check_sendable()

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

    def flush(self, timeout_ms: int | None = None) -> FlushReport:
        """Send the buffer now, and wait until everything sent before this call, by any thread, is acknowledged.

        Args:
            timeout_ms: how long to wait. Left out, until `delivery_timeout_ms` ends each record.

        Returns:
            What was acknowledged since the last flush of any thread, per partition.

        Raises:
            RequestTimedOut: the time is over. The producer goes on sending what is not acknowledged.
            LakeMQError: the first error of the batches that were waited for, or of batches that have failed since this
                thread's last call.
        """
        self._monitor.check_can_wait()
        limit_ms = None if timeout_ms is None else parse_whole_number("timeout_ms", timeout_ms, 0)
        deadline_ms = None if limit_ms is None else self._clock.steady_ms() + limit_ms
        with self._lock:
            self._check_open()
            self._settler.wait_for_sent(deadline_ms)
            return self._settler.acknowledged.take()

    @abstractmethod
    def close(self) -> None:
        """End the producer. Later records are refused."""

    def __enter__(self: P) -> P:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not process.end_block(kind, self.close):
            self._on_close(self)
            log.warning("Interrupted. %s", self._describe_losses() or "The producer is still closing.")

    def _finish(self) -> None:
        """Send the buffer, and end. Later records are refused. Raises what `flush` raises."""
        with self._lock:
            self._failures.start_tracking()
            self._stop_accepting()
            self._buffer.drain()
        self._sender.join()
        self._on_close(self)
        with self._lock:
            self._failures.raise_unreported()

    def _check_can_wait(self) -> None:
        """Raise IllegalState where the producer cannot be closed: in a forked process, or in its own callback."""
        self._monitor.check_can_wait()

    def _stop_accepting(self) -> None:
        """Refuse later records. What is in the buffer is still sent."""
        with self._lock:
            self._is_closed = True
            self._buffer.disable_fast_path()
            self._monitor.changed.notify_all()  # wakes threads that wait for room

    def _has_open_work(self) -> bool:
        """Return whether `close` sends something that a sequencer must answer."""
        with self._lock:
            return self._buffer.held_bytes > 0

    # -- at exit: see OpenProducers ---------------------------------------------------------------------

    def _start_ending(self) -> None:
        """Refuse later records, and begin to end."""
        self._stop_accepting()

    def _wait_for_end(self, timeout_s: float) -> None:
        """Wait until all that must arrive has arrived after `_start_ending`, or the time is over."""

    def _unsettled_count(self) -> int:
        """Return the number of messages that must arrive and are not acknowledged."""
        return 0

    @abstractmethod
    def _describe_losses(self) -> str | None:
        """Describe what the program loses without an error; None: nothing."""

    def _end_at_exit(self) -> None:
        """Finish, once everything is sent or the time is over."""
