"""Joining a group: as a new member, with other topics or settings, or as a new process of a static member."""

from collections.abc import Sequence
from typing import Any

from ..errors import InconsistentGroupProtocol, InvalidConfig, InvalidRequest, InvalidSessionTimeout, UnknownMemberId
from ..names import MAX_LENGTH, check_group, check_topic_name, shorten
from ..parameters import GROUP
from ..values.assignments import Group, PartitionStatus, find_common_assignors
from ..values.base import Done, copy_fields, find_shared_fields
from ..values.decision import Decision, DecisionInputs
from ..values.groups import (
    MAX_ASSIGNORS,
    MAX_PATTERN,
    MAX_POLL_MS,
    MAX_TOPICS,
    OFFSET_RESETS,
    SESSION_MS,
    GroupConfigured,
    JoinGroup,
    MemberJoined,
    Move,
    PartitionsAdded,
    PartitionsMoved,
    RebalanceDelayed,
)
from ..values.journal import JournalEntry
from ..values.state import State
from .reconciling import build_move_to_owner, decide_ended_assignments, find_start_offset, find_start_offsets

_WISHES = find_shared_fields(JoinGroup, MemberJoined, "topics", "assignors")
_CHANGEABLE = ("pattern", "session_timeout_ms", "max_poll_interval_ms", "auto_offset_reset")
"""The wishes that a member may change, beside topics and assignors."""


def decide_join(state: State, request: JoinGroup, inputs: DecisionInputs) -> Decision:
    """Add or change a member. A process that had the same instance id before is fenced.

    Raises InvalidGroupId, InvalidSessionTimeout, InvalidRequest, InvalidTopic, InvalidConfig,
    InconsistentGroupProtocol; UnknownMemberId if the request says that the member exists, and it does not.
    """
    _check_joining(request)
    group = state.groups.get(request.group)
    config = {**_find_group_defaults(inputs, request), **GROUP.parse(request.config)}
    entries = _configure(group, request, config)
    current = group or Group(request.group, config)
    _check_instance_id(current, request)
    if request.is_member and request.member_id not in current.members:
        raise UnknownMemberId(found=shorten(request.member_id))
    before = current.instances.get(request.instance_id or "")
    replaced = current.members[before] if before and before != request.member_id else None
    _check_common_assignor(current, request.assignors, request.member_id, before)
    joined = MemberJoined(
        topics=sorted(set(request.topics)),
        replaces=replaced.member_id if replaced else None,
        assignors=list(dict.fromkeys(request.assignors)),
        **copy_fields(request, _WISHES),
    )
    if _is_repeat(current, joined):
        return Decision(Done())
    entries += [joined, *_add_new_topics(state, current, joined)]
    if current.is_classic and not current.members and current.rebalance_delay_ms:
        entries.append(RebalanceDelayed(request.group, state.now_ms + current.rebalance_delay_ms))
    if bound := _rebind(current, request):
        entries.append(PartitionsMoved(request.group, "back", bound))
    if replaced:
        entries += _take_over(state, current, replaced.member_id, request.member_id)
    return Decision(Done(), tuple(map(JournalEntry, entries)))


def _check_joining(request: JoinGroup) -> None:
    check_group(request.group)
    for label, text in ("a member id", request.member_id), ("an instance id", request.instance_id):
        if text is not None and not 1 <= len(text) <= MAX_LENGTH:
            raise InvalidRequest(f"This is not {label}.", found=shorten(text), expected=f"1 to {MAX_LENGTH} characters")
    for label, name in ("client id", request.client_id), ("host", request.host), ("process", request.process):
        if name is not None and len(name) > MAX_LENGTH:
            raise InvalidRequest(
                f"The {label} is too long.", found=len(name), expected=f"at most {MAX_LENGTH} characters"
            )
    low, high = SESSION_MS
    if not low <= request.session_timeout_ms <= high:
        raise InvalidSessionTimeout(found=request.session_timeout_ms, expected=f"{low} to {high}")
    if not 1 <= request.max_poll_interval_ms <= MAX_POLL_MS:
        raise InvalidRequest(
            "max.poll.interval.ms is out of range.", found=request.max_poll_interval_ms, expected=f"1 to {MAX_POLL_MS}"
        )
    if request.auto_offset_reset not in OFFSET_RESETS:
        raise InvalidRequest(
            "auto.offset.reset is not valid.",
            found=shorten(request.auto_offset_reset),
            expected=" or ".join(OFFSET_RESETS),
        )
    if len(request.bound) > MAX_TOPICS:
        raise InvalidRequest("Too many partitions.", found=len(request.bound), expected=f"at most {MAX_TOPICS}")
    if len(request.topics) > MAX_TOPICS:
        raise InvalidRequest("Too many topics.", found=len(request.topics), expected=f"at most {MAX_TOPICS}")
    if request.pattern is not None and len(request.pattern) > MAX_PATTERN:
        raise InvalidRequest("The pattern is too long.", found=len(request.pattern), expected=f"at most {MAX_PATTERN}")
    for topic in request.topics:
        check_topic_name(topic)
    _check_assignor_names(request.assignors)


def _check_assignor_names(names: list[str]) -> None:
    if len(names) > MAX_ASSIGNORS:
        raise InvalidRequest("Too many assignors.", found=len(names), expected=f"at most {MAX_ASSIGNORS}")
    for name in names:
        if not 1 <= len(name) <= MAX_LENGTH:
            expected = f"1 to {MAX_LENGTH} characters"
            raise InvalidRequest("This is not the name of an assignor.", found=shorten(name), expected=expected)


