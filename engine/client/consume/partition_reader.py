"""The interface of the readers of consumers: one reads from positions, the other the deliveries of a queue group."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Protocol, TypeVar

from ..fetch.fetch_result import Message
from ..offsets import TopicPartition
from .batch import ConsumerBatch

Moves = dict[TopicPartition, Any]
"""(topic, partition) -> how a poll has moved on in it, for `undo_moves`. Each reader has its own kind of values."""

Batch = TypeVar("Batch", bound=ConsumerBatch)


class Unseen(Protocol):
    """The messages of a poll that the loop has not got yet. The consumer's lock is held for each call."""

    messages: list[Message]

    def show(self, message: Message) -> bool:
        """Note that the message is handed out. False: the consumer has it no longer, or it will come again."""
        ...

    def end(self) -> None:
        """Note that all messages were handed out, or passed over."""
        ...


class PartitionReader(Protocol[Batch]):
    """Reads the partitions of a consumer, which holds its lock for every call unless a method says otherwise.

    Attributes:
        paused_by_user: partitions of which no messages are read.
    """

    paused_by_user: set[TopicPartition]

    def list_partitions(self) -> Container[TopicPartition]:
        """Return the partitions that the consumer has."""
        ...

    def begin_poll(self, newest: bool) -> None:
        """Take in what has changed about the partitions. Raise IllegalState if the consumer is closed.

        newest: whether to look for newer steps. False: none was decided since the last look.
        """
        ...

    def read_next(self, max_records: int, moves: Moves, read_ahead: int) -> Batch | None:
        """Look once for messages, and move on past them; return None to be called again.

        Args:
            max_records: the most messages of the batch.
            moves: how the poll has moved on so far; this call adds its own moves.
            read_ahead: least number of offsets to look at. It grows after offsets without visible messages.
        """
        ...

    def undo_moves(self, moves: Mapping[TopicPartition, Any]) -> None:
        """Move back to where a poll that failed has begun."""
        ...

    def mark_unseen(self, batch: Batch) -> Unseen:
        """Move back to where the poll of this batch has begun, so that its messages can be handed out one by one."""
        ...

    def explain_empty(self, batch: Batch) -> None:
        """Note in an empty batch why it is empty, or raise if the caller has to act before anything comes."""
        ...

    def waits_for_partitions(self) -> bool:
        """Return whether the consumer has no partitions yet, and is about to get some. Needs no lock."""
        ...

    def expects_messages(self, deadline_ms: float) -> bool:
        """Return whether messages are on their way, so that the poll waits a moment longer. Needs no lock."""
        ...

    def rest(self, poll_ms: int, most_ms: int) -> None:
        """Sleep until polling again is worthwhile, at most `most_ms`. The lock must not be held.

        poll_ms: how long to sleep if nothing tells of messages.
        """
        ...
