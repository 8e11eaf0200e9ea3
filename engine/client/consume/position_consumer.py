"""Consumers that have positions: members of cooperative and classic groups, and consumers of assigned partitions."""

from __future__ import annotations

from collections.abc import Mapping

from ...protocol.errors import (
    FencedMemberEpoch,
    UnknownMemberId,
)
from ...protocol.values.offsets import CommitOffsets, OffsetCommit, OffsetsJudged
from ..arguments import parse_text
from ..offsets import ConsumedOffsets, TopicPartition, build_offset_commits
from ..requests.requester import ask_with_retries
from ..tracing import traces_commit
from .batch import ConsumerBatch
from .consumer import Consumer, ConsumerParts, find_offsets_to_commit
from .position_reader import HELD_BACK_MS, AssignedPartitions, Partitions, PositionReader, Reset
from .progress import Ends, Remainder, find_remainder_by_positions

_COMMIT_MS = 60_000
"""How long a commit is repeated while no sequencer answers."""


class PositionConsumer(Consumer):
    """A consumer that reads its partitions on from positions. Thread-safe.

    Its user has assigned the partitions (`AssignedConsumer`), or its group does (`GroupConsumer`).
    """

    _reader: PositionReader
    _partitions: Partitions

    def poll(self, max_records: int = 100_000, timeout_ms: int = 0, poll_ms: int = 20) -> ConsumerBatch:
        """Return the next messages, and move the positions past them.

        A member of a group takes in first what the group has decided: lost, revoked and new partitions.

        Args:
            max_records: the most messages that are returned. They come evenly from all partitions.
            timeout_ms: how long to wait for the first message. Messages that are there are returned in any case. If
                the next offsets are expired or aborted, the poll reads past them for up to a second. A member that
                has just started waits longer while members of other processes hold unread messages and make no
                progress: they may be dead, and their sessions not be over. 0: return at once.
            poll_ms: how long to wait before looking again, if nothing tells of a new step sooner.

        Returns:
            A batch, which is empty and says why in `outcome` if no message came.

        Raises:
            NoOffsetForPartition, OffsetOutOfRange: only with `auto_offset_reset="none"`.
            FencedInstanceId: another process has taken over the instance id. The consumer is closed.
            IllegalState: the consumer is closed.
        """
        return self._poll(max_records, timeout_ms, poll_ms, is_patient=True)

    def position(self, topic: str, partition: int) -> int:
        """Return the next offset to read.

        Args:
            topic: name of the topic.
            partition: number of the partition.

        Raises:
            IllegalState: the partition is not assigned.
        """
        with self._lock.own:
            return self._reader.position(topic, partition)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read on from this offset.

        Args:
            topic: name of the topic.
            partition: number of the partition.
            offset: from the log start to the high watermark.

        Raises:
            OffsetOutOfRange: the log does not hold the offset.
            IllegalState: the partition is not assigned.
            UnknownTopicOrPartition: a topic that the user has assigned was deleted.
        """
        with self._lock.own:
            self._reader.seek(topic, partition, offset)

    def lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets from each position to the end of the log, also those that cannot be read yet.

        It counts the partitions that this consumer has now, and no others: a member without partitions gets `{}`
        even if others have much to read. For the whole group see `group_lag()`, and `mq.groups.lag(group)`.

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
            FencedMemberEpoch: some partitions belong to other members by now. The error names them; the other
                offsets are committed.
            UnknownMemberId: the member was lost. It joins again with its next `poll`.
            FencedInstanceId: another process has taken over the instance id.
            IllegalGeneration: in a classic group, the batch was read in an earlier generation. Nothing is committed.
            RebalanceInProgress: in a classic group. Nothing is committed.
            OffsetOutOfRange, UnknownTopicOrPartition, OffsetMetadataTooLarge: an argument is not valid.
            UnknownTopicId: the topic that was read was deleted. Nothing is committed.
        """
        offsets = find_offsets_to_commit(what, self._lock, self._reader.find_consumed_offsets)
        if not offsets:
            return offsets
        commits = build_offset_commits(offsets, None if metadata is None else parse_text("metadata", metadata))
        request = CommitOffsets(self.group, commits, None, offsets.member_id, offsets.generation)
        deadline_ms = self._clock.steady_ms() + _COMMIT_MS
        try:
            answer = ask_with_retries(lambda: self._parts.requester.ask(request), self._clock, deadline_ms)
        except UnknownMemberId as error:
            raise self._partitions.explain_lost_member() or error from None
        if isinstance(answer, OffsetsJudged) and answer.fenced:
            raise FencedMemberEpoch(found=[f"{commits[i].topic}-{commits[i].partition}" for i in answer.fenced])
        return offsets

    def committed(self) -> dict[TopicPartition, OffsetCommit]:
        """Return what the group has committed of the partitions that the consumer has.

        A consumer of assigned partitions waits while an open transaction holds some of the offsets back.

        Raises:
            UnstableOffsetCommit: that takes longer than a minute.
            ThrottlingQuotaExceeded: the sequencer was too busy with other answers all that time.
        """
        return dict(self._reader.read_committed())


class AssignedConsumer(PositionConsumer):
    """Reads the partitions it was assigned. Thread-safe; close it, or use it as a context manager.

    A position is the next offset to read. It begins at the group's committed offset. Where the group has committed
    nothing, or the offset was deleted, it begins at `auto_offset_reset`. A partition that is added later, or that
    belongs to a topic created again under its old name, is read from its start. Of its topics the consumer reads all
    partitions, also those added later.

    Example:
        >>> with mq.consumer("audit", assign=["orders"], auto_offset_reset="earliest") as consumer:  # doctest: +SKIP
        ...     print(len(consumer.poll(timeout_ms=1_000)))
    """

    def __init__(self, parts: ConsumerParts, partitions: AssignedPartitions, reset: Reset) -> None:
        """Begin to read; nothing is polled yet. reset: where to begin without a committed offset.

        Raises:
            UnknownTopicOrPartition, InvalidRequest: an argument is not valid.
        """
        reader = PositionReader(parts, partitions, reset)
        super().__init__(parts, reader, HELD_BACK_MS)
        self._partitions = partitions
        reader.read_bounds()

    def _find_ends(self) -> Ends:
        with self._lock.own:
            self._lock.check_open()
            return {tp: (bounds.topic_id, bounds.high_watermark) for tp, bounds in self._reader.read_bounds().items()}

    def _find_remainder(self, ends: Ends) -> Remainder:
        with self._lock.own:
            self._lock.check_open()
            return find_remainder_by_positions(ends, *self._reader.settle())

    def close(self) -> None:
        """Stop polling. Nothing is committed by this."""
        self._lock.is_closed = True
        self._parts.waiter.close()
