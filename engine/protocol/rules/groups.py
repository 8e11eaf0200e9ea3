"""Groups: members that leave or are lost, and owners that release partitions, are decided here.

`joining` decides how members join, `reconciling` how partitions move between members.
"""

from collections.abc import Sequence
from typing import Any

from ..errors import GroupIdNotFound, InconsistentGroupProtocol, InvalidRequest, UnknownMemberId
from ..names import check_group, shorten
from ..parameters import GROUP, with_defaults
from ..values.assignments import (
    PARTITION_TRANSITIONS,
    Assignment,
    Group,
    GroupMember,
    PartitionStatus,
    TopicIdPartition,
)
from ..values.base import Done, Record, copy_fields, find_shared_fields
from ..values.decision import Decision, DecisionInputs
from ..values.groups import (
    REMOVED,
    ConfigureGroup,
    DeleteGroup,
    GroupConfigured,
    GroupForgotten,
    JoinGroup,
    LeaveGroup,
    MemberJoined,
    MemberLeft,
    MemberMissed,
    MemberSilent,
    Move,
    PartitionsAdded,
    PartitionsGone,
    PartitionsMoved,
    RebalanceCompleted,
    RebalanceDelayed,
    ReleasePartitions,
    TargetComputed,
    TargetSet,
)
from ..values.journal import JournalEntry
from ..values.segments import Segments
from ..values.state import State
from . import group_operations, joining, reconciling
from .reconciling import build_target, decide_dropped_member, decide_freed_partitions
from .redelivery import give_back_partitions
from .timers import Fold, Folds, Rules, Timers

# -- members --------------------------------------------------------------------------------------------


def decide_leave(state: State, request: LeaveGroup, inputs: DecisionInputs) -> Decision:
    """Remove members that leave, and free their partitions.

    Raises GroupIdNotFound, UnknownMemberId; then no member has left.
    """
    group = _find_group(state, request.group)
    leaving = list(request.members)
    for instance in request.instances:
        if instance not in group.instances:
            raise UnknownMemberId(found=f"instance id {shorten(instance)}")
        leaving.append(group.instances[instance])
    for member_id in leaving:
        _find_member(group, member_id)
    reason = REMOVED if request.is_removal else "left"
    if group.is_queue and group.members.keys() - set(leaving):
        return Decision(Done(), tuple(_lose_members(state, group, leaving, reason)))
    entries: list[JournalEntry] = []
    for member_id in dict.fromkeys(leaving):
        entries += decide_dropped_member(state, group, member_id, reason, PartitionStatus.UNASSIGNED)
    return Decision(Done(), tuple(entries))


def decide_silent(state: State, observation: MemberSilent, inputs: DecisionInputs) -> Decision:
    """Remove a member that is lost. If the group has a rebalance delay, its partitions wait for it."""
    group = state.groups.get(observation.group)
    if group is None or observation.member_id not in group.members:
        return Decision(Done())
    return Decision(Done(), tuple(_lose_members(state, group, [observation.member_id], observation.reason)))


def _lose_members(state: State, group: Group, members: Sequence[str], reason: str) -> list[JournalEntry]:
    delay_ms, owns = group.rebalance_delay_ms, any(group.list_partitions_of(member_id) for member_id in members)
    # A delay makes sense if other members could get the partitions before the lost one returns. In a queue group the
    # member itself may return and keep its messages, unless its process has ended.
    delay_helps = len(group.members) > 1 or (group.is_queue and reason != "process")
    waits = not group.is_classic and (bool(group.not_before_ms) or (delay_ms > 0 and owns and delay_helps))
    status = PartitionStatus.UNBOUND if waits else PartitionStatus.UNASSIGNED
    entries: list[JournalEntry] = []
    if waits and reason in ("left", REMOVED):
        # The delay leaves time for a replacement to join. The leaving members do not come back, so their messages are
        # given back now.
        topic_partitions = [tp for member_id in set(members) for tp in group.list_partitions_of(member_id)]
        entries += map(JournalEntry, give_back_partitions(state, group, sorted(topic_partitions), reason))
    for member_id in dict.fromkeys(members):
        entries += decide_dropped_member(state, group, member_id, reason, status)
    if waits and not group.not_before_ms:
        entries.append(JournalEntry(RebalanceDelayed(group.group, state.now_ms + delay_ms)))
    return entries


