"""The calls that all consumers have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from ...namespace.clock import Clock
from ...namespace.process import ProcessBound, end_block
from ...protocol.values.offsets import OffsetCommit
from ..arguments import invalid_argument, parse_topic_partitions, parse_whole_number
from ..fetch.fetch_result import Message
from ..offsets import ConsumedOffsets, TopicPartition
from ..tracing import trace_poll
from .batch import ConsumerBatch
from .poll_loop import Batch, ConsumerLock, ConsumerParts, PartitionReader, PollLoop
from .position_reader import check_assignment
from .progress import Ends, Remainder, read_until_end

# Iteration over a consumer: messages are polled many at a time, and count as read one by one as the loop gets them.


POLL_RECORDS = 500
"""Messages of a poll, as Kafka's `max.poll.records`."""
_POLL_MS = 20
_KEEP_UP_MS = 1_000
"""After this long without a poll, the consumer looks between two messages whether its partitions have changed."""


def iterate(
    lock: ConsumerLock,
    reader: PartitionReader[Batch],
    poll: Callable[[], Batch],
    clock: Clock,
    timeout_ms: int | None,
    waits_for_others: Callable[[], bool],
) -> Iterator[Message]:
    """Yield messages until the consumer is closed, or until no message has come for `timeout_ms`.

    A consumer that is about to get its first partitions waits for these, and the timeout waits with it. So does a
    consumer that has just started while members of other processes hold unread messages. Between two
    messages the consumer looks from time to time whether its partitions have changed, as a poll does.

    Args:
        lock: of the consumer. It is held for each of the steps, and never while the caller works on a message.
        reader: of the consumer.
        poll: polls without waiting.
        clock: the time that the timeout counts.
        timeout_ms: None: no limit.
        waits_for_others: as in `EndFinder`.
    """
    last_message_ms = clock.steady_ms()
    while True:
        with lock.own:
            if lock.is_closed:
                return
            # The lock is held for both, so that no other thread sees the messages as read.
            unseen = reader.mark_unseen(poll())
        kept_up_ms = clock.steady_ms()
        for message in unseen.messages:
            with lock.own:
                if clock.steady_ms() - kept_up_ms >= _KEEP_UP_MS and not lock.is_closed:
                    reader.begin_poll(newest=True)
                    kept_up_ms = clock.steady_ms()
                if lock.is_closed:
                    return
                is_shown = unseen.show(message)
            if is_shown:
                yield message
        with lock.own:
            unseen.end()
        if unseen.messages or reader.waits_for_partitions() or (timeout_ms is not None and waits_for_others()):
            last_message_ms = clock.steady_ms()
        elif timeout_ms is not None and clock.steady_ms() - last_message_ms >= timeout_ms:
            return
        if not unseen.messages:
            left_ms = _KEEP_UP_MS if timeout_ms is None else last_message_ms + timeout_ms - clock.steady_ms()
            reader.rest(_POLL_MS, max(1, min(_KEEP_UP_MS, left_ms)))


# The calls that all consumers have in common.


C = TypeVar("C", bound="Consumer")


class EndFinder(Protocol):
    """Finds how much is left before the ends that partitions had when a loop began. It takes the consumer's lock.

    Attributes:
        timeout_ms: how long the loop waits without progress, unless its caller says otherwise.
    """

    timeout_ms: int

    def find_ends(self) -> Ends:
        """Return where the partitions to read end now."""
        ...

    def find_remainder(self, ends: Ends) -> Remainder:
        """Return how much is not read before these ends."""
        ...

    def waits_for_others(self) -> bool:
        """Return whether members of other processes hold unread messages, and may be dead."""
        ...


