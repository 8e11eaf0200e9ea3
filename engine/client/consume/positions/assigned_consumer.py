"""A consumer of assigned partitions: it reads on from the group's committed offsets, and commits new ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from ....namespace.processes.clock import Clock
from ....protocol.values.consuming.offsets import CommitOffsets, OffsetCommit
from ...arguments import parse_text, parse_whole_number
from ...fetch.fetch_result import FetchResult
from ...fetch.planning.plan import Isolation, check_isolation
from ...fetch.step_waiter import NewWaiter
from ...offsets import ConsumedOffsets, TopicPartition, build_offset_commits
from ...requests.attempts import ask_with_retries
from ...requests.requester import Requester
from ...tracing.spans import traces_commit
from ..batch import ConsumerBatch, ExplainTransactions
from ..consumer import COMMIT_MS, Consumer, find_offsets_to_commit
from ..poll_loop import ConsumerLock, PollLoop
from ..range_fetcher import RangeFetcher
from ..until_end import Ends, Remainder, find_remainder_by_positions
from .assigned_partitions import AssignedPartitions, FindBounds
from .position_reader import PositionReader
from .positions import Reset


class AssignedConsumer(Consumer):
    """Reads the partitions it was assigned. Thread-safe; close it, or use it as a context manager.

    A position is the next offset to read. It begins at the group's committed offset. Where the group has committed
    nothing, or the offset was deleted, it begins at `auto_offset_reset`. A partition that is added later, or that
    belongs to a topic created again under its old name, is read from its start. Of its topics the consumer reads all
    partitions, also those added later.
    """

    _reader: PositionReader

    def __init__(
        self,
        requester: Requester,
        bounds: FindBounds,
        fetch: Callable[..., FetchResult],
        clock: Clock,
        new_waiter: NewWaiter,
        group: str,
        topics: Sequence[str],
        assign: Sequence[TopicPartition],
        auto_offset_reset: Reset = "earliest",
        isolation: Isolation = "read_committed",
        default_timeout_ms: int = 60_000,
        consumer_timeout_ms: int | None = None,
        explain_transactions: ExplainTransactions = lambda _: (),
    ) -> None:
        """Begin to read; nothing is polled yet.

        Args:
            requester: sends requests to the sequencer.
            bounds: returns the bounds of all partitions of some topics, as of now.
            fetch: fetches ranges of a topic.
            clock: the consumer's clock.
            new_waiter: returns what the consumer waits with.
            group: the group whose offsets are read and committed.
            topics: topics whose partitions are all read.
            assign: single partitions that are read.
            auto_offset_reset, isolation, default_timeout_ms, consumer_timeout_ms: as in `mq.consumer`.
            explain_transactions: names the open transactions that hold partitions back.

        Raises:
            UnknownTopicOrPartition, InvalidRequest: an argument is not valid.
        """
        check_isolation(isolation)
        timeout_ms = parse_whole_number("default_timeout_ms", default_timeout_ms, 0)
        lock, fetcher = ConsumerLock(), RangeFetcher(fetch, isolation)
        partitions = AssignedPartitions(lock, requester, bounds, group, topics, assign, isolation, clock, timeout_ms)
        waiter = new_waiter(threading.Event())
        reader = PositionReader(group, auto_offset_reset, partitions, fetcher, waiter, explain_transactions)
        super().__init__(group, lock, reader, _PositionEnds(lock, reader, timeout_ms), clock, consumer_timeout_ms)
        self._requester, self._partitions, self._loop = requester, partitions, PollLoop(lock, reader, clock, waiter)
        reader.read_bounds()

    def poll(self, max_records: int = 100_000, timeout_ms: int = 0, poll_ms: int = 20) -> ConsumerBatch:
        """Return the next messages, and move the positions past them.

        Args:
            max_records: the most messages that are returned. They come evenly from all partitions.
            timeout_ms: how long to wait for the first message. Messages that are there are returned in any case. If
                the next offsets are expired or aborted, the poll reads past them for up to a second.
            poll_ms: how long to wait before looking again, if nothing tells of a new step sooner.

        Returns:
            A batch, which is empty and says why in `outcome` if no message came.

        Raises:
            NoOffsetForPartition, OffsetOutOfRange: only with `auto_offset_reset="none"`.
            IllegalState: the consumer is closed.
        """
        return self._poll(max_records, timeout_ms, poll_ms)

    def position(self, topic: str, partition: int) -> int:
        """Return the next offset to read. Raises IllegalState: the partition is not assigned."""
        with self._lock.own:
            return self._reader.position(topic, partition)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read on from this offset.

        Raises:
            OffsetOutOfRange: the log does not hold the offset.
            IllegalState: the partition is not assigned.
            UnknownTopicOrPartition: an assigned topic was deleted.
        """
        with self._lock.own:
            self._reader.seek(topic, partition, offset)

    def lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets from each position to the end of the log, also those that cannot be read yet.

        Returns:
            (topic, partition) -> offsets, at least 0.
        """
        with self._lock.own:
            return self._reader.count_lag()

    @traces_commit
    def commit(
        self, what: ConsumerBatch | Mapping[TopicPartition, int] | None = None, metadata: str | None = None
    ) -> ConsumedOffsets:
        """Commit the end of a batch, these offsets, or all positions for the group.

        The request is repeated for a minute while no sequencer answers, as when the sequencer changes.

        Args:
            what: a batch; or (topic, partition) -> next offset to read; left out, all positions.
            metadata: a text that is stored beside the offsets.

        Returns:
            The offsets that were committed.

        Raises:
            OffsetOutOfRange, UnknownTopicOrPartition, OffsetMetadataTooLarge: an argument is not valid.
            UnknownTopicId: the topic that was read was deleted. Nothing is committed.
        """
        offsets = find_offsets_to_commit(what, self._lock, self._reader.find_consumed_offsets)
        if offsets:
            text = None if metadata is None else parse_text("metadata", metadata)
            request = CommitOffsets(self.group, build_offset_commits(offsets, text))
            deadline_ms = self._clock.steady_ms() + COMMIT_MS
            ask_with_retries(lambda: self._requester.ask(request), self._clock, deadline_ms)
        return offsets

    def committed(self) -> dict[TopicPartition, OffsetCommit]:
        """Return what the group has committed of the assigned partitions.

        Waits while an open transaction holds some of the offsets back.

        Raises:
            UnstableOffsetCommit: that takes longer than `default_timeout_ms`.
            ThrottlingQuotaExceeded: the sequencer was too busy with other answers all that time.
        """
        return self._partitions.read_committed(list(self._reader.positions.by_partition))

    def close(self) -> None:
        """Stop polling. Nothing is committed by this."""
        self._lock.is_closed = True
        self._loop.close()


class _PositionEnds:
    """Finds how far positions are from the ends of their partitions."""

    def __init__(self, lock: ConsumerLock, reader: PositionReader, timeout_ms: int) -> None:
        self._lock, self._reader, self.timeout_ms = lock, reader, timeout_ms

    def find_ends(self) -> Ends:
        with self._lock.own:
            self._lock.check_open()
            return {tp: (bounds.topic_id, bounds.high_watermark) for tp, bounds in self._reader.read_bounds().items()}

    def find_remainder(self, ends: Ends) -> Remainder:
        with self._lock.own:
            self._lock.check_open()
            return find_remainder_by_positions(ends, *self._reader.positions.settle())

    def waits_for_others(self) -> bool:
        return False
