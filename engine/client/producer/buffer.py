"""The buffer of a producer: batches in order, the bytes that they hold, and when the next batch is due."""

import threading
from collections import deque
from typing import Any

from ...namespace.clock import Clock
from ..publish.arrow import RequestedPartitions
from ..rows.few_rows import Body, Records
from .delivery import Batch, DeliveryMonitor, RecordFuture
from .options import ProducerOptions


class Buffer:
    """The batches of a producer that are not settled. Call every method under the lock of `monitor`.

    A batch waits in the queue, is on its way, or is detached: taken out of the queue to travel with a commit.

    Why there is `slack`. `send` must know two things about each record. Is there room below `buffer_memory`? And do the
    queued bytes reach `batch_size`, so that the sending thread must wake up? Most records do not change either answer.
    So the buffer computes once how many bytes it can take before an answer can change: the `slack`. While a record fits
    into it, `add_fast` only subtracts its size.

    The sums `_held_bytes` and `_queued_bytes` then lack what was added since, which is `_slack_at_check - slack`.
    `_recount` adds this difference to both sums and grants new slack. In a producer with a fast path, only `_recount`
    changes the sums. `_due_in_ms` may compare the lagging sum with `batch_size`: within the slack the answer is the
    same. Any other reader adds the difference first, as `held_bytes` does.

    Slack is the smaller of two distances. The first is the room below `buffer_memory`. The second is one byte less
    than what is missing to `batch_size`: the record that reaches `batch_size` must take the slow path, because only
    the slow path notifies the sending thread. If the queue has reached `batch_size` already, the thread knows and only
    the room counts.

    Attributes:
        last_number: number of the newest batch.
        slack: bytes that `add_fast` may still take before room and due time must be checked again.
    """

    def __init__(
        self, options: ProducerOptions, clock: Clock, monitor: DeliveryMonitor, has_fast_path: bool = True
    ) -> None:
        """has_fast_path: False keeps `slack` at 0, so that every record takes the slow path."""
        self._options, self._clock, self._monitor = options, clock, monitor
        self._has_fast_path = has_fast_path
        self.work = threading.Condition(monitor.lock)
        """Notified when a batch may be due earlier than the sending thread expects."""
        self._queue: deque[Batch] = deque()
        self._filling: dict[str, Batch] = {}
        """Destination -> the batch in the queue that takes its next record."""
        self._held: dict[int, Batch] = {}
        """Number -> batch, in order. Includes batches on their way and detached ones."""
        self._detached: list[Batch] = []
        """Batches taken out of the queue. Some may be settled already."""
        self.last_number = self._flush_upto = 0
        """`_flush_upto`: batches up to this number are due at once, because a thread waits for them."""
        self._held_bytes = self._queued_bytes = 0
        """Bytes not settled, and bytes in the queue, without what `add_fast` took since the last `_recount`."""
        self.slack = self._slack_at_check = 0
        self._is_ending = False

    @property
    def held_bytes(self) -> int:
        """Bytes of all batches that are not settled."""
        return self._held_bytes + self._slack_at_check - self.slack

    def _recount(self, held: int, queued: int) -> None:
        """Add bytes to both sums (or subtract them), count what `add_fast` took, and grant new slack."""
        added_fast = self._slack_at_check - self.slack
        self._held_bytes += added_fast + held
        self._queued_bytes += added_fast + queued
        room, batch_size = self._options.buffer_memory - self._held_bytes, self._options.batch_size
        to_due = batch_size - 1 - self._queued_bytes if self._queued_bytes < batch_size else room
        self.slack = self._slack_at_check = max(0, min(room, to_due)) if self._has_fast_path else 0

    def disable_fast_path(self) -> None:
        """Make every later record take the slow path, which can refuse it."""
        self._has_fast_path = False
        self._recount(0, 0)

    # -- adding -----------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """Return whether `size` bytes fit. An empty buffer takes anything, also what exceeds `buffer_memory`."""
        return self.held_bytes + size <= self._options.buffer_memory or not self.held_bytes

    def add_fast(self, topic: str, size: int, key: bytes | None, value: bytes | None) -> RecordFuture | None:
        """Add a record within the slack, and return its future; None if it must take the slow path."""
        batch = self._filling.get(topic)
        if batch is None or batch.records is None or size > self.slack:
            return None
        self.slack -= size
        batch.size_bytes += size
        values = batch.records.values
        future = RecordFuture(batch, len(values))
        batch.records.keys.append(key)
        values.append(value)
        return future

    def add_record(
        self, topic: str, size: int, key: bytes | None, value: bytes | None, extras: Any
    ) -> tuple[Batch, int]:
        """Add a record, and return its batch and its index in the batch."""
        batch = self._filling.get(topic)
        if batch is None:
            batch = self._filling[topic] = self._new_batch(topic, Records())
        assert batch.records is not None
        index = batch.records.add(key, value, extras)
        self._count_added(batch, size)
        return batch, index

    def add_table(self, topic: str, size: int, body: Body, requested: RequestedPartitions) -> None:
        """Add a table as a batch of its own. Later records of the topic go into a batch after it."""
        batch = self._new_batch(topic, None)
        batch.body, batch.requested = body, requested
        self._filling.pop(topic, None)
        self._count_added(batch, size)

    def _new_batch(self, topic: str, records: Records | None) -> Batch:
        self.last_number += 1
        batch = Batch(self.last_number, topic, self._monitor, self._clock.steady_ms(), records)
        self._held[batch.number] = batch
        self._queue.append(batch)
        if len(self._queue) == 1:
            self.work.notify()
        return batch

    def _count_added(self, batch: Batch, size: int) -> None:
        self._recount(0, 0)  # `before` must include what `add_fast` took
        before = self._queued_bytes
        batch.size_bytes += size
        self._recount(size, size)
        if before < self._options.batch_size <= self._queued_bytes:
            self.work.notify()

    # -- sending ----------------------------------------------------------------------------------------

    def next(self) -> Batch | None:
        """Wait until the next batch is due, and take it out of the queue. None: the buffer has ended."""
        while (wait_ms := self._due_in_ms()) != 0:
            if wait_ms is None and self._is_ending:
                return None
            self.work.wait(None if wait_ms is None else wait_ms / 1000)
        batch = self._queue.popleft()
        if self._filling.get(batch.destination) is batch:
            del self._filling[batch.destination]
        self._recount(0, -batch.size_bytes)
        return batch

    def _due_in_ms(self) -> int | None:
        """Return how long until the first batch is due; None if the queue is empty."""
        if not self._queue:
            return None
        first = self._queue[0]
        if self._is_ending or first.number <= self._flush_upto or self._queued_bytes >= self._options.batch_size:
            return 0
        return max(0, first.created_ms + self._options.linger_ms - self._clock.steady_ms())

    def drain(self) -> None:
        """Make all batches due now, and let `next` end after the last one."""
        self._is_ending = True
        self.work.notify()

    def remove(self, batch: Batch) -> None:
        """Forget a batch that is settled, and free its bytes."""
        del self._held[batch.number]
        self._recount(-batch.size_bytes, 0)

    # -- waiting ----------------------------------------------------------------------------------------

    def start_flush(self) -> list[Batch]:
        """Make all batches due now, and return those that the buffer holds."""
        self._flush_upto = self.last_number
        self.work.notify()
        return list(self._held.values())

    def list_unsettled(self) -> list[Batch]:
        """Return the batches that are not settled, also detached ones, in order."""
        return [batch for batch in self._held.values() if not batch.is_settled]

    def holds(self, batch: Batch) -> bool:
        return batch.number in self._held

    def list_for_sender(self) -> list[Batch]:
        """Return the unsettled batches that the sending thread has or will get: all but the detached ones."""
        detached = {batch.number for batch in self._detached}
        return [batch for number, batch in self._held.items() if number not in detached]

    # -- travelling with a commit -----------------------------------------------------------------------

    def detach_if_nothing_in_flight(self) -> list[Batch] | None:
        """Detach the queue if it holds all unsettled batches, at most one per destination. Else return None.

        The batches travel in one letter. Two of one destination could share a partition, which one letter must not do.
        """
        destinations = {batch.destination for batch in self._queue}
        if not len(self._queue) == len(self._held) == len(destinations):
            return None
        return self.detach_queue()

    def detach_queue(self) -> list[Batch]:
        """Take all batches out of the queue: the sending thread will not send them."""
        queue, detached = list(self._queue), [*self.list_detached(), *self._queue]
        # In one statement, so that an interrupt of the main thread comes before it or after it. There is no slack to
        # recount: only transactional producers detach batches, and these have no fast path.
        self._detached, self._queue, self._filling, self._queued_bytes = detached, deque(), {}, 0
        return queue

    def list_detached(self) -> list[Batch]:
        """Return the detached batches that are not settled."""
        return [batch for batch in self._detached if not batch.is_settled]

    def requeue_detached(self) -> None:
        """Put the detached batches back, before those that came later."""
        detached = self.list_detached()
        queue, size_bytes = deque([*detached, *self._queue]), sum(batch.size_bytes for batch in detached)
        for batch in detached:
            batch.commit_error = None
        self._detached, self._queue, self._queued_bytes = [], queue, self._queued_bytes + size_bytes