class Consumer(ProcessBound, ABC):
    """A consumer, as `mq.consumer` returns it. Thread-safe; close it, or use it as a context manager.

    It is a `QueueConsumer` or a `GroupConsumer`, by the protocol of its group; with `assign`, an `AssignedConsumer`.
    """

    def __init__(self, parts: ConsumerParts, reader: PartitionReader[Any], ends: EndFinder) -> None:
        """Put the parts together: reader: reads the partitions; ends: finds what is left of them."""
        self.group, self._parts, self._lock, self._clock = parts.group, parts, parts.lock, parts.clock
        self._reader, self._ends = reader, ends
        self._loop: PollLoop[Any] = PollLoop(parts, reader, ends.waits_for_others)

    @abstractmethod
    def poll(self, max_records: int = ..., timeout_ms: int = 0, poll_ms: int = 20) -> ConsumerBatch:
        """Return the next messages, or an empty batch that says why in `outcome`."""

    def _poll(self, max_records: int, timeout_ms: int, poll_ms: int = 20, is_patient: bool = False) -> Any:
        """Poll. is_patient: as in `PollLoop.poll`."""
        return trace_poll(self.group, lambda: self._loop.poll(max_records, timeout_ms, poll_ms, is_patient))

    @abstractmethod
    def position(self, topic: str, partition: int) -> int:
        """Return the next offset to read of a partition."""

    @abstractmethod
    def lag(self) -> dict[TopicPartition, int]:
        """Return how many offsets are left in each partition of this consumer."""

    @abstractmethod
    def commit(
        self, what: ConsumerBatch | Mapping[TopicPartition, int] | None = None, metadata: str | None = None
    ) -> ConsumedOffsets:
        """Let the group note how far it has come."""

    @abstractmethod
    def committed(self) -> dict[TopicPartition, OffsetCommit]:
        """Return what the group has noted of this consumer's partitions."""

    @abstractmethod
    def close(self) -> None:
        """Stop polling."""

    def __iter__(self) -> Iterator[Message]:
        """Iterate over the messages one by one, and wait for more: `for message in consumer`.

        The loop ends when the consumer is closed, by the loop itself or by another thread; and with
        `consumer_timeout_ms`, when no message has come for so long. That says nothing about what is left: see `lag`.
        Messages are read 500 at a time, but each counts as read when the loop gets it. So `position`, and a `commit`
        without arguments, are just after the last message that the loop got; what it did not get, the next `poll` or
        loop reads. Raises what `poll` raises.
        """
        return iterate(
            self._lock,
            self._reader,
            lambda: self.poll(POLL_RECORDS),
            self._clock,
            self._parts.iteration_timeout_ms,
            self._ends.waits_for_others,
        )

    def until_end(
        self,
        max_records: int = 10_000,
        timeout_ms: int | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> Iterator[ConsumerBatch]:
        """Poll until all that was there at the time of this call is read: `for batch in consumer.until_end():`.

        A member of a group goes on until the whole group has read it. It waits for partitions that other members have,
        until those have committed (in a queue: acknowledged), and takes over what a lost member had. Messages that
        come during the loop may be among the last batches. Commit or acknowledge each batch in the loop. A topic that
        is deleted meanwhile, or that the loop unsubscribes from, counts as read.

        Args:
            max_records: the most messages of a batch.
            timeout_ms: how long to wait while no member makes progress. Left out, long enough to find out that a
                member died or does not poll.
            stopped: called before each poll; true ends the loop early, without an error.

        Raises:
            EndNotReached: the wait is over. The message names the holders of the rest.
            LakeMQError: an error of `poll`.
        """
        max_records = parse_whole_number("max_records", max_records, 1)
        limit_ms = self._ends.timeout_ms if timeout_ms is None else parse_whole_number("timeout_ms", timeout_ms, 0)
        if not (stopped is None or callable(stopped)):
            raise invalid_argument("stopped", stopped, "a function without arguments")
        ends = self._ends.find_ends()
        return read_until_end(
            self.group,
            lambda wait_ms: self._poll(max_records, wait_ms),
            lambda: self._ends.find_remainder(ends),
            limit_ms,
            self._clock,
            stopped,
        )

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Get no messages of these partitions until `resume`. Raises IllegalState: one of them is not assigned."""
        with self._lock.own:
            topic_partitions = parse_topic_partitions("partitions", partitions)
            for tp in topic_partitions:
                check_assignment(tp, self._reader.list_partitions())
            self._reader.paused_by_user.update(topic_partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Get messages of these partitions again."""
        with self._lock.own:
            self._reader.paused_by_user.difference_update(parse_topic_partitions("partitions", partitions))

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        end_block(kind, self.close)


def find_offsets_to_commit(
    what: ConsumerBatch | Mapping[TopicPartition, int] | None,
    lock: ConsumerLock,
    find_consumed: Callable[[Mapping[TopicPartition, int] | None], ConsumedOffsets],
) -> ConsumedOffsets:
    """Return the offsets that a user wants to commit.

    Args:
        what: a batch, offsets, or None.
        lock: of the consumer.
        find_consumed: completes offsets that the user named; with None it returns those that the consumer has come to.
    """
    offsets = what.offsets if isinstance(what, ConsumerBatch) else what
    if isinstance(offsets, ConsumedOffsets):
        return offsets  # without the lock: one thread may commit its batch while another polls
    with lock.own:
        return find_consumed(offsets)
