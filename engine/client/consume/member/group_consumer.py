"""A member of a cooperative or classic group: it reads the partitions that the group assigns, and commits offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ....namespace.processes.clock import Clock
from ....protocol.errors import FencedMemberEpoch, UnknownMemberId
from ....protocol.values.consuming.offsets import CommitOffsets, OffsetCommit, OffsetsJudged
from ...arguments import parse_text
from ...fetch.fetch_result import FetchResult
from ...fetch.planning.plan import Isolation, check_isolation
from ...fetch.step_waiter import NewWaiter
from ...offsets import ConsumedOffsets, TopicPartition, build_offset_commits
from ...requests.attempts import ask_with_retries
from ...requests.requester import Requester
from ...tracing.spans import traces_commit
from ..batch import ConsumerBatch, ExplainTransactions
from ..consumer import COMMIT_MS, find_offsets_to_commit
from ..listener import RebalanceListener
from ..poll_loop import ConsumerLock, PollLoop
from ..positions.position_reader import PositionReader
from ..positions.positions import Reset
from ..range_fetcher import RangeFetcher
from .group_ends import GroupEnds
from .member import Member
from .member_consumer import Joined, MemberConsumer
from .member_partitions import MemberPartitions, PositionHolder
from .membership import Membership


class GroupConsumer(MemberConsumer):
    """A member of a group. Each `poll` tells it which partitions it has. Thread-safe; close it, or use it with `with`.

    Each partition belongs to one member at a time. A member that does not poll for max_poll_interval_ms, or whose
    process sends no heartbeat for session_timeout_ms, is lost, and other members get its partitions; its next `poll`
    joins the group again. A commit counts while the partition belongs to the consumer. After that it raises
    FencedMemberEpoch and changes nothing.

    Classic and cooperative groups differ in what the group's state says, not in this class. In a classic group all
    partitions are revoked first, and a new generation assigns them. In a cooperative group only the partitions that
    move are revoked.
    """

    _reader: PositionReader

    def __init__(
        self,
        requester: Requester,
        membership: Membership,
        fetch: Callable[..., FetchResult],
        clock: Clock,
        new_waiter: NewWaiter,
        group: str,
        auto_offset_reset: Reset = "earliest",
        isolation: Isolation = "read_committed",
        listener: RebalanceListener | None = None,
        joined: Joined = lambda *_: None,
        consumer_timeout_ms: int | None = None,
        explain_transactions: ExplainTransactions = lambda _: (),
    ) -> None:
        """Join the group. Raises what joining is refused with.

        new_waiter: returns what the consumer waits with; explain_transactions: names the open transactions that hold
        partitions back.
        """
        check_isolation(isolation)
        lock, fetcher = ConsumerLock(), RangeFetcher(fetch, isolation)
        member = Member(lock, membership, listener)
        waiter = new_waiter(membership.news)
        partitions = MemberPartitions(lock, member)
        reader = PositionReader(group, auto_offset_reset, partitions, fetcher, waiter, explain_transactions)
        holder = PositionHolder(lock, member, reader)
        ends = GroupEnds(lock, member, reader.list_known_offsets, fetcher, clock)
        loop = PollLoop(lock, reader, clock, waiter, ends.waits_for_others)
        super().__init__(group, lock, member, holder, reader, ends, clock, consumer_timeout_ms, loop, listener)
        self._requester = requester
        membership.join()
        joined(self, self._open_member)

    def poll(self, max_records: int = 100_000, timeout_ms: int = 0, poll_ms: int = 20) -> ConsumerBatch:
        """Return the next messages, and move the positions past them.

        It takes in first what the group has decided: lost, revoked and new partitions.

        Args:
            max_records: the most messages that are returned. They come evenly from all partitions.
            timeout_ms: how long to wait for the first message. Messages that are there are returned in any case. If
                the next offsets are expired or aborted, the poll reads past them for up to a second. A consumer that
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
        """Return the next offset to read. Raises IllegalState: the partition is not assigned."""
        with self._lock.own:
            return self._reader.position(topic, partition)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read on from this offset.

        Raises:
            OffsetOutOfRange: the log does not hold the offset.
            IllegalState: the partition is not assigned.
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
        deadline_ms = self._clock.steady_ms() + COMMIT_MS
        membership = self._member.membership
        try:
            answer = ask_with_retries(lambda: self._requester.ask(request), self._clock, deadline_ms)
        except UnknownMemberId:
            if membership.is_replaced():
                raise membership.fenced_error() from None
            raise
        assert isinstance(answer, OffsetsJudged)
        if answer.fenced:
            raise FencedMemberEpoch(found=[f"{commits[i].topic}-{commits[i].partition}" for i in answer.fenced])
        return offsets

    def committed(self) -> dict[TopicPartition, OffsetCommit]:
        """Return what the group has committed of the partitions that the consumer has."""
        with self._lock.own:
            return self._member.read_committed()

    def go_back(self, batch: ConsumerBatch) -> bool:
        """Read an unprocessed batch again, as after a transaction that was aborted.

        Partitions that belong to other members by now are left to those.

        Returns:
            Whether all partitions of the batch still belong to the consumer.
        """
        with self._lock.own:
            still_owned = self._member.find_still_owned(batch)
            self._reader.go_back({tp: start for tp, start in batch.starts.items() if tp in still_owned})
            return len(still_owned) == len(batch.offsets)
