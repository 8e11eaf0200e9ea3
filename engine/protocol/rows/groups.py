"""The tables `groups`, `members`, `assignments`, `assignment_moves` and `consumer_offsets`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from lakemq.tables.specs.groups import (
    ASSIGNMENT_MOVES,
    ASSIGNMENTS,
    CONSUMER_OFFSETS,
    GROUPS,
    MEMBERS,
    AssignmentRow,
    ConsumerOffsetRow,
    GroupRow,
    MemberRow,
)

from ..hashing import find_shard
from ..values.assignments import Assignment, Group, GroupMember, GroupStatus, PartitionStatus, TopicIdPartition
from ..values.base import copy_fields, find_shared_fields
from ..values.deliveries import (
    ABORTED,
    BY_MEMBER,
    COMMITTED,
    DeathReason,
    Deliveries,
    DeliveryStatus,
    MessagesSettled,
    Stretch,
)
from ..values.groups import Move, PartitionsGone, PartitionsMoved
from ..values.journal import PlacedEntry, Step, StepBatch
from ..values.offsets import CommittedOffset
from ..values.state import State
from . import Project, Restore, list_changed, map_change_times

_configs = msgspec.json.Decoder(dict[str, Any])


# A row has most of its columns from the thing that it stores, under the same names.
_GROUP_FIELDS = find_shared_fields(GroupRow, Group, "config")
_MEMBER_FIELDS = find_shared_fields(MemberRow, GroupMember, "topics", "assignors")
_ASSIGNMENT_FIELDS = find_shared_fields(AssignmentRow, Assignment)
_COMMIT_FIELDS = find_shared_fields(ConsumerOffsetRow, CommittedOffset)
_NO_MEMBER = GroupMember("", 0, (), None, None, 0, 0, "", 0)


def _project_groups(state: State, steps: StepBatch) -> pa.Table:
    return GROUPS.table(_build_group_row(state, name) for name in list_changed(state.changes.groups, steps))


def _build_group_row(state: State, name: str) -> GroupRow:
    existing = state.groups.get(name)
    group = existing or Group(name)
    return GroupRow(
        step=state.step,
        shard=find_shard(group.group),
        protocol=group.setting("group.protocol"),
        state=(group.status if existing else GroupStatus.DEAD).value,
        leader=group.leader.member_id if group.leader else None,
        config=msgspec.json.encode(group.config).decode(),
        configured=group.is_configured,
        removed=existing is None,
        **copy_fields(group, _GROUP_FIELDS),
    )


def _project_members(state: State, steps: StepBatch) -> pa.Table:
    return MEMBERS.table(_build_member_row(state, *key) for key in list_changed(state.changes.members, steps))


def _build_member_row(state: State, group: str, member_id: str) -> MemberRow:
    existing = state.groups.get(group, Group(group)).members.get(member_id)
    member = existing or replace(_NO_MEMBER, member_id=member_id)
    return MemberRow(
        step=state.step,
        group=group,
        topics=list(member.topics),
        assignors=list(member.assignors),
        removed=existing is None,
        **copy_fields(member, _MEMBER_FIELDS),
    )


def _project_assignments(state: State, steps: StepBatch) -> pa.Table:
    """Return the rows of changed assignments as columns: they may be many, and the step's thread builds them."""
    changed = list_changed(state.changes.assignments, steps)
    existing = [state.groups[group].assignments.get(tp) if group in state.groups else None for group, tp in changed]
    assignments = [
        assignment or Assignment(state.changes.removed_partitions[key], None)
        for key, assignment in zip(changed, existing, strict=True)
    ]
    return ASSIGNMENTS.to_table_from_columns(
        step=[state.step] * len(changed),
        group=[group for group, _ in changed],
        topic_id=[topic_id for _, (topic_id, _) in changed],
        partition=[partition for _, (_, partition) in changed],
        state=[assignment.status for assignment in assignments],
        removed=[assignment is None for assignment in existing],
        **{name: [getattr(assignment, name) for assignment in assignments] for name in _ASSIGNMENT_FIELDS},
    )


