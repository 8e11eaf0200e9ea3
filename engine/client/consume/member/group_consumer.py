"""A consumer that is a member of a group: it reads the partitions that the group assigns to it, and commits them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ....namespace.processes.clock import Clock
from ....protocol.errors import FencedMemberEpoch, IllegalState, InvalidRequest, LakeMQError, UnknownMemberId
from ....protocol.values.consuming.offsets import CommitOffsets, OffsetCommit, OffsetsJudged
from ...arguments import parse_topic_names
from ...attempts import ask_with_retries
from ...fetch.fetch_result import FetchResult
from ...fetch.planning.plan import Bounds, Isolation
from ...offsets import ConsumedOffsets, TopicPartition, build_offset_commits
from ...requester import Requester
from ..batch import ConsumerBatch, Ownership
from ..listener import RebalanceListener
from ..outcome import PollOutcome
from ..positions.consumer import Consumer
from ..positions.positions import ReadPosition, Reset
from ..until_end import OWN, Ends, Left
from .membership import Membership, MembershipView, OwnedPartition
from .progress import PartitionProgress, find_left_by_group
from .subscription import Pattern

_REBALANCE_MS = 30_000
"""Time for a rebalance delay of the group, a change of sequencers, and the steps in which partitions move."""


class GroupConsumer(Consumer):
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
        requester: Requester,
        membership: Membership,
        fetch: Callable[..., FetchResult],
        clock: Clock,
        group: str,
        auto_offset_reset: Reset = "earliest",
        isolation: Isolation = "read_committed",
        listener: RebalanceListener | None = None,
        closed: Callable[[GroupConsumer], object] = lambda _: None,
        consumer_timeout_ms: int | None = None,
    ) -> None:
        """Join the group. closed: called when the consumer is closed. Raises what joining is refused with."""
        self._on_closed = closed
        self._membership, self._listener = membership, listener or RebalanceListener()
        self._owned: dict[TopicPartition, OwnedPartition] = {}
        """Partitions that the listener knows of, as they were assigned. A revoked one leaves after `on_revoked`."""
        self._may_get_some = True
        self._generation: int | None = None
        """Generation of a classic group in which the partitions were assigned."""
        self._is_subscribed = True
        self._pid = os.getpid()
        membership.join()
        try:
            super().__init__(
                requester,
                lambda topics, isolation: {},
                fetch,
                clock,
                group,
                (),
                (),
                auto_offset_reset,
                isolation,
                consumer_timeout_ms=consumer_timeout_ms,
            )
        except BaseException:
            membership.leave(for_good=True)
            raise

    @property
    def member_id(self) -> str:
        """The id of the member. It changes when the member was lost and has joined again."""
        return self._membership.member_id

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that the consumer has, as of the last `poll`."""
        with self._lock.own:
            return sorted(self._owned)

    # -- the subscription -------------------------------------------------------------------------------

    def subscription(self) -> list[str]:
        """Return the topics that the consumer asks for, by name; of a pattern, those that match as of now."""
        with self._lock.own:
            if self._is_subscribed and not self._closed:
                self._membership.read_view()
            return self._membership.topics if self._is_subscribed else []

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
            raise InvalidRequest("A consumer subscribes to topics.", expected="either topics or a pattern")
        compiled = None if pattern is None else Pattern(pattern)
        with self._lock.own:
            super()._check_open()
            self._membership.subscribe(names, compiled)
            if not self._is_subscribed:
                self._join()
                self._is_subscribed = True

    def unsubscribe(self) -> None:
        """Leave the group, also as a static member. Other members get the partitions at once.

        `on_revoked` is called first, so that you can commit there; in a queue group acknowledge and
        `flush` before. Afterwards the consumer has no partitions and no positions, and a poll raises IllegalState.
        After `subscribe` it is a member again.
        """
        with self._lock.own:
            super()._check_open()
            if not self._is_subscribed:
                return
            self._is_subscribed = False
            try:
                if self._owned:
                    self._listener.on_revoked(sorted(self._owned))
            finally:
                self._drop_partitions()
                self._membership.leave(for_good=True)

    def _join(self) -> None:
        self._membership.join()

    def _check_open(self) -> None:
        super()._check_open()
        if not self._is_subscribed:
            raise IllegalState("The consumer is subscribed to nothing.", expected="subscribe(topics) before it polls")

    def may_get_some(self) -> bool:
        """Return whether the group was moving partitions at the last `poll`, so that this member may get some soon."""
        return self._may_get_some

    def _waits_for_partitions(self) -> bool:
        return not self._owned and self._may_get_some

    # -- reading to the end -----------------------------------------------------------------------------

    def group_lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets that the group is not done with, in all partitions of this member's topics.

        It includes partitions of other members, and those without a member. It counts from what the group has committed
        or acknowledged, not from positions.

        Returns:
            (topic, partition) -> offsets.
        """
        with self._lock.own:
            progress = self._membership.read_progress()
            return {place: partition.count_remaining(partition.end) for place, partition in progress.items()}

    def _find_ends(self) -> Ends:
        with self._lock.own:
            self._check_open()
            progress = self._membership.read_progress()
            return {place: (partition.topic_id, partition.end) for place, partition in progress.items()}

    def _find_remainder(self, ends: Ends) -> Left:
        with self._lock.own:
            self._check_open()
            progress = {p: partition for p, partition in self._membership.read_progress().items() if p in ends}
            remaining = find_left_by_group(ends, progress, self._own_positions(), self.member_id)
            if any(part.owner == OWN for part in remaining.values()):
                return remaining
            # Other members may be done although their commits are before the ends: see _has_messages.
            return remaining if any(self._has_messages(place, progress[place], ends) for place in remaining) else {}

    def _own_positions(self) -> dict[TopicPartition, int]:
        """Return the positions of the consumer's partitions, if they say how far it has come."""
        bounds, positions = self._read_bounds(), self._positions.by_place
        return {place: offset for place in bounds if (offset := positions[place].offset) is not None}

    def _has_messages(self, place: TopicPartition, progress: PartitionProgress, ends: Ends) -> bool:
        """Return whether messages are left before the end.

        A member commits the offset after its last message. Between that and the end there may be markers of
        transactions and aborted messages, which no member will ever commit.
        """
        if progress.deliveries is not None:
            return True  # a queue group acknowledges those, too
        (topic, partition), end = place, ends[place][1]
        fetched = self._try_to_fetch(topic, progress.topic_id, {partition: progress.next_offset}, {partition: end})
        return fetched is None or fetched.record_count > 0

    def _end_timeout_ms(self) -> int:
        """Return how long it takes to find out that a member is dead or does not poll, and to move its partitions."""
        options = self._membership.options
        return options.max_poll_interval_ms + options.session_timeout_ms + _REBALANCE_MS

    def _explain_empty(self) -> PollOutcome:
        with self._lock.own:
            view = self._membership.read_view()
            if not view.is_member or not view.is_stable:
                return PollOutcome.NOT_ASSIGNED
            if self._is_behind():
                return PollOutcome.NOT_YET
            has_all = len(view.owned) == view.partition_count
            return PollOutcome.AT_END if has_all else PollOutcome.OTHERS_HOLD_THE_REST

    # -- the partitions ---------------------------------------------------------------------------------

    def _begin_poll(self) -> None:
        """Take in what the group has decided since the last poll: joining again, lost, revoked and new partitions."""
        super()._begin_poll()
        self._membership.note_poll()
        view = self._membership.read_view()
        if view.is_replaced:
            self._closed = True
            self._on_closed(self)
            self._membership.leave(for_good=False)
            self._report_loss(list(self._owned))
            raise self._membership.fenced_error()
        if not view.is_member:
            self._join_again()
            view = self._membership.read_view()
        self._may_get_some = not view.is_stable
        self._apply_view(view)

    def _join_again(self) -> None:
        """Join after the member was lost. Other members may have its partitions already."""
        self._report_loss(list(self._owned))
        self._check_open()  # the listener may have closed the consumer
        self._membership.join()

    def _apply_view(self, view: MembershipView) -> None:
        """Report changes to the listener, in this order: lost, revoked, new partitions.

        Revoked partitions are released after the listener has returned, even if it raises: the group waits for that
        before another member gets them. The release is repeated with each poll until the group knows of it.
        """
        self._report_loss(self._find_lost_partitions(view.owned))
        revoked = {place: partition for place, partition in view.owned.items() if partition.is_paused}
        to_report = sorted(revoked.keys() & self._owned.keys())
        try:
            if to_report:
                self._listener.on_revoked(to_report)
        finally:
            for place in to_report:
                self._forget(place)
            if revoked and not self._closed:
                self._membership.release(revoked)
        self._check_open()
        new = {
            place: partition
            for place, partition in view.owned.items()
            if not partition.is_paused and place not in self._owned
        }
        if new:
            self._owned.update(new)
            self._generation = view.generation
            self._read_bounds()
            self._listener.on_assigned(sorted(new))

    def _release_partitions(self) -> None:
        """Release revoked partitions of a static member that closes, so that the group need not wait for its return.

        A queue group keeps them for the member, because it may still have messages of them.
        """
        with suppress(LakeMQError):
            owned = self._membership.read_view().owned
            revoked = {
                place: partition
                for place, partition in owned.items()
                if partition.is_paused and partition.deliveries is None
            }
            if revoked:
                self._membership.release(revoked)

    def _find_lost_partitions(self, owned: Mapping[TopicPartition, OwnedPartition]) -> list[TopicPartition]:
        """Return reported partitions that the member has no longer, or has under a later assignment."""
        return [
            place
            for place, partition in self._owned.items()
            if place not in owned or owned[place].epoch != partition.epoch
        ]

    def _report_loss(self, places: Sequence[TopicPartition]) -> None:
        for place in places:
            self._forget(place)
        if places:
            self._listener.on_lost(sorted(places))

    def _forget(self, place: TopicPartition) -> None:
        """Drop a partition that was, or is just being, reported as lost or revoked."""
        self._owned.pop(place, None)
        self._positions.by_place.pop(place, None)
        self._paused_by_user.discard(place)

    def _read_bounds(self) -> dict[TopicPartition, Bounds]:
        """Return the bounds as of now of reported partitions that the member still has.

        The positions of others stay until they are reported as lost, because they may still be committed.
        """
        current = self._membership.read_view().owned
        owned = {p: current[p] for p, old in self._owned.items() if p in current and current[p].epoch == old.epoch}
        self._revoked = {place for place, partition in owned.items() if partition.is_paused}
        for place, partition in owned.items():
            if place not in self._positions.by_place:
                is_group_start = self._owned[place].committed is None
                self._positions.by_place[place] = ReadPosition(
                    partition.bounds.topic_id, partition.start_offset, is_group_start=is_group_start
                )
        return {place: partition.bounds for place, partition in owned.items()}

    def _find_ownership(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, Ownership]:
        return {
            place: Ownership(partition.since_ms, partition.start_offset, partition.epoch)
            for place in places
            if (partition := self._owned.get(place)) is not None
        }

    # -- committing -------------------------------------------------------------------------------------

    def _build_offsets(self, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, int]) -> ConsumedOffsets:
        epochs = {place: self._owned[place].epoch for place in offsets if place in self._owned}
        return ConsumedOffsets(offsets, topic_ids, self.member_id, epochs, self._generation)

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
            LakeMQError: an error of `Consumer.commit`.
        """
        offsets = self._offsets_to_commit(what)
        if not offsets:
            return offsets
        commits = build_offset_commits(offsets, self._check_metadata(metadata))
        request = CommitOffsets(self.group, commits, None, offsets.member_id, offsets.generation)
        deadline_ms = self._clock.steady_ms() + self._timeout_ms
        try:
            answer = ask_with_retries(lambda: self._requester.ask(request), self._clock, deadline_ms)
        except UnknownMemberId:
            if self._membership.is_replaced():
                raise self._membership.fenced_error() from None
            raise
        assert isinstance(answer, OffsetsJudged)
        if answer.fenced:
            raise FencedMemberEpoch(found=[f"{commits[i].topic}-{commits[i].partition}" for i in answer.fenced])
        return offsets

    def go_back(self, batch: ConsumerBatch) -> bool:
        """Read an unprocessed batch again, as after a transaction that was aborted.

        Partitions that belong to other members by now are left to those.

        Returns:
            Whether all partitions of the batch still belong to the consumer.
        """
        with self._lock.own:
            still_owned = self._find_still_owned_partitions(batch, self._membership.read_view().owned)
            positions = self._positions.by_place
            for place in still_owned:
                if place in positions and place in batch.starts:
                    positions[place] = replace(positions[place], offset=batch.starts[place])
            return len(still_owned) == len(batch.offsets)

    def _find_still_owned_partitions(
        self, batch: ConsumerBatch, owned: Mapping[TopicPartition, OwnedPartition]
    ) -> list[TopicPartition]:
        """Return the partitions of the batch that the member has under the assignment under which it was read."""
        return [p for p in batch.offsets if p in owned and owned[p].epoch == batch.offsets.epochs.get(p)]

    def committed(self) -> dict[TopicPartition, OffsetCommit]:
        """Return what the group has committed of the partitions that the consumer has."""
        with self._lock.own:
            return {
                place: OffsetCommit(*place, commit.offset, commit.metadata, partition.bounds.topic_id)
                for place, partition in self._membership.read_view().owned.items()
                if (commit := partition.committed) is not None and place in self._owned
            }

    def close(self, leave: bool | None = None) -> None:
        """Stop polling, and leave the group. In a forked process this does nothing.

        Args:
            leave: whether other members get the partitions at once. Left out, they do unless the member is static: a
                static member is expected back within its session.
        """
        if os.getpid() != self._pid:
            return
        with self._lock.own:
            self._on_closed(self)
            if self._closed:
                return
            self._closed = True
            if not self._is_subscribed:
                return  # it has left the group already
            try:
                if self._owned:
                    self._listener.on_revoked(sorted(self._owned))
            finally:
                self._drop_partitions()
                for_good = self._membership.options.instance_id is None if leave is None else leave
                if not for_good:
                    self._release_partitions()
                self._membership.leave(for_good)

    def _drop_partitions(self) -> None:
        self._owned.clear()
        self._positions.by_place.clear()
        self._paused_by_user.clear()

    def __enter__(self) -> GroupConsumer:
        return self
