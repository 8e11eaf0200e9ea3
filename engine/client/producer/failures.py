"""Failed batches of a producer, and which thread has got which error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...namespace import process
from ...protocol.errors import LakeMQError
from ..html_table import build_html_table

_MAX_FAILURES = 1000
"""Failures that are kept. Each holds an error object and what its traceback refers to."""


class Failure(NamedTuple):
    """A batch that failed.

    record_count: the records that failed in it; has_futures: each of them has a future; those of a table have none.
    """

    number: int
    error: LakeMQError
    destination: str
    record_count: int
    has_futures: bool


class ThreadProgress:
    """The errors that one thread has got. The producer's lock guards it.

    number: the thread knows about every failure up to this batch; below 0: it has not used the producer yet.
    records: of later failures, the records whose error the thread has got from a future or a callback.
    """

    __slots__ = ("number", "records")

    def __init__(self) -> None:
        self.number = -1
        self.records: dict[int, set[int]] = {}


class _ThreadLocal(threading.local):
    def __init__(self) -> None:
        self.progress = ThreadProgress()
        self.acts_for: ThreadProgress | None = None


class Failures:
    """Errors of failed batches, by batch number. Each thread that uses the producer gets each error once.

    A thread gets the errors of batches that fail after its first call. A new thread also gets errors that no thread
    has got yet. An error counts as reported to a thread once `flush` or `close` has raised it there, or once
    futures or callbacks have handed over the error of every failed record in the batch. The error of one record does
    not count for the batch: it says nothing about the other records.
    """

    def __init__(self, lock: Any) -> None:
        """lock: the RLock of the producer."""
        self._lock, self._process_id = lock, process.current_id
        self._failed: dict[int, Failure] = {}
        self._last = self._reported_to_any = 0
        self._looked_at = 0
        """The newest failure that `take_unseen` has looked at."""
        self._taken: set[tuple[str, str]] = set()
        """Destinations and errors that `take_unseen` has returned."""
        self._dropped = 0
        """The newest failure that was dropped. A thread that has not got it gets the oldest kept failure instead."""
        self._local = _ThreadLocal()

    def add(self, failure: Failure) -> None:
        if len(self._failed) == _MAX_FAILURES:
            self._dropped = next(iter(self._failed))
            del self._failed[self._dropped]
        self._failed[failure.number] = failure
        self._last = failure.number

    def clear(self) -> None:
        """Forget all failures: their transaction is over."""
        self._failed.clear()
        self._last = self._dropped = 0

    # -- what this thread has got -----------------------------------------------------------------------

    @property
    def is_tracking(self) -> bool:
        """Whether this thread has used the producer before."""
        return self.progress.number >= 0

    def has_reported(self, number: int) -> bool:
        """Return whether this thread has got the error of the batch, if it failed."""
        return self.progress.number >= number

    def list_unreported(self) -> list[Failure]:
        """Return the kept failures that no thread has got."""
        return [failure for failure in self._failed.values() if failure.number > self._reported_to_any]

    def take_unseen(self) -> list[Failure]:
        """Return failures that no thread has got, of each destination and error the first one, and only once."""
        if self._last <= max(self._looked_at, self._reported_to_any):
            return []
        unseen = {
            (failure.destination, failure.error.name): failure
            for failure in reversed(self.list_unreported())
            if (failure.destination, failure.error.name) not in self._taken
        }
        self._looked_at = self._last
        self._taken.update(unseen)
        return list(unseen.values())

    def start_tracking(self) -> None:
        """Report later failures to this thread."""
        self._start_tracking(self.progress)

    def _start_tracking(self, progress: ThreadProgress) -> None:
        if progress.number < 0:
            progress.number = self._reported_to_any

    def raise_unreported(self, upto: int | None = None) -> None:
        """Raise the first error that this thread has not got. upto: number of the last batch to look at."""
        progress = self.progress
        if progress.number >= self._last:
            return
        self._start_tracking(progress)
        first, last = progress.number, self._last if upto is None else upto
        for failure in self._failed.values():
            if first < failure.number <= last and not self._has_every_record(progress, failure):
                self._mark_reported(progress, last)
                raise failure.error.with_traceback(None)  # one error, raised in several threads

    def _mark_reported(self, progress: ThreadProgress, number: int) -> None:
        progress.number = number
        progress.records = {later: indexes for later, indexes in progress.records.items() if later > number}
        self._reported_to_any = max(self._reported_to_any, number)

    def _has_every_record(self, progress: ThreadProgress, failure: Failure) -> bool:
        if progress.number < self._dropped and failure.number == next(iter(self._failed)):
            return False  # it stands for the failures that were dropped
        return failure.has_futures and failure.record_count == len(progress.records.get(failure.number, ()))

    # -- errors handed over by futures and callbacks ----------------------------------------------------

    @property
    def progress(self) -> ThreadProgress:
        """The progress of this thread, or of that for which it acts."""
        return self._local.acts_for or self._local.progress

    def mark_record_reported(self, number: int, index: int) -> None:
        """Note that a future hands over the error of a record.

        It goes to this thread, or to the thread that has set the running callback.
        """
        if process.current_id != self._process_id:
            return  # in a forked process, the lock may belong to a thread that does not exist there
        with self._lock:
            self.mark_records_reported(number, [(self.progress, index)])

    def mark_records_reported(self, number: int, records: Iterable[tuple[ThreadProgress, int]]) -> None:
        """Note which threads get the errors of which records of a batch. The lock is held."""
        failure = self._failed.get(number)
        if failure is None:
            return
        for progress, index in records:
            self._start_tracking(progress)
            if number > progress.number:
                indexes = progress.records.setdefault(number, set())
                indexes.add(index)
                if failure.has_futures and len(indexes) == failure.record_count:
                    self._advance(progress)

    def _advance(self, progress: ThreadProgress) -> None:
        for failure in self._failed.values():
            if failure.number > progress.number:
                if not self._has_every_record(progress, failure):
                    return
                self._mark_reported(progress, failure.number)

    def bind_to_thread(self, call: Callable[[], object]) -> Callable[[], object]:
        """Wrap a call so that errors it gets count for this thread, whichever thread runs it."""
        local, progress = self._local, self.progress

        def run() -> None:
            before, local.acts_for = local.acts_for, progress
            try:
                call()
            finally:
                local.acts_for = before

        return run


class AcknowledgedSpan(NamedTuple):
    """Acknowledged records of one partition. Other producers may have published between its offsets."""

    first_offset: int
    last_offset: int
    record_count: int

    def merge(self, other: AcknowledgedSpan | None) -> AcknowledgedSpan:
        """Return one span over both. None stands for a span without records."""
        if other is None:
            return self
        first, last = min(self.first_offset, other.first_offset), max(self.last_offset, other.last_offset)
        return AcknowledgedSpan(first, last, self.record_count + other.record_count)


@dataclass(frozen=True)
class FlushReport:
    """The records acknowledged since the last flush.

    Attributes:
        spans: (topic, partition) -> the acknowledged records.
        rejected_count: rows that could not be messages.
        waiting_count: rows that wait for their time of delivery.

    Example:
        >>> producer.flush().offsets()  # doctest: +SKIP
    """

    spans: Mapping[tuple[str, int], AcknowledgedSpan]
    rejected_count: int
    waiting_count: int = 0

    def offsets(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return (topic, partition) -> first and last acknowledged offset."""
        return {tp: (span.first_offset, span.last_offset) for tp, span in self.spans.items()}

    def _repr_html_(self) -> str:
        caption = f"{self.rejected_count} rows rejected, {self.waiting_count} waiting"
        rows = ((*tp, *span) for tp, span in self.spans.items())
        return build_html_table(caption, ("topic", "partition", *AcknowledgedSpan._fields), rows)
