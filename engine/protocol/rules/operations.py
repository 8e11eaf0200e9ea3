"""Operations on groups that have no members, or not of these topics: they are forgotten, or go on elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidRequest,
    NonEmptyGroup,
    NoOffsetForPartition,
    UnknownTopicId,
    UnstableOffsetCommit,
)
from ..names import check_group, shown
from ..values.assignments import Place
from ..values.base import Done, Record
from ..values.deciding import Decision, Given
from ..values.groups import DeleteGroup, GroupForgotten, PartitionsGone
from ..values.journal import JournalEntry
from ..values.offsets import (
    MAX_OFFSETS,
    DeleteOffsets,
    OffsetChange,
    OffsetCommit,
    OffsetsChanged,
    OffsetsCommitted,
    OffsetsRemoved,
    ResetOffsets,
    ResetPlace,
)
from ..values.state import State
from .timers import Time, Timer, Timers

# -- forgetting -----------------------------------------------------------------------------------------


def decide_delete_group(state: State, request: DeleteGroup, given: Given) -> Decision:
    """The group is forgotten, with all that it has committed.

    Raises InvalidGroupId, GroupIdNotFound, NonEmptyGroup, UnstableOffsetCommit (a transaction has offsets of it).
    """
    _check_known(state, request.group)
    _check_empty(state, request.group)
    _check_stable(state, request.group)
    return Decision(Done(), tuple(map(JournalEntry, forgotten(state, request.group, "deleted"))))


def forgotten(state: State, name: str, reason: str) -> list[Record]:
    """Its offsets, its partitions, and the group, each where there are any."""
    records: list[Record] = list(_removed(state, name, state.offsets.get(name, ())))
    if group := state.groups.get(name):
        names = {topic_id: one.topic for (topic_id, _), one in group.assignments.items()}
        counts = sorted(group.partition_counts.items())
        records += [PartitionsGone(name, topic_id, names[topic_id], count) for topic_id, count in counts]
        records.append(GroupForgotten(name, reason))
    return records


def _removed(state: State, group: str, places: Iterable[Place]) -> list[OffsetsRemoved]:
    by_topic: dict[int, list[int]] = {}
    for topic_id, partition in sorted(places):
        by_topic.setdefault(topic_id, []).append(partition)
    return [OffsetsRemoved(group, i, state.topics[i].topic, partitions) for i, partitions in by_topic.items()]


def decide_delete_offsets(state: State, request: DeleteOffsets, given: Given) -> Decision:
    """What the group has committed in these partitions is forgotten.

    Raises InvalidGroupId, GroupIdNotFound, UnknownTopicOrPartition, GroupSubscribedToTopic, UnstableOffsetCommit.
    """
    _check_known(state, request.group)
    committed = state.offsets.get(request.group, {})
    asked: set[Place] = set()
    for name, partition in request.partitions:
        topic = state.topic(name)
        if partition is not None:
            asked.add(topic.place(partition))
        else:
            asked.update(place for place in committed if place[0] == topic.topic_id)
        _check_not_read(state, request.group, topic.topic_id)
    _check_stable(state, request.group, asked)
    places = sorted(asked)
    found = [place for place in places if place in committed]
    changes = [_change(state, request.group, place, None) for place in places]
    return Decision(OffsetsChanged(changes), tuple(map(JournalEntry, _removed(state, request.group, found))))


# -- going on elsewhere ---------------------------------------------------------------------------------


def decide_reset(state: State, request: ResetOffsets, given: Given) -> Decision:
    """The group goes on where it is told to, as near as the log has it; where that is, is decided here.

    Raises InvalidGroupId, GroupIdNotFound (for all that it has, and there is no group), NonEmptyGroup,
    UnknownTopicOrPartition, UnknownTopicId, UnstableOffsetCommit, NoOffsetForPartition (shifted from nowhere),
    InvalidRequest (too many, or one of them twice).
    """
    name = request.group
    check_group(name)
    _check_empty(state, name)
    if request.places is None:
        _check_known(state, name)
        asked = [(place, request.offset) for place in state.group_places(name)]
    else:
        asked = [one for place in request.places for one in _expanded(state, place, request.offset)]
    _check_once(state, asked)
    _check_stable(state, name, [place for place, _ in asked])
    changes = [_change(state, name, place, _target(state, request, place, at)) for place, at in asked]
    moved = [
        (place, one)
        for (place, _), one in zip(asked, changes, strict=True)
        if one.before != one.after or _is_begun(state, name, place)
    ]
    if request.dry_run or not moved:
        return Decision(OffsetsChanged(changes))
    commits = [OffsetCommit(one.topic, one.partition, one.after or 0) for _, one in moved]
    record = OffsetsCommitted(name, [topic_id for (topic_id, _), _ in moved], commits, reason="reset")
    return Decision(OffsetsChanged(changes), (JournalEntry(record),))


def _is_begun(state: State, group: str, place: Place) -> bool:
    """Whether messages past its offset were delivered, in a queue group: reset, they are as if new."""
    known = state.deliveries_of(group, place)
    return known is not None and bool(known.stretches)


def _expanded(state: State, asked: ResetPlace, offset: int) -> list[tuple[Place, int]]:
    topic = state.topic(asked.topic) if asked.topic_id is None else state.topics.get(asked.topic_id)
    if topic is None:
        raise UnknownTopicId(found=f"{shown(asked.topic)} with id {asked.topic_id}")
    partitions = range(topic.consumed_count) if asked.partition is None else (asked.partition,)
    at = offset if asked.offset is None else asked.offset
    return [(topic.place(partition), at) for partition in partitions]


def _target(state: State, request: ResetOffsets, place: Place, at: int) -> int:
    topic, partition = state.topics[place[0]], place[1]
    first, end = int(topic.log_starts[partition]), int(topic.high_watermarks[partition])
    if request.to == "earliest":
        wanted = first
    elif request.to == "latest":
        wanted = int(topic.last_stable_offsets[partition])
    elif request.to == "offset":
        wanted = at
    else:
        wanted = _now_at(state, request.group, place) + at
    return min(max(wanted, first), end)


def _now_at(state: State, name: str, place: Place) -> int:
    """Where the group goes on when nothing is changed."""
    committed, group = state.offsets.get(name, {}).get(place), state.groups.get(name)
    one = group.assignments.get(place) if group else None
    start = committed.offset if committed else one.start_offset if one else None
    if start is None:
        raise NoOffsetForPartition(
            "The group has nothing committed that could be shifted.", found=_shown_place(state, place)
        )
    return start


def _change(state: State, group: str, place: Place, after: int | None) -> OffsetChange:
    before = state.offsets.get(group, {}).get(place)
    return OffsetChange(state.topics[place[0]].topic, place[1], before.offset if before else None, after)


# -- what time brings -----------------------------------------------------------------------------------


def _without_members(state: State) -> list[str]:
    return sorted((state.offsets.keys() | state.groups.keys()) - state.manned_groups)


def _is_over(state: State, name: str, time: Time) -> bool:
    """Its time counts from when it had no members any more, and from its last commit."""
    group, committed = state.groups.get(name), state.offsets.get(name, {})
    if name in state.manned_groups or not (committed or (group and not group.is_configured)):
        return False
    ms = state.offsets_retention_ms(name, time.limits.offsets_retention_ms)
    if ms < 0 or (group and not time.is_over(group.empty_since_ms, ms)):
        return False
    return all(time.is_over(one.committed_at_ms, ms) for one in committed.values()) and not state.pending_offsets(name)


def decide_expiry(state: State, name: str) -> list[JournalEntry]:
    """What it has committed is forgotten, and so is the group unless somebody has configured it."""
    group = state.groups.get(name)
    keeps = group is not None and group.is_configured
    records = _removed(state, name, state.offsets.get(name, ())) if keeps else forgotten(state, name, "expired")
    return list(map(JournalEntry, records))


TIMERS: Timers = (Timer(_without_members, _is_over, decide_expiry, forgets=True),)


# -- what must be so ------------------------------------------------------------------------------------


def _check_known(state: State, name: str) -> None:
    check_group(name)
    if name not in state.groups and name not in state.offsets:
        raise GroupIdNotFound(found=shown(name))


def _check_empty(state: State, name: str) -> None:
    group = state.groups.get(name)
    if group is not None and group.members:
        raise NonEmptyGroup(found=f"{name} with {len(group.members)} members")


def _check_not_read(state: State, name: str, topic_id: int) -> None:
    group, topic = state.groups.get(name), state.topics[topic_id].topic
    if group is None:
        return
    for member_id, one in group.members.items():
        # who is still to give up what it has no subscription for any more may yet commit
        if topic in one.topics or any(place[0] == topic_id for place in group.owned(member_id)):
            raise GroupSubscribedToTopic(found=f"{topic}, which {shown(member_id)} reads")


def _check_stable(state: State, name: str, places: Iterable[Place] | None = None) -> None:
    """places: None is all of them."""
    pending = state.pending_offsets(name)
    for place in sorted(pending if places is None else pending.keys() & set(places)):
        raise UnstableOffsetCommit(found=f"{_shown_place(state, place)}, by {pending[place]}")


def _check_once(state: State, asked: Sequence[tuple[Place, int]]) -> None:
    if len(asked) > MAX_OFFSETS:
        raise InvalidRequest("Too many offsets.", found=len(asked), expected=f"at most {MAX_OFFSETS}")
    seen: set[Place] = set()
    for place, _ in asked:
        if place in seen:
            raise InvalidRequest("A partition is named twice.", found=_shown_place(state, place))
        seen.add(place)


def _shown_place(state: State, place: Place) -> str:
    return f"{state.topics[place[0]].topic}-{place[1]}"
