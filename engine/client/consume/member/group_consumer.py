"""A member of a cooperative or classic group: it reads the partitions that the group assigns, and commits offsets."""

from __future__ import annotations

from ..batch import ConsumerBatch
from ..listener import RebalanceListener
from ..poll_loop import ConsumerParts
from ..positions.position_consumer import PositionConsumer
from ..positions.position_reader import PositionReader
from ..positions.positions import Reset
from .group_ends import GroupEnds
from .member import Member
from .member_consumer import Joined, MemberConsumer
from .member_partitions import MemberPartitions, PositionHolder
from .membership import Membership


class GroupConsumer(MemberConsumer, PositionConsumer):
    """A member of a group. Each `poll` tells it which partitions it has. Thread-safe; close it, or use it with `with`.

    Each partition belongs to one member at a time. A member that does not poll for max_poll_interval_ms, or whose
    process sends no heartbeat for session_timeout_ms, is lost, and other members get its partitions; its next `poll`
    joins the group again. A commit counts while the partition belongs to the consumer. After that it raises
    FencedMemberEpoch and changes nothing.

    Classic and cooperative groups differ in what the group's state says, not in this class. In a classic group all
    partitions are revoked first, and a new generation assigns them. In a cooperative group only the partitions that
    move are revoked.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        membership: Membership,
        reset: Reset,
        listener: RebalanceListener | None,
        joined: Joined,
    ) -> None:
        """Join the group. Raises what joining is refused with. reset: where to begin without a committed offset."""
        member = Member(parts.lock, membership, listener)
        self._partitions = MemberPartitions(parts.lock, member)
        reader = PositionReader(parts, self._partitions, reset)
        holder = PositionHolder(parts.lock, member, reader)
        ends = GroupEnds(parts, member, reader.list_known_offsets)
        super().__init__(parts, member, holder, reader, ends, listener)
        membership.join()
        joined(self, self._open_member)

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
