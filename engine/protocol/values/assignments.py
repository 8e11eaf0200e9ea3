"""What is known of a group: its members, which partition each is to have, and which it has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from ..parameters import GROUP
from .base import Count, Number
from .transitions import Transitions

_DELAYS = {
    "queue": "rebalance.delay.ms",
    "cooperative": "scheduled.rebalance.max.delay.ms",
    "classic": "group.initial.rebalance.delay.ms",
}

Place = tuple[int, int]
"""topic_id and partition."""


class InPartition(msgspec.Struct, frozen=True, array_like=True):
    """Base of what is said of a partition."""

    topic_id: Number
    partition: Count

    @property
    def place(self) -> Place:
        return self.topic_id, self.partition


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
    DEAD = "Dead"
    """There is no such group any more."""


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

    start_offset: where its owner began, or its first one is to; target: who is to have it; since_ms: of the status;
    lost_by: who had it, and may be back, of a partition that is unbound; deleted_count: offsets that were deleted
    before the group had committed any.
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
        """Whether it is with whom it is to be with."""
        if self.target is None:
            return self.status is PartitionStatus.UNASSIGNED
        return self.status is PartitionStatus.READY and self.owner == self.target


@dataclass
class Group:
    """group_epoch: grows with members, subscriptions and partitions; target_epoch: that of the newest target;
    settled_epoch: that of the last rebalance which was completed; not_before_ms: the end of a delay, 0 without one;
    paused, moving: those of the assignments, and those not at rest; pauses: owner and since when -> how many are
    paused so; held: member_id -> what it has; partition_counts: topic_id -> how many it has of it; is_configured: its
    settings are not only what its first member brought; empty_since_ms: since when it has no members, while it has
    none.
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
    pauses: dict[tuple[str, int], int] = field(default_factory=dict)
    held: dict[str, set[Place]] = field(default_factory=dict)
    partition_counts: dict[int, int] = field(default_factory=dict)
    is_configured: bool = False
    empty_since_ms: int = 0

    def setting(self, key: str) -> Any:
        """The value set, else the default."""
        if key in self.config:
            return self.config[key]
        return self.default_assignor if key == "group.assignor" else GROUP[key].default

    @property
    def is_queue(self) -> bool:
        """Whether a partition changes hands when what its owner has of it is acknowledged."""
        return bool(self.setting("group.protocol") == "queue")

    @property
    def is_classic(self) -> bool:
        """Whether all give up all that they have before anybody is given anything anew."""
        return bool(self.setting("group.protocol") == "classic")

    @property
    def default_assignor(self) -> str:
        """Where no other is asked for, or that one fails."""
        return "range" if self.is_classic else str(GROUP["group.assignor"].default)

    @property
    def rebalance_delay_ms(self) -> int:
        """How long partitions of a member that is lost wait; in a classic group, how long its first member does."""
        return int(self.setting(_DELAYS[self.setting("group.protocol")]))

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

    def shares(self) -> dict[str, list[Place]]:
        """Member -> what it has; what somebody is to give up moves in any case, and counts as whose it is to be.

        Of a classic group, which shares anew what nobody has any more, what each was to have last.
        """
        shares: dict[str, list[Place]] = {member_id: [] for member_id in self.members}
        is_classic = self.is_classic
        for place, one in self.assignments.items():
            is_theirs = is_classic or one.status is PartitionStatus.PAUSED
            member_id = one.target if is_theirs else one.owner
            if member_id in shares:
                shares[member_id].append(place)
        return shares

    def is_pause_of(self, place: Place, member_id: str, since_ms: int) -> bool:
        """Whether a partition that is paused is so with this owner, since then."""
        one = self.assignments[place]
        return (one.owner, one.since_ms) == (member_id, since_ms)

    def add(self, place: Place, one: Assignment) -> None:
        """A partition that it has not had, with the next number, or in the order in which it is stored."""
        self.assignments[place] = one
        self.partition_counts[place[0]] = self.partition_counts.get(place[0], 0) + 1
        self._note(place, one)

    def remove(self, topic_id: int, first: int) -> None:
        """None of the topic's partitions from this number on is the group's."""
        for place in [place for place in self.assignments if place[0] == topic_id and place[1] >= first]:
            self._forget(place, self.assignments.pop(place))
            self.moving.discard(place)
        self.partition_counts.pop(topic_id, None)
        if first:
            self.partition_counts[topic_id] = first

    def set_target(self, place: Place, member_id: str | None) -> None:
        """Who is to have it from now on; None: nobody."""
        if one := self.assignments.get(place):
            one.target = member_id
            self._note_rest(place, one)

    def set_owner(self, place: Place, status: PartitionStatus, owner: str | None, since_ms: int) -> Assignment:
        """Its assignment, which says so from now on."""
        one = self.assignments.get(place)
        if one is None:  # a reader has none loaded
            one = self.assignments[place] = Assignment("", None)
        self._forget(place, one)
        one.lost_by = one.owner if status is PartitionStatus.UNBOUND else None
        one.status, one.owner, one.since_ms = status, owner, since_ms
        self._note(place, one)
        return one

    def _note(self, place: Place, one: Assignment) -> None:
        if one.owner is not None:
            self.held.setdefault(one.owner, set()).add(place)
            if one.status is PartitionStatus.PAUSED:
                self.paused.add(place)
                pause = one.owner, one.since_ms
                self.pauses[pause] = self.pauses.get(pause, 0) + 1
        self._note_rest(place, one)

    def _note_rest(self, place: Place, one: Assignment) -> None:
        (self.moving.discard if one.is_at_rest else self.moving.add)(place)

    def _forget(self, place: Place, one: Assignment) -> None:
        if one.owner is None:
            return
        self.held[one.owner].discard(place)
        if not self.held[one.owner]:
            del self.held[one.owner]
        if one.status is PartitionStatus.PAUSED:
            self.paused.discard(place)
            pause = one.owner, one.since_ms
            self.pauses[pause] -= 1
            if not self.pauses[pause]:
                del self.pauses[pause]

    def is_settled(self) -> bool:
        """Whether each partition is with whom it is to be with."""
        return self.target_epoch == self.group_epoch and not self.moving

    @property
    def is_moving_on(self) -> bool:
        """Whether more can move in the next step: of what is to move only that which is paused waits for its owner."""
        can_move = self.target_epoch == self.group_epoch and not self.not_before_ms
        return can_move and len(self.moving) > len(self.paused)

    @property
    def wants_target(self) -> bool:
        """Whether an assignor is to say who gets what; of a classic group, once nobody has anything."""
        wants = bool(self.members) and self.target_epoch != self.group_epoch
        return wants and not (self.is_classic and self._is_preparing)

    @property
    def _is_preparing(self) -> bool:
        """Of a classic group that is to share its partitions anew, whether somebody or something is waited for."""
        return bool(self.not_before_ms or self.held)

    @property
    def is_waiting(self) -> bool:
        """Whether an assignor, time or an owner is to bring something about."""
        return bool(self.not_before_ms or self.paused) or self.wants_target

    def deadlines(self) -> Iterator[int]:
        """When time brings something about, in decided time: the end of a delay, of handing over."""
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
