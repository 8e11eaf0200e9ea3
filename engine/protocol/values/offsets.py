"""Consumer offsets: how far each group has come in its partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from .base import Number, Record, Request, Result
from .producers import TransactionRef

MAX_OFFSETS = 100_000
"""Of one request: as many as a topic may have partitions."""


class OffsetCommit(msgspec.Struct, frozen=True, array_like=True, gc=False):
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

    member_id: who asks; None: nobody of the group, which it may while the group has no members; generation: in which
    it has read, of a classic group.
    """

    group: str
    offsets: list[OffsetCommit]
    transaction: TransactionRef | None = None
    member_id: str | None = None
    generation: Number | None = None


class FetchOffsets(Request, frozen=True, tag="fetch_offsets"):
    """Ask how far a group has come, in these (topic, partition) pairs or in all it has committed.

    require_stable: refuse while an open transaction has offsets for one of them.
    """

    group: str
    partitions: list[tuple[str, int]] | None = None
    require_stable: bool = True


class DeleteOffsets(Request, frozen=True, tag="delete_offsets"):
    """Forget what a group has committed. partitions: topic, and partition; None: all of the topic."""

    group: str
    partitions: list[tuple[str, int | None]]


class ResetPlace(msgspec.Struct, frozen=True, array_like=True):
    """What is to be reset. partition None: all of the topic; offset: another one than the request's; topic_id: of the
    topic that was looked at, None: whichever has the name when it is decided.
    """

    topic: str
    partition: int | None = None
    offset: int | None = None
    topic_id: Number | None = None


class ResetOffsets(Request, frozen=True, tag="reset_offsets"):
    """Let a group without members go on elsewhere, within what the log has.

    to: where the log begins, where what is stable ends, at `offset`, or by so many further (or back); places: None is
    all that the group has; dry_run: only say what would change.
    """

    group: str
    to: Literal["earliest", "latest", "offset", "shift"]
    offset: int = 0
    places: list[ResetPlace] | None = None
    dry_run: bool = False


class OffsetsFetched(Result, frozen=True, tag="offsets"):
    """What was committed; a partition without an offset is left out."""

    offsets: list[OffsetCommit]


class OffsetsJudged(Result, frozen=True, tag="offsets_judged"):
    """What a member has asked for is noted, but for these of its offsets, by index: the partitions are not its own any
    more, or were given to it anew.
    """

    fenced: list[int]


class OffsetChange(msgspec.Struct, frozen=True, array_like=True):
    """before, after: what the group has committed; None: nothing."""

    topic: str
    partition: int
    before: int | None
    after: int | None


class OffsetsChanged(Result, frozen=True, tag="offsets_changed"):
    """What has become of each partition that was asked for, also where nothing has changed."""

    changes: list[OffsetChange]


class OffsetsCommitted(Record, frozen=True, tag="offsets_committed"):
    """How far a group has come; with a transactional id it counts once that transaction commits.

    topic_ids: of the topics of `offsets`, in the same order; reason: reset, where it was an operator who said so.
    """

    group: str
    topic_ids: list[int]
    offsets: list[OffsetCommit]
    transactional_id: str | None = None
    reason: str | None = None

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
    """How far a group has come in a partition. deleted_count: offsets that were deleted before it was done with them;
    expired_count: messages that expired before anybody in it had looked at them. Both stay counted when it goes on.
    """

    offset: int
    metadata: str | None
    committed_at_ms: int
    deleted_count: int = 0
    expired_count: int = 0


REQUESTS = (CommitOffsets, FetchOffsets, DeleteOffsets, ResetOffsets)
RESULTS = (OffsetsFetched, OffsetsJudged, OffsetsChanged)
RECORDS = (OffsetsCommitted, OffsetsRemoved)
