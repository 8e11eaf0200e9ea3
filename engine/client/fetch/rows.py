"""The plan of a fetch and its rows, which are read once per file for all ranges of the plan.

Rows come from the newest steps if they have them, else from their files. They are read whole or in pieces of bounded
size, and messages that are not shown are found among them. Rows of docs/architecture.md: fetch 5.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemq.tables.specs.messages import FINAL_FILES, HEADERS, SUPERSEDED, file_stem
from lakemq.tables.storage.native_calls import NATIVE_CALLS, Workers
from lakemq.tables.storage.object_stores.files import Files

from ...namespace.data_file import ROW_GROUP_ROWS
from ...namespace.data_file_reader import open_data_file
from ...protocol.errors import FileTruncated
from ...protocol.values.dead_letters import Cause, decode_cause
from ...protocol.values.segments import cut_segments

if TYPE_CHECKING:
    from .log_reader import StepRows, StepRowsByFile
    from .lookup import OffsetRange


# Row groups that were read last: a consumer comes back for the rest of each with its next poll.


MOST_BYTES = 160 << 20
"""Room for two row groups of 64 MiB, because a poll may lie in two. Publishers write about half as much at a time."""


class RowGroupCache:
    """A cache of row groups of one consumer. The one that was used longest ago goes first. Thread-safe.

    A row group never changes, and its file is verified when it is read, so nothing here becomes stale.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._lock = threading.Lock()
        self._starts: dict[int, tuple[int, ...]] = {}
        self._groups: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()

    def row_group_starts(self, file_id: int) -> tuple[int, ...] | None:
        """Return the first row of each row group, and the end of the last; None: nothing of the file is cached."""
        return self._starts.get(file_id)

    def get(self, file_id: int, group: int) -> pa.Table | None:
        """Return a row group, if it is cached."""
        with self._lock:
            rows = self._groups.get((file_id, group))
            if rows is not None:
                self._groups.move_to_end((file_id, group))
            return rows

    def put(self, file_id: int, starts: tuple[int, ...], group: int, rows: pa.Table) -> None:
        """Cache a row group, unless it is larger than the whole cache. starts: as `row_group_starts` returns them."""
        with self._lock:
            if rows.nbytes > self._most_bytes or (file_id, group) in self._groups:
                return
            self._starts[file_id] = starts
            self._groups[file_id, group] = rows
            self._bytes += rows.nbytes
            while self._bytes > self._most_bytes:
                (oldest_file_id, _), table = self._groups.popitem(last=False)
                self._bytes -= table.nbytes
                if all(cached_file_id != oldest_file_id for cached_file_id, _ in self._groups):
                    del self._starts[oldest_file_id]


# The plan of a fetch. It is apart from planning, because Spark's executors read by it and have no Delta library.


Isolation = Literal["read_committed", "read_uncommitted"]


@dataclass(frozen=True)
class FetchPlan:
    """The rows that a fetch reads, as of one step.

    Attributes:
        segments: row ranges of data files (PLAN_SCHEMA), by partition and offset.
        ranges: the offsets that were asked for.
        step_rows: rows of the segments that are in steps, and may not be in a data file yet.
        now_ms: messages that have expired by this time are not shown; None: expired ones are shown.
    """

    topic: str
    topic_id: int
    step: int
    segments: pa.Table
    ranges: tuple[OffsetRange, ...]
    step_rows: StepRowsByFile
    isolation: Isolation
    now_ms: int | None = None

    @property
    def expirable(self) -> pa.Table:
        """The segments that may have messages which are not shown: expired or superseded ones."""
        return self.segments.filter(pa.array(mask_expirable_segments(self.now_ms, self.segments)))

    @property
    def record_count(self) -> int:
        """The number of messages, including those that have expired or are superseded."""
        return sum(self.segments.column("record_count").to_pylist())


# Read the rows of a plan, once per file for all its ranges.


