"""Groups: requests and records. The state of a group is in `assignments`."""

from typing import Any

import msgspec

from .assignments import PARTITION_EVENTS, InPartition, PartitionEvent, PartitionStatus, TopicIdPartition
from .base import Count, GroupRecord, Number, Request

# -- bounds of what a member may ask for

MAX_TOPICS = 100_000
"""Topics that a member may subscribe to."""
MAX_PATTERN = 1_000
"""Characters of a pattern."""
SESSION_MS = (6_000, 1_800_000)
"""The shortest and the longest session timeout."""
MAX_POLL_MS = 2**40
OFFSET_RESETS = ("earliest", "latest", "none")
MAX_ASSIGNORS = 20
"""Assignors that a member may list."""


class Assigned(InPartition, frozen=True, array_like=True):
    """A partition as it was assigned in the step `epoch`."""

    epoch: Number


class JoinGroup(Request, frozen=True, tag="join_group"):  # Decided by `rules/joining.py`.
    """Become a member, or change what a member wants.

    member_id: made by the client, a new one for each consumer. instance_id: the id of a static member; a new process
    with it takes the place of the old one. topics: names. pattern: the pattern from which the client has them. config:
    settings of the group; an existing group must have the same. bound: what the member had when it was lost; it gets
    back what nobody else owns. is_member: the member must exist and only changes its wishes. client_id, host,
    process_id: where the member runs, for people. process: identity of its process, by which a leader on the same
    machine sees that it has ended; empty: not known. assignors: those that it supports, the best first; none if it
    supports all.

    The defaults belong to the wire format: a letter leaves out values that equal them, so they never change. The
    defaults that users see are the client's.
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
    client_id: str | None = None
    host: str | None = None
    process_id: Count | None = None
    assignors: list[str] = []
    process: str = ""


class LeaveGroup(Request, frozen=True, tag="leave_group"):  # Decided by `rules/groups.py`.
    """Remove members, by id or by instance id. Others get their partitions at once.

    is_removal: whether an operator removes them; else a member leaves.
    """

    group: str
    members: list[str] = []
    instances: list[str] = []
    is_removal: bool = False


class ReleasePartitions(Request, frozen=True, tag="release_partitions"):  # Decided by `rules/groups.py`.
    """Say, as their owner, that these partitions can go to their next owners."""

    group: str
    member_id: str
    partitions: list[Assigned]


class ConfigureGroup(Request, frozen=True, tag="configure_group"):  # Decided by `rules/groups.py`.
    """Set settings of a group; null resets one. create: the group must not exist yet, else it must exist."""

    group: str
    config: dict[str, Any]
    create: bool = False


class DeleteGroup(Request, frozen=True, tag="delete_group"):  # Decided by `rules/group_operations.py`.
    """Forget a group that has no members, with its settings, partitions and offsets."""

    group: str


class MemberSilent(msgspec.Struct, frozen=True):
    """The leader has observed that a member is lost.

    reason: the member sends no heartbeats (session), does not poll (poll), or its process has ended (process).
    """

    group: str
    member_id: str
    reason: str


class TargetComputed(msgspec.Struct, frozen=True):
    """A worker of the leader has computed a target for the group as it was in this epoch.

    target: member_id -> (topic_id, partition). problem: why the chosen assignor could not be used.
    """

    group: str
    group_epoch: int
    assignor: str
    target: dict[str, list[TopicIdPartition]]
    problem: str | None = None


class GroupConfigured(GroupRecord, frozen=True, tag="group_configured"):
    """The group has these settings from now on. This is the first record of each group.

    by_member: the settings came with its first member, which would send them again.
    """

    config: dict[str, Any]
    by_member: bool = False


class MemberJoined(GroupRecord, frozen=True, tag="member_joined"):
    """A member with its present wishes.

    replaces: the member that had its instance id before. assignors: those that it supports, the best first; none if it
    supports all.
    """

    member_id: str
    topics: list[str]
    pattern: str | None
    instance_id: str | None
    session_timeout_ms: int
    max_poll_interval_ms: int
    auto_offset_reset: str
    replaces: str | None = None
    client_id: str | None = None
    host: str | None = None
    process_id: int | None = None
    assignors: list[str] = []
    process: str = ""


REMOVED = "removed"
"""The reason of a member's end if an operator has requested it."""


class MemberLeft(GroupRecord, frozen=True, tag="member_left"):
    """A member left (left), was removed on request (removed), silent for its session (session), or did not poll (poll).

    The word in brackets is the reason.
    """

    member_id: str
    reason: str


class MemberMissed(GroupRecord, frozen=True, tag="member_missed"):
    """A static member did not give up its partitions in time. It stays a member, and becomes the last one in order."""

    member_id: str


class PartitionsAdded(GroupRecord, frozen=True, tag="partitions_added"):
    """The group gets partitions of a topic, from the number `first` on.

    start_offsets: where the group starts if it has committed nothing; null: not decided yet.
    """

    topic_id: int
    topic: str
    start_offsets: list[int | None]
    first: int = 0


class PartitionsGone(GroupRecord, frozen=True, tag="partitions_gone"):
    """The group loses the topic's partitions from the number `first` on, because they, the topic or the group ended.

    partitions: how many it had.
    """

    topic_id: int
    topic: str
    partitions: int
    first: int = 0


class TargetSet(GroupRecord, frozen=True, tag="target_set"):
    """The new targets of partitions, for the group as it was in this epoch. Only changes are listed.

    changed: member_id -> (topic_id, partition). dropped: partitions without a target.
    """

    group_epoch: int
    assignor: str
    changed: dict[str, list[TopicIdPartition]]
    dropped: list[TopicIdPartition] = []
    problem: str | None = None


class Move(InPartition, frozen=True, array_like=True):
    """A change of status or owner.

    start_offset: where a new owner starts; null: by its own setting. epoch: of an assignment that continues; null: it
    is a new one. acknowledged: in a queue group, ranges past start_offset that were acknowledged before the owner got
    it.
    """

    status: PartitionStatus
    owner: str | None = None
    start_offset: int | None = None
    epoch: int | None = None
    acknowledged: list[tuple[Number, Count]] = []

    @property
    def event(self) -> PartitionEvent:
        """The event that leads to this status."""
        return PARTITION_EVENTS[self.status]


class PartitionsMoved(GroupRecord, frozen=True, tag="partitions_moved"):
    """Partitions change their status or owner. reason: why, for example balance, left or session."""

    reason: str
    moves: list[Move]


class RebalanceDelayed(GroupRecord, frozen=True, tag="rebalance_delayed"):
    """Lost partitions stay until this time; 0: the delay is over."""

    not_before_ms: int


class RebalanceCompleted(GroupRecord, frozen=True, tag="rebalance_completed"):
    """Each partition is with its target."""

    generation: int
    group_epoch: int


class GroupForgotten(GroupRecord, frozen=True, tag="group_forgotten"):
    """The group does not exist any more. reason: deleted or expired."""

    reason: str


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
