"""Where messages are that are dying, as far as the tables tell: their segments, but for what holds no message.

What no segment tells of yet is left out: the next look finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.segments import SEGMENTS
from lakemq.tables.storage.commits import StoredFile
from lakemq.tables.storage.store import Store

from ..protocol.values.assignments import Place
from ..protocol.values.dead_letters import DyingFound, Located
from ..protocol.values.deliveries import Range

MOST_SEGMENTS = 5_000
"""That a look finds: what a step decides of takes a fraction of a lease."""

_ROWS = Located.__struct_fields__[2:]
"""What of a segment goes along; the offsets are those of the messages."""
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
"""Topic, partition, producer id and epoch, by which a marker ends it there."""


class Dying(NamedTuple):
    """Messages of a group, or dead letters to be redriven, ascending. committed: what was aborted is no message."""

    group: str
    topic_id: int
    partition: int
    ranges: tuple[Range, ...]
    committed: bool

    @property
    def end(self) -> int:
        return sum(self.ranges[-1])

    def since(self, offset: int) -> Dying:
        """What of them is not before it; it is before the end."""
        cut = ((max(first, offset), first + count) for first, count in self.ranges if first + count > offset)
        return self._replace(ranges=tuple((first, end - first) for first, end in cut))


class Sighting(NamedTuple):
    """What there is of messages that are dying, of those before this offset: after it nobody has looked."""

    found: DyingFound
    end: int


def find_dying(store: Store, wanted: Sequence[Dying], most: int = MOST_SEGMENTS) -> list[Sighting]:
    """What there is of the first of them, in their order, until so many segments are found: the last one may be cut.

    FileNotFoundError: a table was merged meanwhile.
    """
    bounds: dict[Place, tuple[int, int]] = {}
    for one in wanted:
        first, last = one.ranges[0][0], one.end - 1
        low, high = bounds.get((one.topic_id, one.partition), (first, last))
        bounds[one.topic_id, one.partition] = min(first, low), max(last, high)
    rows = _read(store, bounds).sort_by("base_offset")
    ends = {
        (row["topic_id"], row["partition"], row["producer_id"], row["producer_epoch"]): row["kind"]
        for row in rows.select(_MARKER).filter(pc.field("kind") != "data").to_pylist()
    }
    sightings: list[Sighting] = []
    for one in wanted:
        if most <= 0:
            break
        ranges = one.ranges[:most]
        end = sum(ranges[-1])
        of_log = (pc.field("topic_id") == one.topic_id) & (pc.field("partition") == one.partition)
        mine = rows.filter(of_log)
        mine = mine.filter(pa.array(_are_within(mine, ranges)))
        if mine.num_rows > most:
            end = min(end, mine.column("last_offset")[most - 1].as_py() + 1)
        sightings.append(Sighting(_found(one, ranges, mine.slice(0, most).to_pylist(), ends), end))
        most -= max(len(ranges), mine.num_rows)
    return sightings


def _are_within(segments: pa.Table, ranges: Sequence[Range]) -> npt.NDArray[np.bool_]:
    """Which of them have offsets of these ranges."""
    firsts = np.array([first for first, _ in ranges], np.int64)
    ends = firsts + np.array([count for _, count in ranges], np.int64)
    bases, lasts = (segments.column(name).to_numpy() for name in ("base_offset", "last_offset"))
    at = np.searchsorted(ends, bases, side="right")  # the first range that ends after the segment's first offset
    found: npt.NDArray[np.bool_] = (at < len(ends)) & (firsts[np.minimum(at, len(ends) - 1)] <= lasts)
    return found


def _read(store: Store, bounds: Mapping[Place, tuple[int, int]]) -> pa.Table:
    """What overlaps these offsets, and all markers after the first: one comes after all that it ends."""
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
    files = [
        file for file in segments.files() if any(_may_have(file, place, first) for place, (first, _) in bounds.items())
    ]
    return segments.read(_COLUMNS, where, files=files)


def _may_have(file: StoredFile, place: Place, first: int) -> bool:
    def within(name: str, value: int) -> bool:
        low, high = file.statistics.get(f"min.{name}"), file.statistics.get(f"max.{name}")
        return (low is None or low <= value) and (high is None or high >= value)

    last = file.statistics.get("max.last_offset")
    return within("topic_id", place[0]) and within("partition", place[1]) and (last is None or last >= first)


def _found(
    one: Dying, ranges: Sequence[Range], segments: Sequence[_Segment], ends: Mapping[_Transaction, str]
) -> DyingFound:
    rows: list[Located] = []
    empty: list[Range] = []
    for segment, first, end in _overlaps(ranges, segments):
        if segment["kind"] != "data" or (one.committed and _outcome(segment, ends) == "abort"):
            empty.append((first, end - first))
        elif not one.committed or _outcome(segment, ends) is not None:
            rows.append(_rows(segment, first, end))
    return DyingFound(one.group, one.topic_id, one.partition, rows, empty)


def _outcome(segment: _Segment, ends: Mapping[_Transaction, str]) -> str | None:
    """None: its transaction is open as far as the tables tell."""
    if not segment["transactional"]:
        return "commit"
    place = segment["topic_id"], segment["partition"]
    return ends.get((*place, segment["producer_id"], segment["producer_epoch"]))


def _rows(segment: _Segment, first: int, end: int) -> Located:
    told = {name: segment[name] for name in _ROWS}
    told["first_row"] += first - segment["base_offset"]
    return Located(first, end - first, **told)


def _overlaps(ranges: Sequence[Range], segments: Sequence[_Segment]) -> Iterator[tuple[_Segment, int, int]]:
    """Both ascending and apart: each segment, with the offsets that it and a range have in common."""
    at = 0
    for first, count in ranges:
        while at < len(segments) and segments[at]["last_offset"] < first:
            at += 1
        i = at
        while i < len(segments) and segments[i]["base_offset"] < first + count:
            segment = segments[i]
            yield segment, max(first, segment["base_offset"]), min(first + count, segment["last_offset"] + 1)
            i += 1
