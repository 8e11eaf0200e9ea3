"""A client's reader of a namespace: tables as of a watermark, and the steps after it on top, up to the newest one.

A view is consistent: it has the tables up to a watermark, and the steps after it without a gap. The reader reads the
watermark first, then opens the tables, all of them before it reads any. The steps stay for a minute after all tables
have them (see `step_objects`), so even a slow reader finds those after its watermark, or notices that some are gone.
Then it starts again, as it does if a merge went beyond its watermark (the table's floor is above it).
Rows of docs/architecture.md: fetch 2, 4.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.topics import SEGMENTS
from lakemq.tables.specs.transactions import CLIENTS
from lakemq.tables.storage.coordination.step_objects import StepsGone
from lakemq.tables.storage.delta.store import NotATable, Store, TableHandle
from lakemq.tables.storage.native_calls import NATIVE_CALLS
from lakemq.tables.storage.object_stores.files import Files

from ...namespace.clock import Clock
from ...namespace.data_file import file_name
from ...namespace.load import load_state, read_watermark
from ...namespace.step_reader import StepReader, follow_from_watermark
from ...namespace.store_errors import make_damage_error, report_damage, store_errors
from ...protocol import machine
from ...protocol.codec.steps import decode_step_rows
from ...protocol.errors import LakeMQError, OffsetOutOfRange, ReadOvertaken, StepTooOld, UnknownTopicOrPartition
from ...protocol.projection import READERS, RESTORED
from ...protocol.values.journal import Step, is_renewal
from ...protocol.values.log import RowsJournaled
from ...protocol.values.segments import (
    Segments,
    cut_segments,
    filter_rows,
    find_continuations,
    is_kind,
    merge_continuations,
)
from ...protocol.values.state import State
from ...protocol.values.topics import Topic
from .lookup import (
    KINDS_WITH_OFFSETS,
    LOOKUP_SCHEMA,
    PLAN_SCHEMA,
    Lookup,
    Numbers,
    OffsetRange,
    StoredSegments,
    collect_segments,
)

REBASE_MS = 15_000
"""Age at which a reader moves to a newer watermark, so that its tail stays short."""

WHOLE = tuple(name for name in RESTORED if name != CLIENTS.name)
"""The tables of a reader that needs everything a sequencer knows, but the answers that clients got."""

_MOST_FOLLOWED = 1_000
"""Steps up to which a reader that looks rarely follows instead of loading: to follow them takes a quarter as long."""

_ATTEMPTS = 20

_SAME_IN_RUN = ("partition", "file_id", "file_partition", "append_time_ms", "ttl_from_ms", "ttl_ms", "dead_letter")
"""Columns in which adjoining segments must agree to be read as one."""

_TRANSACTION = ["partition", "producer_id", "producer_epoch"]
"""Columns that identify a transaction within a topic."""


class Reader:
    """Follows a namespace. Not thread-safe. After any exception, also an interrupt, it loads the namespace again."""

    def __init__(self, store: Store, clock: Clock, tables: Sequence[str] = READERS, namespace_id: str = "") -> None:
        """Create a reader that has read nothing yet.

        Args:
            tables: from which the state is loaded: READERS, MEMBERS or WHOLE. Of other tables the state has only what
                came since.
            namespace_id: of the namespace that it must find. Empty: whichever is there.
        """
        self._store, self._clock, self._tables, self._namespace_id = store, clock, tables, namespace_id
        self._based_at_ms: int | None = None
        self._refreshed_at_ms = 0
        self._view: _View

    @property
    def state(self) -> State:
        """The state as of the last `refresh`."""
        return self._view.state

    @property
    def step(self) -> int:
        """The step of the last `refresh`; 0 before the first, and during one. Any thread may read this."""
        return 0 if self._based_at_ms is None else self._view.state.step

    @property
    def decided_ms(self) -> Mapping[int, int]:
        """Steps that changed more than the lease and that the loaded tables lack, each with when it was decided."""
        return self._view.decided_ms

    @NATIVE_CALLS.guard
    def refresh(self, checks_end: bool = False) -> State:
        """Return the state as of the newest step. This is cheap while little has happened since the last call.

        Args:
            checks_end: notice at once that a step is lost, for one more request. Else it may take LOOK_MS.

        Raises:
            StorageError, NewerFormat, TableDamaged: the namespace cannot be read.
            InconsistentClusterId: another namespace is there.
        """
        now_ms = self._clock.steady_ms()
        # Unset until the refresh has worked. An interrupt may come while a step is half folded into the state, or when
        # steps were read and not used. The next call then loads everything.
        based_at_ms, self._based_at_ms = self._based_at_ms, None
        looked_lately = now_ms - self._refreshed_at_ms <= REBASE_MS
        try:
            can_follow = based_at_ms is not None and (looked_lately or not self._view.is_behind(_MOST_FOLLOWED))
            if not can_follow or not self._view.follow(checks_end):
                self._load()
            elif based_at_ms is not None and now_ms - based_at_ms <= REBASE_MS:
                self._based_at_ms = based_at_ms
            elif self._view.has_tail:
                self._rebase()
            else:
                self._based_at_ms = now_ms
        except Exception:  # the context managers are entered here, so that a read that works costs nothing more
            with store_errors(), report_damage(self._store):
                raise
        self._refreshed_at_ms = now_ms
        return self._view.state

    def _rebase(self) -> None:
        """Move to a newer watermark. The state stays; only segments up to the watermark come from the table now."""
        try:
            watermark_step, segments = read_watermark(self._store).step, self._store.open(SEGMENTS)
            # Segments that a merge joined have the step of the last one. If a merge went beyond the watermark, a
            # look-up that ends at the watermark would miss them.
            is_done = segments.floor() <= watermark_step and self._view.rebase(watermark_step, segments)
        except (FileNotFoundError, NotATable):
            is_done = False
        if is_done:
            if self._tables is not WHOLE:
                self._view.state = self._view.state.without_clients(with_groups=self._tables is not READERS)
            self._based_at_ms = self._clock.steady_ms()
        else:
            self._load()

    def _load(self) -> None:
        """Load the namespace, and try again while housekeeping removes tables or files that are being read."""
        error: FileNotFoundError | NotATable | None = None
        self._based_at_ms = None
        for attempt in range(_ATTEMPTS):
            try:
                view = self._try_to_load()
            except (FileNotFoundError, NotATable) as missing:  # removed, with its log entry, before we read it; or lost
                error, view = missing, None
            if view is not None:
                self._view, self._based_at_ms = view, self._clock.steady_ms()
                return
            self._clock.sleep(5 * attempt)
        if error is not None:
            raise error
        raise ReadOvertaken()

    def _try_to_load(self) -> _View | None:
        """Return a view of the namespace of now; None if housekeeping overtook the reader."""
        watermark, steps = follow_from_watermark(self._store, self._clock.steady_ms, self._namespace_id)
        segments = self._store.open(SEGMENTS)
        if segments.floor() > watermark.step:  # a merge went beyond the watermark, see _rebase
            return None
        try:
            state = load_state(self._store, watermark, self._tables)
        except StepTooOld:
            return None
        view = _View(self._store, watermark.step, state, segments, steps)
        return view if view.follow() else None

    @NATIVE_CALLS.guard
    def find_segments(self, topic: Topic, ranges: list[OffsetRange], committed: bool) -> pa.Table:
        """Return the data segments of the ranges, cut to them, by partition and offset (PLAN_SCHEMA).

        Args:
            topic: as of the last `refresh`.
            ranges: at most one per partition.
            committed: leave out segments of aborted transactions. The ranges then end at the last stable offset.

        Raises:
            UnknownTopicOrPartition, OffsetOutOfRange: the topic or its first offsets were deleted meanwhile.
            TableDamaged: the table and the steps lack offsets of the ranges.
        """
        if not ranges:
            return PLAN_SCHEMA.empty_table()
        lookup = Lookup(topic.topic_id, ranges, committed)
        try:
            segments = self._find_all_or_reload(topic, lookup)
            data = _select_data(segments, committed)
        except Exception:
            with store_errors(), report_damage(self._store):
                raise
        planned = _clip(data, ranges)
        # Join adjoining rows of a file into one range, whichever producers and steps they come from.
        return merge_continuations(
            planned, find_continuations(planned, _SAME_IN_RUN, ("base_offset", "first_row", "source_offset"))
        )

    def _find_all_or_reload(self, topic: Topic, lookup: Lookup) -> pa.Table:
        """Return segments with every offset of the ranges."""
        try:
            segments = self._view.find(topic, lookup)
            if not _count_lacking_offsets(segments, lookup.ranges):
                return segments
        except FileNotFoundError:
            pass  # A file was merged into another one, longer ago than reader.grace.ms. The new file says the same.
        self._load()
        loaded = self.state.topics.get(topic.topic_id)
        if loaded is None:
            raise UnknownTopicOrPartition("The topic was deleted meanwhile.", found=topic.topic)
        segments = self._view.find(loaded, lookup)
        if lacking_count := _count_lacking_offsets(segments, lookup.ranges):
            raise self._make_gap_error(loaded, lookup, lacking_count)
        return segments

    def _make_gap_error(self, topic: Topic, lookup: Lookup, lacking_count: int) -> LakeMQError:
        """Return the error for offsets that no segment has: they were deleted meanwhile, or the table is damaged."""
        for range_ in lookup.ranges:
            if (log_start := int(topic.log_starts[range_.partition])) > range_.start:
                return OffsetOutOfRange(
                    f"The first offsets of {topic.topic}-{range_.partition} were deleted meanwhile.",
                    found=range_.start,
                    expected=f"{log_start} or more",
                )
        return make_damage_error(self._store, f"{lacking_count} offsets of {topic.topic} are in no row of segments")

    def find_step_rows(self, segments: pa.Table) -> StepRowsByFile:
        """Return the rows of these segments (PLAN_SCHEMA) that steps of the tail hold."""
        return self._view.tail_rows.find_parts(segments)


def _count_lacking_offsets(segments: pa.Table, ranges: Sequence[OffsetRange]) -> int:
    """Return how many offsets of the ranges are in none of the segments, which are all of these partitions."""
    starts, ends = _find_bounds(segments, ranges)
    base, last = segments.column("base_offset").to_numpy(), segments.column("last_offset").to_numpy()
    counts = np.minimum(last + 1, ends) - np.maximum(base, starts)
    # an abort after the range has no offset in it
    return sum(range_.end - range_.start for range_ in ranges) - int(counts[counts > 0].sum())


def _select_data(segments: pa.Table, committed: bool) -> pa.Table:
    """Return the data segments by partition and offset.

    committed: without those whose transaction an abort among the segments ends.

    Raises ValueError: a segment does not say where its rows are.
    """
    data = filter_rows(segments, is_kind(segments, "data"))
    if any(data.column(name).null_count for name in ("file_id", "first_row", "file_partition")):
        raise ValueError("a data row of segments names no rows of a file")
    if committed and data.num_rows < segments.num_rows and (aborts := is_kind(segments, "abort")).any():
        aborted = segments.filter(pa.array(aborts)).select(_TRANSACTION)
        data = data.join(aborted, keys=_TRANSACTION, join_type="left anti")
    return _sort(data.select(PLAN_SCHEMA.names))


def _sort(segments: pa.Table) -> pa.Table:
    """Sort by partition and offset, unless the segments are sorted already, as most are."""
    partition, base = segments.column("partition").to_numpy(), segments.column("base_offset").to_numpy()
    follows = (partition[1:] > partition[:-1]) | ((partition[1:] == partition[:-1]) & (base[1:] >= base[:-1]))
    return segments if follows.all() else segments.sort_by([("partition", "ascending"), ("base_offset", "ascending")])


class _View:
    """A load of a namespace, and the steps that were followed since.

    `tail_rows` are the message rows of these steps. `decided_ms` has those that changed more than the lease, each with
    when it was decided. The tables are read as of the base step.
    """

    def __init__(
        self, store: Store, watermark_step: int, state: State, segments: TableHandle, steps: StepReader
    ) -> None:
        self.state, self._steps = state, steps
        self.decided_ms = dict[int, int]()
        self._tail, self._stored, self.tail_rows = TailSegments(), StoredSegments(store), TailRows(store.files)
        self._table_id = segments.table_id
        self._stored.move_to(segments, watermark_step)

    @property
    def has_tail(self) -> bool:
        """Whether steps after the watermark changed more than the lease, so that a newer one shortens the tail."""
        return bool(self.decided_ms)

    def is_behind(self, count: int) -> bool:
        """Return whether more than so many steps have come since."""
        return self._steps.is_behind(count)

    def follow(self, checks_end: bool = False) -> bool:
        """Fold the steps that have come since; return False if some of them are gone."""
        try:
            steps = self._steps.read(checks_end)
        except StepsGone:
            return False
        if not steps:
            return True
        machine.follow(self.state, steps)
        self.decided_ms |= {step.step: step.decided_at_ms for step in steps if not is_renewal(step)}
        self.tail_rows.add(steps)
        self._tail.add(steps)
        return True

    def rebase(self, watermark_step: int, segments: TableHandle) -> bool:
        """Read segments up to this step from the table, which was opened after its watermark was read.

        Returns:
            False if the table was replaced by another one, or if the steps cannot be followed up to the watermark.
        """
        if segments.table_id != self._table_id or not self.follow() or self.state.step < watermark_step:
            return False
        self._stored.move_to(segments, watermark_step)
        self.decided_ms = {step: time_ms for step, time_ms in self.decided_ms.items() if step > watermark_step}
        self._tail.forget(watermark_step)
        self.tail_rows.forget(watermark_step)
        return True

    def find(self, topic: Topic, lookup: Lookup) -> pa.Table:
        """Return the segments that are looked up (LOOKUP_SCHEMA): those of the table, then those of the tail."""
        tail, begins = self._tail.find(lookup), self._tail.find_begins(topic)
        if any(range_.start < begins[range_.partition] for range_ in lookup.ranges):
            return pa.concat_tables([self._stored.find(lookup), tail])
        return tail


def _find_bounds(segments: pa.Table, ranges: Sequence[OffsetRange]) -> tuple[Numbers, Numbers]:
    """Return for each segment where the range of its partition starts and ends."""
    ranges = sorted(ranges, key=lambda range_: range_.partition)
    index = np.searchsorted([range_.partition for range_ in ranges], segments.column("partition").to_numpy())
    starts, ends = np.array([(range_.start, range_.end) for range_ in ranges], np.int64)[index].T
    return starts, ends


def _clip(segments: pa.Table, ranges: Sequence[OffsetRange]) -> pa.Table:
    """Cut segments, which share an offset with the range of their partition, to it: offsets, rows and counts."""
    if segments.num_rows == 0:
        return segments
    starts, ends = _find_bounds(segments, ranges)
    first, last = segments.column("base_offset").to_numpy(), segments.column("last_offset").to_numpy()
    if (first >= starts).all() and (last < ends).all():
        return segments
    skipped = np.maximum(starts - first, 0)
    return cut_segments(segments, skipped, np.minimum(last + 1, ends) - first - skipped)


# The tail: the segments and message rows of the steps after the watermark at which the tables are read.
#
# Older segments of the tail are kept in few large pieces, so that looking through thousands of steps costs about as
# much as looking through ten. The newest are kept one by one: a reader at the end of a log needs these alone, and
# Python has looked through a few of them before an Arrow computation has even begun.
#
# Message rows are kept until they are in their data file. Invariant: rows that the tail had when it was read are here,
# or in the data file that their segment names.


_MANY_NEWEST = 128
"""How many segments are kept one by one. More become a piece."""

_KEY_COLUMNS = ("kind", "topic_id", "partition", "base_offset", "last_offset", "first_offset")
_OTHER_COLUMNS = tuple(LOOKUP_SCHEMA.names[1:])
_LOOKUP_ROW = pa.struct(list(LOOKUP_SCHEMA))


class _Newest(NamedTuple):
    """A segment that is kept by itself: its key columns, and where its other columns are."""

    kind: str
    topic_id: int
    partition: int
    base_offset: int
    last_offset: int
    first_offset: int | None
    segments: Segments
    row: int
    step: int


class TailSegments:
    """The segments of the steps in the tail."""

    def __init__(self) -> None:
        self._newest: list[_Newest] = []
        self._newest_steps: list[Step] = []
        self._joined: list[pa.Table] = []
        """Pieces, each at least twice as long as the next. So a segment is copied O(log n) times."""
        self._ends: dict[tuple[int, int], int] = {}
        """(topic_id, partition) -> the offset after the last segment of the pieces."""
        self._begins: dict[int, dict[int, int]] = {}
        """topic_id -> partition -> the offset of its first segment in the tail."""

    def add(self, steps: Iterable[Step]) -> None:
        """Add the segments of the next steps."""
        for step in steps:
            parts = [entry.segments for entry in step.entries if len(entry.segments)]
            if parts:
                self._newest_steps.append(step)
            if len(self._newest) + sum(map(len, parts)) > _MANY_NEWEST:
                self._join_newest()
                continue
            for segments in parts:
                keys = zip(*(segments.column(name) for name in _KEY_COLUMNS), strict=True)
                newest = [_Newest._make((*key, segments, row, step.step)) for row, key in enumerate(keys)]
                self._newest += newest
                for segment in newest:
                    self._note_begin(segment.topic_id, segment.partition, segment.base_offset)

    def _join_newest(self) -> None:
        """Make a piece of the newest segments, and join it with pieces that are not twice as long."""
        piece = collect_segments(self._newest_steps).combine_chunks()
        self._newest, self._newest_steps = [], []
        self._note_bounds(piece)
        while self._joined and self._joined[-1].num_rows < 2 * piece.num_rows:
            piece = pa.concat_tables([self._joined.pop(), piece]).combine_chunks()
        self._joined.append(piece)

    def _note_bounds(self, piece: pa.Table) -> None:
        columns = (piece.column(name).to_pylist() for name in ("topic_id", "partition", "base_offset", "last_offset"))
        for topic_id, partition, base, last in zip(*columns, strict=True):
            self._note_begin(topic_id, partition, base)
            self._ends[topic_id, partition] = max(self._ends.get((topic_id, partition), 0), last + 1)

    def _note_begin(self, topic_id: int, partition: int, offset: int) -> None:
        begins = self._begins.setdefault(topic_id, {})
        begins[partition] = min(begins.get(partition, offset), offset)

    def forget(self, step: int) -> None:
        """Drop the segments up to this step, which the table has from now on."""
        rest = self._all().filter(pc.field("step") > step).combine_chunks()
        self._newest, self._newest_steps, self._ends, self._begins = [], [], {}, {}
        self._joined = [rest] if rest.num_rows else []
        self._note_bounds(rest)

    def find(self, lookup: Lookup) -> pa.Table:
        """Return the segments of the tail that are looked up (LOOKUP_SCHEMA)."""
        ranges, topic_id = {range_.partition: range_ for range_ in lookup.ranges}, lookup.topic_id

        def matches(segment: _Newest) -> bool:
            range_ = ranges[segment.partition]
            if segment.base_offset < range_.end and segment.last_offset >= range_.start:
                return segment.kind in KINDS_WITH_OFFSETS
            began = segment.first_offset if segment.kind == "abort" else None
            return lookup.committed and began is not None and began < lookup.end

        newest = _to_table(
            [
                segment
                for segment in self._newest
                if segment.topic_id == topic_id and segment.partition in ranges and matches(segment)
            ]
        )
        # The pieces are before the ranges. An abort in them is so, too, and all that it aborts is before it.
        if all(range_.start >= self._ends.get((topic_id, range_.partition), 0) for range_ in lookup.ranges):
            return newest
        return pa.concat_tables([lookup.select_from(pa.concat_tables(self._joined)), newest])

    def find_begins(self, topic: Topic) -> Numbers:
        """Return the offset of the first segment in the tail by partition; its high watermark if there is none."""
        begins: Numbers = topic.high_watermarks.copy()
        for partition, offset in self._begins.get(topic.topic_id, {}).items():
            begins[partition] = min(begins[partition], offset)
        return begins

    def _all(self) -> pa.Table:
        return pa.concat_tables([*self._joined, collect_segments(self._newest_steps)])


def _to_table(segments: list[_Newest]) -> pa.Table:
    rows = [{"step": segment.step, **segment.segments.row(segment.row, _OTHER_COLUMNS)} for segment in segments]
    # An array of structs takes a third of the time of an array per column, of which there are many.
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(pa.array(rows, _LOOKUP_ROW))], LOOKUP_SCHEMA)


MOST_TAIL_BYTES = 32 << 20
"""Bytes of rows above which those that are in their data file already are dropped. No leader lets more rows than this
wait for their files."""


@dataclass(frozen=True, eq=False)
class StepRows:
    """The rows of one step: `record_count` rows, which begin at row `first_row` of their file. body: as in the step."""

    first_row: int
    record_count: int
    body: bytes

    @cached_property
    def rows(self) -> pa.Table:
        """The rows as BODY_SCHEMA."""
        return decode_step_rows([self.body])


StepRowsByFile: TypeAlias = Mapping[int, Sequence[StepRows]]
"""file_id -> the rows of the steps that name the file, in the order of the steps."""


class TailRows:
    """The message rows of the steps in the tail, until they are in their data file."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._parts: dict[int, list[StepRows]] = {}
        self._last_steps: dict[int, int] = {}
        self._size_bytes = 0

    def add(self, steps: Iterable[Step]) -> None:
        """Add the rows of the next steps. Raises OSError: the store cannot say which files exist."""
        for step in steps:
            for entry in step.entries:
                record = entry.record
                if isinstance(record, RowsJournaled) and step.rows is not None:
                    part = StepRows(record.first_row, record.record_count, step.rows)
                    self._parts.setdefault(record.file_id, []).append(part)
                    self._last_steps[record.file_id] = step.step
                    self._size_bytes += len(step.rows)
        if self._size_bytes > MOST_TAIL_BYTES:
            self._drop_written_files()

    def _drop_written_files(self) -> None:
        for file_id in list(self._parts):
            if self._size_bytes <= MOST_TAIL_BYTES or self._files.size(file_name(file_id)) is None:
                return  # files are written in this order, so the others do not exist either
            self._drop(file_id)

    def forget(self, step: int) -> None:
        """Drop the rows of steps up to this watermark, which are in their files."""
        for file_id in [file_id for file_id, last_step in self._last_steps.items() if last_step <= step]:
            self._drop(file_id)

    def _drop(self, file_id: int) -> None:
        del self._last_steps[file_id]
        self._size_bytes -= sum(len(part.body) for part in self._parts.pop(file_id))

    def find_parts(self, segments: pa.Table) -> StepRowsByFile:
        """Return the parts with rows of these segments (columns file_id, footer_hash, first_row, record_count)."""
        parts_by_index: dict[int, dict[int, StepRows]] = {}
        footer_hashes = segments.column("footer_hash")
        all_pending = footer_hashes.null_count == segments.num_rows  # as at the end of a log
        pending = segments if all_pending else segments.filter(footer_hashes.is_null())
        columns = (pending.column(name).to_pylist() for name in ("file_id", "first_row", "record_count"))
        for file_id, first_row, count in zip(*columns, strict=True):
            parts = self._parts.get(file_id, ())
            i = max(0, bisect_right(parts, first_row, key=lambda part: part.first_row) - 1)
            while i < len(parts) and parts[i].first_row < first_row + count:
                parts_by_index.setdefault(file_id, {})[i] = parts[i]
                i += 1
        return {file_id: [parts[i] for i in sorted(parts)] for file_id, parts in parts_by_index.items()}
