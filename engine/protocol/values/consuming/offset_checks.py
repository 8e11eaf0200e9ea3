"""Checks of offsets against the log, for the rule that decides and for the client that sends them."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import InvalidRequest, OffsetMetadataTooLarge, OffsetOutOfRange, UnknownTopicId
from ...names import shorten
from ..state import State
from .offsets import MAX_OFFSETS, OffsetCommit

MAX_METADATA = 4096
"""Characters of the metadata of an offset."""


def check_commits(state: State, commits: Sequence[OffsetCommit]) -> list[int]:
    """Return the topic id of each commit.

    Raises UnknownTopicOrPartition, UnknownTopicId (the topic is deleted, even if its name exists again),
    OffsetOutOfRange (beyond the high watermark), OffsetMetadataTooLarge, InvalidRequest (too many).
    """
    if len(commits) > MAX_OFFSETS:
        raise InvalidRequest("Too many offsets.", found=len(commits), expected=f"at most {MAX_OFFSETS}")
    return [_check_commit(state, commit) for commit in commits]


def _check_commit(state: State, commit: OffsetCommit) -> int:
    topic = state.topic(commit.topic) if commit.topic_id is None else state.topics.get(commit.topic_id)
    if topic is None:
        raise UnknownTopicId(found=f"{shorten(commit.topic)} with id {commit.topic_id}")
    topic_id, partition = topic.find_partition(commit.partition)
    high_watermark = int(topic.high_watermarks[partition])
    if not 0 <= commit.offset <= high_watermark:
        raise OffsetOutOfRange(
            f"{commit.topic}-{partition} does not reach this offset.",
            found=commit.offset,
            expected=f"0 to {high_watermark}",
        )
    if commit.metadata is not None and len(commit.metadata) > MAX_METADATA:
        raise OffsetMetadataTooLarge(
            found=f"{len(commit.metadata)} characters", expected=f"at most {MAX_METADATA} characters"
        )
    return topic_id
