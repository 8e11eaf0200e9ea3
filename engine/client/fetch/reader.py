"""What a client sees: the projections at the watermark with the journal's tail laid over them, fresh to the last step.

A view is consistent: watermark first, then the tables up to it, then a tail without a gap. Where housekeeping has moved
on meanwhile (a floor above the watermark, a cut journal), the reader starts over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.segments import SEGMENT_SCHEMA, SEGMENTS
from lakemq.tables.storage.follower import Follower, LogGone
from lakemq.tables.storage.store import NotATable, Store, TableHandle

from ...namespace.clock import Clock
from ...namespace.load import damage_told, load_state, read_watermark
from ...namespace.store_errors import store_errors
from ...protocol import machine
from ...protocol.codec.journal import steps_after
from ...protocol.errors import StepTooOld, UnknownServerError, UnknownTopicOrPartition
from ...protocol.projection import READERS, RESTORED
from ...protocol.values.journal import Step
from ...protocol.values.segments import table_of
from ...protocol.values.state import State
from ...protocol.values.topics import Topic
from .held import Held, HeldRows

REBASE_MS = 15_000
"""Age after which a reader takes a newer watermark, so that its overlay stays short."""

MANY_CHUNKS = 16
"""Pieces of the overlay that are joined into one, so that looking through it stays quick."""

WHOLE = RESTORED
"""The tables of a reader who is to know all that a sequencer does."""

_ATTEMPTS = 20

PLANNED: pa.Schema = pa.schema(
    [
        SEGMENT_SCHEMA.field(name)
        for name in (
            "partition",
            "base_offset",
            "record_count",
            "last_offset",
            "file_id",
            "footer_hash",
            "first_row",
            "file_partition",
            "min_timestamp_ms",
            "max_timestamp_ms",
            "append_time_ms",
            "producer_id",
            "producer_epoch",
            "transactional",
        )
    ]
)
"""What a fetch needs of a segment; the rest of them is not read."""

_TRANSACTION = ["partition", "producer_id", "producer_epoch"]
"""What a transaction is known by within a topic."""


@dataclass(frozen=True)
class OffsetRange:
    """Offsets start <= offset < end of a partition."""

    partition: int
    start: int
    end: int


class Reader:
    """Follows a namespace. Not thread-safe. After any exception, a signal's too, it is loaded anew."""

    def __init__(self, store: Store, clock: Clock, tables: Sequence[str] = READERS) -> None:
        """tables: from which its state comes, READERS, MEMBERS or WHOLE; of the rest it knows what came since."""
        self._store, self._clock, self._tables = store, clock, tables
        self._loaded_at_ms: int | None = None
        self._view: _View

    @property
    def state(self) -> State:
        """As of the last `refresh`."""
        return self._view.state

    def refresh(self) -> State:
        """Topics and partitions as of the newest step. Cheap while little has happened since the last call.

        Raises StorageError, NewerFormat, TableDamaged.
        """
        # forgotten until it has worked: what is interrupted may have folded a step in part, or lost rows it took
        loaded_at_ms, self._loaded_at_ms = self._loaded_at_ms, None
        stale = loaded_at_ms is None or self._clock.steady_ms() - loaded_at_ms > REBASE_MS
        with store_errors(), damage_told(self._store):
            if stale or not self._view.follow():
                self._load()
            else:
                self._loaded_at_ms = loaded_at_ms
        return self.state

    def _load(self) -> None:
        gone: FileNotFoundError | NotATable | None = None
        self._loaded_at_ms = None
        for attempt in range(_ATTEMPTS):
            try:
                view = self._loaded()
            except (FileNotFoundError, NotATable) as error:  # removed before we came to it, with its log entry, or lost
                gone, view = error, None
            if view is not None:
                self._view, self._loaded_at_ms = view, self._clock.steady_ms()
                return
            self._clock.sleep(5 * attempt)
        if gone is not None:
            raise gone
        raise UnknownServerError("The namespace changes faster than it can be read.")

    def _loaded(self) -> _View | None:
        """What there is now; None where housekeeping moved on meanwhile."""
        watermark = read_watermark(self._store)
        try:
            state = load_state(self._store, watermark, self._tables)
        except StepTooOld:
            return None
        segments, journal = self._store.open(SEGMENTS), self._store.open(JOURNAL)
        view = _View(watermark.step, state, segments, self._store.follow(journal), HeldRows(self._store.files))
        if not view.fold(journal.read(step=(watermark.step + 1, None))):
            return None
        # a tail that was projected and cut off meanwhile looks like none at all
        whole = view.state.step > watermark.step or read_watermark(self._store).step == watermark.step
        return view if whole else None

    def segments(self, topic: Topic, ranges: list[OffsetRange], committed: bool) -> pa.Table:
        """Data segments of the ranges, clipped to them: columns of PLANNED, by partition and offset.

        committed: leave out those of aborted transactions; the ranges end at the last stable offset then.
        """
        if not ranges:
            return PLANNED.empty_table()
        with store_errors():
            try:
                return self._overlaid(topic, ranges, committed)
            except FileNotFoundError:  # merged, and longer ago than reader.grace.ms: what is stored now says the same
                self._load()
                if topic.topic_id not in self.state.topics:
                    raise UnknownTopicOrPartition("The topic was deleted meanwhile.", found=topic.topic) from None
                return self._overlaid(topic, ranges, committed)

    def held(self, segments: pa.Table) -> Held:
        """What the journal's tail has of the rows of these segments, columns of PLANNED."""
        return self._view.held.of(segments)

    def _overlaid(self, topic: Topic, ranges: list[OffsetRange], committed: bool) -> pa.Table:
        end = max(r.end for r in ranges)
        where = (pc.field("kind") == "data") & _overlapping(ranges)
        if committed:
            # looked for in the same scan; a marker comes after all that it ends, maybe after the end of the range
            where = where | ((pc.field("kind") == "abort") & (pc.field("first_offset") < end))
        found = self._found(topic, ranges, where, None if committed else end - 1)
        aborted = found.filter(pc.field("kind") == "abort")
        if aborted.num_rows:
            data = found.filter(pc.field("kind") == "data")
            found = data.join(aborted.select(_TRANSACTION), keys=_TRANSACTION, join_type="left anti")
        ordered = found.select(PLANNED.names).sort_by([("partition", "ascending"), ("base_offset", "ascending")])
        return clip(ordered, {r.partition: r for r in ranges})

    def _found(self, topic: Topic, ranges: list[OffsetRange], where: pc.Expression, last: int | None) -> pa.Table:
        """Columns PLANNED, and the kind, of segments: those projected at the watermark, then the journal's tail.

        last: the highest base offset of interest.
        """
        columns = ["kind", *PLANNED.names]
        view = self._view
        tail = view.overlay().filter(where & (pc.field("topic_id") == topic.topic_id)).select(columns)
        ends = view.stored_ends.get(topic.topic_id, ())
        wanted = [r for r in ranges if r.partition < len(ends) and r.start < ends[r.partition]]
        if not wanted:
            return tail
        stored = view.segments.read(
            columns,
            where=where,
            topic_id=(topic.topic_id, topic.topic_id),
            partition=(min(r.partition for r in wanted), max(r.partition for r in wanted)),
            base_offset=(None, last),
            last_offset=(min(r.start for r in wanted), None),
            step=(None, view.watermark_step),
        )
        return pa.concat_tables([stored, tail])


