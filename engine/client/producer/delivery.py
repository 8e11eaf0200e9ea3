"""Delivery of records: batches with their outcomes, and a future per record."""

from __future__ import annotations

import logging
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lakemq.tables.specs.messages import NOT_DELAYED

from ...namespace import process
from ...protocol.errors import (
    IllegalState,
    InvalidRequest,
    LakeMQError,
    Refusal,
    RequestTimedOut,
    SchemaMismatch,
    error_from_refusal,
)
from ...protocol.values.log import Published, Unit
from ..publish.arrow import PreparedPublish, RequestedPartitions
from ..rows.few_rows import Body, Records
from ..rows.placing import describe_rejection, find_reason
from ..rows.receipts import Receipts
from ..rows.record import check_callback
from .failures import Failure, Failures, ThreadProgress

log = logging.getLogger("lakemq.producer")

OnDelivery = Callable[["LakeMQError | None", "RecordMetadata | None"], object]


@dataclass(frozen=True)
class RecordMetadata:
    """Position of a published record. If it reached several topics: in the first topic by name.

    Attributes:
        topic: name of the topic.
        partition: number of the partition.
        offset: offset in the log; -1 for a delayed record, and after a repeated commit whose first answer was lost.
        timestamp_ms: timestamp by the producer, whatever the topic's message.timestamp.type.
        deliver_at_ms: when a delayed record is delivered; None if it is not delayed, or the answer was lost.
        receipt: text that cancels a delayed record; None if it is not delayed, or the answer was lost.

    Example:
        >>> producer.send("orders", "a book").result().offset  # doctest: +SKIP
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    deliver_at_ms: int | None = None
    receipt: str | Any = None


class Placement:
    """Positions of the rows of a publish in the first topic by name, computed on first use.

    Rows of a partition keep their order. So the offset of a row is the base offset of its unit, plus the number of
    rows of the unit before it.
    """

    def __init__(self, prepared: PreparedPublish, units: Sequence[Unit], receipts: Receipts | None = None) -> None:
        """receipts: of the delayed rows."""
        placed, topic = prepared.placed, prepared.route.topics[0].topic
        self._copy, self._receipts, self._reasons = prepared.route.copies[0], receipts, placed.reasons
        self._due_ms = placed.due_ms
        self._topic, self._partition = topic, np.asarray(placed.partition)
        self._raw_timestamps_us = prepared.timestamps_us
        self._base_offsets = {unit.partition: unit.base_offset for unit in units if unit.topic == topic}

    def of(self, row: int) -> RecordMetadata:
        """Return the metadata of a row. Raises the error with which the row was rejected."""
        partition = int(self._partition[row])
        if partition < 0:
            raise self._error(partition, 1)
        timestamp_ms = int(self._timestamps_us[row]) // 1000
        if self._due_ms is not None and self._due_ms[row] != NOT_DELAYED:
            receipt = None if self._receipts is None else self._receipts.of(row)
            return RecordMetadata(self._topic, partition, -1, timestamp_ms, int(self._due_ms[row]), receipt)
        return RecordMetadata(self._topic, partition, int(self._offsets[row]), timestamp_ms)

    @property
    def rejected_count(self) -> int:
        return int((self._partition < 0).sum())

    def first_refusal(self) -> LakeMQError | None:
        """Return an error with the number of rejected rows and the reason of the first one; None: none is rejected."""
        refused = self._partition[self._partition < 0]
        return self._error(int(refused[0]), len(refused)) if len(refused) else None

    def _error(self, partition: int, count: int) -> LakeMQError:
        unfit = find_reason(partition, self._reasons)
        error, reason = (SchemaMismatch.name, unfit) if unfit else describe_rejection(partition, self._copy)
        return error_from_refusal(Refusal(error, reason if count == 1 else f"{count} rows are rejected: {reason}"))

    @cached_property
    def _offsets(self) -> npt.NDArray[np.int64]:
        partition_of_row = self._partition
        if self._due_ms is not None:  # delayed rows have no offset yet
            partition_of_row = np.where(np.asarray(self._due_ms) == NOT_DELAYED, partition_of_row, -1)
        order = np.argsort(partition_of_row, kind="stable")
        partition = partition_of_row[order]
        starts = np.flatnonzero(np.concatenate([[True], partition[1:] != partition[:-1]]))
        bases = np.array([self._base_offsets.get(p, -1) for p in partition[starts].tolist()], np.int64)
        counts = np.diff(starts, append=len(partition))
        offsets = np.empty(len(partition), np.int64)
        offsets[order] = np.arange(len(partition)) + np.repeat(bases - starts, counts)
        return offsets

    @cached_property
    def _timestamps_us(self) -> npt.NDArray[np.int64]:
        return np.asarray(self._raw_timestamps_us, np.int64)


class BatchOutcome(NamedTuple):
    """The outcome of a batch: it was published, or it failed, or both if only some rows were refused.

    Attributes:
        published: the sequencer's answer; None if nothing was published.
        placement: positions of the rows.
        error: error of the batch, or of its rejected rows.
        is_reported_later: later calls of the producer raise the error in threads that did not wait for the batch.
    """

    published: Published | None = None
    placement: Placement | None = None
    error: LakeMQError | None = None
    is_reported_later: bool = True


class DeliveryMonitor:
    """Lock and condition on which threads wait for outcomes. Each producer has one."""

    def __init__(self, lock: Any) -> None:
        """lock: an RLock."""
        self.lock, self._pid = lock, process.current_id
        self.failures = Failures(lock)
        self.changed = threading.Condition(lock)
        self._thread = threading.local()
        self._callback_failures: Counter[tuple[str, str, int]] = Counter()

    def check_process(self) -> None:
        """Raise IllegalState in a forked process, which does not have the producer's thread."""
        if process.current_id != self._pid:
            raise process.build_fork_error("The producer")

    def check_can_wait(self) -> None:
        """Raise IllegalState in a forked process, and in a callback: it runs in the thread that we would wait for."""
        self.check_process()
        if getattr(self._thread, "calls_back", False):
            raise IllegalState(
                "A callback of a producer cannot wait for the producer.", expected="a call from another thread"
            )

    @contextmanager
    def in_callback(self) -> Iterator[None]:
        before = getattr(self._thread, "calls_back", False)
        self._thread.calls_back = True
        try:
            yield
        finally:
            self._thread.calls_back = before

    def log_callback_failure(self, error: BaseException) -> None:
        """Log the first error of each class and line, and its 10th, 100th, ...: a callback may fail for each record."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = type(error).__name__, frame.filename, frame.lineno or 0
        self._callback_failures[place] += 1
        count = self._callback_failures[place]
        if count == 1:
            log.error("A callback of a producer has failed.", exc_info=error)
        elif str(count).strip("0") == "1":
            log.error("Callbacks of a producer have failed %d times like this: %r", count, error)


class Batch:
    """Records of one destination, or a table, that are sent together. Fields change under the monitor's lock only.

    Attributes:
        number: position among the producer's batches, from 1.
        requested: explicit partitions of the rows.
        outcome: None until the batch is settled.
        commit_error: error of the commit with which the batch travelled, while the outcome is unknown.
        callback_records: (thread, index) of records whose error goes to a callback that the thread has set.
    """

    __slots__ = (
        "_callbacks",
        "_monitor",
        "body",
        "callback_records",
        "commit_error",
        "created_ms",
        "destination",
        "number",
        "outcome",
        "records",
        "requested",
        "size_bytes",
    )

    def __init__(
        self, number: int, destination: str, monitor: DeliveryMonitor, created_ms: int, records: Records | None
    ) -> None:
        self.number, self.destination, self.created_ms, self._monitor = number, destination, created_ms, monitor
        self.size_bytes = 0
        self.records = records
        self.body: Body | None = None
        self.requested: RequestedPartitions = None
        self.outcome: BatchOutcome | None = None
        self.commit_error: LakeMQError | None = None

        self._callbacks: list[Callable[[], object]] = []
        self.callback_records: list[tuple[ThreadProgress, int]] = []

    @property
    def is_settled(self) -> bool:
        return self.outcome is not None

    @property
    def failure(self) -> LakeMQError | None:
        """The error that a flush raises if it waits for this batch."""
        return self.commit_error or (self.outcome.error if self.outcome else None)

    def rows(self, now_ms: int) -> tuple[Body, RequestedPartitions]:
        """Return the message bodies and their explicit partitions."""
        if self.records is not None:
            return self.records.build_body(self.destination, self.size_bytes, now_ms)
        assert self.body is not None
        return self.body, self.requested

    @property
    def record_count(self) -> int:
        """Number of records in a batch that is not settled."""
        if self.records is not None:
            return len(self.records.values)
        return 0 if self.body is None else self.body.num_rows

    def build_failure(self, outcome: BatchOutcome) -> Failure | None:
        """Return the failure that callers must get, before the batch is settled; None: there is none."""
        if outcome.error is None or not outcome.is_reported_later:
            return None
        count = self.record_count if outcome.placement is None else outcome.placement.rejected_count
        return Failure(self.number, outcome.error, self.destination, count, has_futures=self.records is not None)

    def settle(self, outcome: BatchOutcome) -> list[Callable[[], object]]:
        """Set the outcome of an unsettled batch, and return the callbacks to run. The lock is held."""
        self.outcome, self.commit_error = outcome, None
        self.records = self.body = self.requested = None
        callbacks, self._callbacks = self._callbacks, []
        self.callback_records = []
        return callbacks

    def add_callback(self, call: Callable[[], object], error_index: int | None = None) -> None:
        """Run `call` once the batch is settled, or now. error_index: the record whose error goes to the callback."""
        failures = self._monitor.failures
        call = failures.bind_to_thread(call)
        with self._monitor.lock:
            if not self.is_settled:
                if error_index is not None:
                    self.callback_records.append((failures.progress, error_index))
                self._callbacks.append(call)
                return
        run_callbacks(deque([call]), self._monitor.log_callback_failure)

    def wait(self, timeout_s: float | None) -> None:
        """Wait until the batch is settled. Raises RequestTimedOut, and IllegalState in a callback."""
        if self.is_settled:
            return
        self._monitor.check_can_wait()
        with self._monitor.lock:
            if not self._monitor.changed.wait_for(lambda: self.is_settled, timeout_s):
                raise RequestTimedOut(f"The record was not acknowledged within {timeout_s} s; it may still be.")

    def metadata(self, index: int) -> RecordMetadata:
        """Return the metadata of a record of a settled batch. Raises the record's error."""
        assert self.outcome is not None
        try:
            if self.outcome.placement is not None:
                return self.outcome.placement.of(index)
            assert self.outcome.error is not None
            raise self.outcome.error.with_traceback(None)  # the same error is raised for many records
        except LakeMQError:
            self._monitor.failures.mark_record_reported(self.number, index)
            raise


