"""Find how much of its partitions a group has not read, whichever members have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...offsets import TopicPartition
from ..poll_loop import ConsumerLock
from ..range_fetcher import RangeFetcher
from ..until_end import OWN, Ends, Remainder
from .member import Member
from .progress import PartitionProgress, find_remainder_by_group

_REBALANCE_MS = 30_000
"""Time for a rebalance delay of the group, a change of sequencers, and the steps in which partitions move."""


class GroupEnds:
    """Finds what is left in all partitions of the topics that a member asks for.

    Attributes:
        timeout_ms: how long it takes to find out that a member is dead or does not poll, and to move its partitions.
    """

    def __init__(
        self,
        lock: ConsumerLock,
        member: Member,
        list_positions: Callable[[], Mapping[TopicPartition, int]],
        fetcher: RangeFetcher,
    ) -> None:
        """list_positions: returns the positions of the consumer's partitions, if they say how far it has come."""
        self._lock, self._member, self._list_positions, self._fetcher = lock, member, list_positions, fetcher
        options = member.membership.options
        self.timeout_ms = options.max_poll_interval_ms + options.session_timeout_ms + _REBALANCE_MS

    def count_lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets that the group is not done with."""
        with self._lock.own:
            progress = self._member.membership.read_progress()
            return {tp: partition.count_remaining(partition.end) for tp, partition in progress.items()}

    def find_ends(self) -> Ends:
        with self._lock.own:
            self._member.check_open()
            progress = self._member.membership.read_progress()
            return {tp: (partition.topic_id, partition.end) for tp, partition in progress.items()}

    def find_remainder(self, ends: Ends) -> Remainder:
        with self._lock.own:
            self._member.check_open()
            membership = self._member.membership
            progress = {p: partition for p, partition in membership.read_progress().items() if p in ends}
            remainder = find_remainder_by_group(ends, progress, self._list_positions(), membership.member_id)
            if any(part.owner == OWN for part in remainder.values()):
                return remainder
            # Other members may be done although their commits are before the ends: see _has_messages.
            return remainder if any(self._has_messages(tp, progress[tp], ends) for tp in remainder) else {}

    def _has_messages(self, tp: TopicPartition, progress: PartitionProgress, ends: Ends) -> bool:
        """Return whether messages are left before the end.

        A member commits the offset after its last message. Between that and the end there may be markers of
        transactions and aborted messages, which no member will ever commit.
        """
        (topic, partition), end = tp, ends[tp][1]
        if progress.deliveries is not None or progress.readable_end < end:
            return True  # a queue group acknowledges those, too; an open transaction may still commit
        fetched = self._fetcher.try_to_fetch(
            topic, progress.topic_id, {partition: progress.next_offset}, {partition: end}
        )
        return fetched is None or fetched.record_count > 0
