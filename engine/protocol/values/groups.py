"""Groups: what may be asked of them, what is decided. What is known of one is in `assignments`."""

from __future__ import annotations

from typing import Any

import msgspec

from .assignments import InPartition, PartitionStatus, Place
from .base import Number, Record, Request

# -- what a member may say of itself

MAX_TOPICS = 100_000
"""That a member asks for."""
MAX_PATTERN = 1_000
"""Characters."""
SESSION_MS = (6_000, 1_800_000)
"""The least and the most."""
MAX_POLL_MS = 2**40
OFFSET_RESETS = ("earliest", "latest", "none")


class Assigned(InPartition, frozen=True, array_like=True):
    """A partition, as it was assigned in the step `epoch`."""

    epoch: Number


class JoinGroup(Request, frozen=True, tag="join_group"):
    """Become a member, or, as one, say anew what one wants.

    member_id: made by the client, new for each consumer; instance_id: of a static member, whose place a new process
    takes over; topics: names; pattern: from which the client has them; config: settings of the group, which one that is
    there must have already; bound: what it had when it was lost, which is its own again if nobody else has it yet;
    is_member: it must be one, and only wants something else.
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
    bound: list[Assigned] = []
    is_member: bool = False


class LeaveGroup(Request, frozen=True, tag="leave_group"):
    """Members go, by id or by instance id: what they have is given to others at once."""

    group: str
    members: list[str] = []
    instances: list[str] = []


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


class DeleteGroup(Request, frozen=True, tag="delete_group"):
    """Forget a group that has no members: its settings, its partitions, what it has committed."""

    group: str


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


class GroupConfigured(Record, frozen=True, tag="group_configured"):
    """The settings of the group, as they are from now on; the first record of each group.

    by_member: the first one has brought them, and would again.
    """

    group: str
    config: dict[str, Any]
    by_member: bool = False

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


class MemberMissed(Record, frozen=True, tag="member_missed"):
    """A static member did not give up in time what it had, and is one still; of all members it is the last now."""

    group: str
    member_id: str

    @property
    def subject(self) -> str:
        return self.group


class PartitionsAdded(Record, frozen=True, tag="partitions_added"):
    """Partitions of a topic that the group has from now on, from the number `first` on.

    start_offsets: where the group begins where it has committed nothing; null: nobody has said.
    """

    group: str
    topic_id: int
    topic: str
    start_offsets: list[int | None]
    first: int = 0

    @property
    def subject(self) -> str:
        return self.group


class PartitionsGone(Record, frozen=True, tag="partitions_gone"):
    """The group has none of the topic's partitions from the number `first` on any more: they have ended; or all are
    gone, with the topic or the group. partitions: how many it had.
    """

    group: str
    topic_id: int
    topic: str
    partitions: int
    first: int = 0

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


class Move(InPartition, frozen=True, array_like=True):
    """start_offset: where a new owner begins; null: as it sees fit. epoch: of the assignment that goes on; null: it is
    a new one.
    """

    status: PartitionStatus
    owner: str | None = None
    start_offset: int | None = None
    epoch: int | None = None


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


class GroupForgotten(Record, frozen=True, tag="group_forgotten"):
    """There is no such group any more. reason: deleted, or expired."""

    group: str
    reason: str

    @property
    def subject(self) -> str:
        return self.group


REQUESTS = (JoinGroup, LeaveGroup, ReleasePartitions, ConfigureGroup, DeleteGroup)
RESULTS = ()
RECORDS = (
    GroupConfigured,
    MemberJoined,
    MemberLeft,
    MemberMissed,
    PartitionsAdded,
    PartitionsGone,
    TargetSet,
    PartitionsMoved,
    RebalanceDelayed,
    RebalanceCompleted,
    GroupForgotten,
)