_SHOWN = ["key", "value", "timestamp", "headers"]
_TTL = "ttl_ms"
_FILES_AT_ONCE = 16
_HEADERS_IN_BYTES = pa.list_(pa.struct({"key": pa.binary(), "value": pa.binary()}))

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RangeRows:
    """Rows that were read, and where in them some ranges of the plan begin.

    Attributes:
        rows: key, value, timestamp, headers; also ttl_ms if messages of the plan may not be shown.
        ranges: indices of the ranges in the plan.
        begin: for each of these ranges, the index in `rows` of its first row.
    """

    rows: pa.Table
    ranges: Numbers
    begin: Numbers


@dataclass(frozen=True)
class _FileRanges:
    """Ranges of a plan in one file, by their indices in the plan, and the file rows from first to end (exclusive).

    numbers: what `number_column` has in the first row of each range. It goes up by one from row to row.
    """

    file_id: int
    indices: Numbers
    first_rows: Numbers
    ends: Numbers
    numbers: Numbers

    @property
    def number_column(self) -> str:
        return "offset" if self.file_id >= FINAL_FILES else "row"

    def select(self, mask: npt.NDArray[np.bool_]) -> _FileRanges:
        parts = (getattr(self, name)[mask] for name in ("indices", "first_rows", "ends", "numbers"))
        return _FileRanges(self.file_id, *parts)


def read_sources(files: Files, plan: FetchPlan, cache: RowGroupCache | None = None) -> Iterator[RangeRows]:
    """Read all ranges of the plan, and yield sources that have each range once.

    Args:
        files: the data files.
        plan: what to read.
        cache: row groups are looked for here first, and added.

    Raises:
        FileTruncated: rows are not there as they were written.
    """
    # With a cache the time to live is always read, because a later read of the row group may ask for it.
    columns = [*_SHOWN, _TTL] if cache is not None or plan.expirable.num_rows else _SHOWN
    for ranges in _group_by_file(plan):
        parts = plan.step_rows.get(ranges.file_id, ())
        in_steps = _are_in_steps(parts, ranges)
        if in_steps.any():
            yield _take_from_steps(parts, ranges.select(in_steps), columns)
        if not in_steps.all():
            in_file = ranges.select(~in_steps)
            footer_hash = plan.segments.column("footer_hash")[int(in_file.indices[0])].as_py()
            try:
                rows = _read_from_file(files, plan.topic, footer_hash, in_file, columns, cache)
            except FileTruncated as error:
                raise FileTruncated(
                    f"Messages of topic {plan.topic} cannot be read. {error.detail} `lakemq doctor` names all such"
                    " files, and how to go on.",
                    found=error.found,
                    expected=error.expected,
                ) from error
            yield rows


def read_footers(files: Files, plan: FetchPlan) -> dict[int, pq.FileMetaData]:
    """Return the footer of each file of the plan by id. Raises FileTruncated: one is gone, or not as it was written."""
    names = ("file_id", "footer_hash")
    needed = dict(zip(*(plan.segments.column(name).to_pylist() for name in names), strict=True))

    def read_footer(file_id: int) -> pq.FileMetaData:
        with open_data_file(files, file_id, needed[file_id], plan.topic) as file:
            return file.metadata

    with Workers(_FILES_AT_ONCE, "lakemq-footers") as pool:
        return dict(zip(needed, pool.map(read_footer, needed), strict=True))


def _group_by_file(plan: FetchPlan) -> Iterator[_FileRanges]:
    file_ids = plan.segments.column("file_id").to_numpy()
    first_rows = plan.segments.column("first_row").to_numpy()
    ends = first_rows + plan.segments.column("record_count").to_numpy()
    numbers = np.where(file_ids >= FINAL_FILES, plan.segments.column("base_offset").to_numpy(), first_rows)
    order = np.argsort(file_ids, kind="stable")
    for indices in np.split(order, np.flatnonzero(np.diff(file_ids[order])) + 1) if len(order) else ():
        file_id = int(file_ids[indices[0]])
        yield _FileRanges(file_id, indices, first_rows[indices], ends[indices], numbers[indices])


