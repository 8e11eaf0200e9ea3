"""Consumer offsets: how far a group has come in each partition; inside a transaction they count when it commits."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..errors import (
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from ..names import check_group, shown
from ..values.base import Done
from ..values.deciding import Decision, Given
from ..values.journal import JournalEntry
from ..values.offsets import (
    CommitOffsets,
    CommittedOffset,
    FetchOffsets,
    OffsetCommit,
    OffsetsCommitted,
    OffsetsFetched,
    OffsetsRemoved,
)
from ..values.segments import Segments
from ..values.state import State
from ..values.topics import Topic
from .registries import Folds, Rules
from .timers import Timers
from .transactions import joined, open_transaction

MAX_METADATA = 4096
TopicIdPartition = tuple[int, int]
"""topic_id and partition."""


def decide_commit(state: State, request: CommitOffsets, given: Given) -> Decision:
    """The offsets, at once or with the transaction.

    Raises InvalidGroupId, UnknownTopicOrPartition, UnknownTopicId (offsets of a topic that is gone, whatever has its
    name now), OffsetOutOfRange (beyond the high watermark), OffsetMetadataTooLarge; of a transaction
    InvalidProducerIdMapping, InvalidProducerEpoch, TransactionAbortable.
    """
    ref = request.transaction
    if ref is not None:
        open_transaction(state, ref)
    check_group(request.group)
    topic_ids = [_checked(state, one) for one in request.offsets]
    if not request.offsets:
        return Decision(Done())
    record = OffsetsCommitted(request.group, topic_ids, request.offsets, None if ref is None else ref.transactional_id)
    begun = [] if ref is None else joined(state, ref, groups=[request.group])
    return Decision(Done(), (*begun, JournalEntry(record)))


def decide_fetch(state: State, request: FetchOffsets, given: Given) -> Decision:
    """What the group has committed. Raises InvalidGroupId, UnknownTopicOrPartition, UnstableOffsetCommit."""
    check_group(request.group)
    committed, pending = state.offsets.get(request.group, {}), state.pending_offsets(request.group)
    if request.partitions is None:
        wanted = sorted({*committed, *pending})
    else:
        wanted = [_place(state, topic, partition) for topic, partition in request.partitions]
    unstable = [place for place in wanted if place in pending] if request.require_stable else []
    if unstable:
        topic_id, partition = unstable[0]
        raise UnstableOffsetCommit(found=f"{state.topics[topic_id].topic}-{partition}")
    offsets = [_as_told(state, place, committed[place]) for place in wanted if place in committed]
    return Decision(OffsetsFetched(offsets))


def _as_told(state: State, place: TopicIdPartition, committed: CommittedOffset) -> OffsetCommit:
    return OffsetCommit(state.topics[place[0]].topic, place[1], committed.offset, committed.metadata, place[0])


def _place(state: State, topic: str, partition: int) -> TopicIdPartition:
    return _partition_of(state.topic(topic), partition)


def _partition_of(known: Topic, partition: int) -> TopicIdPartition:
    if not 0 <= partition < known.partition_count:
        raise UnknownTopicOrPartition(
            f"{known.topic} has no such partition.", found=partition, expected=f"0 to {known.partition_count - 1}"
        )
    return known.topic_id, partition


def _checked(state: State, one: OffsetCommit) -> int:
    """The topic's id."""
    known = state.topic(one.topic) if one.topic_id is None else state.topics.get(one.topic_id)
    if known is None:
        raise UnknownTopicId(found=f"{shown(one.topic)} with id {one.topic_id}")
    topic_id, partition = _partition_of(known, one.partition)
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
            committed = CommittedOffset(one.offset, one.metadata, state.now_ms)
            state.offsets.setdefault(record.group, {})[topic_id, one.partition] = committed
    elif transaction := state.transactions.get(record.transactional_id):
        # a group counts once: asked again, its offsets must not stand in for a part that was refused
        transaction.part_count += not transaction.offsets.get(record.group)
        known = [(topic_id, msgspec.structs.replace(one, topic_id=topic_id)) for topic_id, one in new]
        transaction.offsets[record.group] = _replaced(transaction.offsets.get(record.group, ()), known)


def evolve_removed(state: State, record: OffsetsRemoved, segments: Segments) -> None:
    committed = state.offsets.get(record.group, {})
    for partition in record.partitions:
        committed.pop((record.topic_id, partition), None)
    if not committed:
        state.offsets.pop(record.group, None)


def _replaced(
    old: Iterable[tuple[int, OffsetCommit]], new: list[tuple[int, OffsetCommit]]
) -> list[tuple[int, OffsetCommit]]:
    """Of each partition the newest, so that a long transaction does not grow with every commit inside it."""
    return list({(topic_id, one.partition): (topic_id, one) for topic_id, one in [*old, *new]}.values())


DECIDE: Rules = {CommitOffsets: decide_commit, FetchOffsets: decide_fetch}
EVOLVE: Folds = {OffsetsCommitted: evolve_committed, OffsetsRemoved: evolve_removed}
TIMERS: Timers = ()
