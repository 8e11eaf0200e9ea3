"""A member of a group: what the group decides about its partitions is reported to the user, and carried out."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress

from ...namespace.process import close_after
from ...protocol.errors import IllegalState, LakeMQError
from ...protocol.values.offsets import OffsetCommit
from ..fetch.plan import Bounds
from ..offsets import ConsumedOffsets, TopicPartition
from .batch import ConsumerBatch, Ownership, PollOutcome
from .consumer import ConsumerLock
from .membership import Membership
from .membership_view import MembershipView, OwnedPartition, Pattern
from .options import RebalanceListener
from .position_reader import PositionReader, Positions, ReadPosition

OwnedPartitions = Mapping[TopicPartition, OwnedPartition]


class Member(ABC):
    """A consumer as a member of its group. The consumer holds its lock for every call.

    The user is told of changes in this order: lost, revoked, new partitions. What a member keeps of its partitions is
    for its two kinds: `PositionMember` and, in a queue group, `QueueMember`.
    """

    def __init__(
        self,
        lock: ConsumerLock,
        membership: Membership,
        listener: RebalanceListener | None,
    ) -> None:
        """listener: the consumer keeps it. It may refer to the consumer, which could not become garbage if this did."""
        self.membership, self._lock = membership, lock
        self._find_listener = (lambda: None) if listener is None else weakref.ref(listener)
        self.partitions: dict[TopicPartition, OwnedPartition] = {}
        """Partitions that the listener knows of, as they were assigned. A revoked one leaves after `on_revoked`."""
        self.is_rebalancing = True
        """Whether the group was moving partitions at the last poll. This member may then get some soon."""
        self.generation: int | None = None
        """Generation of a classic group in which the partitions were assigned."""
        self.is_subscribed = True
        self._pid = os.getpid()

    @property
    def _listener(self) -> RebalanceListener:
        return self._find_listener() or RebalanceListener()

    @property
    def member_id(self) -> str:
        return self.membership.member_id

    @property
    def is_in_group(self) -> bool:
        """Whether the consumer is open, and has not unsubscribed. Needs no lock."""
        return self.is_subscribed and not self._lock.is_closed

    def check_open(self) -> None:
        """Raise IllegalState if the consumer is closed, or has unsubscribed."""
        if self._lock.is_closed:
            self._lock.check_open()
        if not self.is_subscribed:
            raise IllegalState("The consumer is subscribed to nothing.", expected="subscribe(topics) before it polls")

    def silence(self) -> None:
        """Tell the listener of nothing more. It belongs to the threads of the user, and this one does not."""
        self._find_listener = lambda: None

    # -- the subscription -------------------------------------------------------------------------------

    def list_topics(self) -> list[str]:
        """Return the topics that the member asks for; of a pattern, those that match as of now."""
        if self.is_in_group:
            self.membership.read_view()
        return self.membership.topics if self.is_subscribed else []

    def subscribe(self, names: Sequence[str], pattern: Pattern | None) -> None:
        """Ask for these topics, and join again if the consumer has unsubscribed."""
        self._lock.check_open()
        self.membership.subscribe(names, pattern)
        if not self.is_subscribed:
            self.join()
            self.is_subscribed = True

    def unsubscribe(self) -> None:
        """Give up all partitions, and leave the group."""
        self._lock.check_open()
        if not self.is_subscribed:
            return
        self.is_subscribed = False
        self._leave(for_good=True)

    def close(self, leave: bool | None) -> None:
        """Give up all partitions, and leave the group. In a forked process do nothing. leave: as `close` says."""
        if os.getpid() != self._pid:
            return
        with self._lock.own:
            if self._lock.is_closed:
                return
            self._lock.is_closed = True
            if not self.is_subscribed:
                return  # it has left the group already
            self._leave(self.membership.options.instance_id is None if leave is None else leave)

    def _leave(self, for_good: bool) -> None:
        """Give up all partitions, and leave the group, also if the listener fails; after Ctrl-C without an answer."""
        with close_after(lambda: self.membership.leave(for_good)):
            try:
                self._report_all_revoked()
            finally:
                self.drop_all()
                self.partitions.clear()
                if not for_good:
                    self._release_partitions()

    def _report_all_revoked(self) -> None:
        if self.partitions:
            self._listener.on_revoked(sorted(self.partitions))

    # -- the partitions ---------------------------------------------------------------------------------

    def update(self, newest: bool) -> MembershipView | None:
        """Take in what the group has decided since the last poll: joining again, lost, revoked and new partitions.

        Args:
            newest: whether to look for newer steps. False: none was decided since the last look.

        Returns:
            The view that was taken in; None if the user was told of changes, because a listener may do anything.
        """
        self.check_open()
        self.membership.note_poll()
        view = self.membership.read_view(newest)
        if view.is_replaced:
            self._lock.is_closed = True
            self.membership.leave(for_good=False)
            self._report_loss(list(self.partitions))
            raise self.membership.fenced_error()
        if not view.is_member:
            self._report_loss(self.list_lost_with_member())
            self.check_open()  # the listener may have closed the consumer
            self.join()
            view = self.membership.read_view()
        self.is_rebalancing = not view.is_stable
        return None if self._apply_view(view) else view

    def _apply_view(self, view: MembershipView) -> bool:
        """Report changes to the listener, in this order: lost, revoked, new partitions; return whether there are any.

        What follows a revocation is done after the listener has returned, even if it raises.
        """
        lost = self._find_lost(view.owned)
        self._report_loss(lost)
        revoked = self.find_revoked(view.owned)
        try:
            if revoked:
                self._listener.on_revoked(sorted(revoked))
        finally:
            self.give_up(view.owned, revoked)
        self.check_open()
        new = self.find_new(view.owned)
        if new:
            self.partitions.update(new)
            self.generation = view.generation
            self.take(new)
            self._listener.on_assigned(sorted(new))
            self.check_open()
        return bool(lost or revoked or new)

    def _find_lost(self, owned: OwnedPartitions) -> list[TopicPartition]:
        """Return reported partitions that the member has no longer, or has under a later assignment."""
        return [
            tp for tp, partition in self.partitions.items() if tp not in owned or owned[tp].epoch != partition.epoch
        ]

    def _report_loss(self, topic_partitions: Sequence[TopicPartition]) -> None:
        news: list[TopicPartition] = []
        for tp in topic_partitions:
            self.partitions.pop(tp, None)
            if self.lose(tp):
                news.append(tp)
        if news:
            self._listener.on_lost(sorted(news))

    def _release_partitions(self) -> None:
        """Release revoked partitions of a static member that closes, so that the group need not wait for its return.

        A queue group keeps them for the member, because it may still have messages of them.
        """
        with suppress(LakeMQError):
            owned = self.membership.read_view().owned
            revoked = {
                tp: partition for tp, partition in owned.items() if partition.is_paused and partition.deliveries is None
            }
            if revoked:
                self.membership.release(revoked)

    # -- what it keeps of its partitions ----------------------------------------------------------------

    def join(self) -> None:
        """Join the group: at first, after the member was lost, or after the consumer has unsubscribed."""
        self.membership.join()

    @abstractmethod
    def list_lost_with_member(self) -> Sequence[TopicPartition]:
        """Return the partitions that are lost when the group has lost the member, before it joins again."""

    @abstractmethod
    def lose(self, tp: TopicPartition) -> bool:
        """Drop a partition that the member has no longer, and return whether the user must be told."""

    @abstractmethod
    def find_revoked(self, owned: OwnedPartitions) -> Sequence[TopicPartition]:
        """Return the partitions that the group wants back, and that are not reported to the user yet."""

    @abstractmethod
    def give_up(self, owned: OwnedPartitions, reported: Sequence[TopicPartition]) -> None:
        """Give up partitions that the group wants back, after the user was told. reported: those just reported."""

    @abstractmethod
    def find_new(self, owned: OwnedPartitions) -> dict[TopicPartition, OwnedPartition]:
        """Return the partitions to report to the user as new."""

    @abstractmethod
    def take(self, new: OwnedPartitions) -> None:
        """Begin to keep these partitions. The user is told of them afterwards."""

    @abstractmethod
    def drop_all(self) -> None:
        """Drop all partitions, because the consumer closes or unsubscribes."""

    # -- what others ask ----------------------------------------------------------------------------------

    def find_ownership(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Ownership]:
        """Return since when the member has these partitions."""
        return {
            tp: Ownership(partition.since_ms, partition.start_offset, partition.epoch)
            for tp in topic_partitions
            if (partition := self.partitions.get(tp)) is not None
        }

    def build_offsets(self, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, int]) -> ConsumedOffsets:
        """Return offsets that can be committed, with the assignments under which they were read."""
        epochs = {tp: self.partitions[tp].epoch for tp in offsets if tp in self.partitions}
        return ConsumedOffsets(offsets, topic_ids, self.membership.member_id, epochs, self.generation)

    def find_still_owned(self, batch: ConsumerBatch) -> list[TopicPartition]:
        """Return the partitions of the batch that the member has under the assignment under which it was read."""
        owned = self.membership.read_view().owned
        return [tp for tp in batch.offsets if tp in owned and owned[tp].epoch == batch.offsets.epochs.get(tp)]

    def read_committed(self) -> dict[TopicPartition, OffsetCommit]:
        """Return what the group has committed of the partitions that the user knows of."""
        return {
            tp: OffsetCommit(*tp, commit.offset, commit.metadata, partition.bounds.topic_id)
            for tp, partition in self.membership.read_view().owned.items()
            if (commit := partition.committed) is not None and tp in self.partitions
        }

    def waits_for_partitions(self) -> bool:
        """Return whether the member has no partitions yet, and is about to get some. Needs no lock."""
        return not self.partitions and self.is_rebalancing

    def find_outcome(self, is_behind: Callable[[], bool]) -> PollOutcome:
        """Return why a poll brought nothing. is_behind: whether something is left in the member's partitions."""
        view = self.membership.read_view(newest=False)
        if not view.is_member or not view.is_stable:
            return PollOutcome.NOT_ASSIGNED
        if is_behind():
            return PollOutcome.NOT_YET
        has_all = len(view.owned) == view.partition_count
        return PollOutcome.AT_END if has_all else PollOutcome.OTHERS_HOLD_THE_REST

    def explain_outcome(self, outcome: PollOutcome) -> list[str]:
        """Return sentences that say why a poll brought nothing: missing topics, and consumers of this process."""
        is_elsewhere = outcome in (PollOutcome.NOT_ASSIGNED, PollOutcome.OTHERS_HOLD_THE_REST)
        holders = self.membership.describe_holders() if is_elsewhere else []
        return [*self.membership.describe_missing_topics(), *holders]