def _are_in_steps(parts: Sequence[StepRows], ranges: _FileRanges) -> npt.NDArray[np.bool_]:
    """Return a mask of the ranges that lie in parts which follow one another without a gap."""
    if not parts:
        return np.zeros(len(ranges.first_rows), np.bool_)
    begins = np.array([part.first_row for part in parts])
    ends = np.array([part.first_row + part.record_count for part in parts])
    # Parts without a gap form a stretch. Compute for each part the end of its stretch.
    is_last_of_stretch = np.append(begins[1:] != ends[:-1], True)
    stretch_ends = ends[is_last_of_stretch][np.cumsum(is_last_of_stretch) - is_last_of_stretch]
    index = np.searchsorted(begins, ranges.first_rows, side="right") - 1
    return (index >= 0) & (ranges.first_rows < ends[index]) & (ranges.ends <= stretch_ends[index])


def count_up_per_row(segments: pa.Table, first: Numbers) -> Numbers:
    """Return a number per message of the segments: the segment's `first`, then one more for each next message."""
    counts = segments.column("record_count").to_numpy()
    return np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


def segment_index_per_row(segments: pa.Table) -> Numbers:
    """Return the index of its segment for each message of the segments, in order."""
    return np.repeat(np.arange(segments.num_rows), segments.column("record_count").to_numpy())


def _take_from_steps(parts: Sequence[StepRows], ranges: _FileRanges, columns: list[str]) -> RangeRows:
    part_begins = np.array([part.first_row for part in parts])
    table_begins = np.cumsum([0, *(part.record_count for part in parts)])
    rows = pa.concat_tables([part.rows.select(columns) for part in parts])
    if rows.num_rows != table_begins[-1]:
        raise _misplaced_error(ranges.file_id)
    part = np.searchsorted(part_begins, ranges.first_rows, side="right") - 1
    return RangeRows(rows, ranges.indices, table_begins[part] + ranges.first_rows - part_begins[part])


@NATIVE_CALLS.guard
def _read_from_file(
    files: Files,
    topic: str,
    footer_hash: int | None,
    ranges: _FileRanges,
    columns: list[str],
    cache: RowGroupCache | None,
) -> RangeRows:
    """Read the row groups that have rows of the ranges, from the cache if all are there, else from the file."""
    file_id, columns = ranges.file_id, [ranges.number_column, *columns]
    groups: dict[int, pa.Table] = {}
    if cache is not None and (cached_starts := cache.row_group_starts(file_id)) is not None:
        starts = np.array(cached_starts)
        needed = _find_row_groups(starts, ranges)
        groups = {group: rows for group in needed if (rows := cache.get(file_id, group)) is not None}
        if len(groups) == len(needed):
            table = pa.concat_tables([groups[group] for group in needed])
            return _locate(table, starts, needed, ranges)
    with open_data_file(files, file_id, footer_hash, topic) as file:
        counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        starts = np.cumsum([0, *counts])
        needed = _find_row_groups(starts, ranges)
        if cache is None:
            table = _repair_names(file.read_row_groups(needed, columns=columns))
        else:
            # Read the groups one by one. A slice of a table of several would keep all of them in memory.
            for group in needed:
                if group not in groups:
                    groups[group] = _repair_names(file.read_row_group(group, columns=columns))
                    cache.put(file_id, tuple(starts.tolist()), group, groups[group])
            table = pa.concat_tables([groups[group] for group in needed])
    return _locate(table, starts, needed, ranges)


def _repair_names(rows: pa.Table) -> pa.Table:
    """Return the rows with U+FFFD in names of headers for bytes that are not UTF-8, as Kafka's client in Java does."""
    headers = rows.column("headers")
    try:
        headers.validate(full=True)
        return rows
    except pa.ArrowInvalid:  # nothing has checked what a publisher writes to a file
        lists = headers.cast(_HEADERS_IN_BYTES).to_pylist()
    for header in chain.from_iterable(filter(None, lists)):
        header["key"] = header["key"] and header["key"].decode(errors="replace")
    index = rows.column_names.index("headers")
    return rows.set_column(index, rows.schema.field(index), pa.array(lists, headers.type))