class _View:
    """One load of a namespace and what was followed since.

    stored_ends: where the projected segments of a topic end; who follows the end of a log needs only the overlay.
    held: the rows that ride in the tail.
    """

    def __init__(
        self, watermark_step: int, state: State, segments: TableHandle, journal: Follower, held: HeldRows
    ) -> None:
        self.watermark_step, self.state, self.segments, self._journal = watermark_step, state, segments, journal
        self.stored_ends = {t.topic_id: t.high_watermarks.copy() for t in state.topics.values()}
        self._overlay: list[pa.Table] = [SEGMENT_SCHEMA.empty_table()]
        self.held = held

    def follow(self) -> bool:
        """Fold what the journal has gained; False where its tail has a gap."""
        try:
            while (rows := self._journal.next()) is not None:
                if not self.fold(rows):
                    return False
        except LogGone:
            return False
        return True

    def fold(self, rows: pa.Table) -> bool:
        """Rows of the journal; False unless their steps are the next ones."""
        steps = steps_after(rows, self.state.step)
        if steps is None:
            return False
        machine.replay(self.state, steps)
        self.held.add(steps)
        self._overlay += [table for table in map(_segments_of, steps) if table.num_rows]
        if len(self._overlay) > MANY_CHUNKS:
            self._overlay = [self.overlay().combine_chunks()]
        return True

    def overlay(self) -> pa.Table:
        """Segments that came after the watermark."""
        return pa.concat_tables(self._overlay)


def _segments_of(step: Step) -> pa.Table:
    return table_of(one.segments for one in step.entries)


def _overlapping(ranges: list[OffsetRange]) -> pc.Expression:
    """Segments that share an offset with one of the ranges."""
    bounds: dict[tuple[int, int], list[int]] = {}
    for r in ranges:
        bounds.setdefault((r.start, r.end), []).append(r.partition)
    expression: pc.Expression | None = None
    for (first, last), partitions in bounds.items():
        one = pc.field("partition").isin(pa.array(partitions, pa.int32()))
        one = one & (pc.field("base_offset") < last) & (pc.field("last_offset") >= first)
        expression = one if expression is None else expression | one
    assert expression is not None
    return expression


def clip(segments: pa.Table, ranges: Mapping[int, OffsetRange]) -> pa.Table:
    """The segments cut to the range of their partition; `base_offset`, `first_row` and `record_count` follow."""
    if segments.num_rows == 0:
        return segments
    partitions = segments.column("partition").to_pylist()
    start = pa.array([ranges[p].start for p in partitions], pa.int64())
    end = pa.array([ranges[p].end for p in partitions], pa.int64())
    base, count = segments.column("base_offset"), segments.column("record_count")
    skipped = pc.max_element_wise(pc.subtract(start, base), 0)
    kept = pc.subtract(pc.min_element_wise(pc.add(base, count), end), pc.add(base, skipped))
    changed = {
        "base_offset": pc.add(base, skipped),
        "record_count": kept,
        "last_offset": pc.add(pc.add(base, skipped), pc.subtract(kept, 1)),
        "first_row": pc.add(segments.column("first_row"), skipped),
    }
    for name, column in changed.items():
        segments = segments.set_column(segments.column_names.index(name), name, column)
    return segments
