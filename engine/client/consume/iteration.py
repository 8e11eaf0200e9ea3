"""Iteration over a consumer: messages are polled many at a time, and count as read one by one as the loop gets them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from ...namespace.processes.clock import Clock
from ...namespace.processes.process import OwnLock
from ...protocol.values.queues.stretches import Stretch
from ..fetch.fetch_result import Message
from ..offsets import TopicPartition
from ..spans import Spans
from .batch import ConsumerBatch
from .positions.positions import ReadPosition
from .queue.ack_tracker import AckTracker
from .queue.queue_batch import QueueBatch

POLL_RECORDS = 500
"""Messages of a poll, as Kafka's `max.poll.records`."""
_POLL_MS = 20
_KEEP_UP_MS = 1_000
"""After this long without a poll, the consumer looks between two messages whether its partitions have changed."""


class Unseen(Protocol):
    """The messages of a poll that the loop has not got yet. The consumer's lock is held for each call."""

    messages: list[Message]

    def show(self, message: Message) -> bool:
        """Note that the message is handed out. False: the consumer has it no longer, or it will come again."""
        ...

    def end(self) -> None:
        """Note that all messages were handed out, or passed over."""
        ...


class UnseenPositions:
    """Unseen messages of a consumer that has positions. Each position follows the messages that are handed out.

    If something else moves a position (`seek`, a rebalance, another poll), or the partition is paused, none of its
    other messages are handed out. The next poll goes on from its position.
    """

    def __init__(
        self,
        batch: ConsumerBatch,
        positions: Callable[[], dict[TopicPartition, ReadPosition]],
        resting: Callable[[], Container[TopicPartition]],
    ) -> None:
        """Move the positions back to where the poll began.

        Args:
            batch: the messages of the poll.
            positions: returns the consumer's positions now.
            resting: returns the partitions now that are paused, or are being given up.
        """
        self.messages = list(batch)
        self._positions, self._resting = positions, resting
        self._ends, self._next = batch.offsets, batch.starts
        for place, start in self._next.items():
            self._move(place, start)

    def show(self, message: Message) -> bool:
        place = (message.topic, message.partition)
        if not self._is_in_step(place) or place in self._resting():
            self._next.pop(place, None)
            return False
        self._next[place] = message.offset + 1
        self._move(place, message.offset + 1)
        return True

    def end(self) -> None:
        """Move the positions past the offsets at the end that hold no message for this reader."""
        for place in self._next:
            if self._is_in_step(place) and place not in self._resting():
                self._move(place, self._ends[place])

    def _is_in_step(self, place: TopicPartition) -> bool:
        """Return whether the position is where this iteration has left it."""
        position = self._positions().get(place)
        return position is not None and place in self._next and position.offset == self._next[place]

    def _move(self, place: TopicPartition, offset: int) -> None:
        positions = self._positions()
        positions[place] = replace(positions[place], offset=offset)


class UnseenDeliveries:
    """Unseen messages of a queue group's member. Each counts as shown when it is handed out.

    Until then the member has acquired it, and the user has not seen it. The rest is left to the next poll when a
    partition moves, when another poll shows one of the messages, or when the member gives a message back.
    """

    def __init__(
        self,
        batch: QueueBatch,
        trackers: Callable[[], Mapping[TopicPartition, AckTracker]],
        resting: Callable[[], Container[TopicPartition]],
        returned_count: Callable[[], int],
    ) -> None:
        """Hide the messages from the trackers.

        Args:
            batch: the messages of the poll.
            trackers: returns the consumer's trackers now.
            resting: returns the partitions now that the user has paused.
            returned_count: grows when the member gives messages back.
        """
        self.messages = list(batch)
        self._trackers, self._resting, self._returned_count = trackers, resting, returned_count
        self._returned_before = returned_count()
        self._trackers_at_poll = {place: trackers()[place] for place in batch.shown}
        self._stretches = {
            (*place, offset): stretch.cut(offset, offset + 1)
            for place, shown in batch.shown.items()
            for stretch in shown.stretches
            for offset in range(stretch.first, stretch.end)
        }
        for message in self.messages:
            self._trackers_at_poll[message.topic, message.partition].hide([self._stretch_of(message)])

    def show(self, message: Message) -> bool:
        place, stretch = (message.topic, message.partition), self._stretch_of(message)
        tracker = self._trackers().get(place)
        if tracker is None or tracker is not self._trackers_at_poll[place] or place in self._resting():
            return False
        if self._returned_count() != self._returned_before or not tracker.find_unshown([stretch]):
            return False
        tracker.show([stretch], Spans([stretch.span]), Spans())
        return True

    def end(self) -> None:
        pass

    def _stretch_of(self, message: Message) -> Stretch:
        return self._stretches[message.topic, message.partition, message.offset]


def iterate(
    lock: OwnLock,
    is_closed: Callable[[], bool],
    poll: Callable[[], Unseen],
    keep_up: Callable[[], None],
    waits_for_partitions: Callable[[], bool],
    rest: Callable[[int], None],
    clock: Clock,
    timeout_ms: int | None,
) -> Iterator[Message]:
    """Yield messages until the consumer is closed, or until no message has come for `timeout_ms`.

    Args:
        lock: of the consumer. It is held for each of the steps, and never while the caller works on a message.
        is_closed: whether the consumer is closed, by the caller or by another thread.
        poll: polls without waiting, and undoes what the poll noted as read, before any other thread sees it.
        keep_up: shows the group that the consumer polls, gives up partitions and takes new ones.
        waits_for_partitions: whether the consumer is about to get its first partitions; the timeout waits with it.
        rest: waits for this many ms, or until messages are there.
        clock: the time that the timeout counts.
        timeout_ms: None: no limit.
    """
    last_message_ms = clock.steady_ms()
    while True:
        with lock.own:
            if is_closed():
                return
            unseen = poll()
        kept_up_ms = clock.steady_ms()
        for message in unseen.messages:
            with lock.own:
                if clock.steady_ms() - kept_up_ms >= _KEEP_UP_MS and not is_closed():
                    keep_up()
                    kept_up_ms = clock.steady_ms()
                if is_closed():
                    return
                is_shown = unseen.show(message)
            if is_shown:
                yield message
        with lock.own:
            unseen.end()
        if unseen.messages or waits_for_partitions():
            last_message_ms = clock.steady_ms()
        elif timeout_ms is not None and clock.steady_ms() - last_message_ms >= timeout_ms:
            return
        if not unseen.messages:
            rest(_POLL_MS)
