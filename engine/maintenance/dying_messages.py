"""Locate dying messages: find the rows of messages that become dead letters, by the segments of their log.

Offsets that no segment covers yet are left out; the next search finds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.topics import SEGMENTS
from lakemq.tables.storage.delta.commits import StoredFile
from lakemq.tables.storage.delta.store import Store

from ..protocol.values.assignments import TopicIdPartition
from ..protocol.values.dead_letters import DyingFound, RowLocation
from ..protocol.values.stretches import Range

MOST_SEGMENTS = 5_000
"""That a look finds: what a step decides of takes a fraction of a lease."""

_ROWS = RowLocation.__struct_fields__[2:]
"""Columns that a location takes from its segment. Its offsets are those of the messages."""
_COLUMNS = (
    "kind",
    "topic_id",
    "partition",
    "base_offset",
    "last_offset",
    *_ROWS,
    "producer_id",
    "producer_epoch",
    "transactional",
)

_MARKER = ("kind", "topic_id", "partition", "producer_id", "producer_epoch")

_Segment = dict[str, Any]
_Transaction = tuple[int, int, int, int]
"""Topic, partition, producer id and epoch: by these, a marker ends the transaction's rows in that partition."""


class DyingMessages(NamedTuple):
    """Messages of a group, or dead letters to redrive, ascending. committed: aborted records are no messages."""

    group: str
    topic_id: int
    partition: int
    ranges: tuple[Range, ...]
    committed: bool

    @property
    def end(self) -> int:
        return sum(self.ranges[-1])

    def cut_before(self, offset: int) -> DyingMessages:
        """Return the messages from this offset on. The offset lies before their end."""
        cut = ((max(first, offset), first + count) for first, count in self.ranges if first + count > offset)
        return self._replace(ranges=tuple((first, end - first) for first, end in cut))


class Sighting(NamedTuple):
    """The rows found of dying messages before the offset `end`. Later offsets were not searched."""

    found: DyingFound
    end: int


def find_dying(store: Store, wanted: Sequence[DyingMessages], most: int = MOST_SEGMENTS) -> list[Sighting]:
    """Return the rows of the first of these messages, in order, until so many segments are found. The last may be cut.

    Raises:
        FileNotFoundError: a table was merged meanwhile.
    """
    bounds: dict[TopicIdPartition, tuple[int, int]] = {}
    for messages in wanted:
        first, last = messages.ranges[0][0], messages.end - 1
        low, high = bounds.get((messages.topic_id, messages.partition), (first, last))
        bounds[messages.topic_id, messages.partition] = min(first, low), max(last, high)
    rows = _read_segments(store, bounds).sort_by("base_offset")
    ends = {
        (row["topic_id"], row["partition"], row["producer_id"], row["producer_epoch"]): row["kind"]
        for row in rows.select(_MARKER).filter(pc.field("kind") != "data").to_pylist()
    }
    sightings: list[Sighting] = []
    for messages in wanted:
        if most <= 0:
            break
        ranges = messages.ranges[:most]
        end = sum(ranges[-1])
        of_log = (pc.field("topic_id") == messages.topic_id) & (pc.field("partition") == messages.partition)
        segments = rows.filter(of_log)
        segments = segments.filter(pa.array(_overlap_ranges(segments, ranges)))
        if segments.num_rows > most:
            end = min(end, segments.column("last_offset")[most - 1].as_py() + 1)
        sightings.append(Sighting(_build_report(messages, ranges, segments.slice(0, most).to_pylist(), ends), end))
        most -= max(len(ranges), segments.num_rows)
    return sightings


def _overlap_ranges(segments: pa.Table, ranges: Sequence[Range]) -> npt.NDArray[np.bool_]:
    """Return which segments have offsets within these ranges."""
    firsts = np.array([first for first, _ in ranges], np.int64)
    ends = firsts + np.array([count for _, count in ranges], np.int64)
    bases, lasts = (segments.column(name).to_numpy() for name in ("base_offset", "last_offset"))
    at = np.searchsorted(ends, bases, side="right")  # the first range that ends after the segment's first offset
    overlap: npt.NDArray[np.bool_] = (at < len(ends)) & (firsts[np.minimum(at, len(ends) - 1)] <= lasts)
    return overlap


def _read_segments(store: Store, bounds: Mapping[TopicIdPartition, tuple[int, int]]) -> pa.Table:
    """Read segments that overlap these offsets, and all later markers: a marker follows everything that it ends."""
    segments = store.open(SEGMENTS)
    where = pc.scalar(False)
    for (topic_id, partition), (first, last) in bounds.items():
        of_log = (pc.field("topic_id") == topic_id) & (pc.field("partition") == partition)
        is_marker = pc.field("kind").isin(["commit", "abort"])
        where |= (
            of_log
            & (pc.field("last_offset") >= first)
            & (is_marker | ((pc.field("kind") == "data") & (pc.field("base_offset") <= last)))
        )
    files = [file for file in segments.files() if any(_may_hold(file, tp, first) for tp, (first, _) in bounds.items())]
    return segments.read(_COLUMNS, where, files=files)


def _may_hold(file: StoredFile, tp: TopicIdPartition, first: int) -> bool:
    def within(name: str, value: int) -> bool:
        low, high = file.statistics.get(f"min.{name}"), file.statistics.get(f"max.{name}")
        return (low is None or low <= value) and (high is None or high >= value)

    last = file.statistics.get("max.last_offset")
    return within("topic_id", tp[0]) and within("partition", tp[1]) and (last is None or last >= first)


def _build_report(
    messages: DyingMessages, ranges: Sequence[Range], segments: Sequence[_Segment], ends: Mapping[_Transaction, str]
) -> DyingFound:
    rows: list[RowLocation] = []
    empty: list[Range] = []
    for segment, first, end in _find_overlaps(ranges, segments):
        if segment["kind"] != "data" or (messages.committed and _find_outcome(segment, ends) == "abort"):
            empty.append((first, end - first))
        elif not messages.committed or _find_outcome(segment, ends) is not None:
            rows.append(_locate(segment, first, end))
    return DyingFound(messages.group, messages.topic_id, messages.partition, rows, empty)


def _find_outcome(segment: _Segment, ends: Mapping[_Transaction, str]) -> str | None:
    """Return "commit" or "abort". None: the transaction is open, as far as the tables show."""
    if not segment["transactional"]:
        return "commit"
    tp = segment["topic_id"], segment["partition"]
    return ends.get((*tp, segment["producer_id"], segment["producer_epoch"]))


def _locate(segment: _Segment, first: int, end: int) -> RowLocation:
    columns = {name: segment[name] for name in _ROWS}
    columns["first_row"] += first - segment["base_offset"]
    return RowLocation(first, end - first, **columns)


def _find_overlaps(ranges: Sequence[Range], segments: Sequence[_Segment]) -> Iterator[tuple[_Segment, int, int]]:
    """Yield each segment with the offsets that it shares with a range.

    Both are ascending and do not overlap among themselves.
    """
    at = 0
    for first, count in ranges:
        while at < len(segments) and segments[at]["last_offset"] < first:
            at += 1
        i = at
        while i < len(segments) and segments[i]["base_offset"] < first + count:
            segment = segments[i]
            yield segment, max(first, segment["base_offset"]), min(first + count, segment["last_offset"] + 1)
            i += 1
