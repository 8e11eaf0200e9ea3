"""What became of records that were sent: a future for each, an outcome for each batch of them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lakemq.tables.specs.delayed import NOT_DELAYED

from ...namespace.process import same_process
from ...protocol.errors import IllegalState, InvalidRequest, LakeMQError, Refusal, RequestTimedOut, error_of
from ...protocol.values.log import Published, Unit
from .arrow import Asked, Body
from .placing import REFUSALS
from .receipts import Receipts
from .record import Records, check_callback

log = logging.getLogger("lakemq.producer")

OnDelivery = Callable[["LakeMQError | None", "RecordMetadata | None"], object]


@dataclass(frozen=True)
class RecordMetadata:
    """Where a record is. Of several topics that it reached, the first by name.

    offset: -1 where it is in the log, and the one answer that said where was lost (of a commit that was asked for
    again), and of one that waits for its time; timestamp_ms: the producer's, whatever the topic's
    message.timestamp.type; deliver_at_ms: the time it waits for, receipt: by which it is cancelled; None: it is not
    delayed, or the answer that said so was lost.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    deliver_at_ms: int | None = None
    receipt: str | None = None


class Placement:
    """Where the rows of a publish are in the first topic by name, worked out when somebody asks.

    Rows of a partition keep their order, so a row's offset is its unit's, and how many rows of the unit come before it.
    """

    def __init__(
        self,
        topic: str,
        partition: npt.NDArray[np.int32] | list[int],
        timestamps_us: Any,
        units: Sequence[Unit],
        due_ms: npt.NDArray[np.int64] | list[int] | None = None,
        receipts: Receipts | None = None,
    ) -> None:
        """partition, due_ms: of each row in the order given, as in Prepared; receipts: of those that wait."""
        self._receipts = receipts
        self._due_ms = due_ms
        self._topic, self._partition, self._given_us = topic, np.asarray(partition), timestamps_us
        self._base_offsets = {unit.partition: unit.base_offset for unit in units if unit.topic == topic}

    def of(self, row: int) -> RecordMetadata:
        """Raises what the row was refused with."""
        partition = int(self._partition[row])
        if partition < 0:
            raise self._error(partition, 1)
        timestamp_ms = int(self._timestamps_us[row]) // 1000
        if self._due_ms is not None and self._due_ms[row] != NOT_DELAYED:
            receipt = None if self._receipts is None else self._receipts.of(row)
            return RecordMetadata(self._topic, partition, -1, timestamp_ms, int(self._due_ms[row]), receipt)
        return RecordMetadata(self._topic, partition, int(self._offsets[row]), timestamp_ms)

    def first_refusal(self) -> LakeMQError | None:
        """An error that says how many rows were refused, and why the first of them was."""
        refused = self._partition[self._partition < 0]
        return self._error(int(refused[0]), len(refused)) if len(refused) else None

    @staticmethod
    def _error(partition: int, count: int) -> LakeMQError:
        error, reason = REFUSALS[-1 - partition]
        return error_of(Refusal(error, reason if count == 1 else f"{count} rows are refused: {reason}"))

    @cached_property
    def _offsets(self) -> npt.NDArray[np.int64]:
        lies = self._partition
        if self._due_ms is not None:  # those that wait come in no count
            lies = np.where(np.asarray(self._due_ms) == NOT_DELAYED, lies, -1)
        order = np.argsort(lies, kind="stable")
        partition = lies[order]
        starts = np.flatnonzero(np.concatenate([[True], partition[1:] != partition[:-1]]))
        bases = np.array([self._base_offsets.get(p, -1) for p in partition[starts].tolist()], np.int64)
        counts = np.diff(starts, append=len(partition))
        offsets = np.empty(len(partition), np.int64)
        offsets[order] = np.arange(len(partition)) + np.repeat(bases - starts, counts)
        return offsets

    @cached_property
    def _timestamps_us(self) -> npt.NDArray[np.int64]:
        return np.asarray(self._given_us, np.int64)


class Outcome(NamedTuple):
    """What became of a batch: it was published, or there is an error, or both where some rows were refused alone.

    is_news: the error is to be told to who did not wait for it.
    """

    published: Published | None = None
    placement: Placement | None = None
    error: LakeMQError | None = None
    is_news: bool = True


class Outcomes:
    """Where threads wait for what becomes of batches; one per producer, on its lock."""

    def __init__(self, lock: Any) -> None:
        """lock: an RLock."""
        self.lock, self._pid = lock, os.getpid()
        self.changed = threading.Condition(lock)
        self._thread = threading.local()

    def check_process(self) -> None:
        """Raises IllegalState in a fork, where the producer's thread is not."""
        same_process(self._pid, "The producer")

    def check_may_wait(self) -> None:
        """Raises IllegalState in a fork, and in a callback: the thread that calls it is the one to be waited for."""
        self.check_process()
        if getattr(self._thread, "calls_back", False):
            raise IllegalState("A callback of a producer cannot wait for the producer.", expected="another thread")

    @contextmanager
    def calling_back(self) -> Iterator[None]:
        before = getattr(self._thread, "calls_back", False)
        self._thread.calls_back = True
        try:
            yield
        finally:
            self._thread.calls_back = before


