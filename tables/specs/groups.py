"""`groups`, `members`, `assignments` and `assignment_moves`: consumer groups and their partitions."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from .spec import BOOL, INT32, INT64, TEXT, TableSpec, column


@dataclass(frozen=True, kw_only=True)
class GroupRow:
    step: int = column(INT64, "The step that decided it.")
    group: str = column(TEXT, "Consumer group.")
    shard: int = column(INT32, "abs(hash) % offsets.topic.num.partitions of its name, by Java's hash of text.")
    protocol: str = column(TEXT, "Rebalance protocol: queue, cooperative or classic.")
    state: str = column(TEXT, "Empty, PreparingRebalance, CompletingRebalance, Stable, or Dead (deleted).")
    generation: int = column(INT64, "Grows with every completed rebalance.")
    leader: str | None = column(TEXT, "The member that joined first.", nullable=True)
    assignor: str = column(TEXT, "The assignor that computed the target.")
    problem: str | None = column(TEXT, "Why it is not the assignor that was asked for.", nullable=True)
    config: str = column(TEXT, "Settings that differ from the defaults, as JSON.")
    group_epoch: int = column(INT64, "Grows with members, subscriptions and partitions.")
    target_epoch: int = column(INT64, "The epoch for which the target was computed.")
    settled_epoch: int = column(INT64, "The epoch of the last completed rebalance.")
    not_before_ms: int = column(
        INT64, "Until then a lost partition waits for its member, or the first member for others; 0: no wait."
    )
    configured: bool = column(BOOL, "Whether settings were changed explicitly, not only by its first member.")
    empty_since_ms: int = column(INT64, "Time since which it has no members, if so.")
    removed: bool = column(BOOL, "Whether the group is deleted.")


GROUPS = TableSpec(
    name="groups",
    row=GroupRow,
    shape="changelog",
    keys=("group",),
    comment="Consumer groups, with their state and generation.",
)


@dataclass(frozen=True, kw_only=True)
class MemberRow:
    step: int = column(INT64, "The step that decided it.")
    group: str = column(TEXT, "Consumer group.")
    member_id: str = column(TEXT, "Id of the member.")
    number: int = column(INT64, "Order of joining: the first member has the lowest number.")
    instance_id: str | None = column(TEXT, "group.instance.id of a static member.", nullable=True)
    topics: list[str] = column(pa.list_(TEXT), "Topics that it subscribes to.")
    pattern: str | None = column(TEXT, "The pattern that matches these topics.", nullable=True)
    session_timeout_ms: int = column(INT64, "session.timeout.ms.")
    max_poll_interval_ms: int = column(INT64, "max.poll.interval.ms.")
    auto_offset_reset: str = column(TEXT, "Where it starts while the group has no committed offset.")
    joined_at_ms: int = column(INT64, "Time of joining.")
    client_id: str | None = column(TEXT, "client_id of the consumer.", nullable=True)
    host: str | None = column(TEXT, "Name of its machine.", nullable=True)
    process_id: int | None = column(INT64, "Its process id.", nullable=True)
    assignors: list[str] = column(pa.list_(TEXT), "Assignors that it supports, best first; empty: all.")
    process: str = column(TEXT, "Boot, namespaces, id and start time of its process; empty: not known.")
    removed: bool = column(BOOL, "Whether it left or was lost.")


MEMBERS = TableSpec(
    name="members",
    row=MemberRow,
    shape="changelog",
    keys=("group", "member_id"),
    comment="Members of the groups.",
)


@dataclass(frozen=True, kw_only=True)
class AssignmentRow:
    step: int = column(INT64, "The step that decided it.")
    group: str = column(TEXT, "Consumer group.")
    topic_id: int = column(INT64, "Topic.")
    topic: str = column(TEXT, "Its name.")
    partition: int = column(INT32, "Partition.")
    state: str = column(TEXT, "ready, paused, unassigned or unbound.")
    owner: str | None = column(TEXT, "Member that consumes the partition.", nullable=True)
    target: str | None = column(TEXT, "Member that will consume it next.", nullable=True)
    epoch: int = column(INT64, "The step in which its last owner received it.")
    start_offset: int | None = column(
        INT64, "Offset at which that owner started, or the first one will.", nullable=True
    )
    since_ms: int = column(INT64, "Time since which it is in this state.")
    reason: str = column(TEXT, "Why it came into this state.")
    lost_by: str | None = column(TEXT, "Former owner that may return, while it is unbound.", nullable=True)
    deleted_count: int = column(INT64, "Offsets deleted before the group's first commit.")
    removed: bool = column(BOOL, "Whether it ended, or was deleted with its topic or group.")


ASSIGNMENTS = TableSpec(
    name="assignments",
    row=AssignmentRow,
    shape="changelog",
    keys=("group", "topic_id", "partition"),
    comment="The owner and the state of each partition of a group.",
)


@dataclass(frozen=True, kw_only=True)
class AssignmentMoveRow:
    step: int = column(INT64, "The step that decided it.")
    position: int = column(INT32, "Order among the decisions of the step.")
    group: str = column(TEXT, "Consumer group.")
    topic_id: int = column(INT64, "Topic.")
    topic: str = column(TEXT, "Its name.")
    partition: int = column(INT32, "Partition.")
    state: str = column(TEXT, "The new state: ready, paused, unassigned or unbound; gone: no longer the group's.")
    owner: str | None = column(TEXT, "The new owner.", nullable=True)
    epoch: int | None = column(INT64, "If ready: the step in which that owner received it.", nullable=True)
    start_offset: int | None = column(INT64, "If ready: the offset at which that owner started.", nullable=True)
    acknowledged_ahead: str | None = column(
        TEXT,
        "In a queue group: ranges past it that are acknowledged already, as JSON pairs of first offset and count.",
        nullable=True,
    )
    reason: str = column(TEXT, "Why it came into this state.")
    redelivered_count: int = column(INT64, "Messages of the former owner that are delivered again.")
    moved_at_ms: int = column(INT64, "Time of the change.")


ASSIGNMENT_MOVES = TableSpec(
    name="assignment_moves",
    row=AssignmentMoveRow,
    shape="log",
    keys=("step", "position", "topic_id", "partition"),
    comment="Every change of the owner or state of a group's partition.",
)
