"""`groups`, `members`, `assignments` and `assignment_moves`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from lakemq.tables.specs.groups import (
    ASSIGNMENT_MOVES,
    ASSIGNMENTS,
    GROUPS,
    MEMBERS,
    GroupRow,
    MemberRow,
)

from ..hashing import shard
from ..values.assignments import Assignment, Group, GroupStatus, Member, PartitionStatus, Place
from ..values.base import Record
from ..values.deliveries import DeliveryStatus, MessagesSettled
from ..values.groups import (
    RECORDS,
    MemberJoined,
    MemberLeft,
    MemberMissed,
    Move,
    PartitionsAdded,
    PartitionsGone,
    PartitionsMoved,
    TargetSet,
)
from ..values.journal import Step
from ..values.offsets import OffsetsRemoved
from ..values.state import State
from ..values.topics import RecordsDeleted, TopicDeleted
from .steps import Project, Restore, Steps, records

_configs = msgspec.json.Decoder(dict[str, Any])


def _groups(state: State, steps: Steps) -> pa.Table:
    changed = {record.subject for _, record in records(steps) if isinstance(record, RECORDS)}
    return GROUPS.table(_group_row(state, name) for name in sorted(changed))


def _group_row(state: State, name: str) -> GroupRow:
    known = state.groups.get(name)
    group = known or Group(name)
    return GroupRow(
        step=state.step,
        group=group.group,
        shard=shard(group.group),
        protocol=group.setting("group.protocol"),
        state=(group.status if known else GroupStatus.DEAD).value,
        generation=group.generation,
        leader=group.leader.member_id if group.leader else None,
        assignor=group.assignor,
        problem=group.problem,
        config=msgspec.json.encode(group.config).decode(),
        group_epoch=group.group_epoch,
        target_epoch=group.target_epoch,
        settled_epoch=group.settled_epoch,
        not_before_ms=group.not_before_ms,
        configured=group.is_configured,
        empty_since_ms=group.empty_since_ms,
        removed=known is None,
    )


def _members(state: State, steps: Steps) -> pa.Table:
    changed: dict[tuple[str, str], None] = {}
    for _, record in records(steps):
        if isinstance(record, MemberJoined | MemberLeft | MemberMissed):
            changed[record.group, record.member_id] = None
        if isinstance(record, MemberJoined) and record.replaces is not None:
            changed[record.group, record.replaces] = None
    return MEMBERS.table(_member_row(state, *key) for key in sorted(changed))


def _member_row(state: State, group: str, member_id: str) -> MemberRow:
    known = state.groups.get(group, Group(group)).members.get(member_id)
    return MemberRow(
        step=state.step,
        group=group,
        member_id=member_id,
        number=known.number if known else 0,
        instance_id=known.instance_id if known else None,
        topics=list(known.topics) if known else [],
        pattern=known.pattern if known else None,
        session_timeout_ms=known.session_timeout_ms if known else 0,
        max_poll_interval_ms=known.max_poll_interval_ms if known else 0,
        auto_offset_reset=known.auto_offset_reset if known else "",
        joined_at_ms=known.joined_at_ms if known else 0,
        removed=known is None,
    )


def _assignments(state: State, steps: Steps) -> pa.Table:
    changed: dict[str, dict[Place, str]] = {}
    for _, record in records(steps):
        if isinstance(record, PartitionsGone):
            changed.setdefault(record.group, {}).update({(record.topic_id, p): record.topic for p in _gone(record)})
        elif isinstance(record, RecordsDeleted):
            deleted = {(record.topic_id, partition) for partition in record.log_starts}
            for name, group in state.groups.items():
                there = (
                    place for place in deleted & group.assignments.keys() if group.assignments[place].deleted_count
                )
                changed.setdefault(name, {}).update(dict.fromkeys(there, ""))
        elif (places := _changed(state, record)) is not None:
            changed.setdefault(record.subject, {}).update(dict.fromkeys(places, ""))
    return _assignment_rows(state, changed)


def _changed(state: State, record: Record) -> Iterable[Place] | None:
    """Partitions of the record's group whose rows it changes; None: of none."""
    if isinstance(record, PartitionsMoved):
        return [(move.topic_id, move.partition) for move in record.moves]
    known = _places_of(state, record.subject)
    if isinstance(record, TargetSet):
        targets = (*record.dropped, *(place for listed in record.changed.values() for place in listed))
        return [place for place in targets if place in known]
    if isinstance(record, OffsetsRemoved):
        return [place for partition in record.partitions if (place := (record.topic_id, partition)) in known]
    if isinstance(record, PartitionsAdded) or (isinstance(record, MemberJoined) and record.replaces is not None):
        return list(known)  # some are new, or have another target
    return None


def _gone(record: PartitionsGone) -> range:
    return range(record.first, record.partitions)


def _places_of(state: State, group: str) -> Mapping[Place, Assignment]:
    known = state.groups.get(group)
    return known.assignments if known else {}


