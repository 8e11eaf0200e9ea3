"""The calls that all consumers have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from sys import modules
from typing import Any, TypeAlias, TypeVar

from ...namespace.process import ProcessBound, end_block
from ...protocol.values.offsets import OffsetCommit
from ..arguments import invalid_argument, parse_topic_partitions, parse_whole_number
from ..fetch.fetch_result import Message
from ..offsets import ConsumedOffsets, TopicPartition
from ..tracing import API, trace_poll
from .batch import ConsumerBatch
from .parts import ConsumerLock, ConsumerParts, Moves, check_assignment
from .position_reader import PositionReader, UnseenPositions
from .progress import Ends, Remainder, read_until_end
from .queue_poll import QueueReader, UnseenDeliveries

PartitionReader: TypeAlias = PositionReader | QueueReader
"""Reads the partitions of a consumer: from positions, or the deliveries of a queue group. The consumer holds its lock
for every call unless a method says otherwise."""
Unseen: TypeAlias = UnseenPositions | UnseenDeliveries
"""The messages of a poll that the loop has not got yet. The consumer's lock is held for each call."""

_PASSING_MS = 1_000
"""How long a poll reads past offsets without visible messages, even if its timeout is shorter."""
_SHORT_MS = 200
"""A poll with a shorter timeout always looks for new steps. It must find every message that was acknowledged before the
call, but might end before the leader's hint arrives. With a longer timeout the hint has this time to arrive."""
_LATE_LOOK_MS = 20
"""Longest rest of a poll whose time is over, while the messages that it has requested are on their way."""
_MAX_PASSED = 16_384
"""Most offsets without visible messages that one look reads past, unless `max_records` is larger."""

POLL_RECORDS = 500
"""Messages of a poll, as Kafka's `max.poll.records`."""
_POLL_MS = 20
_KEEP_UP_MS = 1_000
"""After this long without a poll, the consumer looks between two messages whether its partitions have changed."""


C = TypeVar("C", bound="Consumer")


