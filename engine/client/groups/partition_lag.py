"""How far groups have come in their partitions: what each has committed, and how much is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...protocol.errors import GroupIdNotFound
from ...protocol.names import shorten
from ...protocol.values.consuming.assignments import TopicIdPartition
from ...protocol.values.state import State

LagOrigin = Literal["committed", "start", "log_start"]


@dataclass(frozen=True)
class PartitionLag:
    """How far a group has come in a partition.

    Attributes:
        committed_offset, committed_at_ms, metadata: what the group has committed; None before its first commit.
        next_offset: the first offset that `lag` counts.
        counted_from: what `next_offset` is. `committed`: the committed offset. `start`: the offset at which the group
            begins, fixed when it first asked for the topic. `log_start`: the group has not begun, and where it will is
            not known; `lag` is then the size of the log, the most that can be left.
        lag: offsets from `next_offset` to the end of the log, without those that a queue group has acknowledged. Those
            from the last stable offset on are there, and an open transaction holds them back.
        deleted: offsets that were deleted before the group was done with them.
        expired: messages that expired before any member of a queue group had them.
        pending: transactional id of the open transaction that holds offsets for the partition.
        unacknowledged: messages that the owner of the partition, in a queue group, has and has not acknowledged.
    """

    group: str
    topic: str
    partition: int
    committed_offset: int | None
    next_offset: int
    counted_from: LagOrigin
    last_stable_offset: int
    high_watermark: int
    lag: int
    deleted: int
    expired: int
    committed_at_ms: int | None
    metadata: str | None
    pending: str | None
    unacknowledged: int = 0


def list_partition_lags(state: State, group: str) -> list[PartitionLag]:
    """Return how far a group has come, by topic and partition. Raises GroupIdNotFound: the group does not exist."""
    committed, pending = state.offsets.get(group, {}), state.find_pending_offsets(group)
    if not committed and not pending and group not in state.groups:
        raise GroupIdNotFound(found=shorten(group), expected="a group that was made, or has committed offsets")
    topic_partitions = state.existing_partitions({*state.list_group_partitions(group), *pending})
    lags = [_describe_lag(state, group, tp, pending.get(tp)) for tp in topic_partitions]
    return sorted(lags, key=lambda lag: (lag.topic, lag.partition))


def count_deleted_offsets(state: State, name: str, tp: TopicIdPartition) -> int:
    """Return how many offsets of a partition were deleted before the group `name` was done with them."""
    committed, group = state.offsets.get(name, {}).get(tp), state.groups.get(name)
    assignment = group.assignments.get(tp) if group else None
    return (committed.deleted_count if committed else 0) + (assignment.deleted_count if assignment else 0)


def _describe_lag(state: State, group: str, tp: TopicIdPartition, pending: str | None) -> PartitionLag:
    topic, partition = state.topics[tp[0]], tp[1]
    committed = state.offsets.get(group, {}).get(tp)
    high_watermark = int(topic.high_watermarks[partition])
    next_offset, counted_from = _find_lag_origin(state, group, tp)
    return PartitionLag(
        group=group,
        topic=topic.topic,
        partition=partition,
        committed_offset=committed.offset if committed else None,
        next_offset=next_offset,
        counted_from=counted_from,
        last_stable_offset=int(topic.last_stable_offsets[partition]),
        high_watermark=high_watermark,
        lag=_count_lag(state, group, tp, next_offset, high_watermark),
        deleted=count_deleted_offsets(state, group, tp),
        expired=committed.expired_count if committed else 0,
        committed_at_ms=committed.committed_at_ms if committed else None,
        metadata=committed.metadata if committed else None,
        pending=pending,
        unacknowledged=_count_unacknowledged(state, group, tp),
    )


def _count_unacknowledged(state: State, group: str, tp: TopicIdPartition) -> int:
    deliveries = state.find_deliveries(group, tp)
    return deliveries.held_count if deliveries else 0


def _find_lag_origin(state: State, name: str, tp: TopicIdPartition) -> tuple[int, LagOrigin]:
    """Return the first offset that the lag counts, and what that offset is."""
    topic, partition = state.topics[tp[0]], tp[1]
    committed, group = state.offsets.get(name, {}).get(tp), state.groups.get(name)
    if committed is not None:
        return committed.offset, "committed"
    log_start = int(topic.log_starts[partition])
    assignment = group.assignments.get(tp) if group else None
    if assignment is None or assignment.start_offset is None:
        return log_start, "log_start"
    # A member that begins there passes over offsets that were deleted since, and so does the lag.
    return max(assignment.start_offset, log_start), "start"


def _count_lag(state: State, group: str, tp: TopicIdPartition, next_offset: int, high_watermark: int) -> int:
    deliveries = state.find_deliveries(group, tp)
    return high_watermark - next_offset if deliveries is None else deliveries.count_remaining(high_watermark)
