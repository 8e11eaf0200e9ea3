"""Operations on groups that have no members, or do not read the topic: forget them, or move their offsets."""

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
from ..names import check_group, shorten
from ..values.assignments import TopicIdPartition
from ..values.base import Done, Record
from ..values.decision import Decision, DecisionInputs
from ..values.groups import DeleteGroup, GroupForgotten, PartitionsGone
from ..values.journal import JournalEntry
from ..values.offsets import (
    MAX_OFFSETS,
    CommittedChange,
    DeleteOffsets,
    OffsetCommit,
    OffsetsChanged,
    OffsetsCommitted,
    OffsetsRemoved,
    ResetOffsets,
    ResetPartition,
)
from ..values.state import State
from .timers import Time, Timer, Timers

# -- forgetting -----------------------------------------------------------------------------------------


def decide_delete_group(state: State, request: DeleteGroup, inputs: DecisionInputs) -> Decision:
    """Forget the group and everything that it has committed.

    Raises InvalidGroupId, GroupIdNotFound, NonEmptyGroup, UnstableOffsetCommit (a transaction has offsets of the
    group).
    """
    _check_exists(state, request.group)
    _check_empty(state, request.group)
    _check_stable(state, request.group)
    return Decision(Done(), tuple(map(JournalEntry, build_forget_records(state, request.group, "deleted"))))


def build_forget_records(state: State, name: str, reason: str) -> list[Record]:
    """Return the records that remove the group's offsets, its partitions and the group itself, as far as they exist."""
    records: list[Record] = list(_build_removals(state, name, state.offsets.get(name, ())))
    if group := state.groups.get(name):
        names = {topic_id: assignment.topic for (topic_id, _), assignment in group.assignments.items()}
        counts = sorted(group.partition_counts.items())
        records += [PartitionsGone(name, topic_id, names[topic_id], count) for topic_id, count in counts]
        records.append(GroupForgotten(name, reason))
    return records


def _build_removals(state: State, group: str, topic_partitions: Iterable[TopicIdPartition]) -> list[OffsetsRemoved]:
    by_topic: dict[int, list[int]] = {}
    for topic_id, partition in sorted(topic_partitions):
        by_topic.setdefault(topic_id, []).append(partition)
    return [OffsetsRemoved(group, i, state.topics[i].topic, partitions) for i, partitions in by_topic.items()]


def decide_delete_offsets(state: State, request: DeleteOffsets, inputs: DecisionInputs) -> Decision:
    """Forget the offsets that the group has committed in these partitions.

    Raises InvalidGroupId, GroupIdNotFound, UnknownTopicOrPartition, GroupSubscribedToTopic, UnstableOffsetCommit.
    """
    _check_exists(state, request.group)
    committed = state.offsets.get(request.group, {})
    chosen: set[TopicIdPartition] = set()
    for name, partition in request.partitions:
        topic = state.topic(name)
        if partition is not None:
            chosen.add(topic.find_partition(partition))
        else:
            chosen.update(tp for tp in committed if tp[0] == topic.topic_id)
        _check_no_subscription(state, request.group, topic.topic_id)
    _check_stable(state, request.group, chosen)
    topic_partitions = sorted(chosen)
    committed_partitions = [tp for tp in topic_partitions if tp in committed]
    changes = [_build_change(state, request.group, tp, None) for tp in topic_partitions]
    return Decision(
        OffsetsChanged(changes), tuple(map(JournalEntry, _build_removals(state, request.group, committed_partitions)))
    )


# -- going on elsewhere ---------------------------------------------------------------------------------


def decide_reset(state: State, request: ResetOffsets, inputs: DecisionInputs) -> Decision:
    """Move the group's offsets to the requested positions, limited to what the log holds.

    The positions are resolved here, and not by the client, because the log moves on meanwhile. Raises InvalidGroupId,
    GroupIdNotFound (all partitions are requested, and there is no group), NonEmptyGroup, UnknownTopicOrPartition,
    UnknownTopicId, UnstableOffsetCommit, NoOffsetForPartition (a shift without an offset to shift), InvalidRequest (too
    many partitions, or one of them twice).
    """
    name = request.group
    check_group(name)
    _check_empty(state, name)
    if request.partitions is None:
        _check_exists(state, name)
        targets = [(tp, request.offset) for tp in state.list_group_partitions(name)]
    else:
        targets = [target for tp in request.partitions for target in _expand_partitions(state, tp, request.offset)]
    _check_once(state, targets)
    _check_stable(state, name, [tp for tp, _ in targets])
    changes = [_build_change(state, name, tp, _find_target_offset(state, request, tp, at)) for tp, at in targets]
    moved = [
        (tp, change)
        for (tp, _), change in zip(targets, changes, strict=True)
        if change.before != change.after or _has_deliveries(state, name, tp)
    ]
    if request.dry_run or not moved:
        return Decision(OffsetsChanged(changes))
    commits = [OffsetCommit(change.topic, change.partition, change.after or 0) for _, change in moved]
    record = OffsetsCommitted(name, [topic_id for (topic_id, _), _ in moved], commits, reason="reset")
    return Decision(OffsetsChanged(changes), (JournalEntry(record),))


def _has_deliveries(state: State, group: str, tp: TopicIdPartition) -> bool:
    """Return whether a queue group has delivered messages past its offset. A reset makes them new again."""
    deliveries = state.find_deliveries(group, tp)
    return deliveries is not None and bool(deliveries.stretches)


