"""Joining a group: as a new member, as one that wants something else, or in the place of a process that is gone."""

from __future__ import annotations

from typing import Any

from ..errors import (
    InconsistentGroupProtocol,
    InvalidConfig,
    InvalidRequest,
    InvalidSessionTimeout,
    UnknownMemberId,
)
from ..names import MAX_LENGTH, check_group, check_topic_name, shown
from ..parameters import GROUP
from ..values.assignments import Group, PartitionStatus
from ..values.base import Done
from ..values.deciding import Decision, Given
from ..values.groups import (
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
from .reconciling import ended, start_of, starts_of


def decide_join(state: State, request: JoinGroup, given: Given) -> Decision:
    """A member, new or as it wants to be from now on; the process that had its instance id before is fenced.

    Raises InvalidGroupId, InvalidSessionTimeout, InvalidRequest, InvalidTopic, InvalidConfig,
    InconsistentGroupProtocol; UnknownMemberId: it is to be a member already.
    """
    _check_joining(request)
    group = state.groups.get(request.group)
    entries = _configured(group, request)
    known = group or Group(request.group, GROUP.parse(request.config))
    _check_is_itself(known, request)
    if request.is_member and request.member_id not in known.members:
        raise UnknownMemberId(found=shown(request.member_id))
    before = known.instances.get(request.instance_id or "")
    replaced = known.members[before] if before and before != request.member_id else None
    joined = MemberJoined(
        request.group,
        request.member_id,
        sorted(set(request.topics)),
        request.pattern,
        request.instance_id,
        request.session_timeout_ms,
        request.max_poll_interval_ms,
        request.auto_offset_reset,
        replaced.member_id if replaced else None,
    )
    if _is_told(known, joined):
        return Decision(Done())
    entries += [joined, *_first_topics(state, known, joined)]
    if known.is_classic and not known.members and known.rebalance_delay_ms:
        entries.append(RebalanceDelayed(request.group, state.now_ms + known.rebalance_delay_ms))
    if bound := _bound_again(known, request):
        entries.append(PartitionsMoved(request.group, "back", bound))
    if replaced:
        entries += _taken_over(state, known, replaced.member_id, request.member_id)
    return Decision(Done(), tuple(map(JournalEntry, entries)))


def _check_joining(request: JoinGroup) -> None:
    check_group(request.group)
    for what, text in ("a member id", request.member_id), ("an instance id", request.instance_id):
        if text is not None and not 1 <= len(text) <= MAX_LENGTH:
            raise InvalidRequest(f"This is not {what}.", found=shown(text), expected=f"1 to {MAX_LENGTH} characters")
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
            found=shown(request.auto_offset_reset),
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


def _configured(group: Group | None, request: JoinGroup) -> list[Any]:
    """The settings of a new group, or nothing. Raises InvalidConfig, InconsistentGroupProtocol: they are others."""
    asked = GROUP.parse(request.config)
    if group is None:
        return [GroupConfigured(request.group, dict(asked), by_member=True)]
    for key, value in asked.items():
        if value != (found := group.setting(key)):
            error = InconsistentGroupProtocol if key == "group.protocol" else InvalidConfig
            raise error(f"The group {group.group} has another {key}.", found=value, expected=found)
    return []


def _check_is_itself(group: Group, request: JoinGroup) -> None:
    """A member has the instance id, or none, with which it came."""
    known = group.members.get(request.member_id)
    if known is not None and known.instance_id != request.instance_id:
        raise InvalidRequest(
            "The member has another instance id.", found=request.instance_id, expected=known.instance_id or "none"
        )


def _is_told(group: Group, joined: MemberJoined) -> bool:
    """Whether the member is like this already, as after a repeat."""
    known = group.members.get(joined.member_id)
    return known is not None and (
        list(known.topics),
        known.pattern,
        known.session_timeout_ms,
        known.max_poll_interval_ms,
        known.auto_offset_reset,
    ) == (
        joined.topics,
        joined.pattern,
        joined.session_timeout_ms,
        joined.max_poll_interval_ms,
        joined.auto_offset_reset,
    )


def _first_topics(state: State, group: Group, joined: MemberJoined) -> list[PartitionsAdded]:
    """Topics that are there when the group hears of them first: it begins in them as this member says.

    What comes later is read from its start, see `reconciling`; so is what comes to a pattern that a member has already.
    """
    known = joined.pattern is not None and any(one.pattern == joined.pattern for one in group.members.values())
    reset = "earliest" if known else joined.auto_offset_reset
    counts = group.partition_counts
    found = (state.topics[state.topic_ids[name]] for name in joined.topics if name in state.topic_ids)
    return [
        PartitionsAdded(group.group, one.topic_id, one.topic, starts_of(one, reset))
        for one in found
        if one.topic_id not in counts
    ]


def _bound_again(group: Group, request: JoinGroup) -> list[Move]:
    """Partitions that the member lost and nobody else has: they are its own as before, with what it had of them."""
    moves = []
    for told in request.bound:
        one = group.assignments.get(told.place)
        if one is not None and (one.lost_by, one.epoch) == (request.member_id, told.epoch):
            moves.append(Move(*told.place, PartitionStatus.READY, request.member_id, one.start_offset, one.epoch))
    return moves


def _taken_over(state: State, group: Group, old: str, new: str) -> list[Any]:
    """A new process of a static member has what the one before it had; what that was to give up is free."""
    moves = []
    for place in group.owned(old):
        if place in group.paused:
            moves.append(Move(*place, PartitionStatus.UNASSIGNED))
        else:
            moves.append(Move(*place, PartitionStatus.READY, new, start_of(state, group, place, None)))
    if not moves:
        return []
    moved = PartitionsMoved(group.group, "replaced", moves)
    places = group.owned(old)
    return [moved, *ended(state, group, places, "replaced")]
