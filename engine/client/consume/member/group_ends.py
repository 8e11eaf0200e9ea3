"""Find how much of its partitions a group has not read, whichever members have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...offsets import TopicPartition
from ..poll_loop import ConsumerParts
from ..until_end import OWN, Ends, Remainder
from .member import Member
from .progress import PartitionProgress, find_remainder_by_group

_REBALANCE_MS = 30_000
"""Time for a rebalance delay of the group, a change of sequencers, and the steps in which partitions move."""


@dataclass(frozen=True)
class _HeldPart:
    """The unread part of a partition when it was first seen with this owner."""

    owner: str | None
    end: int
    count: int


class GroupEnds:
    """Finds what is left in all partitions of the topics that a member asks for.

    Attributes:
        timeout_ms: how long it takes to find out that a member is dead or does not poll, and to move its partitions.
    """

    def __init__(
        self, parts: ConsumerParts, member: Member, list_positions: Callable[[], Mapping[TopicPartition, int]]
    ) -> None:
        """list_positions: returns the positions of the consumer's partitions, if they say how far it has come."""
        self._clock, self._started_ms = parts.clock, parts.clock.steady_ms()
        self._is_starting, self._alive = True, set[str]()
        self._held_parts: dict[TopicPartition, _HeldPart] = {}
        self._lock, self._member, self._list_positions, self._fetcher = (
            parts.lock,
            member,
            list_positions,
            parts.fetcher,
        )
        options = member.membership.options
        self._longest_session_ms = options.session_timeout_ms
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

    def waits_for_others(self) -> bool:
        """Return whether members of other processes hold unread messages, and may be dead.

        A consumer that starts does not know whether the members that it finds are alive. The group finds out when
        their sessions end. Until then a member is trusted only if it has made progress since. Members of this process
        are alive, and may need the thread that polls.
        """
        if not self._is_starting:
            return False
        with self._lock.own:
            membership = self._member.membership
            sessions_ms = membership.read_sessions_elsewhere()
            self._longest_session_ms = max(self._longest_session_ms, *sessions_ms.values(), 0)
            if not (sessions_ms or self._member.is_rebalancing):
                return False
            waited_ms = self._clock.steady_ms() - self._started_ms
            self._is_starting = waited_ms < self._longest_session_ms + _REBALANCE_MS
            return self._is_starting and any(
                self._is_held(tp, partition)
                if partition.owner is None or partition.owner in sessions_ms
                else partition.owner == membership.member_id and tp not in self._member.partitions
                for tp, partition in membership.read_progress(newest=False).items()
            )

    def _is_held(self, tp: TopicPartition, partition: PartitionProgress) -> bool:
        """Return whether unread messages are left in the partition, and its owner has not shown that it lives."""
        if partition.owner in self._alive:
            return False
        part = self._held_parts.get(tp)
        if part is None or part.owner != partition.owner or not part.count:
            end = partition.readable_end
            count = partition.count_remaining(end)
            if count and not self._has_messages(tp, partition, {tp: (partition.topic_id, end)}):
                count = 0
            part = self._held_parts[tp] = _HeldPart(partition.owner, end, count)
        if partition.owner is not None and partition.count_remaining(part.end) < part.count:
            self._alive.add(partition.owner)
            return False
        return part.count > 0
