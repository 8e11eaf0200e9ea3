"""The calls that all members of groups have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from ....protocol.errors import InvalidRequest
from ...arguments import parse_topic_names
from ...offsets import TopicPartition
from ..batch import ConsumerBatch
from ..consumer import Consumer
from ..listener import RebalanceListener
from ..partition_reader import PartitionReader
from ..poll_loop import ConsumerParts
from .group_ends import GroupEnds
from .member import Member, PartitionHolder
from .open_members import OpenMember
from .subscription import Pattern

Joined = Callable[["MemberConsumer", OpenMember], object]
"""Is called with a consumer that has joined its group, and with what closes the consumer."""


class MemberConsumer(Consumer):
    """A consumer that is a member of its group: a `GroupConsumer` or a `QueueConsumer`. Thread-safe.

    A member that does not poll for max_poll_interval_ms, or whose process sends no heartbeat for session_timeout_ms, is
    lost, and other members get its partitions; its next `poll` joins the group again.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        member: Member,
        holder: PartitionHolder,
        reader: PartitionReader[Any],
        ends: GroupEnds,
        listener: RebalanceListener | None,
    ) -> None:
        """Put the parts together. None of them may refer to the consumer, which would then never be garbage.

        holder: keeps the partitions of the member; listener: is kept for the member; the others as in `Consumer`.
        """
        super().__init__(parts, reader, ends)
        self._member, self._holder, self._group_ends, self._listener = member, holder, ends, listener
        loop = self._loop

        def close(leave: bool | None) -> None:
            member.close(holder, leave)
            loop.close()

        self._open_member = OpenMember(parts.group, member, close)

    @abstractmethod
    def go_back(self, batch: ConsumerBatch) -> bool:
        """Get an unprocessed batch again; return whether all its partitions still belong to the consumer."""

    @property
    def member_id(self) -> str:
        """The id of the member. It changes when the member was lost and has joined again."""
        return self._member.member_id

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that the consumer has, as of the last `poll`."""
        with self._lock.own:
            return sorted(self._member.partitions)

    def subscription(self) -> list[str]:
        """Return the topics that the consumer asks for, by name; of a pattern, those that match as of now."""
        with self._lock.own:
            return self._member.list_topics()

    def subscribe(self, topics: Sequence[str] = (), pattern: str | None = None) -> None:
        """Ask for these topics, or those that match the pattern, instead of what the consumer asked for before.

        The group knows when this returns, and the partitions follow with the next polls. Until then `assignment` and
        positions stay, and messages that were read may be committed or acknowledged. A poll gives up the partitions
        of topics that are not asked for any more, as in any rebalance (`on_revoked`; in a queue group `on_lost`, if
        nothing of them was left to acknowledge). Partitions of both the old and the new subscription stay, with their
        positions; but a classic group revokes and assigns all partitions.

        Args:
            topics: names of topics.
            pattern: regular expression (RE2) instead of `topics`, as in `mq.consumer`.

        Raises:
            InvalidRequest, InvalidTopic, InvalidRegularExpression: the arguments are not valid.
            UnknownTopicOrPartition: a topic does not exist. The consumer asks for the same as before.
            IllegalState: the consumer is closed.
            RequestTimedOut: no sequencer has answered. The consumer asks for the same as before.
        """
        names = parse_topic_names("topics", topics)
        if bool(names) == (pattern is not None):
            raise InvalidRequest("Nothing, or two things, to subscribe to.", expected="either topics or a pattern")
        compiled = None if pattern is None else Pattern(pattern)
        with self._lock.own:
            self._member.subscribe(names, compiled, self._holder)

    def unsubscribe(self) -> None:
        """Leave the group, also as a static member. Other members get the partitions at once.

        `on_revoked` is called first, so that you can commit there; in a queue group acknowledge and
        `flush` before. Afterwards the consumer has no partitions and no positions, and a poll raises IllegalState.
        After `subscribe` it is a member again.
        """
        with self._lock.own:
            self._member.unsubscribe(self._holder)

    def is_rebalancing(self) -> bool:
        """Return whether the group was moving partitions at the last `poll`. This member may then get some soon."""
        return self._member.is_rebalancing

    def group_lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets that the group is not done with, in all partitions of this member's topics.

        It includes partitions of other members, and those without a member. It counts from what the group has committed
        or acknowledged, not from positions.

        Returns:
            (topic, partition) -> offsets.
        """
        return self._group_ends.count_lag()

    def close(self, leave: bool | None = None) -> None:
        """Stop polling, and leave the group. In a forked process this does nothing.

        Args:
            leave: whether other members get the partitions at once. Left out, they do unless the member is static: a
                static member is expected back within its session.
        """
        self._open_member.close(leave)
