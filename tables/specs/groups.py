"""`groups`, `members`, `assignments`, `assignment_moves`, `consumer_offsets`; and live tables about the same."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from .spec import BOOL, INT32, INT64, TEXT, TIME, TableSpec, column, optional


@dataclass(frozen=True, kw_only=True)
class GroupRow:
    step: int = column(INT64, "The step that decided it.")
    group: str = column(TEXT, "Consumer group.")
    shard: int = column(INT32, "abs(hash) % 50 of its name, by Java's hash of text.")
    protocol: str = column(TEXT, "Rebalance protocol: queue, cooperative or classic.")
    state: str = column(TEXT, "Empty, PreparingRebalance, CompletingRebalance, Stable, or Dead (deleted).")
    generation: int = column(INT64, "Grows with every completed rebalance.")
    leader: str | None = optional(TEXT, "The member that joined first.")
    assignor: str = column(TEXT, "The assignor that computed the target.")
    problem: str | None = optional(TEXT, "Why it is not the assignor that was asked for.")
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
    instance_id: str | None = optional(TEXT, "group.instance.id of a static member.")
    topics: list[str] = column(pa.list_(TEXT), "Topics that it subscribes to.")
    pattern: str | None = optional(TEXT, "The pattern that matches these topics.")
    session_timeout_ms: int = column(INT64, "session.timeout.ms.")
    max_poll_interval_ms: int = column(INT64, "max.poll.interval.ms.")
    auto_offset_reset: str = column(TEXT, "Where it starts while the group has no committed offset.")
    joined_at_ms: int = column(INT64, "Time of joining.")
    client_id: str | None = optional(TEXT, "client_id of the consumer.")
    host: str | None = optional(TEXT, "Name of its machine.")
    process_id: int | None = optional(INT64, "Its process id.")
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
    owner: str | None = optional(TEXT, "Member that consumes the partition.")
    target: str | None = optional(TEXT, "Member that will consume it next.")
    epoch: int = column(INT64, "The step in which its last owner received it.")
    start_offset: int | None = optional(INT64, "Offset at which that owner started, or the first one will.")
    since_ms: int = column(INT64, "Time since which it is in this state.")
    reason: str = column(TEXT, "Why it came into this state.")
    lost_by: str | None = optional(TEXT, "Former owner that may return, while it is unbound.")
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
    owner: str | None = optional(TEXT, "The new owner.")
    epoch: int | None = optional(INT64, "If ready: the step in which that owner received it.")
    start_offset: int | None = optional(INT64, "If ready: the offset at which that owner started.")
    acknowledged_ahead: str | None = optional(
        TEXT, "In a queue group: ranges past it that are acknowledged already, as JSON pairs of first offset and count."
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


# `consumer_offsets`: the committed offsets of each group.


RANGES = pa.list_(
    pa.struct(
        [
            pa.field("first_offset", INT64),
            pa.field("record_count", INT64),
            pa.field("state", TEXT),
            pa.field("deliveries", INT32),
            pa.field("not_before_ms", INT64),
            pa.field("reason", TEXT),
            pa.field("error", TEXT),
        ]
    )
)


@dataclass(frozen=True, kw_only=True)
class ConsumerOffsetRow:
    step: int = column(INT64, "The step that decided it.")
    group: str = column(TEXT, "Consumer group.")
    topic_id: int = column(INT64, "Topic.")
    topic: str = column(TEXT, "Its name.")
    partition: int = column(INT32, "Partition.")
    committed_offset: int = column(INT64, "Next offset to consume.")
    ranges: list[Any] | None = optional(RANGES, "In a queue group: the states of messages past it, in order.")
    silent_since_ms: int = column(
        INT64,
        "In a queue group: time since which its owner holds messages without acknowledging any; 0: it holds none.",
    )
    metadata: str | None = optional(TEXT, "Text that the consumer committed with it.")
    committed_at_ms: int = column(INT64, "Time of the commit.")
    deleted_count: int = column(INT64, "Offsets deleted before the group had consumed them.")
    expired_count: int = column(INT64, "In a queue group: messages that expired before they were delivered.")
    shard: int = column(INT32, "abs(hash) % 50 of the group's name, by Java's hash of text.")
    removed: bool = column(BOOL, "Whether it was deleted, alone or with its topic or group.")


CONSUMER_OFFSETS = TableSpec(
    name="consumer_offsets",
    row=ConsumerOffsetRow,
    shape="changelog",
    keys=("group", "topic_id", "partition"),
    comment="The committed offset of each group in each partition.",
)


# Live tables: facts of now, which no table holds. SQL reads them as of the newest step, again with each query.


_RATE = pa.float64()


@dataclass(frozen=True, kw_only=True)
class GroupStateRow:
    group: str = column(TEXT, "Consumer group.")
    protocol: str | None = optional(TEXT, "Rebalance protocol; null: it never had members.")
    state: str = column(TEXT, "Empty, PreparingRebalance, CompletingRebalance or Stable.")
    members: int = column(INT64, "Members.")
    partitions: int = column(INT64, "Partitions that it shares, or has committed offsets for.")
    lag: int = column(INT64, "Offsets that it has not consumed, over all partitions.")
    unacknowledged: int = column(INT64, "Messages of a queue group that members have and have not acknowledged.")
    delay_left_ms: int = column(INT64, "How much longer it waits for lost or new members; 0: it does not wait.")
    consumption_rate: float | None = optional(
        _RATE, "Offsets per second that it got done with in the last minute; null: not known."
    )
    waits_for: list[str] = column(pa.list_(TEXT), "What holds it up, as sentences: those of group_waits.")


@dataclass(frozen=True, kw_only=True)
class GroupWaitRow:
    group: str = column(TEXT, "Consumer group.")
    cause: str = column(TEXT, "The kind of the wait, such as open transaction or no heartbeat.")
    member_id: str | None = optional(TEXT, "The member that is in the way; null for a transaction.")
    topic: str | None = optional(TEXT, "Topic of the message that is in the way.")
    partition: int | None = optional(INT32, "Its partition.")
    offset: int | None = optional(INT64, "Its offset.")
    since: datetime = column(
        TIME, "The last heartbeat, poll or acknowledgement of the member, or when the transaction began."
    )
    overdue: bool = column(BOOL, "Whether it lasts longer than is usual.")
    found: str = column(TEXT, "The trouble, in a sentence.")
    advice: str = column(TEXT, "The cure, in a sentence.")


@dataclass(frozen=True, kw_only=True)
class MemberStateRow:
    group: str = column(TEXT, "Consumer group.")
    member_id: str = column(TEXT, "Id of the member.")
    instance_id: str | None = optional(TEXT, "group.instance.id of a static member.")
    host: str | None = optional(TEXT, "Name of its machine.")
    process_id: int | None = optional(INT64, "Its process id.")
    partitions: list[str] = column(pa.list_(TEXT), "What it has, as topic-partition.")
    last_heartbeat: datetime | None = optional(TIME, "Its last heartbeat if that is overdue; null: in time.")
    last_poll: datetime | None = optional(TIME, "Its last poll if that is long ago; null: it is not.")


@dataclass(frozen=True, kw_only=True)
class SequencerRow:
    sequencer: str = column(TEXT, "Name of the sequencer.")
    role: str = column(TEXT, "leader, dead (a leader that has ended without handing over) or standby.")
    epoch: int | None = optional(INT64, "Epoch of the leader's lease; null for a standby.")


@dataclass(frozen=True, kw_only=True)
class CutKeysRow:
    group: str = column(TEXT, "Consumer group.")
    topic: str = column(TEXT, "Topic.")
    partition: int = column(INT32, "Partition.")
    from_member: str = column(TEXT, "The former owner.")
    to_member: str | None = optional(TEXT, "The next owner; null: none yet.")
    began_at: datetime = column(TIME, "When the partition left the former owner.")
    cut_keys: int | None = optional(
        INT64, "Keys with messages that both acknowledged; null: no next owner, or messages are deleted."
    )


def _specify(name: str, row: type[Any], keys: tuple[str, ...], comment: str) -> TableSpec:
    return TableSpec(name=name, row=row, shape="live", keys=keys, comment=comment)


GROUP_STATE = _specify("group_state", GroupStateRow, ("group",), "The groups: state, lag, delay, rate.")
GROUP_WAITS = _specify("group_waits", GroupWaitRow, (), "What holds groups up, since when, and what to do.")
MEMBER_STATE = _specify("member_state", MemberStateRow, ("group", "member_id"), "The members, and which are overdue.")
SEQUENCERS = _specify("sequencers", SequencerRow, ("sequencer",), "Who leads, and who stands by.")
CUT_KEYS = _specify(
    "cut_keys", CutKeysRow, (), "Handoffs and the keys that they cut. A query reads the keys of all their messages."
)

LIVE_TABLES: tuple[TableSpec, ...] = (GROUP_STATE, GROUP_WAITS, MEMBER_STATE, SEQUENCERS, CUT_KEYS)
