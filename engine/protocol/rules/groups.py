"""Groups: who leaves, who is lost, what an owner is done with. Joining is in `joining`, where partitions go in
`reconciling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import (
    GroupIdNotFound,
    InconsistentGroupProtocol,
    InvalidRequest,
    UnknownMemberId,
)
from ..names import check_group, shown
from ..parameters import GROUP
from ..values.assignments import PARTITION_TRANSITIONS, Assignment, Group, Member, PartitionStatus, Place
from ..values.base import Done
from ..values.deciding import Decision, Given
from ..values.groups import (
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
from . import joining, operations, reconciling
from .giving_back import returned
from .reconciling import freed, gone, target_set
from .registries import Fold, Folds, Rules
from .timers import Timers

# -- members --------------------------------------------------------------------------------------------


def decide_leave(state: State, request: LeaveGroup, given: Given) -> Decision:
    """They are gone, and what they had is free. Raises GroupIdNotFound, UnknownMemberId: nobody has left then."""
    group = _group(state, request.group)
    leaving = list(request.members)
    for instance in request.instances:
        if instance not in group.instances:
            raise UnknownMemberId(found=f"instance id {shown(instance)}")
        leaving.append(group.instances[instance])
    for member_id in leaving:
        _member(group, member_id)
    if group.is_queue and group.members.keys() - set(leaving):
        # who takes their place may come within the delay; they themselves cannot be back: what they had is free
        places = [place for member_id in set(leaving) for place in group.owned(member_id)]
        back = returned(state, group, sorted(places), "left")
        return Decision(Done(), (*map(JournalEntry, back), *_lost(state, group, leaving, "left")))
    entries: list[JournalEntry] = []
    for member_id in dict.fromkeys(leaving):
        entries += gone(state, group, member_id, "left", PartitionStatus.UNASSIGNED)
    return Decision(Done(), tuple(entries))


def decide_silent(state: State, seen: MemberSilent, given: Given) -> Decision:
    """A member that is lost; what it had waits for it where the group is told to wait."""
    group = state.groups.get(seen.group)
    if group is None or seen.member_id not in group.members:
        return Decision(Done())
    return Decision(Done(), tuple(_lost(state, group, [seen.member_id], seen.reason)))


def _lost(state: State, group: Group, members: Sequence[str], reason: str) -> list[JournalEntry]:
    delay_ms, owns = group.rebalance_delay_ms, any(group.owned(member_id) for member_id in members)
    # in a queue group it itself may be back, with what it had
    somebody_waits = len(group.members) > 1 or group.is_queue
    waits = not group.is_classic and (bool(group.not_before_ms) or (delay_ms > 0 and owns and somebody_waits))
    status = PartitionStatus.UNBOUND if waits else PartitionStatus.UNASSIGNED
    entries: list[JournalEntry] = []
    for member_id in dict.fromkeys(members):
        entries += gone(state, group, member_id, reason, status)
    if waits and not group.not_before_ms:
        entries.append(JournalEntry(RebalanceDelayed(group.group, state.now_ms + delay_ms)))
    return entries


def decide_release(state: State, request: ReleasePartitions, given: Given) -> Decision:
    """Those of them that the member was to give up are free; of others, which it has not any more, nothing changes.

    Raises GroupIdNotFound, UnknownMemberId.
    """
    group = _group(state, request.group)
    _member(group, request.member_id)
    done = [
        place
        for one in request.partitions
        if (place := one.place) in group.paused
        and (known := group.assignments[place]).owner == request.member_id
        and known.epoch == one.epoch
    ]
    if not done:
        return Decision(Done())
    entries = freed(state, group, sorted(set(done)), PartitionStatus.UNASSIGNED, "released")
    return Decision(Done(), tuple(map(JournalEntry, entries)))


def decide_configure(state: State, request: ConfigureGroup, given: Given) -> Decision:
    """Raises InvalidGroupId, GroupIdNotFound, InvalidConfig, InconsistentGroupProtocol (while it has members)."""
    check_group(request.group)
    if request.create and request.group in state.groups:
        raise InvalidRequest("The group exists already.", found=request.group)
    # one that has committed without members is there, too
    is_new = request.create or (request.group in state.offsets and request.group not in state.groups)
    group = Group(request.group) if is_new else _group(state, request.group)
    for key in request.config:
        GROUP[key]  # unknown keys are refused, also when they are to be reset
    config = {key: value for key, value in group.config.items() if key not in request.config}
    config.update(GROUP.parse({key: value for key, value in request.config.items() if value is not None}))
    protocol = config.get("group.protocol", GROUP["group.protocol"].default)
    if group.members and protocol != group.setting("group.protocol"):
        raise InconsistentGroupProtocol(found=protocol, expected=group.setting("group.protocol"))
    return Decision(Done(), (JournalEntry(GroupConfigured(request.group, config)),))


def decide_target(state: State, computed: TargetComputed, given: Given) -> Decision:
    """The target, unless the group has changed since it was computed."""
    group = state.groups.get(computed.group)
    if group is None or group.group_epoch != computed.group_epoch or computed.target.keys() - group.members.keys():
        return Decision(Done())
    owners = {place: member_id for member_id, places in computed.target.items() for place in places}
    return Decision(Done(), (JournalEntry(target_set(group, computed.assignor, owners, computed.problem)),))


def _group(state: State, name: str) -> Group:
    group = state.groups.get(name)
    if group is None:
        raise GroupIdNotFound(found=shown(name))
    return group


def _member(group: Group, member_id: str) -> Member:
    member = group.members.get(member_id)
    if member is None:
        raise UnknownMemberId(found=shown(member_id))
    return member


# -- folding --------------------------------------------------------------------------------------------


def _touched(state: State, name: str) -> Group:
    state.touched_groups.add(name)
    return state.groups.setdefault(name, Group(name, empty_since_ms=state.now_ms))


def _noted(fold: Fold) -> Fold:
    """The fold, after which the group stands where it is looked for."""

    def noted(state: State, record: Any, segments: Segments) -> None:
        fold(state, record, segments)
        state.note_group(record.group)

    return noted


def evolve_configured(state: State, record: GroupConfigured, segments: Segments) -> None:
    group = _touched(state, record.group)
    before = group.setting("group.assignor")
    group.config = record.config
    if not record.by_member:
        group.is_configured = bool(record.config)
    if group.setting("group.assignor") != before:  # of the others none says who is to have what
        group.group_epoch += 1


def evolve_joined(state: State, record: MemberJoined, segments: Segments) -> None:
    group = _touched(state, record.group)
    before = group.members.get(record.replaces or record.member_id)
    member = Member(
        record.member_id,
        before.number if before else group.next_number,
        tuple(record.topics),
        record.pattern,
        record.instance_id,
        record.session_timeout_ms,
        record.max_poll_interval_ms,
        record.auto_offset_reset,
        state.now_ms,
    )
    if record.replaces is not None:
        group.members.pop(record.replaces, None)
        for place, one in group.assignments.items():
            if one.target == record.replaces:
                group.set_target(place, record.member_id)
    group.members[record.member_id] = member
    if record.instance_id is not None:
        group.instances[record.instance_id] = record.member_id
    if before is None or before.topics != member.topics:
        group.group_epoch += 1


def evolve_left(state: State, record: MemberLeft, segments: Segments) -> None:
    group = _touched(state, record.group)
    gone = group.members.pop(record.member_id, None)
    if gone is not None and gone.instance_id is not None:
        group.instances.pop(gone.instance_id, None)
    if not group.members:
        group.empty_since_ms = state.now_ms
    group.group_epoch += 1


def evolve_missed(state: State, record: MemberMissed, segments: Segments) -> None:
    group = _touched(state, record.group)
    if missed := group.members.get(record.member_id):
        missed.number = group.next_number


def evolve_added(state: State, record: PartitionsAdded, segments: Segments) -> None:
    group = _touched(state, record.group)
    for partition, start in enumerate(record.start_offsets, record.first):
        group.add((record.topic_id, partition), Assignment(record.topic, start, since_ms=state.now_ms))
    group.group_epoch += 1


def evolve_gone(state: State, record: PartitionsGone, segments: Segments) -> None:
    group = _touched(state, record.group)
    group.remove(record.topic_id, record.first)
    group.group_epoch += 1


def evolve_target(state: State, record: TargetSet, segments: Segments) -> None:
    group = _touched(state, record.group)
    group.target_epoch, group.assignor, group.problem = record.group_epoch, record.assignor, record.problem
    for place in record.dropped:
        group.set_target(place, None)
    for member_id, places in record.changed.items():
        for place in places:
            group.set_target(place, member_id)


def evolve_moved(state: State, record: PartitionsMoved, segments: Segments) -> None:
    group = _touched(state, record.group)
    for move in record.moves:
        _move(state, group, move.place, move, record.reason)


def _move(state: State, group: Group, place: Place, move: Move, reason: str) -> None:
    if known := group.assignments.get(place):
        PARTITION_TRANSITIONS.check(known.status, move.status)
    one = group.set_owner(place, move.status, move.owner, state.now_ms)
    one.reason = reason
    if move.status is PartitionStatus.READY:
        one.epoch, one.start_offset = move.epoch or state.step, move.start_offset


def evolve_delayed(state: State, record: RebalanceDelayed, segments: Segments) -> None:
    group = _touched(state, record.group)
    group.not_before_ms = record.not_before_ms
    if not record.not_before_ms:
        group.group_epoch += 1


def evolve_completed(state: State, record: RebalanceCompleted, segments: Segments) -> None:
    group = _touched(state, record.group)
    group.generation, group.settled_epoch = record.generation, record.group_epoch


def evolve_forgotten(state: State, record: GroupForgotten, segments: Segments) -> None:
    state.groups.pop(record.group, None)
    state.touched_groups.discard(record.group)


DECIDE: Rules = {
    JoinGroup: joining.decide_join,
    LeaveGroup: decide_leave,
    ReleasePartitions: decide_release,
    ConfigureGroup: decide_configure,
    MemberSilent: decide_silent,
    TargetComputed: decide_target,
    DeleteGroup: operations.decide_delete_group,
}
_FOLDS: Folds = {
    GroupConfigured: evolve_configured,
    MemberJoined: evolve_joined,
    MemberLeft: evolve_left,
    MemberMissed: evolve_missed,
    PartitionsAdded: evolve_added,
    PartitionsGone: evolve_gone,
    TargetSet: evolve_target,
    PartitionsMoved: evolve_moved,
    RebalanceDelayed: evolve_delayed,
    RebalanceCompleted: evolve_completed,
    GroupForgotten: evolve_forgotten,
}
EVOLVE: Folds = {kind: _noted(fold) for kind, fold in _FOLDS.items()}
TIMERS: Timers = reconciling.TIMERS
