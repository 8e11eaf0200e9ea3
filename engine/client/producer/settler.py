"""The outcomes of a producer's batches: futures and callbacks get them, and threads that flush wait for them.

Rows of docs/architecture.md: publish 12.
"""

from collections import deque
from collections.abc import Callable, Sequence

from ...namespace.clock import Clock
from ...protocol.errors import LakeMQError, RequestTimedOut, UnknownServerError, storage_error
from ...protocol.values.log import Published
from ..publish.arrow import PreparedPublish
from ..rows.receipts import Receipts
from .buffer import Buffer
from .delivery import Batch, BatchOutcome, DeliveryMonitor, Placement, run_callbacks
from .failures import AcknowledgedSpan, FlushReport


class FlushCounter:
    """Counts acknowledged records since the last flush: a few numbers per partition, however much was sent."""

    def __init__(self) -> None:
        self._spans: dict[tuple[str, int], AcknowledgedSpan] = {}
        self._rejected_count = self._waiting_count = 0

    def add(self, published: Published) -> None:
        self._rejected_count += published.rejected_count
        self._waiting_count += sum(unit.record_count for unit in published.waiting)
        for unit in published.units:
            tp, last = (unit.topic, unit.partition), unit.base_offset + unit.record_count - 1
            span, earlier = AcknowledgedSpan(unit.base_offset, last, unit.record_count), self._spans.get(tp)
            self._spans[tp] = span if earlier is None else span.merge(earlier)

    def take(self) -> FlushReport:
        """Return the counts, and begin at zero again."""
        report = FlushReport(self._spans, self._rejected_count, self._waiting_count)
        self._spans, self._rejected_count, self._waiting_count = {}, 0, 0
        return report


class BatchSettler:
    """Settles the batches of a buffer, and waits for them. Thread-safe."""

    def __init__(self, buffer: Buffer, monitor: DeliveryMonitor, clock: Clock) -> None:
        self._buffer, self._monitor, self._clock = buffer, monitor, clock
        self.lock, self._failures = monitor.lock, monitor.failures
        self.acknowledged = FlushCounter()
        """Counts since the last report. Its user holds the lock."""

    def start_again(self) -> None:
        """Forget failures and acknowledged records: a transaction begins. The lock is held."""
        self._failures.clear()
        self.acknowledged.take()

    # -- waiting ----------------------------------------------------------------------------------------

    def wait_for_sent(self, deadline_ms: int | None = None) -> None:
        """Wait until all batches are settled. The lock is held.

        Raises the first error of these batches, or one that this thread has not got yet; RequestTimedOut after the
        deadline, which is a time of the steady clock.

        A batch with a `commit_error` is not waited for: its outcome stays unknown until the caller commits again or
        aborts, which only the waiting thread may be there to do.
        """
        self._failures.start_tracking()
        last_number, awaited = self._buffer.last_number, self._buffer.start_flush()
        waiting = awaited
        while waiting := [batch for batch in waiting if self._buffer.holds(batch) and batch.commit_error is None]:
            left_ms = None if deadline_ms is None else deadline_ms - self._clock.steady_ms()
            if left_ms is not None and left_ms <= 0:
                count = sum(batch.record_count for batch in waiting)
                raise RequestTimedOut(f"{count} records are not acknowledged yet. The producer goes on sending them.")
            self._monitor.changed.wait(None if left_ms is None else left_ms / 1000)
        self._failures.raise_unreported(last_number)
        for batch in awaited:
            if (error := batch.failure) and not self._was_reported_by_callback(batch):
                raise error.with_traceback(None)

    def _was_reported_by_callback(self, batch: Batch) -> bool:
        """Return whether this thread has got the error of the batch from a callback or a future."""
        return (
            batch.outcome is not None and batch.outcome.is_reported_later and self._failures.has_reported(batch.number)
        )

    # -- settling ---------------------------------------------------------------------------------------

    def settle(self, settled: Sequence[tuple[Batch, BatchOutcome]]) -> None:
        """Settle batches: set their futures, run callbacks, then release threads in `flush` or waiting for room.

        A batch that has an outcome keeps it. All steps are repeatable and run again in `finally`, so that an interrupt
        of the main thread (which commits and aborts itself) leaves no thread waiting.
        """
        calls: deque[Callable[[], object]] = deque()
        try:
            self._record_and_call(settled, calls)
        finally:
            try:
                self._record_and_call(settled, calls)  # in case the first call was interrupted
            finally:
                self._release([batch for batch, _ in settled])

    def _record_and_call(
        self, settled: Sequence[tuple[Batch, BatchOutcome]], calls: deque[Callable[[], object]]
    ) -> None:
        self._record_outcomes(settled, calls)
        with self._monitor.in_callback():
            run_callbacks(calls, self._monitor.log_callback_failure)

    def _release(self, batches: Sequence[Batch]) -> None:
        with self.lock:
            for batch in batches:
                if self._buffer.holds(batch):
                    self._buffer.remove(batch)
            self._monitor.changed.notify_all()

    def _record_outcomes(
        self, settled: Sequence[tuple[Batch, BatchOutcome]], calls: deque[Callable[[], object]]
    ) -> None:
        """Give each batch its outcome, and add its callbacks to `calls`."""
        with self.lock:
            for batch, outcome in settled:
                if not batch.is_settled:
                    self._record_outcome(batch, outcome, calls)
            self._monitor.changed.notify_all()

    def _record_outcome(self, batch: Batch, outcome: BatchOutcome, calls: deque[Callable[[], object]]) -> None:
        failure, callback_records = batch.build_failure(outcome), batch.callback_records
        calls += batch.settle(outcome)
        if outcome.published is not None:
            self.acknowledged.add(outcome.published)
        if failure is not None:
            self._failures.add(failure)
            self._failures.mark_records_reported(batch.number, callback_records)

    def settle_with_error(self, batches: Sequence[Batch], error: Callable[[Batch], LakeMQError]) -> None:
        """Fail batches with an error that their futures and flushes raise, and later calls do not."""
        self.settle([(batch, BatchOutcome(error=error(batch), is_reported_later=False)) for batch in batches])


def build_outcome(
    prepared: PreparedPublish, published: Published, receipts: Receipts | None, fails_if_rejected: bool
) -> BatchOutcome:
    """Return the outcome of a batch that was published. fails_if_rejected: rejected rows are an error of the batch."""
    placement = Placement(prepared, published.units, receipts)
    return BatchOutcome(published, placement, placement.first_refusal() if fails_if_rejected else None)


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
