"""What a client sees: the projections at the watermark with the journal's tail laid over them, fresh to the last step.

A view is consistent: watermark first, then the tables up to it, then a tail without a gap. Where housekeeping has moved
on meanwhile (a floor above the watermark, a cut journal), the reader starts over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.segments import SEGMENTS
from lakemq.tables.storage.follower import Follower, LogGone
from lakemq.tables.storage.store import NotATable, Store, TableHandle

from ...namespace.clock import Clock
from ...namespace.load import damage_told, load_state, read_watermark
from ...namespace.store_errors import store_errors
from ...protocol import machine
from ...protocol.codec.journal import steps_after
from ...protocol.errors import StepTooOld, UnknownServerError, UnknownTopicOrPartition
from ...protocol.projection import READERS, RESTORED
from ...protocol.values.segments import goes_on, joined
from ...protocol.values.state import State
from ...protocol.values.topics import Topic
from .held import Held, HeldRows
from .lookup import PLANNED, Lookup, OffsetRange, is_kind
from .overlay import Overlay
from .stored import StoredSegments

REBASE_MS = 15_000
"""Age after which a reader takes a newer watermark, so that its overlay stays short."""

WHOLE = RESTORED
"""The tables of a reader who is to know all that a sequencer does."""

_ATTEMPTS = 20

_ONE_RANGE = ("partition", "file_id", "file_partition", "append_time_ms", "ttl_from_ms", "ttl_ms", "dead_letter")
"""In what segments agree that a fetch reads as one."""

_TRANSACTION = ["partition", "producer_id", "producer_epoch"]
"""What a transaction is known by within a topic."""


class Reader:
    """Follows a namespace. Not thread-safe. After any exception, a signal's too, it is loaded anew."""

    def __init__(self, store: Store, clock: Clock, tables: Sequence[str] = READERS) -> None:
        """tables: from which its state comes, READERS, MEMBERS or WHOLE; of the rest it knows what came since."""
        self._store, self._clock, self._tables = store, clock, tables
        self._based_at_ms: int | None = None
        self._refreshed_at_ms = 0
        self._view: _View

    @property
    def state(self) -> State:
        """As of the last `refresh`."""
        return self._view.state

    def refresh(self) -> State:
        """Topics and partitions as of the newest step. Cheap while little has happened since the last call.

        Raises StorageError, NewerFormat, TableDamaged.
        """
        now_ms = self._clock.steady_ms()
        # forgotten until it has worked: what is interrupted may have folded a step in part, or lost rows it took
        based_at_ms, self._based_at_ms = self._based_at_ms, None
        # to follow very many steps takes longer than to load
        is_close = based_at_ms is not None and now_ms - self._refreshed_at_ms <= REBASE_MS
        with store_errors(), damage_told(self._store):
            if based_at_ms is None or not is_close or not self._view.follow():
                self._load()
            elif now_ms - based_at_ms > REBASE_MS:
                self._rebase()
            else:
                self._based_at_ms = based_at_ms
        self._refreshed_at_ms = now_ms
        return self.state

    def _rebase(self) -> None:
        """Go on from a newer watermark. What was followed stays: only its segments are read from the table now."""
        try:
            watermark_step, segments = read_watermark(self._store).step, self._store.open(SEGMENTS)
            # above it some were put together, and bear a later step
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
        gone: FileNotFoundError | NotATable | None = None
        self._based_at_ms = None
        for attempt in range(_ATTEMPTS):
            try:
                view = self._loaded()
            except (FileNotFoundError, NotATable) as error:  # removed before we came to it, with its log entry, or lost
                gone, view = error, None
            if view is not None:
                self._view, self._based_at_ms = view, self._clock.steady_ms()
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
        if segments.floor() > watermark.step:  # some were put together, and bear a later step
            return None
        view = _View(self._store, watermark.step, state, segments, self._store.follow(journal))
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
        lookup = Lookup(topic.topic_id, ranges, committed)
        with store_errors(), damage_told(self._store):
            try:
                found = self._view.find(topic, lookup)
            except FileNotFoundError:  # merged, and longer ago than reader.grace.ms: what is stored now says the same
                self._load()
                if topic.topic_id not in self.state.topics:
                    raise UnknownTopicOrPartition("The topic was deleted meanwhile.", found=topic.topic) from None
                found = self._view.find(self.state.topics[topic.topic_id], lookup)
        planned = clip(_not_aborted(found), {r.partition: r for r in ranges})
        # whoever wrote them, and in which step: what lies together is read together
        return joined(planned, goes_on(planned, _ONE_RANGE, ("base_offset", "first_row", "source_offset")))

    def held(self, segments: pa.Table) -> Held:
        """What the journal's tail has of the rows of these segments, columns of PLANNED."""
        return self._view.held.of(segments)