def _find_row_groups(starts: Numbers, ranges: _FileRanges) -> list[int]:
    """Return the row groups that have rows of the ranges. starts: of the row groups, and the end of the last."""
    if ranges.ends.max() > starts[-1]:
        raise _misplaced_error(ranges.file_id)
    first_group = np.searchsorted(starts, ranges.first_rows, side="right") - 1
    last_group = np.searchsorted(starts, ranges.ends, side="left") - 1
    # Add 1 where a range begins and subtract 1 after its last group: the running sum counts ranges per group.
    changes = np.zeros(len(starts), np.int64)
    np.add.at(changes, first_group, 1)
    np.add.at(changes, last_group + 1, -1)
    needed: list[int] = np.flatnonzero(np.cumsum(changes)[:-1] > 0).tolist()
    return needed


def _locate(table: pa.Table, starts: Numbers, needed: list[int], ranges: _FileRanges) -> RangeRows:
    """Return the source of the ranges. table: the needed row groups, one after the other."""
    counts = np.zeros(len(starts) - 1, np.int64)
    counts[needed] = np.diff(starts)[needed]
    table_begins = np.cumsum(counts) - counts
    group = np.searchsorted(starts, ranges.first_rows, side="right") - 1
    begin = table_begins[group] + ranges.first_rows - starts[group]
    _check_numbers(table.column(ranges.number_column).to_numpy(), begin, ranges)
    return RangeRows(table.drop_columns(ranges.number_column), ranges.indices, begin)


def _check_numbers(numbers: Numbers, begin: Numbers, ranges: _FileRanges) -> None:
    """Raise FileTruncated unless the first and the last row of each range have the numbers that they should have."""
    more = ranges.ends - ranges.first_rows - 1
    last = begin + more
    if (
        last.max() >= len(numbers)
        or (numbers[begin] != ranges.numbers).any()
        or (numbers[last] != ranges.numbers + more).any()
    ):
        raise _misplaced_error(ranges.file_id)


def _misplaced_error(file_id: int) -> FileTruncated:
    return FileTruncated(f"Data file {file_stem(file_id)} is damaged: its rows are not where they were.")


# Find the messages of a plan that are not shown. The time of the plan decides which have expired, whenever it is read.
# Compaction has emptied superseded ones, whatever the time is.


Mask = npt.NDArray[np.bool_]

_NEVER = np.iinfo(np.int64).max


def mask_expirable_segments(now_ms: int | None, segments: pa.Table) -> Mask:
    """Return which segments may have messages that are not shown at this time; None: expired messages are shown."""
    mask: Mask = pc.is_valid(pc.coalesce(segments.column("ttl_from_ms"), segments.column("ttl_ms"))).to_numpy()
    return mask if now_ms is not None else mask & (segments.column("file_id").to_numpy() >= FINAL_FILES)


def mask_superseded_messages(rows: pa.Table) -> Mask:
    """Return which rows compaction has emptied. rows: with a column `ttl_ms`."""
    mask: Mask = pc.equal(rows.column("ttl_ms"), SUPERSEDED).fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def mask_hidden_messages(now_ms: int | None, segments: pa.Table, rows: pa.Table) -> Mask:
    """Return a mask of the messages of these segments that have expired or are superseded.

    A message lives for its own `ttl_ms`, else for that of its segment; without either it never expires.

    Args:
        now_ms: the time that decides; None: expired messages are shown.
        segments: columns `ttl_from_ms`, `ttl_ms` and `record_count`.
        rows: of the messages in order, with a column `ttl_ms`.
    """
    superseded = mask_superseded_messages(rows)
    if now_ms is None:
        return superseded
    since_ms = segments.column("ttl_from_ms")
    segment_indices = pa.array(segment_index_per_row(segments))
    ttl_ms = pc.coalesce(rows.column("ttl_ms"), segments.column("ttl_ms").take(segment_indices))
    ends_ms = pc.fill_null(pc.add(since_ms.take(segment_indices), ttl_ms), _NEVER)
    mask: Mask = superseded | (ends_ms.to_numpy() <= now_ms)
    return mask


