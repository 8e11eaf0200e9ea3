"""`groups`, `members` and `assignments`: who consumes what."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from .spec import BOOL, INT32, INT64, TEXT, TableSpec, column


@dataclass(frozen=True, kw_only=True)
class GroupRow:
    step: int = column(INT64, "The step that decided it.")
    group: str = column(TEXT, "Consumer group.")
    shard: int = column(INT32, "abs(hash) % 50 of its name, by Java's hash of text.")
    protocol: str = column(TEXT, "queue, classic or cooperative.")
    generation: int = column(INT64, "Grows with every completed rebalance.")
    state: str = column(TEXT, "Empty, PreparingRebalance, CompletingRebalance, Stable or Dead.")
    leader: str | None = column(TEXT, "Member that leads.", nullable=True)
    assignor: str | None = column(TEXT, "Assignor that all members support.", nullable=True)


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
    instance_id: str | None = column(TEXT, "group.instance.id of a static member.", nullable=True)
    subscription: list[str] = column(pa.list_(TEXT), "Topics it asked for.")
    session_timeout_ms: int = column(INT64, "session.timeout.ms.")
    max_poll_interval_ms: int = column(INT64, "max.poll.interval.ms.")
    seen_at_ms: int = column(INT64, "Last heartbeat or poll.")
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
    owner: str | None = column(TEXT, "Member that consumes it.", nullable=True)
    state: str = column(TEXT, "ready, paused, unassigned or unbound.")
    target: str | None = column(TEXT, "Member it moves to.", nullable=True)


ASSIGNMENTS = TableSpec(
    name="assignments",
    row=AssignmentRow,
    shape="changelog",
    keys=("group", "topic_id", "partition"),
    comment="Which member of a group has which partition, and in what state.",
)
