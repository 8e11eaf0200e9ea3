"""A consumer that is a member of a group: it reads what the group gives it, and commits as the one that has it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ...namespace.clock import Clock
from ...protocol.errors import FencedMemberEpoch, LakeMQError, UnknownMemberId
from ...protocol.values.offsets import CommitOffsets, OffsetCommit, OffsetsJudged
from ..attempts import until_answered
from ..fetch.fetched import Fetched
from ..fetch.plan import Bounds, Isolation
from ..offsets import ConsumedOffsets, TopicPartition, offset_commits
from ..requester import Requester
from .batch import ConsumerBatch
from .consumer import Consumer, Position, Reset
from .membership import Held, Membership, Standing


class RebalanceListener:
    """Told by `poll` of what changes; each method is given (topic, partition) pairs. Inherit what you need."""

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        """These are the consumer's from now on; a `seek` here counts."""

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        """These are to be given up, and are others' when this has returned: what was read may be committed here."""

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        """These are others' already: nothing can be committed for them any more."""


class GroupConsumer(Consumer):
    """A member of a group, which is told with each `poll` what it has. Thread-safe; close it, or use it with `with`.

    Each partition is one member's at a time. Who does not poll for max_poll_interval_ms, or whose process shows no life
    for session_timeout_ms, is lost, and its partitions are others'; its next `poll` joins anew. A commit counts where
    the partition is still the consumer's; where it is not, it raises FencedMemberEpoch and changes nothing.
    """

    def __init__(
        self,
        requester: Requester,
        membership: Membership,
        fetch: Callable[..., Fetched],
        clock: Clock,
        group: str,
        auto_offset_reset: Reset = "latest",
        isolation: Isolation = "read_committed",
        listener: RebalanceListener | None = None,
        closed: Callable[[GroupConsumer], object] = lambda _: None,
    ) -> None:
        """It joins. closed: told when it is closed. Raises what joining is refused with."""
        self._tell_closed = closed
        self._membership, self._listener = membership, listener or RebalanceListener()
        self._held: dict[TopicPartition, Held] = {}
        """What the user was told of; those that are to be given up leave it when the user was told so."""
        self._may_get_some = True
        self._generation: int | None = None
        """In which it was told so, of a classic group."""
        self._pid = os.getpid()
        membership.join()
        try:
            super().__init__(
                requester, lambda topics, isolation: {}, fetch, clock, group, (), (), auto_offset_reset, isolation
            )
        except BaseException:
            membership.leave(for_good=True)
            raise

    @property
    def member_id(self) -> str:
        """Another one once it was lost and has joined anew."""
        return self._membership.member_id

    def assignment(self) -> list[TopicPartition]:
        """What it has, as it was told by the last `poll`."""
        with self._lock.own:
            return sorted(self._held)

    def may_get_some(self) -> bool:
        """Whether the group had partitions to share, as of the last `poll`: who has none may be about to get some."""
        return self._may_get_some

    # -- what it has ------------------------------------------------------------------------------------

    def _begin_poll(self) -> None:
        super()._begin_poll()
        self._membership.polled()
        standing = self._membership.look()
        if standing.replaced:
            self._closed = True
            self._tell_closed(self)
            self._membership.leave(for_good=False)
            self._lose(list(self._held))
            raise self._membership.fenced_error()
        if not standing.is_member:
            self._join_again()
            standing = self._membership.look()
        self._may_get_some = not standing.is_stable
        self._follow(standing)

    def _join_again(self) -> None:
        """It was lost, and what it had is others'."""
        self._lose(list(self._held))
        self._check_open()  # a listener may have closed it
        self._membership.join()

    def _follow(self, standing: Standing) -> None:
        """Tell the user what has changed, in the order lost, to be given up, new."""
        held = standing.held
        self._lose(self._gone(held))
        given_up = {place: one for place, one in held.items() if one.is_paused}
        told = sorted(given_up.keys() & self._held.keys())
        try:
            if told:
                self._listener.on_revoked(told)
        finally:
            for place in told:
                self._forget(place)
            if given_up and not self._closed:
                self._membership.release(given_up.values(), given_up.keys())
        self._check_open()
        new = {place: one for place, one in held.items() if not one.is_paused and place not in self._held}
        if new:
            self._held.update(new)
            self._generation = standing.generation
            self._look()
            self._listener.on_assigned(sorted(new))

    def _give_up(self) -> None:
        """Nobody is to wait until this static member is back, or is lost; but in a queue for what it has still."""
        with suppress(LakeMQError):
            held = self._membership.look().held
            given_up = {place: one for place, one in held.items() if one.is_paused and one.deliveries is None}
            if given_up:
                self._membership.release(given_up.values(), given_up.keys())

    def _gone(self, held: Mapping[TopicPartition, Held]) -> list[TopicPartition]:
        """What the user was told of, and is not its own any more, or was given to it anew."""
        return [place for place, one in self._held.items() if place not in held or held[place].epoch != one.epoch]

    def _lose(self, places: Sequence[TopicPartition]) -> None:
        for place in places:
            self._forget(place)
        if places:
            self._listener.on_lost(sorted(places))

    def _forget(self, place: TopicPartition) -> None:
        """The user was, or is being, told that it is not its own any more."""
        self._held.pop(place, None)
        self._positions.pop(place, None)
        self._halted.discard(place)

    def _look(self) -> dict[TopicPartition, Bounds]:
        """The bounds of what it was told it has, and still has, as of now.

        Positions stay until the user is told that it has a partition no more: what was read of it may be committed.
        """
        known = self._membership.look().held
        mine = {p: known[p] for p, one in self._held.items() if p in known and known[p].epoch == one.epoch}
        self._given_up = {place for place, one in mine.items() if one.is_paused}
        for place, one in mine.items():
            if place not in self._positions:
                self._positions[place] = Position(one.bounds.topic_id, one.start_offset)
        return {place: one.bounds for place, one in mine.items()}

    def _start(self, place: TopicPartition, position: Position, bounds: Bounds) -> int:
        """Where the group was to begin is its own to say, not this member's: what was deleted of it is passed over."""
        held, at = self._held.get(place), position.offset
        if held is not None and held.committed is None and at is not None and at < bounds.first:
            return bounds.first
        return super()._start(place, position, bounds)

    # -- saying how far ---------------------------------------------------------------------------------

    def _read(self, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, int]) -> ConsumedOffsets:
        epochs = {place: self._held[place].epoch for place in offsets if place in self._held}
        return ConsumedOffsets(offsets, topic_ids, self.member_id, epochs, self._generation)

    def commit(
        self, what: ConsumerBatch | Mapping[TopicPartition, int] | None = None, metadata: str | None = None
    ) -> ConsumedOffsets:
        """As of any consumer; offsets of partitions that are not its own any more are left out.

        It is asked again for a minute while nobody answers, as when the sequencer changes. Raises also
        FencedMemberEpoch, which names those partitions, when the others are noted; UnknownMemberId: the consumer is
        lost, and joins anew with the next `poll`; FencedInstanceId: another process has its instance id; in a classic
        group, of all of them, IllegalGeneration: they were read in a generation before this one; RebalanceInProgress.
        """
        offsets = self._to_commit(what)
        if not offsets:
            return offsets
        commits = offset_commits(offsets, self._checked_metadata(metadata))
        request = CommitOffsets(self.group, commits, None, offsets.member_id, offsets.generation)
        deadline_ms = self._clock.steady_ms() + self._timeout_ms
        try:
            judged = until_answered(lambda: self._requester.ask(request), self._clock, deadline_ms)
        except UnknownMemberId:
            if self._membership.is_replaced():
                raise self._membership.fenced_error() from None
            raise
        assert isinstance(judged, OffsetsJudged)
        if judged.fenced:
            raise FencedMemberEpoch(found=[f"{commits[i].topic}-{commits[i].partition}" for i in judged.fenced])
        return offsets

    def go_back(self, batch: ConsumerBatch) -> bool:
        """Read this batch again, of which nothing is done with; whether all its partitions are still one's own.

        As after a transaction that was aborted. What is another member's by now is that one's to read.
        """
        with self._lock.own:
            mine = self._still_mine(batch, self._membership.look().held)
            for place in mine:
                if place in self._positions and place in batch.starts:
                    self._positions[place] = replace(self._positions[place], offset=batch.starts[place])
            return len(mine) == len(batch.offsets)

    def _still_mine(self, batch: ConsumerBatch, held: Mapping[TopicPartition, Held]) -> list[TopicPartition]:
        """Partitions of the batch that are one's own by the assignment under which it was read."""
        return [p for p in batch.offsets if p in held and held[p].epoch == batch.offsets.epochs.get(p)]

    def committed(self) -> dict[TopicPartition, OffsetCommit]:
        """What the group has committed of the partitions that the consumer has."""
        with self._lock.own:
            known = self._membership.look().held
            return {
                place: OffsetCommit(*place, one.committed.offset, one.committed.metadata, one.bounds.topic_id)
                for place, one in known.items()
                if one.committed is not None and place in self._held
            }

    def close(self, leave: bool | None = None) -> None:
        """No more is polled. What it has is others' at once; but of a static member only with leave=True.

        In a forked process there is nothing to be closed.
        """
        if os.getpid() != self._pid:
            return
        with self._lock.own:
            self._tell_closed(self)
            if self._closed:
                return
            self._closed = True
            try:
                if self._held:
                    self._listener.on_revoked(sorted(self._held))
            finally:
                self._let_go()
                for_good = self._membership.options.instance_id is None if leave is None else leave
                if not for_good:
                    self._give_up()
                self._membership.leave(for_good)

    def _let_go(self) -> None:
        """What it had is not its own any more."""
        self._held.clear()
        self._positions.clear()

    def __enter__(self) -> GroupConsumer:
        return self
