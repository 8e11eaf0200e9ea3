"""Groups: who is a member of one, which partition each member is to have, and which it has."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from ..parameters import GROUP
from .base import Count, Number, Record, Request
from .transitions import Transitions

MAX_TOPICS = 100_000
"""That a member asks for."""

Place = tuple[int, int]
"""topic_id and partition."""


class JoinGroup(Request, frozen=True, tag="join_group"):
    """Become a member, or, as one, say anew what one wants.

    member_id: made by the client, new for each consumer; instance_id: of a static member, whose place a new process
    takes over; topics: names; pattern: from which the client has them; config: settings of the group, which one that is
    there must have already.
    """

    group: str
    member_id: str
    topics: list[str]
    pattern: str | None = None
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    max_poll_interval_ms: int = 300_000
    auto_offset_reset: str = "latest"
    config: dict[str, Any] = {}


class LeaveGroup(Request, frozen=True, tag="leave_group"):
    """Members go, by id or by instance id: what they have is given to others at once."""

    group: str
    members: list[str] = []
    instances: list[str] = []


class Assigned(msgspec.Struct, frozen=True, array_like=True):
    """A partition, as it was assigned in the step `epoch`."""

    topic_id: Number
    partition: Count
    epoch: Number


class ReleasePartitions(Request, frozen=True, tag="release_partitions"):
    """The word of an owner: it has done with these partitions, which it was told to give up."""

    group: str
    member_id: str
    partitions: list[Assigned]


class ConfigureGroup(Request, frozen=True, tag="configure_group"):
    """Set keys, null resets one to its default. create: there must be none yet, else there must be one."""

    group: str
    config: dict[str, Any]
    create: bool = False


class MemberSilent(msgspec.Struct, frozen=True):
    """What the leader has seen by itself: a member does not beat (session), or beats and does not poll (poll)."""

    group: str
    member_id: str
    reason: str


class TargetComputed(msgspec.Struct, frozen=True):
    """What a worker of the leader has computed for a group as it was in this epoch.

    target: member_id -> (topic_id, partition); problem: why not with the assignor that was asked for.
    """

    group: str
    group_epoch: int
    assignor: str
    target: dict[str, list[Place]]
    problem: str | None = None


class PartitionStatus(str, Enum):
    """The states of a partition in a group, as Solace PubSub+ names them."""

    UNASSIGNED = "unassigned"
    """Free: nobody has it."""
    UNBOUND = "unbound"
    """Its owner is lost, and may be back before the delay is over: nobody has it."""
    READY = "ready"
    """Its owner consumes it."""
    PAUSED = "paused"
    """Its owner is to give it up, and has it until it says that it has done so."""


_FREE = {PartitionStatus.UNASSIGNED, PartitionStatus.UNBOUND}

PARTITION_TRANSITIONS = Transitions(
    "A partition of a group",
    {
        PartitionStatus.UNASSIGNED: {PartitionStatus.READY},
        PartitionStatus.UNBOUND: {PartitionStatus.READY, PartitionStatus.UNASSIGNED},
        # ready again: another process of the same static member
        PartitionStatus.READY: {*_FREE, PartitionStatus.READY, PartitionStatus.PAUSED},
        PartitionStatus.PAUSED: _FREE,
    },
)


class GroupStatus(str, Enum):
    """The states of a group, by Kafka's names; which one follows from the rest."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class GroupConfigured(Record, frozen=True, tag="group_configured"):
    """The settings of the group, as they are from now on; the first record of each group."""

    group: str
    config: dict[str, Any]

    @property
    def subject(self) -> str:
        return self.group


class MemberJoined(Record, frozen=True, tag="member_joined"):
    """A member as it is from now on. replaces: the one before it under its instance id."""

    group: str
    member_id: str
    topics: list[str]
    pattern: str | None
    instance_id: str | None
    session_timeout_ms: int
    max_poll_interval_ms: int
    auto_offset_reset: str
    replaces: str | None = None

    @property
    def subject(self) -> str:
        return self.group


class MemberLeft(Record, frozen=True, tag="member_left"):
    """reason: left; session, poll: it was silent, or did not poll, for that long."""

    group: str
    member_id: str
    reason: str

    @property
    def subject(self) -> str:
        return self.group


class PartitionsAdded(Record, frozen=True, tag="partitions_added"):
    """Partitions of a topic that the group has from now on; they have the next numbers.

    start_offsets: where the group begins where it has committed nothing; null: nobody has said.
    """

    group: str
    topic_id: int
    topic: str
    start_offsets: list[int | None]

    @property
    def subject(self) -> str:
        return self.group


class PartitionsGone(Record, frozen=True, tag="partitions_gone"):
    """The topic was deleted: the group has none of its partitions any more."""

    group: str
    topic_id: int
    topic: str
    partitions: int

    @property
    def subject(self) -> str:
        return self.group


class TargetSet(Record, frozen=True, tag="target_set"):
    """Who is to have what, for the group as it was in this epoch, where that is another than before.

    changed: member_id -> (topic_id, partition); dropped: those that nobody is to have.
    """

    group: str
    group_epoch: int
    assignor: str
    changed: dict[str, list[Place]]
    dropped: list[Place] = []
    problem: str | None = None

    @property
    def subject(self) -> str:
        return self.group


class Move(msgspec.Struct, frozen=True, array_like=True):
    """start_offset: where a new owner begins; null: as it sees fit."""

    topic_id: int
    partition: int
    status: PartitionStatus
    owner: str | None = None
    start_offset: int | None = None


class PartitionsMoved(Record, frozen=True, tag="partitions_moved"):
    """Who has these partitions from now on. reason: what it is for, such as balance, left or session."""

    group: str
    reason: str
    moves: list[Move]

    @property
    def subject(self) -> str:
        return self.group


