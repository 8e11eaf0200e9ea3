"""Final messages: ranges of offsets whose messages are in files of `final_messages`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .base import TopicRecord


class FinalFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file of `final_messages`. footer_hash: as of data files."""

    file_id: int
    footer_hash: int


class FinalRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Offsets of a partition, both ends included, with so many messages.

    file: number of the file that has them. None: the offsets have no message, only markers and aborted rows.
    """

    partition: int
    base_offset: int
    last_offset: int
    record_count: int
    file: int | None
    min_timestamp_ms: int | None
    max_timestamp_ms: int | None


class RangesWritten(msgspec.Struct, frozen=True):
    """The leader has written the messages of these ranges to files, but no step knows them yet.

    ranges: ascending within each partition, without gaps.
    """

    topic_id: int
    files: list[FinalFile]
    ranges: list[FinalRange]


class RangesFinalized(TopicRecord, frozen=True, tag="ranges_finalized"):
    """The messages of these ranges are in these files from now on."""

    files: list[FinalFile]
    ranges: list[FinalRange]


def find_range_ends(ranges: Iterable[FinalRange]) -> dict[int, tuple[int, int]]:
    """Return by partition the first offset of its ranges, and the offset after the last one.

    Raises ValueError: there is a gap, or a range ends before it begins.
    """
    ends: dict[int, tuple[int, int]] = {}
    for range_ in ranges:
        first, end = ends.get(range_.partition, (range_.base_offset,) * 2)
        if range_.base_offset != end or range_.last_offset < end:
            raise ValueError(f"partition {range_.partition}: found offsets from {range_.base_offset}, expected {end}")
        ends[range_.partition] = first, range_.last_offset + 1
    return ends


RECORDS = (RangesFinalized,)