def _check_common_assignor(group: Group, assignors: list[str], *without: str | None) -> None:
    """Check that the group still has an assignor that all its members support.

    Args:
        group: the group that the member joins.
        assignors: those that the member supports; none where it supports all.
        without: ids of members whose lists do not count: the member itself, and the one that it replaces.

    Raises:
        InconsistentGroupProtocol: the group would have none.
    """
    if not assignors:
        return
    if (required := group.required_assignor) is not None:
        if required not in assignors:
            raise InconsistentGroupProtocol(
                "The member does not support the assignor that is set for the group (group.assignor).",
                found=_format_names(assignors),
                expected=required,
            )
        return
    lists = group.assignor_lists(*without)
    if lists and not find_common_assignors([assignors, *lists]):
        raise InconsistentGroupProtocol(
            "The other members support none of these assignors.",
            found=_format_names(assignors),
            expected=_format_names(find_common_assignors(lists)),
        )


def check_members_support(group: Group, assignor: str) -> None:
    """Raise InconsistentGroupProtocol where some members do not support this assignor."""
    lists = group.assignor_lists()
    if not all(assignor in names for names in lists):
        raise InconsistentGroupProtocol(
            "Some members of the group do not support this assignor.",
            found=shorten(assignor),
            expected=_format_names(find_common_assignors(lists)),
        )


def _format_names(names: Sequence[str]) -> str:
    return shorten(", ".join(names))


def _find_group_defaults(inputs: DecisionInputs, request: JoinGroup) -> dict[str, Any]:
    """Return the namespace's defaults for a new group. What its first member asks for comes before them."""
    defaults = dict(inputs.limits.group_defaults)
    if request.assignors:
        defaults.pop("group.assignor", None)
    return defaults


def _configure(group: Group | None, request: JoinGroup, config: dict[str, Any]) -> list[Any]:
    """Return the record with the settings of a new group; nothing for an existing one.

    Raises InvalidConfig, InconsistentGroupProtocol if the request asks for other settings than the group has.
    """
    if group is None:
        return [GroupConfigured(request.group, config, by_member=True)]
    for key, value in GROUP.parse(request.config).items():
        if value != (current := group.setting(key)):
            error = InconsistentGroupProtocol if key == "group.protocol" else InvalidConfig
            raise error(f"The group {group.group} has another {key}.", found=value, expected=current)
    return []


def _check_instance_id(group: Group, request: JoinGroup) -> None:
    """Check that a member has the same instance id as when it joined, or none as before."""
    member = group.members.get(request.member_id)
    if member is not None and member.instance_id != request.instance_id:
        raise InvalidRequest(
            "The member has another instance id.", found=request.instance_id, expected=member.instance_id or "none"
        )


def _is_repeat(group: Group, joined: MemberJoined) -> bool:
    """Return whether the member is like this already, for example because the request was repeated."""
    member = group.members.get(joined.member_id)
    return (
        member is not None
        and (list(member.topics), list(member.assignors)) == (joined.topics, joined.assignors)
        and copy_fields(member, _CHANGEABLE) == copy_fields(joined, _CHANGEABLE)
    )


def _add_new_topics(state: State, group: Group, joined: MemberJoined) -> list[PartitionsAdded]:
    """Return records for topics that are new to the group. It starts to read them by this member's auto.offset.reset.

    Topics that are created later are read from their start (see `reconciling`), and so are topics that come to a
    pattern which a member has already.
    """
    is_known_pattern = joined.pattern is not None and any(
        member.pattern == joined.pattern for member in group.members.values()
    )
    reset = "earliest" if is_known_pattern else joined.auto_offset_reset
    counts = group.partition_counts
    topics = (state.topics[state.topic_ids[name]] for name in joined.topics if name in state.topic_ids)
    return [
        PartitionsAdded(group.group, topic.topic_id, topic.topic, find_start_offsets(topic, reset))
        for topic in topics
        if topic.topic_id not in counts
    ]


def _rebind(group: Group, request: JoinGroup) -> list[Move]:
    """Return moves that give a member back the partitions that it lost and no other member owns."""
    moves = []
    for claim in request.bound:
        assignment = group.assignments.get(claim.topic_partition)
        if assignment is not None and (assignment.lost_by, assignment.epoch) == (request.member_id, claim.epoch):
            moves.append(
                Move(
                    *claim.topic_partition,
                    PartitionStatus.READY,
                    request.member_id,
                    assignment.start_offset,
                    assignment.epoch,
                )
            )
    return moves


def _take_over(state: State, group: Group, old: str, new: str) -> list[Any]:
    """Return records that give the partitions of a static member to its new process.

    Partitions that the old process was to give up become free.
    """
    moves = []
    for tp in group.list_partitions_of(old):
        if tp in group.paused:
            moves.append(Move(*tp, PartitionStatus.UNASSIGNED))
        else:
            moves.append(build_move_to_owner(state, group, tp, new, find_start_offset(state, group, tp, None)))
    if not moves:
        return []
    moved = PartitionsMoved(group.group, "replaced", moves)
    topic_partitions = group.list_partitions_of(old)
    return [moved, *decide_ended_assignments(state, group, topic_partitions, "replaced")]