def _expand_partitions(state: State, entry: ResetPartition, offset: int) -> list[tuple[TopicIdPartition, int]]:
    topic = state.topic(entry.topic) if entry.topic_id is None else state.topics.get(entry.topic_id)
    if topic is None:
        raise UnknownTopicId(found=f"{shorten(entry.topic)} with id {entry.topic_id}")
    partitions = range(topic.consumed_count) if entry.partition is None else (entry.partition,)
    at = offset if entry.offset is None else entry.offset
    return [(topic.find_partition(partition), at) for partition in partitions]


def _find_target_offset(state: State, request: ResetOffsets, tp: TopicIdPartition, at: int) -> int:
    topic, partition = state.topics[tp[0]], tp[1]
    first, end = int(topic.log_starts[partition]), int(topic.high_watermarks[partition])
    if request.to == "earliest":
        target = first
    elif request.to == "latest":
        target = int(topic.last_stable_offsets[partition])
    elif request.to == "offset":
        target = at
    else:
        target = _find_position(state, request.group, tp) + at
    return min(max(target, first), end)


def _find_position(state: State, name: str, tp: TopicIdPartition) -> int:
    """Return the offset at which the group continues if nothing changes."""
    committed, group = state.offsets.get(name, {}).get(tp), state.groups.get(name)
    assignment = group.assignments.get(tp) if group else None
    start = committed.offset if committed else assignment.start_offset if assignment else None
    if start is None:
        raise NoOffsetForPartition(
            "The group has no committed offset to shift. Reset it to an offset instead.",
            found=_format_partition(state, tp),
        )
    return start


def _build_change(state: State, group: str, tp: TopicIdPartition, after: int | None) -> CommittedChange:
    before = state.offsets.get(group, {}).get(tp)
    return CommittedChange(state.topics[tp[0]].topic, tp[1], before.offset if before else None, after)


# -- what time brings -----------------------------------------------------------------------------------


def _find_empty_groups(state: State) -> list[str]:
    return sorted((state.offsets.keys() | state.groups.keys()) - state.groups_with_members)


def _is_retention_over(state: State, name: str, time: Time) -> bool:
    """Return whether the group's last member left, and its last commit was made, longer ago than it retains offsets."""
    group, committed = state.groups.get(name), state.offsets.get(name, {})
    if name in state.groups_with_members or not (committed or (group and not group.is_configured)):
        return False
    ms = state.offsets_retention_ms(name, time.limits.offsets_retention_ms)
    if ms < 0 or (group and not time.is_over(group.empty_since_ms, ms)):
        return False
    return all(
        time.is_over(commit.committed_at_ms, ms) for commit in committed.values()
    ) and not state.find_pending_offsets(name)


def decide_expiry(state: State, name: str) -> list[JournalEntry]:
    """Forget the group's offsets, and the group itself unless it was configured by a user."""
    group = state.groups.get(name)
    keeps = group is not None and group.is_configured
    records = (
        _build_removals(state, name, state.offsets.get(name, ()))
        if keeps
        else build_forget_records(state, name, "expired")
    )
    return list(map(JournalEntry, records))


TIMERS: Timers = (Timer(_find_empty_groups, _is_retention_over, decide_expiry, is_expiry=True),)


# -- what must be so ------------------------------------------------------------------------------------


def _check_exists(state: State, name: str) -> None:
    check_group(name)
    if name not in state.groups and name not in state.offsets:
        raise GroupIdNotFound(found=shorten(name))


def _check_empty(state: State, name: str) -> None:
    group = state.groups.get(name)
    if group is not None and group.members:
        raise NonEmptyGroup(found=f"{name} with {len(group.members)} members")


def _check_no_subscription(state: State, name: str, topic_id: int) -> None:
    group, topic = state.groups.get(name), state.topics[topic_id].topic
    if group is None:
        return
    for member_id, member in group.members.items():
        # a member that still has to give up partitions of a topic it no longer subscribes to may commit once more
        if topic in member.topics or any(tp[0] == topic_id for tp in group.list_partitions_of(member_id)):
            raise GroupSubscribedToTopic(found=f"{topic}, which {shorten(member_id)} reads")


def _check_stable(state: State, name: str, topic_partitions: Iterable[TopicIdPartition] | None = None) -> None:
    """Raise UnstableOffsetCommit if an open transaction has offsets in these partitions; None checks all."""
    pending = state.find_pending_offsets(name)
    for tp in sorted(pending if topic_partitions is None else pending.keys() & set(topic_partitions)):
        raise UnstableOffsetCommit(found=f"{_format_partition(state, tp)}, by {pending[tp]}")


def _check_once(state: State, targets: Sequence[tuple[TopicIdPartition, int]]) -> None:
    if len(targets) > MAX_OFFSETS:
        raise InvalidRequest("Too many offsets.", found=len(targets), expected=f"at most {MAX_OFFSETS}")
    topic_partitions: set[TopicIdPartition] = set()
    for tp, _ in targets:
        if tp in topic_partitions:
            raise InvalidRequest("The request names a partition twice.", found=_format_partition(state, tp))
        topic_partitions.add(tp)


def _format_partition(state: State, tp: TopicIdPartition) -> str:
    return f"{state.topics[tp[0]].topic}-{tp[1]}"