def _assignment_rows(state: State, changed: Mapping[str, Mapping[Place, str]]) -> pa.Table:
    """changed: group -> place -> the topic's name, where that is the group's no more. Many, in the step's thread."""
    groups: list[str] = []
    places: list[Place] = []
    known: list[Assignment | None] = []
    shown: list[Assignment] = []
    for group, topics in sorted(changed.items()):
        mine, there = sorted(topics), _places_of(state, group)
        found = [there.get(place) for place in mine]
        groups += [group] * len(mine)
        places += mine
        known += found
        shown += [one or Assignment(topics[place], None) for one, place in zip(found, mine, strict=True)]
    return ASSIGNMENTS.of_columns(
        step=[state.step] * len(places),
        group=groups,
        topic_id=[topic_id for topic_id, _ in places],
        topic=[one.topic for one in shown],
        partition=[partition for _, partition in places],
        state=[one.status for one in shown],
        owner=[one.owner for one in shown],
        target=[one.target for one in shown],
        epoch=[one.epoch for one in shown],
        start_offset=[one.start_offset for one in shown],
        since_ms=[one.since_ms for one in shown],
        reason=[one.reason for one in shown],
        lost_by=[one.lost_by for one in shown],
        deleted_count=[one.deleted_count for one in shown],
        removed=[one is None for one in known],
    )


# -- what has moved -------------------------------------------------------------------------------------


def _assignment_moves(state: State, steps: Steps) -> pa.Table:
    gone = {record.topic_id: record.topic for _, record in records(steps) if isinstance(record, TopicDeleted)}
    columns: dict[str, list[Any]] = {name: [] for name in ASSIGNMENT_MOVES.stored_schema.names}
    for step in steps:
        for moved in _moves_of(step):
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
            columns["reason"] += [moved.reason] * count
            columns["redelivered_count"] += moved.redelivered_counts
            columns["moved_at_ms"] += [step.decided_at_ms] * count
    names = {topic_id: gone.get(topic_id) or state.topics[topic_id].topic for topic_id in set(columns["topic_id"])}
    columns["topic"] = [names[topic_id] for topic_id in columns["topic_id"]]
    return ASSIGNMENT_MOVES.of_columns(**columns)


class _Moved(NamedTuple):
    """What a record moves. position: of the record in its step; states: that each move leads to; redelivered_counts:
    messages that are delivered again for it.
    """

    position: int
    group: str
    moves: Sequence[Move]
    states: Sequence[str]
    reason: str
    redelivered_counts: Sequence[int]


def _moves_of(step: Step) -> Iterator[_Moved]:
    told = ((position, one.record) for position, one in enumerate(step.entries))
    moved = [(position, record) for position, record in told if isinstance(record, PartitionsMoved | PartitionsGone)]
    redelivered = _redelivered(step) if moved else {}
    for position, record in moved:
        if isinstance(record, PartitionsMoved):
            # told once, of the first move that the step makes of it
            counts = [redelivered.pop((record.group, move.place), 0) if redelivered else 0 for move in record.moves]
            states = [move.status for move in record.moves]
            yield _Moved(position, record.group, record.moves, states, record.reason, counts)
        else:
            none = [Move(record.topic_id, partition, PartitionStatus.UNASSIGNED) for partition in _gone(record)]
            yield _Moved(position, record.group, none, ["gone"] * len(none), "", [0] * len(none))


def _redelivered(step: Step) -> dict[tuple[str, Place], int]:
    """Messages that an owner had of a partition and that go to the next one, as the step decides."""
    counts: dict[tuple[str, Place], int] = {}
    for one in step.entries:
        record = one.record
        if isinstance(record, MessagesSettled) and record.reason not in _NO_MOVE:
            for part in record.parts:
                if part.status is DeliveryStatus.AVAILABLE:
                    key = record.group, part.place
                    counts[key] = counts.get(key, 0) + sum(count for _, count in part.ranges)
    return counts


_NO_MOVE = ("member", "committed", "aborted")
"""Reasons for which messages change their state while their partition stays where it is."""


# -- the way back ---------------------------------------------------------------------------------------


def _restore_groups(state: State, rows: pa.Table) -> None:
    for row in GROUPS.rows(rows):
        state.groups[row.group] = Group(
            row.group,
            _configs.decode(row.config),
            row.group_epoch,
            row.target_epoch,
            row.settled_epoch,
            row.generation,
            row.assignor,
            row.problem,
            row.not_before_ms,
            is_configured=row.configured,
            empty_since_ms=row.empty_since_ms,
        )


def _restore_members(state: State, rows: pa.Table) -> None:
    for row in MEMBERS.rows(rows):
        group = state.groups[row.group]
        group.members[row.member_id] = Member(
            row.member_id,
            row.number,
            tuple(row.topics),
            row.pattern,
            row.instance_id,
            row.session_timeout_ms,
            row.max_poll_interval_ms,
            row.auto_offset_reset,
            row.joined_at_ms,
        )
        if row.instance_id is not None:
            group.instances[row.instance_id] = row.member_id


def _restore_assignments(state: State, rows: pa.Table) -> None:
    for row in ASSIGNMENTS.rows(rows):
        group, place = state.groups[row.group], (row.topic_id, row.partition)
        assignment = Assignment(
            row.topic,
            row.start_offset,
            PartitionStatus(row.state),
            row.owner,
            row.epoch,
            row.target,
            row.since_ms,
            row.reason,
            row.lost_by,
            row.deleted_count,
        )
        group.add(place, assignment)
    for name in state.groups:
        state.note_group(name)
    # the last step may have left some of it to the next one
    state.touched_groups = {name for name, group in state.groups.items() if group.is_moving_on}


PROJECT: Project = {
    GROUPS.name: _groups,
    MEMBERS.name: _members,
    ASSIGNMENTS.name: _assignments,
    ASSIGNMENT_MOVES.name: _assignment_moves,
}
RESTORE: Restore = {
    GROUPS.name: _restore_groups,
    MEMBERS.name: _restore_members,
    ASSIGNMENTS.name: _restore_assignments,
}
