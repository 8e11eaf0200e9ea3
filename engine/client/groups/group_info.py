"""Descriptions of groups for operators: a group, its members, and its partitions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...protocol.errors import GroupIdNotFound
from ...protocol.hashing import find_shard
from ...protocol.names import shorten
from ...protocol.values.assignments import (
    Assignment,
    Group,
    GroupMember,
    GroupStatus,
    PartitionStatus,
    TopicIdPartition,
)
from ...protocol.values.base import copy_fields, find_shared_fields
from ...protocol.values.state import State
from ..html_table import build_field_table
from .lag import Consumption, LagOrigin, list_partition_lags
from .stalls import NO_NOTES, MemberNotes, Stall, find_stalls

_RETENTION = "offsets.retention.ms"

GROUP_STATES = tuple(status.value for status in GroupStatus if status is not GroupStatus.DEAD)
"""The states of groups that exist."""

PARTITION_STATES = tuple(status.value for status in PartitionStatus)
"""The states of the partitions that members of a group share."""


@dataclass(frozen=True)
class GroupInfo:
    """A group.

    Attributes:
        shard: number of the group, computed as Kafka divides groups among coordinators.
        coordinator: the sequencer that leads; empty if none does.
        protocol: None if the group has never had members.
        generation, leader: of a classic group.
        members: how many there are.
        problem: why the assignor is not the one that was asked for.
        stalls: what holds the group up, as `Groups.stalls` returns it; waits_for: the same as sentences.
        partitions: how many the group shares among its members, or has committed offsets for.
        lag, deleted, expired: sums over its partitions, as in `PartitionLag`.
        lag_counted_from: the kinds of `PartitionLag.counted_from` among them.
        idle_since_ms: when the group last had members, or committed; None: it has members.
        expires_at_ms: when its committed offsets are removed; None: they are kept.
        config: settings that were set by its first member, by an operator, or by the namespace's defaults when the
            group was created.
        settings: all settings, with the values that count.
        delay_left_ms: how much longer the group waits, before it assigns partitions, for members that it has lost
            (`rebalance.delay.ms`, `scheduled.rebalance.max.delay.ms`) or that may come
            (`group.initial.rebalance.delay.ms`); 0: it does not wait.
        consumption_rate: offsets per second that the group has committed, or in a queue group acknowledged, during the
            last `rate_window_ms`. It is read from tables, which are about a second behind. Transaction markers count,
            and so does a reset forwards. None: the tables changed too fast to be read.
        rate_window_ms: a minute, or less if the namespace is younger.
        unacknowledged: sum over its partitions, as in `PartitionLag`.
    """

    group: str
    shard: int
    coordinator: str
    protocol: str | None
    state: str
    generation: int
    leader: str | None
    members: int
    assignor: str
    problem: str | None
    stalls: list[Stall]
    waits_for: list[str]
    partitions: int
    lag: int
    lag_counted_from: list[LagOrigin]
    deleted: int
    expired: int
    idle_since_ms: int | None
    expires_at_ms: int | None
    config: dict[str, Any]
    settings: dict[str, Any]
    delay_left_ms: int
    consumption_rate: float | None
    rate_window_ms: int | None
    unacknowledged: int = 0

    def _repr_html_(self) -> str:
        return build_field_table(self, f"group {self.group}")


@dataclass(frozen=True)
class MemberInfo:
    """A member of a group.

    Attributes:
        instance_id: of a static member.
        partitions: what it has, as topic-partition.
        client_id: as the consumer was given it.
        host, process_id: where it runs.
        assignors: those that it supports, the best first; empty if it supports all.
        late_heartbeat_at_ms, late_poll_at_ms: when its last heartbeat came, and when it polled last, if the leader has
            noted that these are overdue; None: they are in time.
    """

    group: str
    member_id: str
    instance_id: str | None
    topics: list[str]
    partitions: list[str]
    session_timeout_ms: int
    max_poll_interval_ms: int
    joined_at_ms: int
    client_id: str | None
    host: str | None
    process_id: int | None
    assignors: list[str]
    late_heartbeat_at_ms: int | None
    late_poll_at_ms: int | None


@dataclass(frozen=True)
class AssignmentInfo:
    """A partition of a group.

    Attributes:
        owner: the member that has it.
        target: the member that is to have it.
        lost_by: the lost member for which an unbound partition waits.
        since_ms, reason: since when, and why, it is in this state.
        delay_left_ms: how much longer it may stay in this state before time ends that; None: time does not. Unbound
            partitions wait for the delay of their group; paused ones of a queue group for `max.handoff.ms`.
    """

    group: str
    topic: str
    partition: int
    state: str
    owner: str | None
    target: str | None
    lost_by: str | None
    since_ms: int
    reason: str
    delay_left_ms: int | None


_MEMBER_FIELDS = find_shared_fields(MemberInfo, GroupMember, "topics", "assignors")
_ASSIGNMENT_FIELDS = find_shared_fields(AssignmentInfo, Assignment)


def list_group_names(state: State) -> list[str]:
    """Return the names of groups that were created, have members, or have committed offsets."""
    return sorted({*state.groups, *(group for group, committed in state.offsets.items() if committed)})


def find_group(state: State, name: str) -> Group:
    """Return a group. Raises GroupIdNotFound if it never had members and was not created."""
    group = state.groups.get(name)
    if group is None:
        raise GroupIdNotFound(found=shorten(name), expected="a group that has had members")
    return group


def describe_group(
    state: State,
    name: str,
    retention_ms: int,
    now_ms: int,
    consumption: Consumption | None = None,
    notes: MemberNotes = NO_NOTES,
) -> GroupInfo:
    """Return what an operator sees of a group.

    Args:
        state: as of the newest step, with groups and transactions.
        name: of the group.
        retention_ms: the namespace's retention of committed offsets.
        now_ms: the time of the store.
        consumption: what all groups have done lately; None if that cannot be read.
        notes: of members of all groups.

    Raises:
        GroupIdNotFound: the group does not exist.
    """
    lags = list_partition_lags(state, name)
    group = state.groups.get(name)
    leader = group.leader if group else None
    committed = state.offsets.get(name, {})
    stalls = find_stalls(state, name, lags, notes, now_ms)
    idle_ms = _find_idle_since(state, name)
    retention_ms = state.offsets_retention_ms(name, retention_ms)
    return GroupInfo(
        group=name,
        shard=find_shard(name),
        coordinator=state.leader,
        protocol=group.setting("group.protocol") if group else None,
        state=(group.status if group else GroupStatus.EMPTY).value,
        generation=group.generation if group else 0,
        leader=leader.member_id if leader else None,
        members=len(group.members) if group else 0,
        assignor=group.assignor if group else "",
        problem=group.problem if group else None,
        stalls=stalls,
        waits_for=[*map(str, stalls)],
        partitions=len(lags),
        lag=sum(lag.lag for lag in lags),
        lag_counted_from=sorted({lag.counted_from for lag in lags}),
        deleted=sum(lag.deleted for lag in lags),
        expired=sum(lag.expired for lag in lags),
        idle_since_ms=idle_ms,
        expires_at_ms=None if idle_ms is None or retention_ms < 0 or not committed else idle_ms + retention_ms,
        config=dict(group.config) if group else {},
        settings={**(group or Group(name)).settings(), _RETENTION: retention_ms},
        delay_left_ms=max(0, group.not_before_ms - now_ms) if group and group.not_before_ms else 0,
        consumption_rate=None if consumption is None else consumption.rate(name, _find_start_offsets(group)),
        rate_window_ms=None if consumption is None else consumption.window_ms,
        unacknowledged=sum(lag.unacknowledged for lag in lags),
    )


def describe_members(group: Group, notes: MemberNotes) -> list[MemberInfo]:
    """Return the members of a group in the order in which they joined."""
    overdue = {note.member_id: note for note in notes.overdue if note.group == group.group}
    return [
        MemberInfo(
            group=group.group,
            topics=[*member.topics],
            partitions=[f"{group.assignments[tp].topic}-{tp[1]}" for tp in group.list_partitions_of(member.member_id)],
            assignors=[*member.assignors],
            late_heartbeat_at_ms=note.heard_ms if (note := overdue.get(member.member_id)) else None,
            late_poll_at_ms=note.polled_ms if note else None,
            **copy_fields(member, _MEMBER_FIELDS),
        )
        for member in sorted(group.members.values(), key=lambda member: member.number)
    ]


def describe_assignments(group: Group, now_ms: int) -> list[AssignmentInfo]:
    """Return the partitions of a group by topic and partition."""
    assignments: Sequence[AssignmentInfo] = [
        AssignmentInfo(
            group=group.group,
            partition=partition,
            state=assignment.status.value,
            delay_left_ms=_find_remaining_delay(group, assignment, now_ms),
            **copy_fields(assignment, _ASSIGNMENT_FIELDS),
        )
        for (_, partition), assignment in group.assignments.items()
    ]
    return sorted(assignments, key=lambda assignment: (assignment.topic, assignment.partition))


def _find_remaining_delay(group: Group, assignment: Assignment, now_ms: int) -> int | None:
    """Return how long the partition may still stay in its state before time ends that; None: time does not."""
    if group.is_queue and assignment.status is PartitionStatus.PAUSED:
        return max(0, assignment.since_ms + int(group.setting("max.handoff.ms")) - now_ms)
    waits = assignment.status is PartitionStatus.UNBOUND or (group.is_classic and assignment.is_free)
    return max(0, group.not_before_ms - now_ms) if waits and group.not_before_ms else None


def _find_start_offsets(group: Group | None) -> dict[TopicIdPartition, int]:
    """Return (topic_id, partition) -> the offset at which the group, or its member, begins."""
    assignments = group.assignments.items() if group else ()
    return {tp: start for tp, assignment in assignments if (start := assignment.start_offset) is not None}


def _find_idle_since(state: State, name: str) -> int | None:
    if name in state.groups_with_members:
        return None
    group = state.groups.get(name)
    commit_times_ms = (commit.committed_at_ms for commit in state.offsets.get(name, {}).values())
    return max(group.empty_since_ms if group else 0, *commit_times_ms, 0)
