"""Consumer offsets: how far a group has come in each partition; inside a transaction they count when it commits."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..errors import (
    FencedMemberEpoch,
    IllegalGeneration,
    IllegalState,
    InvalidRequest,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownTopicId,
    UnstableOffsetCommit,
)
from ..names import check_group, shown
from ..values.assignments import Group, GroupStatus, Place
from ..values.base import Done
from ..values.deciding import Decision, Given
from ..values.journal import JournalEntry
from ..values.kinds import AnyResult
from ..values.offsets import (
    MAX_OFFSETS,
    CommitOffsets,
    CommittedOffset,
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
from ..values.state import State
from . import operations
from .registries import Folds, Rules
from .timers import Timers
from .transactions import joined, open_transaction

MAX_METADATA = 4096

_OFFSET_BYTES = 64
"""Of an answer, about, that an offset takes without its metadata."""


def decide_commit(state: State, request: CommitOffsets, given: Given) -> Decision:
    """The offsets, at once or with the transaction; those of partitions that are not the member's are left out.

    Raises InvalidGroupId, UnknownTopicOrPartition, UnknownTopicId (offsets of a topic that is gone, whatever has its
    name now), OffsetOutOfRange (beyond the high watermark), OffsetMetadataTooLarge, InvalidRequest (too many),
    UnknownMemberId (also of none at all, where the group has members); of a classic group IllegalGeneration,
    RebalanceInProgress; of a transaction InvalidProducerIdMapping, InvalidProducerEpoch, TransactionAbortable,
    FencedMemberEpoch (one of the partitions is not the member's).
    """
    ref = request.transaction
    if ref is not None:
        open_transaction(state, ref)
    check_group(request.group)
    if len(request.offsets) > MAX_OFFSETS:
        raise InvalidRequest("Too many offsets.", found=len(request.offsets), expected=f"at most {MAX_OFFSETS}")
    topic_ids = [_checked(state, one) for one in request.offsets]
    fenced = _fenced(state, request, topic_ids)
    if fenced and ref is not None:
        raise FencedMemberEpoch(found=[_shown_place(request.offsets[i]) for i in fenced])
    result = OffsetsJudged(fenced) if request.member_id is not None else Done()
    left_out = set(fenced)
    kept = [i for i in range(len(topic_ids)) if i not in left_out]
    if not kept:
        return Decision(result)
    record = OffsetsCommitted(
        request.group,
        [topic_ids[i] for i in kept],
        [request.offsets[i] for i in kept],
        None if ref is None else ref.transactional_id,
    )
    begun = [] if ref is None else joined(state, ref, groups=[request.group])
    return Decision(result, (*begun, JournalEntry(record)))


def _fenced(state: State, request: CommitOffsets, topic_ids: list[int]) -> list[int]:
    """Indexes of offsets whose partition the member has not, or not under the epoch it says. Raises UnknownMemberId."""
    group, member_id = state.groups.get(request.group), request.member_id
    if member_id is None:
        if group is not None and group.members:
            raise UnknownMemberId("The group has members: only they may commit.", found="no member id")
        return []
    if group is None or member_id not in group.members:
        raise UnknownMemberId(found=shown(member_id))
    if group.is_queue:
        raise IllegalState("In a queue group a member acknowledges messages, and commits no offsets.")
    if group.is_classic:
        _check_generation(group, request)
    places = enumerate(zip(topic_ids, request.offsets, strict=True))
    return [i for i, (topic_id, one) in places if not _may_commit(group, request, (topic_id, one.partition), one.epoch)]


def _check_generation(group: Group, request: CommitOffsets) -> None:
    if request.generation != group.generation:
        raise IllegalGeneration(found=request.generation, expected=group.generation)
    if request.transaction is None and group.status is GroupStatus.COMPLETING:
        raise RebalanceInProgress()


def _may_commit(group: Group, request: CommitOffsets, place: Place, epoch: int | None) -> bool:
    """Whether the member has the partition under this assignment; or, in a classic group that waits for others, had it:
    nobody has it since. But not inside a transaction, which may end when somebody has.
    """
    one = group.assignments.get(place)
    if one is None or one.epoch != epoch:
        return False
    had_it = group.is_classic and one.is_free and one.target == request.member_id and request.transaction is None
    return one.owner == request.member_id or had_it


def _shown_place(one: OffsetCommit) -> str:
    return f"{shown(one.topic)}-{one.partition}"


def decide_fetch(state: State, request: FetchOffsets, given: Given) -> Decision:
    """What the group has committed. Raises InvalidGroupId, UnknownTopicOrPartition, UnstableOffsetCommit."""
    check_group(request.group)
    committed, pending = state.offsets.get(request.group, {}), state.pending_offsets(request.group)
    if request.partitions is None:
        wanted = sorted({*committed, *pending})
    else:
        wanted = [state.topic(topic).place(partition) for topic, partition in request.partitions]
    unstable = [place for place in wanted if place in pending] if request.require_stable else []
    if unstable:
        topic_id, partition = unstable[0]
        raise UnstableOffsetCommit(found=f"{state.topics[topic_id].topic}-{partition}")
    offsets = [_as_told(state, place, committed[place]) for place in wanted if place in committed]
    return Decision(OffsetsFetched(offsets))


TELLING = (FetchOffsets, ResetOffsets)
"""Requests whose answers may be far larger than they are."""


def told_bytes(result: AnyResult) -> int:
    """About what the answer to one of TELLING takes; of others, which are as large as what was asked, nothing."""
    if isinstance(result, OffsetsFetched):
        return sum(_OFFSET_BYTES + len(one.metadata or "") for one in result.offsets)
    return _OFFSET_BYTES * len(result.changes) if isinstance(result, OffsetsChanged) else 0


def _as_told(state: State, place: Place, committed: CommittedOffset) -> OffsetCommit:
    return OffsetCommit(state.topics[place[0]].topic, place[1], committed.offset, committed.metadata, place[0])


def _checked(state: State, one: OffsetCommit) -> int:
    """The topic's id."""
    known = state.topic(one.topic) if one.topic_id is None else state.topics.get(one.topic_id)
    if known is None:
        raise UnknownTopicId(found=f"{shown(one.topic)} with id {one.topic_id}")
    topic_id, partition = known.place(one.partition)
    high_watermark = int(state.topics[topic_id].high_watermarks[partition])
    if not 0 <= one.offset <= high_watermark:
        raise OffsetOutOfRange(
            f"{one.topic}-{partition} does not reach this offset.", found=one.offset, expected=f"0 to {high_watermark}"
        )
    if one.metadata is not None and len(one.metadata) > MAX_METADATA:
        raise OffsetMetadataTooLarge(
            found=f"{len(one.metadata)} characters", expected=f"at most {MAX_METADATA} characters"
        )
    return topic_id


def evolve_committed(state: State, record: OffsetsCommitted, segments: Segments) -> None:
    new = list(zip(record.topic_ids, record.offsets, strict=True))
    if record.transactional_id is None:
        for topic_id, one in new:
            state.note_offset(record.group, (topic_id, one.partition), one.offset, one.metadata)
            # who moves a queue group by hand means all that follows
            state.forget_deliveries(record.group, (topic_id, one.partition))
    elif transaction := state.transactions.get(record.transactional_id):
        # a group counts once: asked again, its offsets must not stand in for a part that was refused
        transaction.part_count += not transaction.offsets.get(record.group)
        known = [(topic_id, msgspec.structs.replace(one, topic_id=topic_id, epoch=None)) for topic_id, one in new]
        transaction.offsets[record.group] = _replaced(transaction.offsets.get(record.group, ()), known)


def evolve_removed(state: State, record: OffsetsRemoved, segments: Segments) -> None:
    committed = state.offsets.get(record.group, {})
    for partition in record.partitions:
        committed.pop((record.topic_id, partition), None)
        state.forget_deliveries(record.group, (record.topic_id, partition))
    if not committed:
        state.offsets.pop(record.group, None)
    if group := state.groups.get(record.group):
        for partition in record.partitions:
            if one := group.assignments.get((record.topic_id, partition)):
                one.start_offset = None  # the next owner begins as it sees fit


def _replaced(
    old: Iterable[tuple[int, OffsetCommit]], new: list[tuple[int, OffsetCommit]]
) -> list[tuple[int, OffsetCommit]]:
    """Of each partition the newest, so that a long transaction does not grow with every commit inside it."""
    return list({(topic_id, one.partition): (topic_id, one) for topic_id, one in [*old, *new]}.values())


DECIDE: Rules = {
    CommitOffsets: decide_commit,
    FetchOffsets: decide_fetch,
    DeleteOffsets: operations.decide_delete_offsets,
    ResetOffsets: operations.decide_reset,
}
EVOLVE: Folds = {OffsetsCommitted: evolve_committed, OffsetsRemoved: evolve_removed}
TIMERS: Timers = operations.TIMERS
