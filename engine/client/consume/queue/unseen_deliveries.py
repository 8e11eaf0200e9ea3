"""The messages of a poll that a loop has not got yet, for a member of a queue group."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from ....protocol.values.queues.stretches import Stretch
from ...fetch.fetch_result import Message
from ...offsets import TopicPartition
from ...spans import Spans
from .ack_tracker import AckTracker
from .queue_batch import QueueBatch


class UnseenDeliveries:
    """Unseen messages of a queue group's member. Each counts as shown when it is handed out.

    Until then the member has acquired it, and the user has not seen it. The rest is left to the next poll when a
    partition moves, when another poll shows one of the messages, or when the member gives a message back.
    """

    def __init__(
        self,
        batch: QueueBatch,
        trackers: Callable[[], Mapping[TopicPartition, AckTracker]],
        paused_by_user: Callable[[], Container[TopicPartition]],
        given_back_count: Callable[[], int],
    ) -> None:
        """Hide the messages from the trackers.

        Args:
            batch: the messages of the poll.
            trackers: returns the consumer's trackers now.
            paused_by_user: returns the partitions that the user has paused, as of now.
            given_back_count: grows when the member gives messages back.
        """
        self._trackers, self._paused_by_user, self._given_back_count = trackers, paused_by_user, given_back_count
        self._given_back_before = given_back_count()
        self._trackers_at_poll = {tp: trackers()[tp] for tp in batch.shown}
        try:
            self.messages = list(batch)
        except BaseException:  # the store failed, or an interrupt came: the loop gets none of the messages
            for tp, shown in batch.shown.items():
                self._trackers_at_poll[tp].hide(shown.stretches)
            raise
        self._stretches = {
            (*tp, offset): stretch.cut(offset, offset + 1)
            for tp, shown in batch.shown.items()
            for stretch in shown.stretches
            for offset in range(stretch.first, stretch.end)
        }
        for message in self.messages:
            self._trackers_at_poll[message.topic, message.partition].hide([self._stretch_of(message)])

    def show(self, message: Message) -> bool:
        tp, stretch = (message.topic, message.partition), self._stretch_of(message)
        tracker = self._trackers().get(tp)
        if tracker is None or tracker is not self._trackers_at_poll[tp] or tp in self._paused_by_user():
            return False
        if self._given_back_count() != self._given_back_before or not tracker.find_unshown([stretch]):
            return False
        tracker.show([stretch], Spans([stretch.span]), Spans())
        return True

    def end(self) -> None:
        pass

    def _stretch_of(self, message: Message) -> Stretch:
        return self._stretches[message.topic, message.partition, message.offset]
