"""The partitions of a member that has positions: of a cooperative or a classic group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from ....protocol.errors import LakeMQError
from ....protocol.values.consuming.offsets import OffsetCommit
from ...fetch.planning.plan import Bounds
from ...offsets import ConsumedOffsets, TopicPartition
from ..batch import Ownership
from ..outcome import PollOutcome
from ..poll_loop import ConsumerLock
from ..positions.position_reader import PositionReader
from ..positions.positions import Positions, ReadPosition
from .member import Member, OwnedPartitions
from .membership_view import OwnedPartition


class MemberPartitions:
    """The partitions that a group has assigned to a member. The consumer holds its lock for every call."""

    def __init__(self, lock: ConsumerLock, member: Member) -> None:
        self._lock, self._member = lock, member
        self.revoked: AbstractSet[TopicPartition] = frozenset()

    def update(self, reader: PositionReader, newest: bool) -> None:
        self._member.update(PositionHolder(self._lock, self._member, reader), newest)

    def read_bounds(self, positions: Positions, newest: bool) -> dict[TopicPartition, Bounds]:
        """Return the bounds of reported partitions that the member still has.

        The positions of others stay until they are reported as lost, because they may still be committed.
        """
        partitions, current = self._member.partitions, self._member.membership.read_view(newest).owned
        owned = {p: current[p] for p, old in partitions.items() if p in current and current[p].epoch == old.epoch}
        self.revoked = {tp for tp, partition in owned.items() if partition.is_paused}
        for tp, partition in owned.items():
            if tp not in positions.by_partition:
                positions.by_partition[tp] = ReadPosition(
                    partition.bounds.topic_id,
                    partition.start_offset,
                    is_group_start=partitions[tp].committed is None,
                )
        return {tp: partition.bounds for tp, partition in owned.items()}

    def read_committed(self, topic_partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetCommit]:
        with self._lock.own:
            return self._member.read_committed()

    def explain_lost_member(self) -> LakeMQError | None:
        membership = self._member.membership
        return membership.fenced_error() if membership.is_replaced() else None

    def find_ownership(self, topic_partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, Ownership]:
        return self._member.find_ownership(topic_partitions)

    def build_offsets(self, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, int]) -> ConsumedOffsets:
        return self._member.build_offsets(offsets, topic_ids)

    def waits_for_partitions(self) -> bool:
        return self._member.waits_for_partitions()

    def find_outcome(self, is_behind: Callable[[], bool]) -> PollOutcome:
        return self._member.find_outcome(is_behind)

    def explain_outcome(self, outcome: PollOutcome) -> Sequence[str]:
        return self._member.explain_outcome(outcome)


class PositionHolder:
    """Keeps the positions in a member's partitions.

    A revoked partition is released after the listener has returned, even if it raises: the group waits for that before
    another member gets it. The release is repeated with each poll until the group knows of it.
    """

    def __init__(self, lock: ConsumerLock, member: Member, reader: PositionReader) -> None:
        self._lock, self._member, self._reader = lock, member, reader

    def join(self) -> None:
        self._member.membership.join()

    def note_joined(self) -> None:
        pass

    def list_lost_with_member(self) -> Sequence[TopicPartition]:
        """Return all partitions: other members may have them already."""
        return list(self._member.partitions)

    def lose(self, tp: TopicPartition) -> bool:
        self._reader.forget(tp)
        return True

    def find_revoked(self, owned: OwnedPartitions) -> list[TopicPartition]:
        return [tp for tp, partition in owned.items() if partition.is_paused and tp in self._member.partitions]

    def give_up(self, owned: OwnedPartitions, reported: Sequence[TopicPartition]) -> None:
        for tp in reported:
            self._member.partitions.pop(tp, None)
            self._reader.forget(tp)
        revoked = {tp: partition for tp, partition in owned.items() if partition.is_paused}
        if revoked and not self._lock.is_closed:
            self._member.membership.release(revoked)

    def find_new(self, owned: OwnedPartitions) -> dict[TopicPartition, OwnedPartition]:
        partitions = self._member.partitions
        return {p: partition for p, partition in owned.items() if not partition.is_paused and p not in partitions}

    def take(self, new: OwnedPartitions) -> None:
        self._reader.read_bounds()

    def drop_all(self) -> None:
        self._reader.forget_all()
