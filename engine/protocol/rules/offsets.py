"""Consumer offsets: how far a group has read each partition. Inside a transaction they count when it commits."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from ..errors import (
    FencedMemberEpoch,
    IllegalGeneration,
    IllegalState,
    RebalanceInProgress,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from ..names import check_group, shorten
from ..values.assignments import Group, GroupStatus, TopicIdPartition
from ..values.base import Done
from ..values.decision import Decision, DecisionInputs
from ..values.journal import JournalEntry
from ..values.kinds import AnyResult
from ..values.offsets import (
    CommitOffsets,
    DeleteOffsets,
    FetchOffsets,
    OffsetCommit,
    OffsetsChanged,
    OffsetsCommitted,
    OffsetsFetched,
    OffsetsJudged,
    OffsetsRemoved,
    ResetOffsets,
)
from ..values.segments import Segments
from ..values.state import State, check_commits
from . import group_operations
from .timers import Folds, Rules, Timers
from .transactions import build_join_entries, check_can_join

_OFFSET_BYTES = 64
"""Estimated bytes of an offset in an answer, without its metadata."""


def decide_commit(state: State, request: CommitOffsets, inputs: DecisionInputs) -> Decision:
    """Commit the offsets, at once or with the transaction.

    Outside a transaction, offsets of partitions that the member does not own are left out.

    Raises InvalidGroupId, UnknownTopicOrPartition, UnknownTopicId (the topic is deleted, even if its name exists
    again), OffsetOutOfRange (beyond the high watermark), OffsetMetadataTooLarge, InvalidRequest (too many),
    UnknownMemberId (also if no member id is given and the group has members); in a classic group IllegalGeneration,
    RebalanceInProgress; in a transaction InvalidProducerIdMapping, InvalidProducerEpoch, TransactionAbortable,
    FencedMemberEpoch (the member does not own one of the partitions).
    """
    ref = request.transaction
    if ref is not None:
        check_can_join(state, ref)
    check_group(request.group)
    topic_ids = check_commits(state, request.offsets)
    fenced = _find_fenced_offsets(state, request, topic_ids)
    if fenced and ref is not None:
        raise FencedMemberEpoch(found=[_format_partition(request.offsets[i]) for i in fenced])
    result = OffsetsJudged(fenced) if request.member_id is not None else Done()
    left_out = set(fenced)
    accepted = [i for i in range(len(topic_ids)) if i not in left_out]
    if not accepted:
        return Decision(result)
    record = OffsetsCommitted(
        request.group,
        [topic_ids[i] for i in accepted],
        [request.offsets[i] for i in accepted],
        None if ref is None else ref.transactional_id,
    )
    begun = [] if ref is None else build_join_entries(state, ref, groups=[request.group])
    return Decision(result, (*begun, JournalEntry(record)))


def _find_fenced_offsets(state: State, request: CommitOffsets, topic_ids: list[int]) -> list[int]:
    """Return the indexes of offsets whose partition the member does not own under the epoch that it names.

    Raises UnknownMemberId.
    """
    group, member_id = state.groups.get(request.group), request.member_id
    if member_id is None:
        if group is not None and group.members:
            raise UnknownMemberId("The group has members: only they may commit.", found="no member id")
        return []
    if group is None or member_id not in group.members:
        raise UnknownMemberId(found=shorten(member_id))
    if group.is_queue:
        raise IllegalState("In a queue group, members acknowledge messages and cannot commit offsets.")
    if group.is_classic:
        _check_generation(group, request)
    commits = enumerate(zip(topic_ids, request.offsets, strict=True))
    return [
        index
        for index, (topic_id, commit) in commits
        if not _may_commit(group, request, (topic_id, commit.partition), commit.epoch)
    ]


def _check_generation(group: Group, request: CommitOffsets) -> None:
    if request.generation != group.generation:
        raise IllegalGeneration(found=request.generation, expected=group.generation)
    if request.transaction is None and group.status is GroupStatus.COMPLETING:
        raise RebalanceInProgress()


def _may_commit(group: Group, request: CommitOffsets, tp: TopicIdPartition, epoch: int | None) -> bool:
    """Return whether the member owns the partition under this assignment.

    In a classic group that is rebalancing, the last owner may still commit, as no other member has had the partition
    since. Not inside a transaction, which may end when another member has it.
    """
    assignment = group.assignments.get(tp)
    if assignment is None or assignment.epoch != epoch:
        return False
    had_it = (
        group.is_classic
        and assignment.is_free
        and assignment.target == request.member_id
        and request.transaction is None
    )
    return assignment.owner == request.member_id or had_it


def _format_partition(commit: OffsetCommit) -> str:
    return f"{shorten(commit.topic)}-{commit.partition}"


def decide_fetch(state: State, request: FetchOffsets, inputs: DecisionInputs) -> Decision:
    """Return the offsets that the group has committed.

    Raises InvalidGroupId, UnknownTopicOrPartition, UnstableOffsetCommit.
    """
    check_group(request.group)
    committed, pending = state.offsets.get(request.group, {}), state.find_pending_offsets(request.group)
    if request.partitions is None:
        topic_partitions = sorted({*committed, *pending})
    else:
        topic_partitions = [state.topic(topic).find_partition(partition) for topic, partition in request.partitions]
    unstable = [tp for tp in topic_partitions if tp in pending] if request.require_stable else []
    if unstable:
        topic_id, partition = unstable[0]
        raise UnstableOffsetCommit(found=f"{state.topics[topic_id].topic}-{partition}")
    offsets = [
        OffsetCommit(state.topics[tp[0]].topic, tp[1], commit.offset, commit.metadata, tp[0])
        for tp in topic_partitions
        if (commit := committed.get(tp)) is not None
    ]
    return Decision(OffsetsFetched(offsets))


LARGE_ANSWER_REQUESTS = (FetchOffsets, ResetOffsets)
"""Requests whose answers may be much larger than the requests."""


def estimate_answer_bytes(result: AnyResult) -> int:
    """Return the approximate size of an answer to one of LARGE_ANSWER_REQUESTS; 0 for others."""
    if isinstance(result, OffsetsFetched):
        return sum(_OFFSET_BYTES + len(commit.metadata or "") for commit in result.offsets)
    return _OFFSET_BYTES * len(result.changes) if isinstance(result, OffsetsChanged) else 0


def commit_offsets(state: State, record: OffsetsCommitted, segments: Segments) -> None:
    new = list(zip(record.topic_ids, record.offsets, strict=True))
    if record.transactional_id is None:
        for topic_id, commit in new:
            state.set_offset(record.group, (topic_id, commit.partition), commit.offset, commit.metadata)
            # moving a queue group by hand makes everything after the offset new
            state.forget_deliveries(record.group, (topic_id, commit.partition))
    elif transaction := state.change_transaction(record.transactional_id):
        # A group is one part of the transaction, however often it commits: counting repeats would hide a refused part.
        transaction.part_count += not transaction.offsets.get(record.group)
        commits = [
            (topic_id, msgspec.structs.replace(commit, topic_id=topic_id, epoch=None)) for topic_id, commit in new
        ]
        transaction.offsets[record.group] = _keep_newest(transaction.offsets.get(record.group, ()), commits)


def remove_offsets(state: State, record: OffsetsRemoved, segments: Segments) -> None:
    group = state.groups.get(record.group)
    for partition in record.partitions:
        tp = record.topic_id, partition
        state.remove_offset(record.group, tp)
        if group is not None and (assignment := state.change_assignment(group, tp)):
            assignment.start_offset = None  # the next owner starts by its auto.offset.reset


def _keep_newest(
    old: Iterable[tuple[int, OffsetCommit]], new: list[tuple[int, OffsetCommit]]
) -> list[tuple[int, OffsetCommit]]:
    """Return the newest offset per partition, so that a long transaction does not grow with every commit."""
    return list({(topic_id, commit.partition): (topic_id, commit) for topic_id, commit in [*old, *new]}.values())


# Offsets that are deleted before a group has read them: the group skips and counts them.


def count_deleted_offsets(state: State, topic_id: int, cuts: Mapping[TopicIdPartition, tuple[int, int]]) -> None:
    """Count for each group the offsets that it loses when logs of the topic start later.

    A queue group loses what it has not acknowledged, including messages that a member has at the moment. cuts:
    (topic_id, partition) -> the log start before and after.
    """
    for name, committed in state.offsets.items():
        if committed.keys().isdisjoint(cuts):  # true for most groups, and there may be many
            continue
        for tp in cuts.keys() & committed.keys():
            (before, after), commit, deliveries = cuts[tp], committed[tp], state.find_deliveries(name, tp)
            if deliveries is None:
                lost = after - max(before, commit.offset)
            else:
                lost = deliveries.count_remaining(after, before)
            if lost > 0:
                state.replace_offset(name, tp, replace(commit, deleted_count=commit.deleted_count + lost))
    for name in state.list_groups_with(topic_id):
        committed, group = state.offsets.get(name, {}), state.groups[name]
        for tp in cuts.keys() - committed.keys():
            (before, after), assignment = cuts[tp], group.assignments.get(tp)
            if assignment is None or assignment.start_offset is None:
                continue
            lost = after - max(before, assignment.start_offset)
            if lost > 0 and (assignment := state.change_assignment(group, tp)):
                assignment.deleted_count += lost


DECIDE: Rules = {
    CommitOffsets: decide_commit,
    FetchOffsets: decide_fetch,
    DeleteOffsets: group_operations.decide_delete_offsets,
    ResetOffsets: group_operations.decide_reset,
}
EVOLVE: Folds = {OffsetsCommitted: commit_offsets, OffsetsRemoved: remove_offsets}
TIMERS: Timers = group_operations.TIMERS
