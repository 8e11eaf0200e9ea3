"""A membership in a group: joining it, what the journal says of it, giving up what one is told to, leaving."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol, TypeVar

from ...protocol.errors import FencedInstanceId, LakeMQError
from ...protocol.values.assignments import Group, GroupStatus, PartitionStatus, Place
from ...protocol.values.deliveries import (
    Acknowledge,
    Acknowledgement,
    Acquire,
    Deliveries,
    Policy,
    Wanted,
)
from ...protocol.values.groups import Assigned, JoinGroup, LeaveGroup, ReleasePartitions
from ...protocol.values.offsets import CommittedOffset
from ...protocol.values.state import State
from ..fetch.plan import Bounds, Isolation, bounds_of
from ..offsets import TopicPartition
from ..requester import Requester
from .heart import Heart, Pulse
from .subscription import Pattern, Subscription

T = TypeVar("T")


class OfGroups(Protocol):
    """What a function takes from the state as of the newest step."""

    def __call__(self, look: Callable[[State], T], /) -> T: ...


@dataclass(frozen=True)
class Held:
    """A partition that the member has. epoch: of its assignment; start_offset: where it begins, None: as it sees fit;
    is_paused: it is to be given up; committed: how far the group has come; deliveries: in a queue group, what became of
    its messages past that.
    """

    bounds: Bounds
    epoch: int
    start_offset: int | None
    is_paused: bool
    committed: CommittedOffset | None
    deliveries: Deliveries | None = None

    @property
    def left_count(self) -> int:
        """Offsets that a queue group is not done with, before the end of what it sees."""
        if self.deliveries is None:
            return 0
        return self.deliveries.left_count(self.bounds.end)


@dataclass(frozen=True)
class QueueTerms:
    """How a queue group delivers. bound: messages that a member may have and not have acknowledged; acks_itself: a poll
    acknowledges what the one before it brought; hands_out_paused: messages that it has of partitions which are to move;
    isolation: up to where it delivers.
    """

    policy: Policy
    bound: int
    acks_itself: bool
    hands_out_paused: bool
    isolation: Isolation

    @classmethod
    def of(cls, group: Group) -> QueueTerms | None:
        if not group.is_queue:
            return None
        return cls(
            Policy.of(group),
            group.setting("max.delivered.unacked.msgs.per.flow"),
            group.setting("ack.mode") == "auto",
            group.setting("max.handoff.ms") > 0,
            group.setting("isolation.level"),
        )


@dataclass(frozen=True)
class Standing:
    """What the journal says of a member. replaced: another process has its instance id; topics: that it asks for;
    now_ms: the time of that step; terms: of a queue group; generation: of a classic group; is_stable: its group is, so
    that who has nothing is one too many.
    """

    is_member: bool = False
    replaced: bool = False
    topics: Sequence[str] = ()
    held: Mapping[TopicPartition, Held] = field(default_factory=dict)
    step: int = 0
    now_ms: int = 0
    terms: QueueTerms | None = None
    generation: int | None = None
    is_stable: bool = False


@dataclass(frozen=True)
class MemberOptions:
    """As a member joins with them; of the group: settings that it must have, or gets where it is new."""

    topics: Sequence[str]
    pattern: Pattern | None = None
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    auto_offset_reset: str = "latest"
    config: Mapping[str, Any] = field(default_factory=dict)


class Membership:
    """Not thread-safe: its consumer has the lock."""

    def __init__(
        self,
        requester: Requester,
        heart: Heart,
        of_groups: OfGroups,
        new_id: Callable[[], str],
        group: str,
        isolation: Isolation,
        options: MemberOptions,
    ) -> None:
        self._requester, self._heart, self._of_groups, self._new_id = requester, heart, of_groups, new_id
        self.group, self._isolation, self.options = group, isolation, options
        self.member_id = ""
        self._pulse: Pulse | None = None
        self._releasing: Future[Any] | None = None
        self._subscription = Subscription(options.topics, options.pattern)
        self._asking: Future[Any] | None = None
        self._asked: list[str] = []

    def join(self, bound: Sequence[Assigned] = ()) -> None:
        """Be a new member, which beats; with what it had in a queue group, the same one.

        Raises what the request raises; nothing beats then.
        """
        options, member_id = self.options, self.member_id if bound else self._new_id()
        if options.pattern is not None:
            self._of_groups(self._subscription.follow)
        pulse = self._heart.add(self.group, member_id, options.heartbeat_interval_ms)
        try:
            self._requester.ask(self._join_request(member_id, bound))
        except BaseException:
            pulse.stop()
            raise
        self._stop_beating()
        self.member_id, self._pulse = member_id, pulse

    def _join_request(self, member_id: str, bound: Sequence[Assigned] = (), is_member: bool = False) -> JoinGroup:
        options = self.options
        return JoinGroup(
            self.group,
            member_id,
            self._subscription.topics,
            self._subscription.pattern,
            options.instance_id,
            options.session_timeout_ms,
            options.max_poll_interval_ms,
            options.auto_offset_reset,
            # it has met the group's settings, which may be others now
            {} if is_member else dict(options.config),
            list(bound),
            is_member,
        )

    def polled(self) -> None:
        if self._pulse is not None:
            self._pulse.polled()

    def look(self) -> Standing:
        """As of the newest step. A member whose pattern matches other topics than it has asked for asks for those."""
        standing = self._of_groups(self._taken)
        if standing.is_member and list(standing.topics) != self._subscription.topics and self._may_ask():
            self._asked = self._subscription.topics
            self._asking = self._requester.submit(self._join_request(self.member_id, is_member=True))
        return standing

    def _may_ask(self) -> bool:
        """Nobody waits for the answer: what is not heard is said again; what is refused would be, until it changes."""
        if self._asking is None:
            return True
        if not self._asking.done():
            return False
        error = self._asking.exception()
        is_refused = isinstance(error, LakeMQError) and not error.retriable
        return not is_refused or self._asked != self._subscription.topics

    def _taken(self, state: State) -> Standing:
        self._subscription.follow(state)
        return self._standing_of(state)

    def _standing_of(self, state: State) -> Standing:
        return _standing(self.group, self.member_id, self.options.instance_id, self._isolation, state)

    def release(self, given_up: Iterable[Held], partitions: Iterable[TopicPartition]) -> None:
        """Say that one has done with these. Nobody waits for the answer: what is not heard is said again."""
        if self._releasing is not None and not self._releasing.done():
            return
        assigned = [
            Assigned(one.bounds.topic_id, partition, one.epoch)
            for one, (_, partition) in zip(given_up, partitions, strict=True)
        ]
        self._releasing = self._requester.submit(ReleasePartitions(self.group, self.member_id, assigned))

    def submit(self, shares: Sequence[Sequence[Acknowledgement]], wanted: Sequence[Wanted]) -> list[Future[Any]]:
        """Say what became of messages, each share in a request, and ask for more after them; without waiting."""
        requests: list[Acknowledge | Acquire] = [Acknowledge(self.group, self.member_id, list(one)) for one in shares]
        if wanted:
            requests.append(Acquire(self.group, self.member_id, list(wanted)))
        return self._requester.submit_all([(one, None) for one in requests])

    def leave(self, for_good: bool) -> None:
        """Beat no more; for_good: and tell so, so that nobody waits. A static member is expected back otherwise."""
        self._stop_beating()
        if for_good:
            with suppress(LakeMQError):  # it is found out by its silence
                self._requester.ask(LeaveGroup(self.group, [self.member_id]))

    def is_replaced(self) -> bool:
        """Whether another process has its instance id. For any thread."""
        return self._of_groups(self._standing_of).replaced

    def fenced_error(self) -> FencedInstanceId:
        return FencedInstanceId(found=self.options.instance_id)

    def _stop_beating(self) -> None:
        if self._pulse is not None:
            self._pulse.stop()
            self._pulse = None


def _standing(name: str, member_id: str, instance_id: str | None, isolation: Isolation, state: State) -> Standing:
    group = state.groups.get(name)
    if group is None or member_id not in group.members:
        other = group is not None and instance_id is not None and instance_id in group.instances
        return Standing(replaced=other)
    terms = QueueTerms.of(group)
    isolation = isolation if terms is None else terms.isolation
    committed = state.offsets.get(name, {})
    held = {}
    for topic_id, places in groupby(group.owned(member_id), key=itemgetter(0)):
        topic, partitions = state.topics.get(topic_id), [partition for _, partition in places]
        if topic is None:
            continue
        # of its own alone: a topic may have thousands, and each member looks with each poll
        for partition, bounds in zip(partitions, bounds_of(topic, isolation, partitions), strict=True):
            one = group.assignments[topic_id, partition]
            held[topic.topic, partition] = Held(
                bounds,
                one.epoch,
                one.start_offset,
                one.status is PartitionStatus.PAUSED,
                committed.get((topic_id, partition)),
                _deliveries(state, group, (topic_id, partition)),
            )
    topics = group.members[member_id].topics
    generation = group.generation if group.is_classic else None
    is_stable = group.status is GroupStatus.STABLE
    return Standing(True, False, topics, held, state.step, state.now_ms, terms, generation, is_stable)


def _deliveries(state: State, group: Group, place: Place) -> Deliveries | None:
    """As they are now; the state goes on."""
    if not group.is_queue:
        return None
    known, committed = state.deliveries_of(group.group, place), state.offsets.get(group.group, {}).get(place)
    if known is not None:
        return known.copy()
    start = group.assignments[place].start_offset if committed is None else committed.offset
    return Deliveries(start or 0)