# -- moves ----------------------------------------------------------------------------------------------


def _project_moves(state: State, steps: StepBatch) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [] for name in ASSIGNMENT_MOVES.stored_schema.names}
    placed_moves = steps.find_entries(PartitionsMoved, PartitionsGone)
    for _, placed in groupby(placed_moves, key=lambda placed: placed.step.step):
        entries = list(placed)
        step = entries[0].step
        for moved in _find_moves(entries):
            count = len(moved.moves)
            columns["step"] += [step.step] * count
            columns["position"] += [moved.position] * count
            columns["group"] += [moved.group] * count
            columns["topic_id"] += [move.topic_id for move in moved.moves]
            columns["partition"] += [move.partition for move in moved.moves]
            columns["state"] += moved.states
            columns["owner"] += [move.owner for move in moved.moves]
            columns["epoch"] += [
                (move.epoch or step.step) if move.status is PartitionStatus.READY else None for move in moved.moves
            ]
            ready = [move if move.status is PartitionStatus.READY else None for move in moved.moves]
            columns["start_offset"] += [move and move.start_offset for move in ready]
            columns["acknowledged_ahead"] += [
                None if move is None else msgspec.json.encode(move.acknowledged).decode() for move in ready
            ]
            columns["reason"] += [moved.reason] * count
            columns["redelivered_count"] += moved.redelivered_counts
            columns["moved_at_ms"] += [step.decided_at_ms] * count
    names = {topic_id: state.find_topic_name(topic_id) for topic_id in set(columns["topic_id"])}
    columns["topic"] = [names[topic_id] for topic_id in columns["topic_id"]]
    return ASSIGNMENT_MOVES.to_table_from_columns(**columns)


class _RecordMoves(NamedTuple):
    """The moves of one record.

    position: of the record in its step. states: the new state of each partition. redelivered_counts: messages that are
    delivered again because of each move.
    """

    position: int
    group: str
    moves: Sequence[Move]
    states: Sequence[str]
    reason: str
    redelivered_counts: Sequence[int]


def _find_moves(entries: Sequence[PlacedEntry]) -> Iterator[_RecordMoves]:
    """Yield the moves of one step. entries: those of its entries that move partitions, at least one."""
    redelivered = _count_redeliveries(entries[0].step)
    for _, position, entry in entries:
        record = entry.record
        if isinstance(record, PartitionsMoved):
            # count each redelivery once, at the first move of the partition in this step
            counts = [
                redelivered.pop((record.group, move.topic_partition), 0) if redelivered else 0 for move in record.moves
            ]
            states = [move.status for move in record.moves]
            yield _RecordMoves(position, record.group, record.moves, states, record.reason, counts)
        elif isinstance(record, PartitionsGone):
            removed = range(record.first, record.partitions)
            none = [Move(record.topic_id, partition, PartitionStatus.UNASSIGNED) for partition in removed]
            yield _RecordMoves(position, record.group, none, ["gone"] * len(none), "", [0] * len(none))


def _count_redeliveries(step: Step) -> dict[tuple[str, TopicIdPartition], int]:
    """Return how many messages of each partition go from its owner to the next one in this step."""
    counts: dict[tuple[str, TopicIdPartition], int] = {}
    for entry in step.entries:
        record = entry.record
        if isinstance(record, MessagesSettled) and record.reason not in (BY_MEMBER, COMMITTED, ABORTED):
            for part in record.parts:
                if part.status is DeliveryStatus.AVAILABLE:
                    key = record.group, part.topic_partition
                    counts[key] = counts.get(key, 0) + sum(count for _, count in part.ranges)
    return counts


# -- restoring ------------------------------------------------------------------------------------------


def _restore_groups(state: State, rows: pa.Table) -> None:
    for row in GROUPS.rows(rows):
        config = _configs.decode(row.config)
        state.groups[row.group] = Group(config=config, is_configured=row.configured, **copy_fields(row, _GROUP_FIELDS))


