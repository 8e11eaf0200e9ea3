"""Locate dying messages: find the rows of messages that become dead letters, by the segments of their log.

Offsets that no segment covers yet are left out; the next search finds them. Rows of final files are copied to a data
file, because a final file has one topic, and goes with its messages. The copy is announced as left over. Messages that
compaction has emptied meanwhile are none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from lakemq.tables.specs.messages import (
    BODY_SCHEMA,
    FILE_SCHEMA,
    FINAL_FILES,
    MESSAGES,
    SEQUENCERS_FILES,
    SUPERSEDED,
    file_stem,
)
from lakemq.tables.specs.topics import COMPACTED, SEGMENTS
from lakemq.tables.storage.delta.commits import StoredFile
from lakemq.tables.storage.delta.leftovers import Leftovers
from lakemq.tables.storage.delta.store import Store
from lakemq.tables.storage.object_stores.files import Files
from lakemq.tables.storage.parquet import open_bounded_parquet

from ..namespace.data_file import BODY, file_name, new_data_file, read_footer
from ..protocol.values.assignments import TopicIdPartition
from ..protocol.values.dead_letters import DyingFound, RowLocation
from ..protocol.values.deliveries import Range
from ..protocol.values.log import DataFile

log = logging.getLogger("lakemq.serve")

MOST_SEGMENTS = 5_000
"""That a look finds: what a step decides of takes a fraction of a lease."""
_MOST_COPIED_BYTES = 16 << 20
"""Bytes of rows that a look copies of a partition, about."""

_ROWS = RowLocation.__struct_fields__[2:]
"""Columns that a location takes from its segment. Its offsets are those of the messages."""
_COLUMNS = (
    "kind",
    "topic_id",
    "topic",
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


def find_dying(
    store: Store, new_file_id: Callable[[], int], wanted: Sequence[DyingMessages], most: int = MOST_SEGMENTS
) -> list[Sighting]:
    """Return the rows of the first of these messages, in order, until so many segments are found. The last may be cut.

    Args:
        new_file_id: returns a random id below SEQUENCERS_FILES.

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
        sighting = Sighting(_build_report(messages, ranges, segments.slice(0, most).to_pylist(), ends), end)
        if any(located.file_id >= FINAL_FILES for located in sighting.found.rows):
            topic = segments.column("topic")[0].as_py()
            sighting = _copy_final_rows(store.files, topic, sighting, SEQUENCERS_FILES | new_file_id())
        sightings.append(sighting)
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
            & (is_marker | (pc.field("kind").isin(["data", COMPACTED]) & (pc.field("base_offset") <= last)))
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
    return DyingFound(messages.group, messages.topic_id, messages.partition, rows, empty, [])


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


# Copy rows of final files. What cannot be read is left out, like rows that are not found.


def _copy_final_rows(files: Files, topic: str, sighting: Sighting, file_id: int) -> Sighting:
    """Return the sighting with rows of final files in a data file of their own, perhaps cut short."""
    reader, rows, parts, size_bytes = _FinalReader(files, topic), list[RowLocation](), list[pa.Table](), 0
    end, row_count, empty = sighting.end, 0, [*sighting.found.empty]
    for located in sighting.found.rows:
        if located.file_id < FINAL_FILES:
            rows.append(located)
            continue
        if size_bytes >= _MOST_COPIED_BYTES:
            end = located.first
            break
        try:
            part = reader.read(located)
        except (OSError, ValueError, pa.ArrowException) as error:
            log.warning("Dying messages of %s cannot be read: %s. Run lakemq doctor.", topic, error)
            continue
        count = part.num_rows
        is_superseded = pc.equal(part.column("ttl_ms"), SUPERSEDED).fill_null(False).to_numpy()
        begins = np.flatnonzero(np.diff(is_superseded, prepend=~is_superseded[:1]))  # of runs of either kind
        for begin, run_end in zip(begins.tolist(), [*begins[1:].tolist(), count], strict=True):
            first, length = located.first + begin, run_end - begin
            if is_superseded[begin]:
                empty.append((first, length))
                continue
            rows.append(replace(located, first=first, length=length, file_id=file_id, first_row=row_count))
            parts.append(part.slice(begin, length))
            row_count += length
        size_bytes += part.nbytes
        if count < located.length:
            end = located.first + count
            break
    empty = sorted((first, count) for first, count in empty if first < end)
    report = replace(sighting.found, rows=rows, empty=empty)
    if not parts:
        return Sighting(report, end)
    Leftovers(files).announce(MESSAGES.name, [f"{file_stem(file_id)}.parquet"])
    with new_data_file(files, file_id) as writer:
        writer.write(pa.concat_tables(parts))
    written = writer.written(files)
    rows = [replace(each, footer_hash=written.footer_hash) if each.file_id == file_id else each for each in rows]
    return Sighting(replace(report, rows=rows, copied=[DataFile(*written)]), end)


class _FinalReader:
    """Reads rows of final files of a topic, and keeps the row group that it has read last."""

    def __init__(self, files: Files, topic: str) -> None:
        self._files, self._topic = files, topic
        self._file_id, self._first_row, self._rows = -1, 0, pa.table({})

    def read(self, located: RowLocation) -> pa.Table:
        """Return the first of these rows: those in one row group, columns of BODY. Raises OSError, ValueError."""
        at = located.first_row - self._first_row
        if located.file_id != self._file_id or not 0 <= at < self._rows.num_rows:
            self._read_group(located)
            at = located.first_row - self._first_row
        rows = self._rows.slice(at, located.length)
        columns = {name: rows.column(name) for name in BODY if name in rows.column_names}
        columns["topic"] = pa.repeat(self._topic, rows.num_rows)
        columns["deliver_at"] = pa.nulls(rows.num_rows, BODY_SCHEMA.field("deliver_at").type)
        return pa.table([columns[name] for name in BODY], schema=BODY_SCHEMA)

    def _read_group(self, located: RowLocation) -> None:
        with self._files.open_input(file_name(located.file_id, self._topic)) as source:
            footer = read_footer(source)
            if footer.is_other_than(located.footer_hash):
                raise ValueError(f"{file_name(located.file_id, self._topic)} was rewritten or damaged")
            metadata = footer.parse()
            ends = np.cumsum([metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)])
            group = int(np.searchsorted(ends, located.first_row, side="right"))
            names = [name for name in BODY if name in FILE_SCHEMA.names]
            self._rows = open_bounded_parquet(source, metadata).read_row_groups([group], names)
            self._file_id, self._first_row = located.file_id, int(ends[group]) - self._rows.num_rows