def decide_release(state: State, request: ReleasePartitions, inputs: DecisionInputs) -> Decision:
    """Free partitions that the member was to give up. Partitions that it no longer has do not change.

    Raises GroupIdNotFound, UnknownMemberId.
    """
    group = _find_group(state, request.group)
    _find_member(group, request.member_id)
    released = [
        tp
        for entry in request.partitions
        if (tp := entry.topic_partition) in group.paused
        and (assignment := group.assignments[tp]).owner == request.member_id
        and assignment.epoch == entry.epoch
    ]
    if not released:
        return Decision(Done())
    entries = decide_freed_partitions(state, group, sorted(set(released)), PartitionStatus.UNASSIGNED, "released")
    return Decision(Done(), tuple(map(JournalEntry, entries)))


def decide_configure(state: State, request: ConfigureGroup, inputs: DecisionInputs) -> Decision:
    """Change the settings of a group, or create it.

    Raises InvalidGroupId, GroupIdNotFound, InvalidConfig, InconsistentGroupProtocol (the group has members).
    """
    check_group(request.group)
    if request.create and request.group in state.groups:
        raise InvalidRequest("The group exists already.", found=request.group)
    # a group that has committed without ever having members exists, too, but has no settings yet
    is_new = request.create or (request.group in state.offsets and request.group not in state.groups)
    defaults = inputs.limits.group_defaults
    group = Group(request.group, dict(defaults)) if is_new else _find_group(state, request.group)
    for key in request.config:
        GROUP[key]  # raises for an unknown key, also if the request resets it
    config = {key: value for key, value in group.config.items() if key not in request.config}
    config.update(GROUP.parse(with_defaults(request.config, defaults)))
    protocol = config.get("group.protocol", GROUP["group.protocol"].default)
    if group.members and protocol != group.setting("group.protocol"):
        raise InconsistentGroupProtocol(found=protocol, expected=group.setting("group.protocol"))
    if (assignor := config.get("group.assignor")) not in (None, group.required_assignor):
        joining.check_members_support(group, assignor)
    return Decision(Done(), (JournalEntry(GroupConfigured(request.group, config)),))


def decide_target(state: State, computed: TargetComputed, inputs: DecisionInputs) -> Decision:
    """Set the computed target, unless the group has changed since it was computed.

    If a queue group was settled and no partition moves, its generation stays. So it is not a rebalance if an extra
    consumer joins or a standby leaves.
    """
    group = state.groups.get(computed.group)
    if group is None or group.group_epoch != computed.group_epoch or computed.target.keys() - group.members.keys():
        return Decision(Done())
    owners = {tp: member_id for member_id, topic_partitions in computed.target.items() for tp in topic_partitions}
    target = build_target(group, computed.assignor, owners, computed.problem)
    records: list[Record] = [target]
    was_settled = group.settled_epoch == group.target_epoch and group.generation > 0
    moves = bool(target.changed or target.dropped or group.moving or group.not_before_ms)
    if group.is_queue and was_settled and not moves:
        records.append(RebalanceCompleted(group.group, group.generation, group.group_epoch))
    return Decision(Done(), tuple(map(JournalEntry, records)))


def _find_group(state: State, name: str) -> Group:
    group = state.groups.get(name)
    if group is None:
        raise GroupIdNotFound(found=shorten(name))
    return group


def _find_member(group: Group, member_id: str) -> GroupMember:
    member = group.members.get(member_id)
    if member is None:
        raise UnknownMemberId(found=shorten(member_id))
    return member


# -- folding --------------------------------------------------------------------------------------------


def _touch(state: State, name: str) -> Group:
    state.touched_groups.add(name)
    return state.groups.setdefault(name, Group(name, empty_since_ms=state.now_ms))


def _index_after(fold: Fold) -> Fold:
    """Return the fold, extended to update the state's indexes of groups afterwards."""

    def fold_and_index(state: State, record: Any, segments: Segments) -> None:
        fold(state, record, segments)
        state.index_group(record.group)

    return fold_and_index


def configure_group(state: State, record: GroupConfigured, segments: Segments) -> None:
    group = _touch(state, record.group)
    before = group.chosen_assignor
    group.config = record.config
    if not record.by_member:
        group.is_configured = bool(record.config)
    if group.chosen_assignor != before:  # no other setting changes the target
        group.group_epoch += 1


_MEMBER_FIELDS = find_shared_fields(MemberJoined, GroupMember, "topics", "assignors")