def _restore_members(state: State, rows: pa.Table) -> None:
    for row in MEMBERS.rows(rows):
        group = state.groups[row.group]
        group.members[row.member_id] = GroupMember(
            topics=tuple(row.topics), assignors=tuple(row.assignors or ()), **copy_fields(row, _MEMBER_FIELDS)
        )
        if row.instance_id is not None:
            group.instances[row.instance_id] = row.member_id


def _restore_assignments(state: State, rows: pa.Table) -> None:
    for row in ASSIGNMENTS.rows(rows):
        assignment = Assignment(status=PartitionStatus(row.state), **copy_fields(row, _ASSIGNMENT_FIELDS))
        state.groups[row.group].add_partition((row.topic_id, row.partition), assignment)
    for name in state.groups:
        state.index_group(name)
    # the last step may have left moves to the next one
    state.touched_groups = {name for name, group in state.groups.items() if group.is_moving_on}


# Stretches of offsets as the column `ranges` of a table.


def stretch_to_row(stretch: Stretch) -> dict[str, Any]:
    return {
        "first_offset": stretch.first,
        "record_count": stretch.length,
        "state": stretch.status.value,
        "deliveries": stretch.deliveries,
        "not_before_ms": stretch.not_before_ms,
        "reason": None if stretch.reason is None else stretch.reason.value,
        "error": stretch.error or None,
    }


def row_to_stretch(row: dict[str, Any]) -> Stretch:
    status, reason = DeliveryStatus(row["state"]), row["reason"] and DeathReason(row["reason"])
    offsets = row["first_offset"], row["record_count"]
    return Stretch(*offsets, status, row["deliveries"], row["not_before_ms"], reason, row["error"] or "")


# The table `consumer_offsets`.


def _project_offsets(state: State, steps: StepBatch) -> pa.Table:
    changed = map_change_times(state.changes.offsets, steps)
    shards = {group: find_shard(group) for group in {group for group, _ in changed}}
    return CONSUMER_OFFSETS.table(
        _build_row(state, group, tp, at_ms, shards[group]) for (group, tp), at_ms in changed.items()
    )


def _build_row(state: State, group: str, tp: TopicIdPartition, at_ms: int, shard: int) -> ConsumerOffsetRow:
    committed, (topic_id, partition) = state.offsets.get(group, {}).get(tp), tp
    deliveries = state.find_deliveries(group, tp)
    return ConsumerOffsetRow(
        step=state.step,
        group=group,
        topic_id=topic_id,
        topic=state.find_topic_name(topic_id),
        partition=partition,
        committed_offset=committed.offset if committed else 0,
        ranges=None if deliveries is None else [stretch_to_row(stretch) for stretch in deliveries.stretches],
        silent_since_ms=0 if deliveries is None else deliveries.silent_since_ms,
        shard=shard,
        removed=committed is None,
        **copy_fields(committed or CommittedOffset(0, None, at_ms), _COMMIT_FIELDS),
    )


def _restore_offsets(state: State, rows: pa.Table) -> None:
    for row in CONSUMER_OFFSETS.rows(rows):
        tp = row.topic_id, row.partition
        committed = CommittedOffset(row.committed_offset, **copy_fields(row, _COMMIT_FIELDS))
        state.offsets.setdefault(row.group, {})[tp] = committed
        if row.ranges is not None:
            deliveries = state.deliveries.setdefault(row.group, {})
            ranges = [row_to_stretch(stretch) for stretch in row.ranges]
            deliveries[tp] = Deliveries.from_stretches(row.committed_offset, ranges, row.silent_since_ms)
            state.note_deliveries(row.group, tp)


PROJECT: Project = {
    CONSUMER_OFFSETS.name: _project_offsets,
    GROUPS.name: _project_groups,
    MEMBERS.name: _project_members,
    ASSIGNMENTS.name: _project_assignments,
    ASSIGNMENT_MOVES.name: _project_moves,
}

RESTORE: Restore = {
    CONSUMER_OFFSETS.name: _restore_offsets,
    GROUPS.name: _restore_groups,
    MEMBERS.name: _restore_members,
    ASSIGNMENTS.name: _restore_assignments,
}
