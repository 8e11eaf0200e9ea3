"""What a producer was given and has not settled: batches in order, how much they hold, and when the next one is due."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from ...namespace.clock import Clock
from .arrow import Asked, Body
from .delivery import Batch, Outcomes, RecordFuture
from .options import ProducerOptions
from .record import Records


class Buffer:
    """The batches of a producer. Every call is made under the lock of `outcomes`.

    last_number: of the newest batch; slack: bytes that records may have that are taken quickly, before it must be
    looked whether there is room for them and whether a batch is due.
    """

    def __init__(self, options: ProducerOptions, clock: Clock, outcomes: Outcomes, takes_quickly: bool = True) -> None:
        """takes_quickly: else there is never any slack."""
        self._options, self._clock, self._outcomes = options, clock, outcomes
        self._takes_quickly = takes_quickly
        self.work = threading.Condition(outcomes.lock)
        """Notified when a batch may be due earlier than was thought."""
        self._queue: deque[Batch] = deque()
        self._filling: dict[str, Batch] = {}
        """Destination -> the batch of the queue that takes its next record."""
        self._unsettled: dict[int, Batch] = {}
        """Number -> batch, also what is on its way, in order."""
        self._taken: list[Batch] = []
        """No longer in the queue, to travel otherwise or never, and maybe settled."""
        self.last_number = self._wanted = 0
        self._held_bytes = self._queued_bytes = 0
        """Without what was taken quickly since."""
        self.slack = self._granted = 0
        """What is left of it, and what there was when it was looked last."""
        self._is_ending = False

    @property
    def held_bytes(self) -> int:
        """Of all that is not settled."""
        return self._held_bytes + self._granted - self.slack

    def _count(self, held: int, queued: int) -> None:
        """So many bytes more are held, and wait in the queue; with them what was taken quickly."""
        quick = self._granted - self.slack
        self._held_bytes += quick + held
        self._queued_bytes += quick + queued
        room, batch_size = self._options.buffer_memory - self._held_bytes, self._options.batch_size
        to_due = batch_size - 1 - self._queued_bytes if self._queued_bytes < batch_size else room
        self.slack = self._granted = max(0, min(room, to_due)) if self._takes_quickly else 0

    def take_no_more_quickly(self) -> None:
        """From here on each record is looked at."""
        self._takes_quickly = False
        self._count(0, 0)

    # -- giving -----------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """What is larger than all of the memory goes alone."""
        return self.held_bytes + size <= self._options.buffer_memory or not self.held_bytes

    def add_quickly(self, topic: str, size: int, key: bytes | None, value: bytes | None) -> RecordFuture | None:
        """Its future; None where it is to be looked at."""
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
        """Its batch, and its index there."""
        batch = self._filling.get(topic)
        if batch is None:
            batch = self._filling[topic] = self._new_batch(topic, Records())
        assert batch.records is not None
        index = batch.records.add(key, value, extras)
        self._took(batch, size)
        return batch, index

    def add_table(self, topic: str, size: int, body: Body, asked: Asked) -> None:
        """Records that come after the table are sent after it."""
        batch = self._new_batch(topic, None)
        batch.body, batch.asked = body, asked
        self._filling.pop(topic, None)
        self._took(batch, size)

    def _new_batch(self, topic: str, records: Records | None) -> Batch:
        self.last_number += 1
        batch = Batch(self.last_number, topic, self._outcomes, self._clock.steady_ms(), records)
        self._unsettled[batch.number] = batch
        self._queue.append(batch)
        if len(self._queue) == 1:
            self.work.notify()
        return batch

    def _took(self, batch: Batch, size: int) -> None:
        self._count(0, 0)
        before = self._queued_bytes
        batch.size_bytes += size
        self._count(size, size)
        if before < self._options.batch_size <= self._queued_bytes:
            self.work.notify()

    # -- sending ----------------------------------------------------------------------------------------

    def next(self) -> Batch | None:
        """The next batch, once it is due; None: the end."""
        while (wait_ms := self._due_in_ms()) != 0:
            if wait_ms is None and self._is_ending:
                return None
            self.work.wait(None if wait_ms is None else wait_ms / 1000)
        batch = self._queue.popleft()
        if self._filling.get(batch.destination) is batch:
            del self._filling[batch.destination]
        self._count(0, -batch.size_bytes)
        return batch

    def _due_in_ms(self) -> int | None:
        """When the first batch is due; None: there is none."""
        if not self._queue:
            return None
        first = self._queue[0]
        if self._is_ending or first.number <= self._wanted or self._queued_bytes >= self._options.batch_size:
            return 0
        return max(0, first.given_ms + self._options.linger_ms - self._clock.steady_ms())

    def end(self) -> None:
        """What is left is sent without waiting for company, and `next` ends then."""
        self._is_ending = True
        self.work.notify()

    def settled(self, batch: Batch) -> None:
        del self._unsettled[batch.number]
        self._count(-batch.size_bytes, 0)

    # -- waiting ----------------------------------------------------------------------------------------

    def want_all(self) -> list[Batch]:
        """All that is not settled; it is sent without waiting for company."""
        self._wanted = self.last_number
        self.work.notify()
        return list(self._unsettled.values())

    def holds(self, batch: Batch) -> bool:
        return batch.number in self._unsettled

    def given_to_thread(self) -> list[Batch]:
        """What is not settled and was not taken: the producer's thread has it, or will."""
        taken = {batch.number for batch in self._taken}
        return [batch for number, batch in self._unsettled.items() if number not in taken]

    def take_if_unsent(self) -> list[Batch] | None:
        """What waits, one batch for each destination, if nothing else is on its way; else None, and it waits on."""
        destinations = {batch.destination for batch in self._queue}
        if not len(self._queue) == len(self._unsettled) == len(destinations):
            return None
        return self.take_queue()

    def take_queue(self) -> list[Batch]:
        """What waits; it is no longer sent."""
        queue, taken = list(self._queue), [*self.taken(), *self._queue]
        # in one statement: an interrupt of the main thread comes before it or after it
        self._taken, self._queue, self._filling, self._queued_bytes = taken, deque(), {}, 0
        return queue

    def taken(self) -> list[Batch]:
        """What was taken and is not settled."""
        return [batch for batch in self._taken if not batch.is_settled]

    def put_back(self) -> None:
        """What was taken waits again, before what came later."""
        taken = self.taken()
        queue, size_bytes = deque([*taken, *self._queue]), sum(batch.size_bytes for batch in taken)
        for batch in taken:
            batch.doubt = None
        self._taken, self._queue, self._queued_bytes = [], queue, self._queued_bytes + size_bytes