class HiddenOffsets(NamedTuple):
    """Partition -> offsets of a plan that are not shown, in no order: of expired, and of superseded messages."""

    expired: dict[int, Numbers]
    superseded: dict[int, Numbers]

    @property
    def total(self) -> int:
        return sum(len(offsets) for by_partition in self for offsets in by_partition.values())


def find_hidden_offsets(files: Files, plan: FetchPlan, cache: RowGroupCache | None = None) -> HiddenOffsets:
    """Return the offsets of the plan whose messages are not shown. Raises FileTruncated."""
    segments = plan.expirable
    places: list[tuple[Numbers, Numbers, Mask]] = []
    for source in read_sources(files, replace(plan, segments=segments), cache):
        source_segments = segments.take(pa.array(source.ranges))
        rows = source.rows.select([_TTL]).take(pa.array(count_up_per_row(source_segments, source.begin)))
        is_hidden = mask_hidden_messages(plan.now_ms, source_segments, rows)
        if is_hidden.any():
            segment_indices = segment_index_per_row(source_segments)[is_hidden]
            partitions = source_segments.column("partition").to_numpy()[segment_indices]
            base_offsets = source_segments.column("base_offset").to_numpy()
            offsets = count_up_per_row(source_segments, base_offsets)[is_hidden]
            places.append((partitions, offsets, mask_superseded_messages(rows)[is_hidden]))
    if not places:
        return HiddenOffsets({}, {})
    partitions, offsets, is_superseded = map(np.concatenate, zip(*places, strict=True))
    expired, superseded = (
        {partition: offsets[mask & (partitions == partition)] for partition in np.unique(partitions[mask]).tolist()}
        for mask in (~is_superseded, is_superseded)
    )
    return HiddenOffsets(expired, superseded)


# A fetch in pieces of bounded size, for callers that pass messages on instead of keeping them.


FIRST_ROWS = 64
MAX_ROWS = 1 << 18