class Batch:
    """What is sent as one: records of one destination, or a table.

    number: by the order in which they were begun, from 1; asked: the partitions asked for. Fields change under the lock
    of `outcomes` only.
    """

    __slots__ = (
        "_callbacks",
        "_outcomes",
        "asked",
        "body",
        "destination",
        "doubt",
        "given_ms",
        "number",
        "outcome",
        "records",
        "size_bytes",
    )

    def __init__(
        self, number: int, destination: str, outcomes: Outcomes, given_ms: int, records: Records | None
    ) -> None:
        self.number, self.destination, self.given_ms, self._outcomes = number, destination, given_ms, outcomes
        self.size_bytes = 0
        self.records = records
        self.body: Body | None = None
        self.asked: Asked = None
        self.outcome: Outcome | None = None
        self.doubt: LakeMQError | None = None
        """It travels with a commit that was not answered so."""
        self._callbacks: list[Callable[[], object]] = []

    @property
    def is_settled(self) -> bool:
        return self.outcome is not None

    @property
    def failure(self) -> LakeMQError | None:
        """What a flush that waits for it raises."""
        return self.doubt or (self.outcome.error if self.outcome else None)

    def rows(self, now_ms: int) -> tuple[Body, Asked]:
        """The body, and the partitions asked for."""
        if self.records is not None:
            return self.records.body(self.destination, self.size_bytes, now_ms)
        assert self.body is not None
        return self.body, self.asked

    def settle(self, outcome: Outcome) -> list[Callable[[], object]]:
        """Its outcome, for good: futures have it; returns what is to be called now. It had none; the lock is held."""
        self.outcome, self.doubt = outcome, None
        self.records = self.body = self.asked = None
        callbacks, self._callbacks = self._callbacks, []
        return callbacks

    def when_settled(self, call: Callable[[], object]) -> None:
        with self._outcomes.lock:
            if not self.is_settled:
                self._callbacks.append(call)
                return
        call_all([call])

    def wait(self, timeout_s: float | None) -> None:
        """Raises RequestTimedOut, IllegalState (in a callback)."""
        if self.is_settled:
            return
        self._outcomes.check_may_wait()
        with self._outcomes.lock:
            if not self._outcomes.changed.wait_for(lambda: self.is_settled, timeout_s):
                raise RequestTimedOut(f"The record was not acknowledged within {timeout_s} s; it may still be.")

    def metadata(self, index: int) -> RecordMetadata:
        """Of a record of a batch that is settled. Raises what became of it."""
        assert self.outcome is not None
        if self.outcome.placement is not None:
            return self.outcome.placement.of(index)
        assert self.outcome.error is not None
        raise self.outcome.error.with_traceback(None)  # one error, raised for many records


def call_all(calls: Sequence[Callable[[], object]]) -> None:
    """Call each, whatever the others raise, which is logged. A KeyboardInterrupt of the main thread is raised last."""
    interrupt: KeyboardInterrupt | None = None
    for call in calls:
        try:
            call()
        except BaseException as error:  # asyncio's CancelledError is one, too
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                interrupt = error
            else:
                log.exception("a callback of a producer has failed")
    if interrupt is not None:
        raise interrupt


class RecordFuture:
    """What will become of a record. Timeouts are in seconds, as those of `concurrent.futures`."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch, self._index = batch, index

    def done(self) -> bool:
        return self._batch.is_settled

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is, waited for. Raises what it was refused with; RequestTimedOut.

        A record of a transaction whose commit was not answered waits until that is committed again, aborted or closed.
        """
        self._wait(timeout)
        return self._batch.metadata(self._index)

    @property
    def receipt(self) -> str | None:
        """By which a delayed record is cancelled, waited for; None: it does not wait. Raises as `result`."""
        return self.result().receipt

    def exception(self, timeout: float | None = None) -> LakeMQError | None:
        """What the record was refused with, waited for; None when it is in the log. Raises RequestTimedOut."""
        self._wait(timeout)
        try:
            self._batch.metadata(self._index)
        except LakeMQError as error:
            return error
        return None

    def add_done_callback(self, call: Callable[[RecordFuture], object]) -> None:
        """Call with this future once it is done, in the producer's thread, or now. What the call raises is logged."""
        check_callback("The callback", call)
        self._batch.when_settled(lambda: call(self))

    def on_delivery(self, call: OnDelivery) -> None:
        """Call with (error, None) or (None, metadata) once it is done."""
        check_callback("on_delivery", call)

        def tell() -> None:
            error = self.exception()
            call(error, None if error else self.result())

        self._batch.when_settled(tell)

    def _wait(self, timeout: float | None) -> None:
        if not (timeout is None or (isinstance(timeout, int | float) and 0 <= timeout <= threading.TIMEOUT_MAX)):
            raise InvalidRequest("The timeout is not valid.", found=repr(timeout)[:60], expected="seconds, or None")
        self._batch.wait(timeout)