class RebalanceDelayed(Record, frozen=True, tag="rebalance_delayed"):
    """Until this time nothing of what was lost moves; 0: the delay is over."""

    group: str
    not_before_ms: int

    @property
    def subject(self) -> str:
        return self.group


class RebalanceCompleted(Record, frozen=True, tag="rebalance_completed"):
    """Each partition is with whom it is to be with."""

    group: str
    generation: int
    group_epoch: int

    @property
    def subject(self) -> str:
        return self.group


@dataclass
class Member:
    """number: of members those that came first have the lowest."""

    member_id: str
    number: int
    topics: tuple[str, ...]
    pattern: str | None
    instance_id: str | None
    session_timeout_ms: int
    max_poll_interval_ms: int
    auto_offset_reset: str
    joined_at_ms: int


@dataclass
class Assignment:
    """A partition of a group. epoch: the step in which its owner got it, which fences all that owner says.

    start_offset: where its owner began, or its first one is to; target: who is to have it; since_ms: of the status.
    """

    topic: str
    start_offset: int | None
    status: PartitionStatus = PartitionStatus.UNASSIGNED
    owner: str | None = None
    epoch: int = 0
    target: str | None = None
    since_ms: int = 0
    reason: str = ""

    @property
    def is_free(self) -> bool:
        return self.status in _FREE

    @property
    def is_at_rest(self) -> bool:
        """Whether it is with whom it is to be with."""
        if self.target is None:
            return self.status is PartitionStatus.UNASSIGNED
        return self.status is PartitionStatus.READY and self.owner == self.target


@dataclass
class Group:
    """group_epoch: grows with members, subscriptions and partitions; target_epoch: that of the newest target;
    settled_epoch: that of the last rebalance which was completed; not_before_ms: the end of a delay, 0 without one;
    paused, moving: those of the assignments, and those not at rest; held: member_id -> what it has; partition_counts:
    topic_id -> how many it has of it.
    """

    group: str
    config: dict[str, Any] = field(default_factory=dict)
    group_epoch: int = 0
    target_epoch: int = 0
    settled_epoch: int = 0
    generation: int = 0
    assignor: str = ""
    problem: str | None = None
    not_before_ms: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    assignments: dict[Place, Assignment] = field(default_factory=dict)
    paused: set[Place] = field(default_factory=set)
    moving: set[Place] = field(default_factory=set)
    held: dict[str, set[Place]] = field(default_factory=dict)
    partition_counts: dict[int, int] = field(default_factory=dict)

    def setting(self, key: str) -> Any:
        """The value set, else the default."""
        return self.config.get(key, GROUP[key].default)

    @property
    def leader(self) -> Member | None:
        """The member that came first."""
        return min(self.members.values(), key=lambda member: member.number, default=None)

    @property
    def next_number(self) -> int:
        """Of the next member."""
        return max((member.number for member in self.members.values()), default=-1) + 1

    def owned(self, member_id: str) -> list[Place]:
        """What a member has, by topic and partition."""
        return sorted(self.held.get(member_id, ()))

    def add(self, place: Place, one: Assignment) -> None:
        """A partition that it has not had, with the next number, or in the order in which it is stored."""
        self.assignments[place] = one
        self.partition_counts[place[0]] = self.partition_counts.get(place[0], 0) + 1
        self._note(place, one)

    def remove_topic(self, topic_id: int) -> None:
        """None of its partitions is the group's."""
        for place in [place for place in self.assignments if place[0] == topic_id]:
            self._forget(place, self.assignments.pop(place).owner)
            self.paused.discard(place)
            self.moving.discard(place)
        self.partition_counts.pop(topic_id, None)

    def set_target(self, place: Place, member_id: str | None) -> None:
        """Who is to have it from now on; None: nobody."""
        if one := self.assignments.get(place):
            one.target = member_id
            self._note(place, one)

    def set_owner(self, place: Place, status: PartitionStatus, owner: str | None) -> Assignment:
        """Its assignment, which says so from now on."""
        one = self.assignments.get(place)
        if one is None:  # a reader has none loaded
            one = self.assignments[place] = Assignment("", None, status)
        self._forget(place, one.owner)
        one.status, one.owner = status, owner
        self._note(place, one)
        return one

    def _note(self, place: Place, one: Assignment) -> None:
        if one.owner is not None:
            self.held.setdefault(one.owner, set()).add(place)
        (self.paused.add if one.status is PartitionStatus.PAUSED else self.paused.discard)(place)
        (self.moving.discard if one.is_at_rest else self.moving.add)(place)

    def _forget(self, place: Place, owner: str | None) -> None:
        if owner is not None and owner in self.held:
            self.held[owner].discard(place)
            if not self.held[owner]:
                del self.held[owner]

    def is_settled(self) -> bool:
        """Whether each partition is with whom it is to be with."""
        return self.target_epoch == self.group_epoch and not self.moving

    @property
    def status(self) -> GroupStatus:
        if not self.members:
            return GroupStatus.EMPTY
        if self.not_before_ms or self.target_epoch != self.group_epoch:
            return GroupStatus.PREPARING
        return GroupStatus.STABLE if self.settled_epoch == self.group_epoch else GroupStatus.COMPLETING


REQUESTS = (JoinGroup, LeaveGroup, ReleasePartitions, ConfigureGroup)
RESULTS = ()
RECORDS = (
    GroupConfigured,
    MemberJoined,
    MemberLeft,
    PartitionsAdded,
    PartitionsGone,
    TargetSet,
    PartitionsMoved,
    RebalanceDelayed,
    RebalanceCompleted,
)