# A member that has positions: of a cooperative or a classic group.


class PositionMember(Member):
    """A member with a position in each of its partitions: `Partitions` for its reader.

    A revoked partition is released after the listener has returned, even if it raises: the group waits for that before
    another member gets it. The release is repeated with each poll until the group knows of it.

    Attributes:
        reader: reads at the positions. The consumer sets it before the member joins.
    """

    reader: PositionReader
    revoked: AbstractSet[TopicPartition] = frozenset()

    def read_bounds(self, positions: Positions, newest: bool) -> dict[TopicPartition, Bounds]:
        """Return the bounds of reported partitions that the member still has.

        The positions of others stay until they are reported as lost, because they may still be committed.
        """
        partitions, current = self.partitions, self.membership.read_view(newest).owned
        owned = {tp: current[tp] for tp, old in partitions.items() if tp in current and current[tp].epoch == old.epoch}
        self.revoked = {tp for tp, partition in owned.items() if partition.is_paused}
        for tp, partition in owned.items():
            if tp not in positions.by_partition:
                positions.by_partition[tp] = ReadPosition(
                    partition.bounds.topic_id,
                    partition.start_offset,
                    is_group_start=partitions[tp].committed is None,
                )
        return {tp: partition.bounds for tp, partition in owned.items()}

    def read_offsets(self, topic_partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetCommit]:
        with self._lock.own:
            return self.read_committed()

    def explain_lost_member(self) -> LakeMQError | None:
        return self.membership.fenced_error() if self.membership.is_replaced() else None

    def list_lost_with_member(self) -> Sequence[TopicPartition]:
        """Return all partitions: other members may have them already."""
        return list(self.partitions)

    def lose(self, tp: TopicPartition) -> bool:
        self.reader.forget(tp)
        return True

    def find_revoked(self, owned: OwnedPartitions) -> list[TopicPartition]:
        return [tp for tp, partition in owned.items() if partition.is_paused and tp in self.partitions]

    def give_up(self, owned: OwnedPartitions, reported: Sequence[TopicPartition]) -> None:
        for tp in reported:
            self.partitions.pop(tp, None)
            self.reader.forget(tp)
        revoked = {tp: partition for tp, partition in owned.items() if partition.is_paused}
        if revoked and not self._lock.is_closed:
            self.membership.release(revoked)

    def find_new(self, owned: OwnedPartitions) -> dict[TopicPartition, OwnedPartition]:
        return {tp: part for tp, part in owned.items() if not part.is_paused and tp not in self.partitions}

    def take(self, new: OwnedPartitions) -> None:
        self.reader.read_bounds()

    def drop_all(self) -> None:
        self.reader.forget_all()
