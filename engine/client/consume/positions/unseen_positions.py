"""The messages of a poll that a loop has not got yet, for a consumer that has positions."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

from ...fetch.fetch_result import Message
from ...offsets import TopicPartition
from ..batch import ConsumerBatch
from .positions import ReadPosition


class UnseenPositions:
    """Unseen messages of a consumer that has positions. Each position follows the messages that are handed out.

    If something else moves a position (`seek`, a rebalance, another poll), or the partition is paused, none of its
    other messages are handed out. The next poll goes on from its position.
    """

    def __init__(
        self,
        batch: ConsumerBatch,
        positions: Callable[[], dict[TopicPartition, ReadPosition]],
        excluded: Callable[[], Container[TopicPartition]],
    ) -> None:
        """Move the positions back to where the poll began.

        Args:
            batch: the messages of the poll.
            positions: returns the consumer's positions now.
            excluded: returns the partitions that are not read now: paused, or being given up.
        """
        self._positions, self._excluded = positions, excluded
        self._ends, self._next = batch.offsets, batch.starts
        for tp, start in self._next.items():
            self._move(tp, start)
        # last: if the store fails, the positions are back where the poll began
        self.messages = list(batch)

    def show(self, message: Message) -> bool:
        tp = (message.topic, message.partition)
        if not self._is_in_step(tp) or tp in self._excluded():
            self._next.pop(tp, None)
            return False
        self._next[tp] = message.offset + 1
        self._move(tp, message.offset + 1)
        return True

    def end(self) -> None:
        """Move the positions past the offsets at the end that hold no message for this reader."""
        for tp in self._next:
            if self._is_in_step(tp) and tp not in self._excluded():
                self._move(tp, self._ends[tp])

    def _is_in_step(self, tp: TopicPartition) -> bool:
        """Return whether the position is where this iteration has left it."""
        position = self._positions().get(tp)
        return position is not None and tp in self._next and position.offset == self._next[tp]

    def _move(self, tp: TopicPartition, offset: int) -> None:
        positions = self._positions()
        positions[tp] = replace(positions[tp], offset=offset)
