"""Groups: their members, the target member of each partition, and its owner; and how they choose their assignor."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from ..parameters import GROUP
from .base import Count, Number, Transitions

# Choose the assignor of a group from what its members support, as Kafka's group coordinator does.


Preferences = Sequence[Sequence[str]]
"""The list of assignors of each member that has one, the best first, in the order in which the members joined."""


def find_common_assignors(preferences: Preferences) -> list[str]:
    """Return the assignors that stand in every list, in the order of the first list."""
    if not preferences:
        return []
    first, *rest = preferences
    return [name for name in first if all(name in names for names in rest)]


def elect_assignor(preferences: Preferences) -> str | None:
    """Return the common assignor that most members prefer; None where they have none in common.

    Each member votes for the first common one of its list. The earliest vote decides a tie, so that the members that
    were there first keep their assignor.
    """
    common = set(find_common_assignors(preferences))
    if not common:
        return None
    votes = Counter(next(name for name in names if name in common) for names in preferences)
    # a Counter keeps the order of the votes, and max returns the first of equals
    return max(votes, key=votes.__getitem__)


# Groups: their members, the target member of each partition, and its owner.


_DELAYS = {
    "queue": "rebalance.delay.ms",
    "cooperative": "scheduled.rebalance.max.delay.ms",
    "classic": "group.initial.rebalance.delay.ms",
}

TopicIdPartition = tuple[int, int]
"""topic_id and partition, which Kafka's code calls the same. A variable of this type is named `tp`."""


class InPartition(msgspec.Struct, frozen=True, array_like=True):
    """Base of entries about one partition."""

    topic_id: Number
    partition: Count

    @property
    def topic_partition(self) -> TopicIdPartition:
        return self.topic_id, self.partition


class PartitionStatus(StrEnum):
    """The states of a partition in a group, as Solace PubSub+ names them."""

    UNASSIGNED = "unassigned"
    """Free: it has no owner."""
    UNBOUND = "unbound"
    """Its owner is lost but may return before the delay is over. It has no owner meanwhile."""
    READY = "ready"
    """Its owner consumes it."""
    PAUSED = "paused"
    """Its owner must give it up, and keeps it until it releases it."""


class PartitionEvent(StrEnum):
    """The events that change the state of a partition in a group."""

    ASSIGN = "assign"
    PAUSE = "pause"
    """Another member should own it."""
    FREE = "free"
    """Its owner has released it, or has not returned in time."""
    LOSE_OWNER = "lose owner"
    """Its owner is lost, but may return."""


_FREE = {PartitionStatus.UNASSIGNED, PartitionStatus.UNBOUND}
_OWNED = {PartitionStatus.READY, PartitionStatus.PAUSED}

PARTITION_TRANSITIONS = Transitions(
    "A partition of a group",
    (PartitionStatus.UNASSIGNED,),
    {
        # ready again: another process of the same static member
        PartitionEvent.ASSIGN: ({*_FREE, PartitionStatus.READY}, PartitionStatus.READY),
        PartitionEvent.PAUSE: ({PartitionStatus.READY}, PartitionStatus.PAUSED),
        PartitionEvent.FREE: ({*_OWNED, PartitionStatus.UNBOUND}, PartitionStatus.UNASSIGNED),
        PartitionEvent.LOSE_OWNER: (_OWNED, PartitionStatus.UNBOUND),
    },
)

PARTITION_EVENTS = PARTITION_TRANSITIONS.find_events_to()


