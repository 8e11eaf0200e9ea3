"""Consumer offsets: how far each group has read its partitions."""

from dataclasses import dataclass
from typing import Literal

import msgspec

from .base import GroupRecord, Number, Request, Result
from .producers import TransactionRef

MAX_OFFSETS = 100_000
"""Offsets in one request: as many as a topic may have partitions."""


class OffsetCommit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a group has read a partition: `offset` is the next one that it reads.

    topic_id: the topic that was read; None: the topic that has the name when it is decided. epoch: the assignment under
    which a member has read it.
    """

    topic: str
    partition: int
    offset: int
    metadata: str | None = None
    topic_id: Number | None = None
    epoch: Number | None = None


class CommitOffsets(Request, frozen=True, tag="commit_offsets"):  # Decided by `rules/offsets.py`.
    """Commit offsets, at once or, inside a transaction, when it commits.

    member_id: the member that asks; None: a process that is not a member, which is legal while the group has no
    members. generation: the generation in which a member of a classic group has read.
    """

    group: str
    offsets: list[OffsetCommit]
    transaction: TransactionRef | None = None
    member_id: str | None = None
    generation: Number | None = None


class FetchOffsets(Request, frozen=True, tag="fetch_offsets"):  # Decided by `rules/offsets.py`.
    """Ask for committed offsets of these (topic, partition) pairs, or of all.

    require_stable: refuse while an open transaction has offsets for one of them.
    """

    group: str
    partitions: list[tuple[str, int]] | None = None
    require_stable: bool = True


class DeleteOffsets(Request, frozen=True, tag="delete_offsets"):  # Decided by `rules/group_operations.py`.
    """Forget committed offsets. partitions: topic and partition; None: all partitions of the topic."""

    group: str
    partitions: list[tuple[str, int | None]]


class ResetPartition(msgspec.Struct, frozen=True, array_like=True):
    """A partition to reset.

    partition: None for all of the topic. offset: overrides the offset of the request. topic_id: the topic that was
    looked at; None: the topic that has the name when it is decided.
    """

    topic: str
    partition: int | None = None
    offset: int | None = None
    topic_id: Number | None = None


class ResetOffsets(Request, frozen=True, tag="reset_offsets"):  # Decided by `rules/group_operations.py`.
    """Move the offsets of a group without members, within what the log holds.

    to: the log start, the last stable offset, `offset`, or `offset` further (or back). partitions: None for everything
    that the group has. dry_run: only report the changes.
    """

    group: str
    to: Literal["earliest", "latest", "offset", "shift"]
    offset: int = 0
    partitions: list[ResetPartition] | None = None
    dry_run: bool = False


class OffsetsFetched(Result, frozen=True, tag="offsets"):
    """The committed offsets. A partition without one is left out."""

    offsets: list[OffsetCommit]


class OffsetsJudged(Result, frozen=True, tag="offsets_judged"):
    """A member's request is accepted, except for the offsets with these indexes.

    Their partitions are not the member's any more, or were assigned to it again.
    """

    fenced: list[int]


class CommittedChange(msgspec.Struct, frozen=True, array_like=True):
    """The committed offset before and after; None for no offset."""

    topic: str
    partition: int
    before: int | None
    after: int | None


class OffsetsChanged(Result, frozen=True, tag="offsets_changed"):
    """The result for each requested partition, also for unchanged ones."""

    changes: list[CommittedChange]


class OffsetsCommitted(GroupRecord, frozen=True, tag="offsets_committed"):
    """A group has committed offsets. With a transactional id they count when that transaction commits.

    topic_ids: the topics of `offsets`, in the same order. reason: `reset` for an operator's change.
    """

    topic_ids: list[int]
    offsets: list[OffsetCommit]
    transactional_id: str | None = None
    reason: str | None = None


class OffsetsRemoved(GroupRecord, frozen=True, tag="offsets_removed"):
    """The offsets that a group had committed in these partitions are forgotten."""

    topic_id: int
    topic: str
    partitions: list[int]


@dataclass(frozen=True)
class CommittedOffset:
    """How far a group has read a partition.

    deleted_count: offsets that were deleted before the group had read them. expired_count: messages that expired before
    a member had seen them. Later commits keep both counts.
    """

    offset: int
    metadata: str | None
    committed_at_ms: int
    deleted_count: int = 0
    expired_count: int = 0


REQUESTS = (CommitOffsets, FetchOffsets, DeleteOffsets, ResetOffsets)
RESULTS = (OffsetsFetched, OffsetsJudged, OffsetsChanged)
RECORDS = (OffsetsCommitted, OffsetsRemoved)
