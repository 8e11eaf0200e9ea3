"""Consumer offsets: how far each group has come in its partitions."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from .base import Number, Record, Request, Result
from .producers import TransactionRef


class OffsetCommit(msgspec.Struct, frozen=True, array_like=True):
    """How far a group has consumed a partition: `offset` is the next one it wants.

    topic_id: of the topic that was read; None: whichever has the name when it is decided. epoch: of the assignment
    under which a member has read it.
    """

    topic: str
    partition: int
    offset: int
    metadata: str | None = None
    topic_id: Number | None = None
    epoch: Number | None = None


class CommitOffsets(Request, frozen=True, tag="commit_offsets"):
    """Note how far a group has come, at once or, inside a transaction, when that commits.

    member_id: who asks; None: nobody of the group, which it may while the group has no members.
    """

    group: str
    offsets: list[OffsetCommit]
    transaction: TransactionRef | None = None
    member_id: str | None = None


class FetchOffsets(Request, frozen=True, tag="fetch_offsets"):
    """Ask how far a group has come, in these (topic, partition) pairs or in all it has committed.

    require_stable: refuse while an open transaction has offsets for one of them.
    """

    group: str
    partitions: list[tuple[str, int]] | None = None
    require_stable: bool = True


class OffsetsFetched(Result, frozen=True, tag="offsets"):
    """What was committed; a partition without an offset is left out."""

    offsets: list[OffsetCommit]


class OffsetsJudged(Result, frozen=True, tag="offsets_judged"):
    """What a member has asked for is noted, but for these of its offsets, by index: the partitions are not its own any
    more, or were given to it anew.
    """

    fenced: list[int]


class OffsetsCommitted(Record, frozen=True, tag="offsets_committed"):
    """How far a group has come; with a transactional id it counts once that transaction commits.

    topic_ids: of the topics of `offsets`, in the same order.
    """

    group: str
    topic_ids: list[int]
    offsets: list[OffsetCommit]
    transactional_id: str | None = None

    @property
    def subject(self) -> str:
        return self.group


class OffsetsRemoved(Record, frozen=True, tag="offsets_removed"):
    """What a group had committed in these partitions is forgotten."""

    group: str
    topic_id: int
    topic: str
    partitions: list[int]

    @property
    def subject(self) -> str:
        return self.group


@dataclass(frozen=True)
class CommittedOffset:
    """How far a group has come in a partition."""

    offset: int
    metadata: str | None
    committed_at_ms: int


REQUESTS = (CommitOffsets, FetchOffsets)
RESULTS = (OffsetsFetched, OffsetsJudged)
RECORDS = (OffsetsCommitted, OffsetsRemoved)