def read_in_pieces(
    read: Callable[[FetchPlan], pa.Table], plan: FetchPlan, limit: int | None, target_bytes: int
) -> Iterator[pa.Table]:
    """Yield the messages of a plan in order.

    Besides a piece, only the row groups in which it lies are in memory. Publishers keep these small.

    Args:
        read: reads all messages of a plan.
        plan: what to read.
        limit: the most messages; None: all.
        target_bytes: about the size of a table.
    """
    total = plan.record_count
    remaining = total if limit is None else limit
    may_expire = plan.expirable.num_rows > 0  # then the next visible messages may be far away
    ends = np.cumsum(plan.segments.column("record_count").to_numpy())
    first, rows = 0, FIRST_ROWS
    while first < total and remaining > 0:
        furthest = min(total, first + (max(remaining, rows) if may_expire else remaining))
        last = _find_read_end(ends, first, min(first + rows, furthest), furthest)
        table = read(slice_plan(plan, ends, first, last)).slice(0, remaining)
        remaining -= table.num_rows
        first, rows = last, min(MAX_ROWS, rows * 4)
        if table.num_rows:  # else all have expired
            # The size of the rows that were read tells how many make a piece, and how many to read next.
            piece_rows = max(1, target_bytes * table.num_rows // max(table.nbytes, 1))
            for begin in range(0, table.num_rows, piece_rows):
                yield table.slice(begin, piece_rows)
            rows = min(rows, piece_rows)


def _find_read_end(ends: npt.NDArray[np.int64], first: int, target: int, total: int) -> int:
    """Return where a read from `first` should end: with a segment near `target`, if possible.

    To read a part of a segment costs its whole row group, and the next read would cost it again.
    """
    index = int(np.searchsorted(ends, target, side="right"))
    if index and ends[index - 1] > first:
        return int(ends[index - 1])
    return min(int(ends[index]), first + ROW_GROUP_ROWS, total)


def slice_plan(plan: FetchPlan, ends: npt.NDArray[np.int64], first: int, last: int) -> FetchPlan:
    """Return the plan of the messages first <= number < last, counted from 0.

    Args:
        plan: the whole plan.
        ends: running sum of the record counts of its segments.
        first, last: numbers of messages.
    """
    low = int(np.searchsorted(ends, first, side="right"))
    high = int(np.searchsorted(ends, last, side="left"))
    part = plan.segments.slice(low, high - low + 1)
    count = part.column("record_count").to_numpy().copy()
    skipped = np.zeros_like(count)
    skipped[0] = first - (int(ends[low]) - int(count[0]))
    count -= skipped
    count[-1] -= int(ends[high]) - last
    return replace(plan, segments=cut_segments(part, skipped, count))


# Headers that say why a message is a dead letter. They follow the message's own headers, as text in UTF-8.


PREFIX = "dead-letter."
OFFSET = f"{PREFIX}offset"
"""The last of the headers. It differs from message to message; the others are the same for a whole segment."""

_FIELDS = {f"{PREFIX}{name.replace('_', '-')}": name for name in Cause.__struct_fields__}


def build_cause_headers(segments: pa.Table) -> pa.Array:
    """Return the headers of each segment except OFFSET; null for segments without dead letters."""
    texts = segments.column("dead_letter").to_pylist()
    return pa.array([None if text is None else _build_headers(text) for text in texts], HEADERS)


def _build_headers(text: str) -> list[tuple[str, bytes]]:
    cause = decode_cause(text)
    return [(key, str(getattr(cause, name)).encode()) for key, name in _FIELDS.items()]


def compute_source_offsets(segments: pa.Table, segment_indices: Numbers) -> pa.ChunkedArray:
    """Return each message's offset in its source topic; null for messages that are not dead letters.

    Args:
        segments: columns `source_offset` and `record_count`.
        segment_indices: as `segment_index_per_row` returns them.
    """
    index_in_segment = np.arange(len(segment_indices)) - np.searchsorted(segment_indices, segment_indices)
    return pc.add(segments.column("source_offset").take(pa.array(segment_indices)), pa.array(index_in_segment))


def append_cause_headers(headers: pa.ChunkedArray, segments: pa.Table) -> pa.ChunkedArray:
    """Return the headers of all messages of the segments, with those of dead letters appended.

    Args:
        headers: the messages' own headers, in the order of the segments.
        segments: columns `dead_letter`, `source_offset` and `record_count`.
    """
    segment_indices = segment_index_per_row(segments)
    causes = build_cause_headers(segments).take(pa.array(segment_indices))
    offsets = _build_offset_headers(compute_source_offsets(segments, segment_indices).combine_chunks())
    parts = [headers.combine_chunks(), causes, offsets]
    # Each of the three parts is a list array with a list per message. Concatenate their flat values, part after part,
    # and then take them in the order of messages: for each message its own headers, its causes and its offset.
    lengths = [pc.fill_null(pc.list_value_length(part), 0).to_numpy() for part in parts]
    part_begins = np.cumsum([0, *(int(of_part.sum()) for of_part in lengths)])[:-1]
    list_begins = [begin + np.cumsum(of_part) - of_part for begin, of_part in zip(part_begins, lengths, strict=True)]
    begins = np.stack(list_begins, axis=1).ravel()
    sizes = np.stack(lengths, axis=1).ravel()
    order = np.repeat(begins - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
    values = pa.concat_arrays([pc.list_flatten(part) for part in parts]).take(pa.array(order))
    is_null = pc.and_(pc.is_null(parts[0]), pc.is_null(causes)).to_numpy(zero_copy_only=False)
    bounds = np.concatenate([[0], np.cumsum(np.sum(lengths, axis=0))])
    result = pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), values, type=HEADERS, mask=pa.array(is_null))
    return pa.chunked_array([result])


def _build_offset_headers(offsets: pa.Int64Array) -> pa.Array:
    """Return a list with one header per offset; an empty list where the offset is null."""
    is_valid = pc.is_valid(offsets)
    values = offsets.drop_null().cast(pa.string()).cast(pa.binary())
    keys = pa.repeat(pa.scalar(OFFSET, HEADERS.value_type.field("key").type), len(values))
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
    bounds = np.concatenate([[0], np.cumsum(is_valid.to_numpy(zero_copy_only=False))])
    return pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), pairs, type=HEADERS)
