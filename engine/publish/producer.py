"""The Python producer: records and Arrow tables in, sent in the background, each exactly once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lakemq.tables.messages import HEADERS
from lakemq.tables.spec import TIME

from ..clock import Clock
from ..protocol.errors import BufferFull, IllegalState, InvalidRecord, RequestTimedOut, UnsupportedVersion
from ..protocol.producers import next_sequence
from ..protocol.requests import InitProducer, ProducerDone, Published, Unit
from ..requester import Requester
from .arrow import ArrowPublisher, OnError
from .compose import KEY_HEADERS, Sequences, body_of

Header = tuple[str, bytes | None]


@dataclass
class _Records:
    """Columns of records for one destination that were not sent yet."""

    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[list[Header] | None] = field(default_factory=list)
    timestamps_us: list[int | None] = field(default_factory=list)
    partitions: list[int | None] = field(default_factory=list)

    def table(self) -> pa.Table:
        columns: dict[str, pa.Array] = {
            "key": pa.array(self.keys, pa.binary()),
            "value": pa.array(self.values, pa.binary()),
            "timestamp": pa.array(self.timestamps_us, TIME),
        }
        if any(self.headers):
            columns["headers"] = pa.array(self.headers, HEADERS)
        if any(p is not None for p in self.partitions):
            columns["partition"] = pa.array(self.partitions, pa.int64())
        return pa.table(columns)


@dataclass(frozen=True)
class Flushed:
    """What was acknowledged since the last flush: offsets per topic and partition, and how many rows were refused."""

    units: tuple[Unit, ...]
    refused_count: int

    def offsets(self) -> dict[tuple[str, int], tuple[int, int]]:
        """(topic, partition) -> first and last offset of what was flushed."""
        ends: dict[tuple[str, int], tuple[int, int]] = {}
        for unit in self.units:
            key, last = (unit.topic, unit.partition), unit.base_offset + unit.record_count - 1
            first, previous = ends.get(key, (unit.base_offset, last))
            ends[key] = (min(first, unit.base_offset), max(previous, last))
        return ends


class Producer:
    """Sends what it is given in the order given, per destination. Thread-safe; use it as a context manager.

    linger_ms: how long a record waits for company; batch_size: bytes that are sent without waiting; buffer_memory:
    bytes that may wait, above which `send` blocks up to max_block_ms and then raises BufferFull.
    """

    def __init__(
        self,
        publisher: ArrowPublisher,
        requester: Requester,
        clock: Clock,
        linger_ms: int = 5,
        batch_size: int = 1 << 20,
        buffer_memory: int = 64 << 20,
        max_block_ms: int = 60_000,
        on_error: OnError = "dead_letter",
        idempotent: bool = True,
        delivery_timeout_ms: int = 120_000,
    ) -> None:
        self._publisher, self._requester, self._clock = publisher, requester, clock
        self._linger_ms, self._batch_size, self._buffer_memory = linger_ms, batch_size, buffer_memory
        self._max_block_ms, self._on_error, self._idempotent = max_block_ms, on_error, idempotent
        self._delivery_timeout_ms = delivery_timeout_ms
        self._sequences: Sequences | None = None
        self._lock = threading.Condition()
        self._queue: dict[str, list[_Records | pa.Table]] = {}
        self._queued_bytes = self._sending_bytes = 0
        self._first_queued_ms = 0
        self._flushing = 0
        self._closed = False
        self._error: BaseException | None = None
        self._done: list[Published] = []
        self._thread = threading.Thread(target=self._run, name="lakemq-producer", daemon=True)
        self._thread.start()

    # -- giving -----------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Sequence[Header] | Mapping[str, bytes] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        delay: Any = None,
        deliver_at: Any = None,
    ) -> None:
        """Give one record to be sent. Raises InvalidRecord, BufferFull, or the error of an earlier send."""
        if delay is not None or deliver_at is not None:
            raise UnsupportedVersion("Delayed delivery is not offered yet.")
        if isinstance(value, str):
            value = value.encode()
        if isinstance(key, str):
            key = key.encode()
        listed = _headers(headers) if headers else None
        if key is None and listed:
            key = next((v for k, v in listed if k in KEY_HEADERS), None)
        _check_bytes("value", value)
        _check_bytes("key", key)
        size = (len(value) if value else 0) + (len(key) if key else 0) + 32
        with self._lock:
            self._reserve(size)
            waiting = self._queue.setdefault(topic, [])
            if not waiting or not isinstance(waiting[-1], _Records):
                waiting.append(_Records())
            records = waiting[-1]
            records.keys.append(key)
            records.values.append(value)
            records.headers.append(listed)
            records.timestamps_us.append(timestamp_ms * 1000 if timestamp_ms is not None else None)
            records.partitions.append(partition)

    def send_arrow(self, topic: str, table: pa.Table) -> None:
        """Give a table: `value`, and optionally `key`, `headers`, `timestamp`, `partition`."""
        body_of(table.slice(0, 0), topic, 0)  # refuse bad columns here, not in the background
        with self._lock:
            self._reserve(table.nbytes)
            self._queue.setdefault(topic, []).append(table)

    def flush(self) -> Flushed:
        """Wait until all that was given is acknowledged. Raises what the sending failed with."""
        with self._lock:
            self._flushing += 1
            self._lock.notify_all()
            while (self._queued_bytes or self._sending_bytes) and self._error is None:
                self._lock.wait()
            self._flushing -= 1
            self._raise_error()
            done, self._done = self._done, []
        return Flushed(tuple(u for d in done for u in d.units), sum(d.refused_count for d in done))

    def close(self) -> None:
        """Flush and end."""
        if self._closed:
            return
        try:
            self.flush()
        finally:
            with self._lock:
                self._closed = True
                self._lock.notify_all()
            self._thread.join()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()

    def _reserve(self, size: int) -> None:
        """Room for `size` bytes, waited for; the lock is held."""
        self._raise_error()
        if self._closed:
            raise IllegalState("The producer is closed.")
        waiting = self._queued_bytes + self._sending_bytes
        if waiting and waiting + size > self._buffer_memory:
            self._wait_for_room(size)
        if not self._queued_bytes:
            self._first_queued_ms = self._clock.steady_ms()
        before = self._queued_bytes
        self._queued_bytes += size
        if before == 0 or (before < self._batch_size <= self._queued_bytes):
            self._lock.notify_all()

    def _wait_for_room(self, size: int) -> None:
        deadline_ms = self._clock.steady_ms() + self._max_block_ms
        while self._queued_bytes + self._sending_bytes + size > self._buffer_memory:
            left_ms = deadline_ms - self._clock.steady_ms()
            if left_ms <= 0:
                raise BufferFull(
                    f"The buffer did not drain in {self._max_block_ms} ms.",
                    found=f"{self._queued_bytes + self._sending_bytes} bytes waiting",
                    expected=f"room for {size} within {self._buffer_memory}",
                )
            self._lock.wait(left_ms / 1000)
            self._raise_error()
            if not self._queued_bytes and not self._sending_bytes:
                return

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    # -- sending ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._is_due():
                    if self._closed and not self._queued_bytes:
                        return
                    self._lock.wait(self._linger_ms / 1000 if self._queued_bytes else None)
                queue, self._queue = self._queue, {}
                self._sending_bytes, self._queued_bytes = self._queued_bytes, 0
            self._send_all(queue)
            with self._lock:
                self._sending_bytes = 0
                self._lock.notify_all()

    def _is_due(self) -> bool:
        if not self._queued_bytes:
            return False
        lingered = self._clock.steady_ms() - self._first_queued_ms >= self._linger_ms
        return bool(self._flushing) or lingered or self._queued_bytes >= self._batch_size or self._closed

    def _send_all(self, queue: dict[str, list[_Records | pa.Table]]) -> None:
        for topic, given in queue.items():
            for one in given:
                try:
                    self._publish(topic, table_of(one))
                except BaseException as error:  # told at the next call; what else waits is sent all the same
                    self._sending_failed(error)
                    with self._lock:
                        self._error = self._error or error

    def _publish(self, topic: str, table: pa.Table) -> None:
        body, asked = body_of(table, topic, self._clock.now_ms())
        result = self._publisher.publish(
            topic, body, asked, self._on_error, self._ready(), timeout_ms=self._delivery_timeout_ms
        )
        with self._lock:
            self._done.append(result)

    def _sending_failed(self, error: BaseException) -> None:
        # if it was published after all, its sequences are taken: others with them would pass for repeats
        self._sequences = None

    def _ready(self) -> Sequences | None:
        if self._idempotent and self._sequences is None:
            done = self._initialized()
            self._sequences = Sequences(done.producer_id, done.producer_epoch, next_sequence)
        return self._sequences

    def _initialized(self) -> ProducerDone:
        deadline_ms = self._clock.steady_ms() + self._delivery_timeout_ms
        while True:
            try:
                done = self._requester.ask(InitProducer())
            except RequestTimedOut:
                if self._clock.steady_ms() > deadline_ms:
                    raise
                continue  # an id that nobody uses does no harm
            assert isinstance(done, ProducerDone)
            return done


def table_of(given: _Records | pa.Table) -> pa.Table:
    return given.table() if isinstance(given, _Records) else given


def _headers(headers: Sequence[Header] | Mapping[str, bytes]) -> list[Header]:
    pairs: list[Header] = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise InvalidRecord("A header is not a pair of text and bytes.", found=repr(pair)[:60])
        if pair[1] is not None and not isinstance(pair[1], bytes):
            raise InvalidRecord(
                "A header's value is not bytes.", found=type(pair[1]).__name__, expected="bytes or None"
            )
    return pairs


def _check_bytes(name: str, value: object) -> None:
    if value is not None and not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidRecord(f"The {name} is not bytes.", found=type(value).__name__, expected="bytes, str or None")
