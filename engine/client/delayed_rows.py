"""What became of delayed messages: those that wait, those that were released, and those that ended otherwise.

How ranges ended is read from the table, and from the steps after it.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.messages import DELAYED, HEADERS
from lakemq.tables.specs.spec import BINARY, INT32, TEXT, TIME
from lakemq.tables.storage.coordination.step_objects import StepsGone
from lakemq.tables.storage.delta.store import Store, select_newest
from lakemq.tables.storage.object_stores.files import Files

from ..namespace.clock import Clock
from ..namespace.data_file_reader import open_data_file
from ..namespace.load import read_delayed_rows
from ..namespace.namespace import Namespace
from ..namespace.step_reader import StepReader, follow_from_watermark
from ..namespace.store_errors import report_damage, store_errors
from ..namespace.waiting_rows import DueRun, read_due_runs
from ..protocol.errors import FileTruncated, ReadOvertaken, StorageError
from ..protocol.rows.delays import EndedRange, find_ended_ranges, read_ended_range
from ..protocol.values.delays import DelayedRange, DelaysReleased, DelayStatus, RangeKey, WaitingRange
from ..protocol.values.state import State
from .topics import QueryNewestState

_ATTEMPTS = 20


def read_ended_ranges(store: Store, clock: Clock, keys: Collection[RangeKey]) -> dict[RangeKey, EndedRange]:
    """Return the ranges among `keys` that have ended within delay.history.ms. Raises StorageError."""
    for attempt in range(_ATTEMPTS):
        with store_errors(), report_damage(store):
            try:
                return _read_at_watermark(store, clock, keys)
            except StepsGone:
                clock.sleep(5 * attempt)
    raise ReadOvertaken()


def _read_at_watermark(store: Store, clock: Clock, keys: Collection[RangeKey]) -> dict[RangeKey, EndedRange]:
    """Return the ended ranges. Raises StepsGone: steps were removed meanwhile."""
    _, reader = follow_from_watermark(store, clock.steady_ms)
    # the steps first: the table, opened later, may hold more of them, but never less
    steps = reader.read()
    ids = {key.file_id for key in keys}
    is_in_files = pc.field("file_id").isin(pa.array(sorted(ids), pa.int64()))
    handle = store.open(DELAYED)
    rows = select_newest(handle.read(where=is_in_files, file_id=(min(ids), max(ids))), DELAYED.keys)
    stored = [read_ended_range(row) for row in DELAYED.rows(rows.filter(pc.field("removed")))]
    ended = {range_.end.published.key: range_ for range_ in (*stored, *find_ended_ranges(steps))}
    return {key: ended[key] for key in keys if key in ended}


# Reading delayed rows that wait, as of one step, with their places and the columns that predicates use.


PLACE = ("topic_id", "file_id", "first_row", "row", "reschedules")
"""The columns that say where a row is, as `Place` has them."""

SHOWN = pa.schema(
    {"topic": TEXT, "partition": INT32, "key": BINARY, "headers": HEADERS, "timestamp": TIME, "deliver_at": TIME}
)
"""What a predicate may look at; the view `pending_delayed_rows` has the same."""

_OF_RANGE = ("topic", "partition", "topic_id", "file_id", "first_row", "reschedules")
_READ = ["key", "headers", "timestamp", "deliver_at"]

Numbers = npt.NDArray[np.int64]


def read_pending_rows(store: Store, topic: str | None, unread: bool = False) -> Iterator[pa.Table]:
    """Yield the waiting rows of the topic, or of all, with columns of SHOWN and PLACE.

    unread: yield rows of unreadable files, too, with nulls for their contents. Else such a file raises FileTruncated
    or StorageError.
    """
    ranges = select_newest(read_delayed_rows(store.open(DELAYED)), DELAYED.keys)
    ranges = ranges.filter(~pc.field("removed") & (pc.field("state") == DelayStatus.WAITING.value))
    if topic is not None:
        ranges = ranges.filter(pc.field("topic") == topic)
    # rows of a range lie together, mostly so do the ranges of a file
    ranges = ranges.sort_by([("file_id", "ascending"), ("first_row", "ascending")]).combine_chunks()
    if not ranges.num_rows:
        return
    file_ids = ranges.column("file_id").to_numpy()
    begins = np.flatnonzero(np.concatenate([[True], file_ids[1:] != file_ids[:-1]]))
    for first, end in zip(begins.tolist(), [*begins[1:].tolist(), len(file_ids)], strict=True):
        yield _read_file_rows(store.files, ranges.slice(first, end - first), unread)


def _read_file_rows(files: Files, ranges: pa.Table, unread: bool) -> pa.Table:
    """Read the waiting rows of ranges in one file."""
    member, row = _find_waiting_rows(ranges)
    of_range = ranges.select([*_OF_RANGE, "first_due_ms"]).take(pa.array(member))
    try:
        place = (ranges.column(name)[0].as_py() for name in ("file_id", "footer_hash"))
        with open_data_file(files, *place) as parquet:
            rows = parquet.read(_READ).take(pa.array(of_range.column("first_row").to_numpy() + row))
    except (FileTruncated, StorageError):
        if not unread:
            raise
        rows = pa.table({name: pa.nulls(len(row), SHOWN.field(name).type) for name in _READ})
    columns = {
        **{name: of_range.column(name) for name in _OF_RANGE},
        **{name: rows.column(name) for name in _READ},
        "row": pa.array(row),
    }
    moved = pc.greater(of_range.column("reschedules"), 0)
    if pc.any(moved).as_py():
        due_times = pc.cast(of_range.column("first_due_ms"), pa.timestamp("ms", "UTC")).cast(TIME)
        columns["deliver_at"] = pc.if_else(moved, due_times, rows.column("deliver_at"))
    return pa.table({name: columns[name] for name in (*SHOWN.names, *PLACE)})


def _find_waiting_rows(ranges: pa.Table) -> tuple[Numbers, Numbers]:
    """Return per waiting row the index of its range, and its number in the range."""
    released = ranges.column("released_count").to_numpy()
    counts = ranges.column("record_count").to_numpy() - released
    member = np.repeat(np.arange(len(counts)), counts)
    row = np.arange(len(member)) - np.repeat(np.cumsum(counts) - counts, counts) + released[member]
    cancelled = ranges.column("cancelled_rows")
    if cancelled.null_count == len(cancelled):
        return member, row
    span = int(ranges.column("record_count").to_numpy().max())
    gone = pc.list_parent_indices(cancelled).to_numpy() * span + pc.list_flatten(cancelled).to_numpy()
    waits = ~np.isin(member * span + row, gone)
    return member[waits], row[waits]


@dataclass(frozen=True)
class Release:
    """Messages that one step has released. late_ms: delay of the first one beyond its due time."""

    messages: int
    at_ms: int
    late_ms: int


class UnreleasedCounts(NamedTuple):
    """messages: due and readable; unreadable: due, in files that cannot be read; oldest_due_ms: the first of both."""

    messages: int
    unreadable: int
    oldest_due_ms: int | None


class UnreleasedCounter:
    """Counts messages that are not released yet. Not thread-safe."""

    def __init__(self, files: Files, query: QueryNewestState) -> None:
        """query: reads a state with all waiting ranges."""
        self._files, self._query = files, query
        self._due: dict[RangeKey, list[DueRun] | None] = {}
        """Ranges with several due times -> runs due by `_asked_ms`; None: the file cannot be read."""
        self._asked_ms = -1

    def count_unreleased(self, until_ms: int) -> UnreleasedCounts:
        """Count messages that are due by then and not released. Open transactions do not count."""
        if until_ms != self._asked_ms:
            self._due, self._asked_ms = {}, until_ms

        def find_due(state: State) -> list[WaitingRange]:
            ranges = state.delays.ranges
            return [
                copy(range_) for range_ in ranges if not range_.is_open and range_.published.first_due_ms <= until_ms
            ]

        due = self._query(find_due)
        self._read([range_.published for range_ in due if range_.published.first_due_ms < range_.published.last_due_ms])
        messages, unreadable, due_ms = 0, 0, list[int]()
        for range_ in due:
            published = range_.published
            runs = self._due.get(published.key, [DueRun(published.first_due_ms, published.record_count)])
            waiting = range_.waiting_count
            if runs is None:
                unreadable += waiting
                due_ms.append(published.first_due_ms)
            elif runs and runs[-1].upto > range_.released_count:
                messages += waiting - range_.count_waiting_after(runs[-1].upto)
                late = (run for run in runs if run.upto > range_.released_count)
                due_ms += islice((run.due_ms for run in late if range_.count_waiting_after(run.upto) < waiting), 1)
        return UnreleasedCounts(messages, unreadable, min(due_ms, default=None))

    def _read(self, ranges: list[DelayedRange]) -> None:
        """Read the due times of ranges that have several."""
        unknown = [range_ for range_ in ranges if range_.key not in self._due]
        for range_, runs in zip(unknown, read_due_runs(self._files, unknown), strict=True):
            if isinstance(runs, Exception):
                self._due[range_.key] = None
            else:
                self._due[range_.key] = [run for run in runs if run.due_ms <= self._asked_ms]


class Releases(UnreleasedCounter):
    """Releases since this object was created. Not thread-safe."""

    def __init__(self, namespace: Namespace, clock: Clock, query: QueryNewestState) -> None:
        super().__init__(namespace.files, query)
        self._ns, self._clock = namespace, clock
        self._steps = self._follow_from_now()

    def _follow_from_now(self) -> StepReader:
        with store_errors():
            while True:
                _, steps = follow_from_watermark(self._ns.store, self._clock.steady_ms, self._ns.namespace_id)
                with suppress(StepsGone):
                    steps.read_heads()
                    return steps

    def read_new(self) -> list[Release]:
        """Return the releases since the last call, in order; none whose steps are gone."""
        releases: list[Release] = []
        try:
            with store_errors():
                for step in self._steps.read():
                    releases += [
                        Release(sum(entry.segments.column("record_count")), step.decided_at_ms, entry.record.late_ms)
                        for entry in step.entries
                        if isinstance(entry.record, DelaysReleased)
                    ]
        except StepsGone:
            self._steps = self._follow_from_now()
        return releases

    def next_due_ms(self) -> int | None:
        """Return when the next messages are due, or a time shortly before; None if none waits."""

        def find_next_ms(state: State) -> int | None:
            dues = (
                max(range_.published.first_due_ms, state.delays.pointer_ms)
                if range_.released_count
                else range_.published.first_due_ms
                for range_ in state.delays.ranges
            )
            return min(dues, default=None)

        return self._query(find_next_ms)