def run_callbacks(calls: deque[Callable[[], object]], log_failure: Callable[[BaseException], object]) -> None:
    """Take all callbacks, run each, and log their errors.

    A KeyboardInterrupt of the main thread is raised after the last one. If it comes between two callbacks, it is raised
    at once, and `calls` has those that are left.
    """
    interrupt: KeyboardInterrupt | None = None
    while calls:
        call = calls.popleft()
        try:
            call()
        except BaseException as error:  # asyncio.CancelledError is not an Exception
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                interrupt = error
            else:
                log_failure(error)
    if interrupt is not None:
        raise interrupt


class RecordFuture(Future[RecordMetadata]):
    """The future position of a record, or its error. Timeouts are in seconds, as in `concurrent.futures`.

    It can be awaited, and given to `asyncio.wrap_future`. It cannot be cancelled: the record is sent in any case. Its
    batch keeps the state, so `concurrent.futures.wait` does not know it.

    Example:
        >>> future = producer.send("orders", "a book")  # doctest: +SKIP
        >>> future.result(timeout=10).offset  # doctest: +SKIP
    """

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch, self._index = batch, index

    __repr__ = object.__repr__

    def done(self) -> bool:
        return self._batch.is_settled

    def running(self) -> bool:
        return not self._batch.is_settled

    def cancel(self) -> bool:
        return False

    def cancelled(self) -> bool:
        return False

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        import asyncio  # few producers await

        return asyncio.wrap_future(self).__await__()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until the record is published, and return where it is.

        If the commit of its transaction got no answer, this waits until you commit again, abort or close.

        Args:
            timeout: seconds to wait; None: without a limit.

        Returns:
            The position of the record.

        Raises:
            RequestTimedOut: the time is over, or the outcome is unknown.
            LakeMQError: the record was refused.
        """
        self._wait(timeout)
        return self._batch.metadata(self._index)

    @property
    def receipt(self) -> str | Any:
        """Text that cancels a delayed record; None if it is not delayed. Waits and raises as `result`."""
        return self.result().receipt

    def exception(self, timeout: float | None = None) -> LakeMQError | None:
        """Wait for the outcome, and return the record's error; None if it is published.

        Args:
            timeout: seconds to wait; None: without a limit.

        Raises:
            RequestTimedOut: the time is over.
        """
        self._wait(timeout)
        try:
            self._batch.metadata(self._index)
        except LakeMQError as error:
            return error
        return None

    def add_done_callback(self, call: Callable[[RecordFuture], object]) -> None:
        """Call `call(future)` in the producer's thread once it is done, or now. Errors of the call are logged.

        Args:
            call: takes the future.

        Raises:
            InvalidRecord: it cannot be called.
        """
        check_callback("The callback", call)
        self._batch.add_callback(lambda: call(self))

    def on_delivery(self, call: OnDelivery) -> None:
        """Call `call(error, None)` or `call(None, metadata)` once the outcome is known.

        Args:
            call: takes the error and the metadata.

        Raises:
            InvalidRecord: it cannot be called.
        """
        check_callback("on_delivery", call)

        def call_back() -> None:
            error = self.exception()
            call(error, None if error else self.result())

        self._batch.add_callback(call_back, self._index)

    def _wait(self, timeout: float | None) -> None:
        if not (timeout is None or (isinstance(timeout, int | float) and 0 <= timeout <= threading.TIMEOUT_MAX)):
            raise InvalidRequest("The timeout is not valid.", found=repr(timeout)[:60], expected="seconds, or None")
        self._batch.wait(timeout)