def _not_aborted(found: pa.Table) -> pa.Table:
    """Data segments, but for those of transactions that an abort among them has ended; by partition and offset."""
    aborts = is_kind(found, "abort")
    if aborts.any():
        of_aborted = found.filter(pa.array(aborts)).select(_TRANSACTION)
        found = found.filter(pa.array(~aborts)).join(of_aborted, keys=_TRANSACTION, join_type="left anti")
    return _ordered(found.select(PLANNED.names))


def _ordered(segments: pa.Table) -> pa.Table:
    """By partition and offset, as most come."""
    partition, base = segments.column("partition").to_numpy(), segments.column("base_offset").to_numpy()
    follows = (partition[1:] > partition[:-1]) | ((partition[1:] == partition[:-1]) & (base[1:] >= base[:-1]))
    return segments if follows.all() else segments.sort_by([("partition", "ascending"), ("base_offset", "ascending")])


class _View:
    """One load of a namespace and what was followed since.

    held: the rows that ride in the tail.
    """

    def __init__(
        self, store: Store, watermark_step: int, state: State, segments: TableHandle, journal: Follower
    ) -> None:
        self.state, self._journal = state, journal
        self._overlay, self._stored, self.held = Overlay(), StoredSegments(store), HeldRows(store.files)
        self._table_id = segments.table_id
        self._stored.move_to(segments, watermark_step)

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
        self._overlay.add(steps)
        return True

    def rebase(self, watermark_step: int, segments: TableHandle) -> bool:
        """From now on segments up to this step are those of the table, opened after its watermark was read.

        False: it is another table than it was, or the watermark is of a step that nobody can follow to.
        """
        if segments.table_id != self._table_id or not self.follow() or self.state.step < watermark_step:
            return False
        self._stored.move_to(segments, watermark_step)
        self._overlay.forget(watermark_step)
        self.held.forget(watermark_step)
        return True

    def find(self, topic: Topic, lookup: Lookup) -> pa.Table:
        """What is looked for of the topic, columns of LOOKED_AT: up to the watermark, then in the journal's tail."""
        tail, ends = self._overlay.find(lookup), self._overlay.begins(topic)
        if any(r.start < ends[r.partition] for r in lookup.ranges):
            return pa.concat_tables([self._stored.find(lookup), tail])
        return tail


def clip(segments: pa.Table, ranges: Mapping[int, OffsetRange]) -> pa.Table:
    """The segments cut to the range of their partition; `base_offset`, `first_row` and `record_count` follow."""
    if segments.num_rows == 0:
        return segments
    known = sorted(ranges)
    at = np.searchsorted(known, segments.column("partition").to_numpy())
    starts, ends = np.array([(ranges[p].start, ranges[p].end) for p in known], np.int64)[at].T
    first, last = segments.column("base_offset").to_numpy(), segments.column("last_offset").to_numpy()
    if (first >= starts).all() and (last < ends).all():
        return segments
    start, end = pa.array(starts, pa.int64()), pa.array(ends, pa.int64())
    base, count = segments.column("base_offset"), segments.column("record_count")
    skipped = pc.max_element_wise(pc.subtract(start, base), 0)
    kept = pc.subtract(pc.min_element_wise(pc.add(base, count), end), pc.add(base, skipped))
    changed = {
        "base_offset": pc.add(base, skipped),
        "record_count": kept,
        "last_offset": pc.add(pc.add(base, skipped), pc.subtract(kept, 1)),
        "first_row": pc.add(segments.column("first_row"), skipped),
        "source_offset": pc.add(segments.column("source_offset"), skipped),
    }
    for name, column in changed.items():
        segments = segments.set_column(segments.column_names.index(name), name, column)
    return segments
