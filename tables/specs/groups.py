"""`groups`, `members`, `assignments` and `assignment_moves`: who consumes what, and who has."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from .spec import BOOL, INT32, INT64, TEXT, TableSpec, column


@dataclass(frozen=True, kw_only=True)
class GroupRow:
    step: int = column(INT64, "The step that decided it.")
    group: str = column(TEXT, "Consumer group.")
    shard: int = column(INT32, "abs(hash) % 50 of its name, by Java's hash of text.")
    protocol: str = column(TEXT, "How partitions change hands: queue, cooperative or classic.")
    state: str = column(TEXT, "Empty, PreparingRebalance, CompletingRebalance, Stable, or Dead: there is none.")
    generation: int = column(INT64, "Grows with every completed rebalance.")
    leader: str | None = column(TEXT, "The member that came first.", nullable=True)
    assignor: str = column(TEXT, "The assignor that computed the target.")
    problem: str | None = column(TEXT, "Why it was not the one that was asked for.", nullable=True)
    config: str = column(TEXT, "Settings that are not the defaults, as JSON.")
    group_epoch: int = column(INT64, "Grows with members, subscriptions and partitions.")
    target_epoch: int = column(INT64, "The epoch for which the target was computed.")
    settled_epoch: int = column(INT64, "The epoch of the last completed rebalance.")
    not_before_ms: int = column(
        INT64, "Until then what was lost waits for its member, or the first one for others; 0: no wait."
    )
    configured: bool = column(BOOL, "Somebody has configured it, beside its first member.")
    empty_since_ms: int = column(INT64, "Since when it has no members, while it has none.")
    removed: bool = column(BOOL, "The group is gone.")


GROUPS = TableSpec(
    name="groups",
    row=GroupRow,
    shape="changelog",
    keys=("group",),
    comment="Consumer groups and their generation.",
)


@dataclass(frozen=True, kw_only=True)
class MemberRow:
    step: int = column(INT64, "The step that decided it.")
    group: str = column(TEXT, "Consumer group.")
    member_id: str = column(TEXT, "Member.")
    number: int = column(INT64, "Of members those that came first have the lowest.")
    instance_id: str | None = column(TEXT, "group.instance.id of a static member.", nullable=True)
    topics: list[str] = column(pa.list_(TEXT), "Topics it asked for.")
    pattern: str | None = column(TEXT, "The pattern from which it has them.", nullable=True)
    session_timeout_ms: int = column(INT64, "session.timeout.ms.")
    max_poll_interval_ms: int = column(INT64, "max.poll.interval.ms.")
    auto_offset_reset: str = column(TEXT, "Where it begins where the group has committed nothing.")
    joined_at_ms: int = column(INT64, "When.")
    removed: bool = column(BOOL, "Left or lost.")


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
    owner: str | None = column(TEXT, "Member that consumes it.", nullable=True)
    target: str | None = column(TEXT, "Member that is to consume it.", nullable=True)
    epoch: int = column(INT64, "The step in which its last owner got it.")
    start_offset: int | None = column(INT64, "Where that one began, or the first one is to.", nullable=True)
    since_ms: int = column(INT64, "Since when it is in this state.")
    reason: str = column(TEXT, "What it came into this state for.")
    lost_by: str | None = column(TEXT, "Member that had it and may be back, while it is unbound.", nullable=True)
    deleted_count: int = column(INT64, "Offsets that were deleted before the group had committed any.")
    removed: bool = column(BOOL, "It has ended, or was deleted with its topic or group.")


ASSIGNMENTS = TableSpec(
    name="assignments",
    row=AssignmentRow,
    shape="changelog",
    keys=("group", "topic_id", "partition"),
    comment="Which member of a group has which partition, and in what state.",
)


@dataclass(frozen=True, kw_only=True)
class AssignmentMoveRow:
    step: int = column(INT64, "The step that decided it.")
    position: int = column(INT32, "Its place among the decisions of the step.")
    group: str = column(TEXT, "Consumer group.")
    topic_id: int = column(INT64, "Topic.")
    topic: str = column(TEXT, "Its name.")
    partition: int = column(INT32, "Partition.")
    state: str = column(TEXT, "What it is from then on: ready, paused, unassigned or unbound; gone: not the group's.")
    owner: str | None = column(TEXT, "Member that has it from then on.", nullable=True)
    epoch: int | None = column(INT64, "The step in which that one got it, of a partition that is ready.", nullable=True)
    reason: str = column(TEXT, "What it came into this state for.")
    redelivered_count: int = column(INT64, "Messages that its owner had of it, and that are delivered again.")
    moved_at_ms: int = column(INT64, "When.")


ASSIGNMENT_MOVES = TableSpec(
    name="assignment_moves",
    row=AssignmentMoveRow,
    shape="log",
    keys=("step", "position", "topic_id", "partition"),
    comment="Every change of who has a partition of a group.",
)