class GroupStatus(StrEnum):
    """The states of a group, by Kafka's names. They are derived from the other fields."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    """The group does not exist any more."""


@dataclass
class GroupMember:
    """A member of a group.

    number: grows in the order in which members joined. client_id, host, process_id: where the member runs, for people.
    assignors: those that it supports, the best first; () if it supports all. process: as in `JoinGroup`.
    """

    member_id: str
    number: int
    topics: tuple[str, ...]
    pattern: str | None
    instance_id: str | None
    session_timeout_ms: int
    max_poll_interval_ms: int
    auto_offset_reset: str
    joined_at_ms: int
    client_id: str | None = None
    host: str | None = None
    process_id: int | None = None
    assignors: tuple[str, ...] = ()
    process: str = ""


@dataclass
class Assignment:
    """A partition of a group.

    start_offset: where its owner started, or its first owner will. epoch: the step in which the owner got it; it fences
    requests of earlier owners. target: the member that should own it. since_ms: when the status changed. lost_by: the
    lost owner of an unbound partition, which may return. deleted_count: offsets that were deleted before the group had
    committed any.
    """

    topic: str
    start_offset: int | None
    status: PartitionStatus = PartitionStatus.UNASSIGNED
    owner: str | None = None
    epoch: int = 0
    target: str | None = None
    since_ms: int = 0
    reason: str = ""
    lost_by: str | None = None
    deleted_count: int = 0

    @property
    def is_free(self) -> bool:
        return self.status in _FREE

    @property
    def is_at_rest(self) -> bool:
        """True if the owner is the target."""
        if self.target is None:
            return self.status is PartitionStatus.UNASSIGNED
        return self.status is PartitionStatus.READY and self.owner == self.target


@dataclass
class Group:
    """A group: members, assignments, and indexes over them.

    group_epoch: grows with each change of members, subscriptions and partitions. target_epoch: the group epoch of the
    newest target. settled_epoch: that of the last completed rebalance. not_before_ms: end of a delay; 0: none.
    is_configured: it has settings that did not come from its first member. empty_since_ms: since when it has no
    members, if it has none.

    Indexes: paused and moving (assignments that are paused, and not at rest), pauses ((owner, since_ms) -> number of
    paused partitions), places_by_owner (member_id -> its partitions), partition_counts (topic_id -> number of
    partitions).
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
    members: dict[str, GroupMember] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    assignments: dict[TopicIdPartition, Assignment] = field(default_factory=dict)
    paused: set[TopicIdPartition] = field(default_factory=set)
    moving: set[TopicIdPartition] = field(default_factory=set)
    pauses: dict[tuple[str, int], int] = field(default_factory=dict)
    partitions_by_owner: dict[str, set[TopicIdPartition]] = field(default_factory=dict)
    partition_counts: dict[int, int] = field(default_factory=dict)
    is_configured: bool = False
    empty_since_ms: int = 0

    def setting(self, key: str) -> Any:
        """Return the group's value of a setting, else the default."""
        if key in self.config:
            return self.config[key]
        return self.default_assignor if key == "group.assignor" else GROUP[key].default

    def settings(self) -> dict[str, Any]:
        """Return all settings of groups with their values in this group."""
        return {key: self.setting(key) for key in GROUP.declared}

    @property
    def is_queue(self) -> bool:
        """True if a partition moves once its owner has acknowledged everything that it has of it."""
        return bool(self.setting("group.protocol") == "queue")

    @property
    def is_classic(self) -> bool:
        """True if members give up all partitions before any are assigned again."""
        return bool(self.setting("group.protocol") == "classic")

    @property
    def required_assignor(self) -> str | None:
        """The assignor that is set for the group, which every member must support; None: members choose."""
        name = self.config.get("group.assignor")
        return None if name is None else str(name)

    @property
    def chosen_assignor(self) -> str:
        """The assignor that computes the target: the one that is set, else the one that the members agree on."""
        return self.required_assignor or elect_assignor(self.assignor_lists()) or self.default_assignor

    def assignor_lists(self, *without: str | None) -> list[tuple[str, ...]]:
        """Return the members' lists of assignors, in the order in which the members joined.

        without: ids of members to leave out.
        """
        members = sorted(self.members.values(), key=lambda member: member.number)
        return [member.assignors for member in members if member.assignors and member.member_id not in without]

    @property
    def default_assignor(self) -> str:
        """The assignor that is used if no other is chosen, or that one fails."""
        return "range" if self.is_classic else str(GROUP["group.assignor"].default)

    @property
    def rebalance_delay_ms(self) -> int:
        """How long partitions of a lost member wait before others get them.

        In a classic group: how long the first member waits for others.
        """
        return int(self.setting(self.rebalance_delay_setting))

    @property
    def rebalance_delay_setting(self) -> str:
        """The setting of `rebalance_delay_ms`, by the protocol of the group."""
        return _DELAYS[self.setting("group.protocol")]

    @property
    def leader(self) -> GroupMember | None:
        """The member that joined first."""
        return min(self.members.values(), key=lambda member: member.number, default=None)

    @property
    def next_number(self) -> int:
        """The number of the next member."""
        return max((member.number for member in self.members.values()), default=-1) + 1

    def list_partitions_of(self, member_id: str) -> list[TopicIdPartition]:
        """Return the partitions of a member, sorted."""
        return sorted(self.partitions_by_owner.get(member_id, ()))

    def compute_shares(self) -> dict[str, list[TopicIdPartition]]:
        """Return the partitions of each member, as an assignor should see them.

        A paused partition moves in any case, so it counts for its target. In a classic group nobody owns anything at
        that point, so each partition counts for its last target.
        """
        shares: dict[str, list[TopicIdPartition]] = {member_id: [] for member_id in self.members}
        is_classic = self.is_classic
        for tp, assignment in self.assignments.items():
            is_theirs = is_classic or assignment.status is PartitionStatus.PAUSED
            member_id = assignment.target if is_theirs else assignment.owner
            if member_id in shares:
                shares[member_id].append(tp)
        return shares

    def is_pause_of(self, tp: TopicIdPartition, member_id: str, since_ms: int) -> bool:
        """Return whether a paused partition is paused with this owner since this time."""
        assignment = self.assignments[tp]
        return (assignment.owner, assignment.since_ms) == (member_id, since_ms)

    def add_partition(self, tp: TopicIdPartition, assignment: Assignment) -> None:
        """Add a partition to the group."""
        self.assignments[tp] = assignment
        self.partition_counts[tp[0]] = self.partition_counts.get(tp[0], 0) + 1
        self._index(tp, assignment)

    def remove_partitions(self, topic_id: int, first: int) -> list[tuple[TopicIdPartition, Assignment]]:
        """Remove the topic's partitions from this number on, and return them."""
        removed = [(tp, a) for tp, a in self.assignments.items() if tp[0] == topic_id and tp[1] >= first]
        for tp, assignment in removed:
            del self.assignments[tp]
            self._unindex(tp, assignment)
            self.moving.discard(tp)
        self.partition_counts.pop(topic_id, None)
        if first:
            self.partition_counts[topic_id] = first
        return removed

    def set_target(self, tp: TopicIdPartition, member_id: str | None) -> None:
        """Set the member that should own the partition; None for no member."""
        if assignment := self.assignments.get(tp):
            assignment.target = member_id
            self._index_rest(tp, assignment)

    def set_owner(self, tp: TopicIdPartition, status: PartitionStatus, owner: str | None, since_ms: int) -> Assignment:
        """Set status and owner of the partition, and return its assignment."""
        assignment = self.assignments.get(tp)
        if assignment is None:  # a reader does not load assignments
            assignment = self.assignments[tp] = Assignment("", None)
        self._unindex(tp, assignment)
        assignment.lost_by = assignment.owner if status is PartitionStatus.UNBOUND else None
        assignment.status, assignment.owner, assignment.since_ms = status, owner, since_ms
        self._index(tp, assignment)
        return assignment

    def _index(self, tp: TopicIdPartition, assignment: Assignment) -> None:
        if assignment.owner is not None:
            self.partitions_by_owner.setdefault(assignment.owner, set()).add(tp)
            if assignment.status is PartitionStatus.PAUSED:
                self.paused.add(tp)
                pause = assignment.owner, assignment.since_ms
                self.pauses[pause] = self.pauses.get(pause, 0) + 1
        self._index_rest(tp, assignment)

    def _index_rest(self, tp: TopicIdPartition, assignment: Assignment) -> None:
        (self.moving.discard if assignment.is_at_rest else self.moving.add)(tp)

    def _unindex(self, tp: TopicIdPartition, assignment: Assignment) -> None:
        if assignment.owner is None:
            return
        self.partitions_by_owner[assignment.owner].discard(tp)
        if not self.partitions_by_owner[assignment.owner]:
            del self.partitions_by_owner[assignment.owner]
        if assignment.status is PartitionStatus.PAUSED:
            self.paused.discard(tp)
            pause = assignment.owner, assignment.since_ms
            self.pauses[pause] -= 1
            if not self.pauses[pause]:
                del self.pauses[pause]

    @property
    def is_settled(self) -> bool:
        """True if each partition is with its target."""
        return self.target_epoch == self.group_epoch and not self.moving

    @property
    def is_moving_on(self) -> bool:
        """True if more partitions can move in the next step. Paused ones wait for their owners."""
        can_move = self.target_epoch == self.group_epoch and not self.not_before_ms
        return can_move and len(self.moving) > len(self.paused)

    @property
    def wants_target(self) -> bool:
        """True if an assignor must compute a target; in a classic group, once no member owns anything."""
        wants = bool(self.members) and self.target_epoch != self.group_epoch
        return wants and not (self.is_classic and self._is_preparing)

    @property
    def _is_preparing(self) -> bool:
        """True if a classic group still waits for members to join or to give up partitions."""
        return bool(self.not_before_ms or self.partitions_by_owner)

    @property
    def is_waiting(self) -> bool:
        """True if the group waits for an assignor, for time to pass, or for an owner."""
        return bool(self.not_before_ms or self.paused) or self.wants_target

    def deadlines(self) -> Iterator[int]:
        """Yield the times, in decided time, at which a delay or a handoff ends."""
        if self.not_before_ms:
            yield self.not_before_ms
        if self.is_queue and self.paused:
            handoff_ms = int(self.setting("max.handoff.ms"))
            yield min(since_ms for _, since_ms in self.pauses) + handoff_ms

    @property
    def status(self) -> GroupStatus:
        if not self.members:
            return GroupStatus.EMPTY
        if self.settled_epoch == self.group_epoch and not self.not_before_ms:
            return GroupStatus.STABLE
        if self.is_classic:
            return GroupStatus.PREPARING if self._is_preparing else GroupStatus.COMPLETING
        is_preparing = bool(self.not_before_ms) or self.target_epoch != self.group_epoch
        return GroupStatus.PREPARING if is_preparing else GroupStatus.COMPLETING