def add_member(state: State, record: MemberJoined, segments: Segments) -> None:
    group = _touch(state, record.group)
    before = group.members.get(record.replaces or record.member_id)
    member = GroupMember(
        number=before.number if before else group.next_number,
        topics=tuple(record.topics),
        assignors=tuple(record.assignors),
        joined_at_ms=state.now_ms,
        **copy_fields(record, _MEMBER_FIELDS),
    )
    # only for a member that changes its assignors; a new member starts a new epoch in any case
    assignor = group.chosen_assignor if before and before.assignors != member.assignors else None
    if record.replaces is not None:
        group.members.pop(record.replaces, None)
        state.note_member(record.group, record.replaces)
        for tp, assignment in group.assignments.items():
            if assignment.target == record.replaces:
                _set_target(state, group, tp, record.member_id)
    group.members[record.member_id] = member
    state.note_member(record.group, record.member_id)
    if record.instance_id is not None:
        group.instances[record.instance_id] = record.member_id
    has_another_assignor = assignor is not None and group.chosen_assignor != assignor
    if before is None or before.topics != member.topics or has_another_assignor:
        group.group_epoch += 1


def remove_member(state: State, record: MemberLeft, segments: Segments) -> None:
    group = _touch(state, record.group)
    gone = group.members.pop(record.member_id, None)
    state.note_member(record.group, record.member_id)
    if gone is not None and gone.instance_id is not None:
        group.instances.pop(gone.instance_id, None)
    if not group.members:
        group.empty_since_ms = state.now_ms
    group.group_epoch += 1


def renumber_member(state: State, record: MemberMissed, segments: Segments) -> None:
    group = _touch(state, record.group)
    if missed := group.members.get(record.member_id):
        missed.number = group.next_number
        state.note_member(record.group, record.member_id)


def add_partitions(state: State, record: PartitionsAdded, segments: Segments) -> None:
    group = _touch(state, record.group)
    for partition, start in enumerate(record.start_offsets, record.first):
        tp = record.topic_id, partition
        state.add_assignment(group, tp, Assignment(record.topic, start, since_ms=state.now_ms))
    group.group_epoch += 1


def remove_partitions(state: State, record: PartitionsGone, segments: Segments) -> None:
    group = _touch(state, record.group)
    state.remove_assignments(group, record.topic_id, record.first)
    group.group_epoch += 1


def set_target(state: State, record: TargetSet, segments: Segments) -> None:
    group = _touch(state, record.group)
    group.target_epoch, group.assignor, group.problem = record.group_epoch, record.assignor, record.problem
    for tp in record.dropped:
        _set_target(state, group, tp, None)
    for member_id, topic_partitions in record.changed.items():
        for tp in topic_partitions:
            _set_target(state, group, tp, member_id)


def _set_target(state: State, group: Group, tp: TopicIdPartition, member_id: str | None) -> None:
    if state.change_assignment(group, tp):
        group.set_target(tp, member_id)


def move_partitions(state: State, record: PartitionsMoved, segments: Segments) -> None:
    group = _touch(state, record.group)
    for move in record.moves:
        _move_partition(state, group, move.topic_partition, move, record.reason)


def _move_partition(state: State, group: Group, tp: TopicIdPartition, move: Move, reason: str) -> None:
    status = move.status
    if before := state.change_assignment(group, tp):  # a reader does not load assignments
        status = PARTITION_TRANSITIONS.move(before.status, move.event)
    assignment = group.set_owner(tp, status, move.owner, state.now_ms)
    assignment.reason = reason
    if status is PartitionStatus.READY:
        assignment.epoch, assignment.start_offset = move.epoch or state.step, move.start_offset


def delay_rebalance(state: State, record: RebalanceDelayed, segments: Segments) -> None:
    group = _touch(state, record.group)
    group.not_before_ms = record.not_before_ms
    if not record.not_before_ms:
        group.group_epoch += 1


def complete_rebalance(state: State, record: RebalanceCompleted, segments: Segments) -> None:
    group = _touch(state, record.group)
    group.generation, group.settled_epoch = record.generation, record.group_epoch


def forget_group(state: State, record: GroupForgotten, segments: Segments) -> None:
    state.groups.pop(record.group, None)
    state.touched_groups.discard(record.group)


DECIDE: Rules = {
    JoinGroup: joining.decide_join,
    LeaveGroup: decide_leave,
    ReleasePartitions: decide_release,
    ConfigureGroup: decide_configure,
    MemberSilent: decide_silent,
    TargetComputed: decide_target,
    DeleteGroup: group_operations.decide_delete_group,
}
_FOLDS: Folds = {
    GroupConfigured: configure_group,
    MemberJoined: add_member,
    MemberLeft: remove_member,
    MemberMissed: renumber_member,
    PartitionsAdded: add_partitions,
    PartitionsGone: remove_partitions,
    TargetSet: set_target,
    PartitionsMoved: move_partitions,
    RebalanceDelayed: delay_rebalance,
    RebalanceCompleted: complete_rebalance,
    GroupForgotten: forget_group,
}
EVOLVE: Folds = {kind: _index_after(fold) for kind, fold in _FOLDS.items()}
TIMERS: Timers = reconciling.TIMERS