class Consumer(ProcessBound, ABC):
    """A consumer, as `mq.consumer` returns it. Thread-safe; close it, or use it as a context manager.

    It is a `QueueConsumer` or a `GroupConsumer`, by the protocol of its group; with `assign`, an `AssignedConsumer`.

    Example:
        >>> def count(consumer: lakemq.Consumer) -> int:  # doctest: +SKIP
        ...     return sum(consumer.lag().values())
    """

    def __init__(self, parts: ConsumerParts, reader: PartitionReader, end_timeout_ms: int) -> None:
        """Put the parts together.

        reader: reads the partitions. end_timeout_ms: how long `until_end` waits without progress, unless told.
        """
        self.group, self._parts, self._lock, self._clock = parts.group, parts, parts.lock, parts.clock
        self._reader, self._end_timeout_ms = reader, end_timeout_ms

    @abstractmethod
    def poll(self, max_records: int = ..., timeout_ms: int = 0, poll_ms: int = 20) -> ConsumerBatch:
        """Return the next messages, or an empty batch that says why in `outcome`.

        Args:
            max_records: the most messages.
            timeout_ms: how long to wait for the first message.
            poll_ms: how often to look where the file system does not notify us.

        Raises:
            LakeMQError: as the poll of the consumer's class.
        """

    def _poll(self, max_records: int, timeout_ms: int, poll_ms: int = 20, is_patient: bool = False) -> Any:
        """Return the next messages; if none come before the timeout, an empty batch that says why.

        The lock is taken for each look, and not while waiting.

        Args:
            max_records: the most messages of the batch.
            timeout_ms: how long to wait for the first message.
            poll_ms: how long to sleep before looking again.
            is_patient: whether to wait longer for messages that members of other processes hold. A poll without a
                timeout never waits for these.
        """
        if API not in modules:  # no application can have set a tracer
            return self._poll_reader(max_records, timeout_ms, poll_ms, is_patient)
        return trace_poll(self.group, lambda: self._poll_reader(max_records, timeout_ms, poll_ms, is_patient))

    def _poll_reader(self, max_records: int, timeout_ms: int, poll_ms: int, is_patient: bool) -> Any:
        max_records = parse_whole_number("max_records", max_records, 1)
        poll_ms = parse_whole_number("poll_ms", poll_ms, 0)
        timeout_ms = parse_whole_number("timeout_ms", timeout_ms, 0)
        begun_ms = self._clock.steady_ms()
        deadline_ms = begun_ms + timeout_ms
        reader, waiter, passed, read_ahead = self._reader, self._parts.waiter, None, 0
        moves: Moves = {}
        try:
            while True:
                if newest := waiter.needs_look() or timeout_ms < _SHORT_MS:
                    waiter.reset()
                with self._lock.own:
                    reader.begin_poll(newest, is_first=passed is None)
                    while (batch := reader.read_next(max_records, moves, read_ahead)) is None:
                        pass  # messages were deleted between looking and reading: look again
                has_moved = bool(batch.offsets)
                # The batch also has the next offset of partitions in which nothing was visible.
                batch.offsets = passed = batch.offsets if passed is None else passed.followed_by(batch.offsets)
                if batch:
                    waiter.note_arrival()
                    return batch
                read_ahead = min(4 * max(read_ahead, max_records), _MAX_PASSED) if has_moved else 0
                end_ms = max(deadline_ms, begun_ms + _PASSING_MS) if has_moved else deadline_ms
                if self._clock.steady_ms() >= end_ms and not reader.expects_messages(deadline_ms):
                    if not (is_patient and timeout_ms and self._waits_for_others()):
                        with self._lock.own:
                            reader.explain_empty(batch)
                        return batch
                    # not the whole timeout again: it may be far longer than the others are waited for
                    deadline_ms = self._clock.steady_ms() + min(timeout_ms, _PASSING_MS)
                if not has_moved:
                    left_ms = deadline_ms - self._clock.steady_ms()
                    reader.rest(poll_ms, left_ms if left_ms > 0 else _LATE_LOOK_MS)
        except BaseException:  # also an interrupt: the user has not seen these messages
            with self._lock.own:
                reader.undo_moves(moves)
            raise

    @abstractmethod
    def position(self, topic: str, partition: int) -> int:
        """Return the next offset to read of a partition.

        Args:
            topic: name of the topic.
            partition: number of the partition.

        Raises:
            IllegalState: the partition is not assigned.
        """

    @abstractmethod
    def lag(self) -> dict[TopicPartition, int]:
        """Return how many offsets are left in each partition of this consumer."""

    @abstractmethod
    def commit(
        self, what: ConsumerBatch | Mapping[TopicPartition, int] | None = None, metadata: str | None = None
    ) -> ConsumedOffsets:
        """Let the group note how far it has come.

        Args:
            what: a batch, or (topic, partition) -> offset. Default: all that was read.
            metadata: a text to keep beside the offsets.

        Returns:
            The offsets that are committed.

        Raises:
            LakeMQError: as the commit of the consumer's class.
        """

    @abstractmethod
    def committed(self) -> dict[TopicPartition, OffsetCommit]:
        """Return what the group has noted of this consumer's partitions."""

    @abstractmethod
    def close(self) -> None:
        """Stop polling."""

    def __iter__(self) -> Iterator[Message]:
        """Iterate over the messages one by one, and wait for more: `for message in consumer`.

        The loop ends when the consumer is closed, by the loop itself or by another thread. To end where nothing is
        left, use `until_end`. Messages are read 500 at a time, but each counts as read when the loop gets it. So
        `position`, and a `commit` without arguments, are just after the last message that the loop got; what it did not
        get, the next `poll` or loop reads. Raises what `poll` raises.
        """
        # Between two messages the consumer looks from time to time whether its partitions have changed, as a poll does.
        lock, reader, clock = self._lock, self._reader, self._clock
        while True:
            with lock.own:
                if lock.is_closed:
                    return
                # The lock is held for both, so that no other thread sees the messages as read.
                unseen = reader.mark_unseen(self.poll(POLL_RECORDS))
            kept_up_ms = clock.steady_ms()
            for message in unseen.messages:
                with lock.own:  # never while the caller works on a message
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
            if not unseen.messages:
                reader.rest(_POLL_MS, _KEEP_UP_MS)

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

        Yields:
            Batches that are not empty.

        Raises:
            EndNotReached: the wait is over. The message names the holders of the rest.
            LakeMQError: an error of `poll`.
        """
        max_records = parse_whole_number("max_records", max_records, 1)
        limit_ms = self._end_timeout_ms if timeout_ms is None else parse_whole_number("timeout_ms", timeout_ms, 0)
        if not (stopped is None or callable(stopped)):
            raise invalid_argument("stopped", stopped, "a function without arguments")
        ends = self._find_ends()
        return read_until_end(
            self.group,
            lambda wait_ms: self._poll(max_records, wait_ms),
            lambda: self._find_remainder(ends),
            limit_ms,
            self._clock,
            stopped,
        )

    @abstractmethod
    def _find_ends(self) -> Ends:
        """Return where the partitions to read end now."""

    @abstractmethod
    def _find_remainder(self, ends: Ends) -> Remainder:
        """Return how much is not read before these ends."""

    def _waits_for_others(self) -> bool:
        """Return whether members of other processes hold unread messages, and may be dead."""
        return False

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Get no messages of these partitions until `resume`.

        Args:
            partitions: (topic, partition) pairs.

        Raises:
            IllegalState: one of them is not assigned.
        """
        with self._lock.own:
            topic_partitions = parse_topic_partitions("partitions", partitions)
            for tp in topic_partitions:
                check_assignment(tp, self._reader.list_partitions())
            self._reader.paused_by_user.update(topic_partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Get messages of these partitions again.

        Args:
            partitions: (topic, partition) pairs.

        Raises:
            InvalidRequest: these are no partitions.
        """
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
