"""A client's reader of a namespace: tables as of a watermark, and the steps after it on top, up to the newest one.

A view is consistent: it has the tables up to a watermark, and the steps after it without a gap. The reader reads the
watermark first, then opens the tables, all of them before it reads any. The steps stay for a minute after all tables
have them (see `step_objects`), so even a slow reader finds those after its watermark, or notices that some are gone.
Then it starts again, as it does if a merge went beyond its watermark (the table's floor is above it).
Rows of docs/architecture.md: fetch 2, 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from lakemq.tables.specs.topics import SEGMENTS
from lakemq.tables.storage.coordination.step_objects import StepsGone
from lakemq.tables.storage.delta.store import NotATable, Store, TableHandle
from lakemq.tables.storage.native_calls import NATIVE_CALLS

from ...namespace.clock import Clock
from ...namespace.load import load_state, read_watermark
from ...namespace.step_reader import StepReader, follow_from_watermark
from ...namespace.store_errors import make_damage_error, report_damage, store_errors
from ...protocol import machine
from ...protocol.errors import LakeMQError, OffsetOutOfRange, ReadOvertaken, StepTooOld, UnknownTopicOrPartition
from ...protocol.projection import READERS, RESTORED
from ...protocol.values.journal import is_renewal
from ...protocol.values.segments import cut_segments, find_continuations, merge_continuations
from ...protocol.values.state import State
from ...protocol.values.topics import Topic
from .lookup import PLAN_SCHEMA, Lookup, Numbers, OffsetRange, StoredSegments, filter_rows, is_kind
from .tail import StepRowsByFile, TailRows, TailSegments

REBASE_MS = 15_000
"""Age at which a reader moves to a newer watermark, so that its tail stays short."""

WHOLE = RESTORED
"""The tables of a reader that needs everything a sequencer knows."""

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
    def decided_step(self) -> int:
        """The last step that changed more than the lease, as of the last `refresh`; 0 if the loaded tables hold it."""
        return self._view.decided_step

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
        return self.state

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

    `tail_rows` are the message rows of these steps. `decided_step` is the last of them that changed more than the
    lease; 0 if none did. The tables are read as of the base step.
    """

    def __init__(
        self, store: Store, watermark_step: int, state: State, segments: TableHandle, steps: StepReader
    ) -> None:
        self.state, self._steps = state, steps
        self.decided_step, self._base_step = 0, watermark_step
        self._tail, self._stored, self.tail_rows = TailSegments(), StoredSegments(store), TailRows(store.files)
        self._table_id = segments.table_id
        self._stored.move_to(segments, watermark_step)

    @property
    def has_tail(self) -> bool:
        """Whether steps after the watermark changed more than the lease, so that a newer one shortens the tail."""
        return self.decided_step > self._base_step

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
        self.decided_step = next((step.step for step in reversed(steps) if not is_renewal(step)), self.decided_step)
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
        self._base_step = watermark_step
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
    """Cut the segments to the range of their partition, and change offsets, rows and counts accordingly."""
    if segments.num_rows == 0:
        return segments
    starts, ends = _find_bounds(segments, ranges)
    first, last = segments.column("base_offset").to_numpy(), segments.column("last_offset").to_numpy()
    if (first >= starts).all() and (last < ends).all():
        return segments
    is_inside = (last >= starts) & (first < ends)
    segments, first, last, starts, ends = (
        filter_rows(segments, is_inside),
        *(column[is_inside] for column in (first, last, starts, ends)),
    )
    skipped = np.maximum(starts - first, 0)
    return cut_segments(segments, skipped, np.minimum(last + 1, ends) - first - skipped)
