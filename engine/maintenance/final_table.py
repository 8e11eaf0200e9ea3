"""Bring the table `final_messages` to the decided state: its live files are those that `segments` names.

`FinalTable.sync` is the one function for adding, rewriting, deletion and recovery. A rewrite changes `segments` first:
its rows name a file that takes the place of others. Then `sync` swaps these files. So whoever dies between two writes
leaves a table that the next leader completes.

A file is rewritten if a log start has moved into it, without the deleted messages. And small neighbouring files of a
topic become one. Neighbours only, and with the time of the oldest: a stream begins with the files in the order of time.
Each file of a topic has a step of its own, the highest of those that it replaces, and so the steps are the order.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemq.tables.specs.messages import (
    FILE_SCHEMA,
    FINAL_FILES,
    FINAL_MESSAGES,
    MAX_TIMESTAMP_US,
    MIN_TIMESTAMP_US,
    SUPERSEDED,
    parse_final_file_id,
)
from lakemq.tables.specs.topics import FINAL, FINAL_PENDING, SEGMENTS
from lakemq.tables.storage.delta.commits import NewFile, StoredFile
from lakemq.tables.storage.delta.leftovers import Leftovers
from lakemq.tables.storage.delta.store import TableHandle
from lakemq.tables.storage.native_calls import Workers
from lakemq.tables.storage.object_stores.files import Files
from lakemq.tables.storage.parquet import open_parquet

from ..namespace import crash
from ..namespace.clock import Clock
from ..namespace.config import EngineConfig
from ..namespace.data_file import read_footer
from ..protocol.rows.log import build_final_rows
from ..protocol.values.log import RangesFinalized
from .compaction import Compaction
from .final_files import FILE_BYTES, READ_ERRORS, UNPACKED, NamedFile, describe_ranges, read_oldest_ms, write_final_file
from .final_places import cut_out_runs, move_to_final_files
from .merging import FEW_FILES, SETTLED_MS, coalesce_segments, points_at_files, read_log_bounds, write_merged_file
from .retention import LiveState, Mask, Numbers, find_log_starts, mask_deleted_segments

log = logging.getLogger("lakemq.serve")

_AT_ONCE = 16
_REWRITTEN_BYTES = FILE_BYTES // UNPACKED
"""Stored bytes of the files that one rewrite takes, while passes wait."""
_NAMED = (
    "kind",
    "topic_id",
    "topic",
    "partition",
    "base_offset",
    "last_offset",
    "record_count",
    "step",
    "file_id",
    "footer_hash",
)
_FINAL = FINAL, FINAL_PENDING
"""The kinds of rows that name files. No other kind lies between them."""
_BOUNDED = ("topic_id", "partition", "offset", "timestamp")
"""Columns whose bounds let readers skip files."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class _Rewrite:
    """A file in the place of others, neighbours in the order of offsets. There is none if no message is left."""

    replaced: Sequence[NamedFile]
    ranges: pa.Table
    record: RangesFinalized
    is_cleaned: bool
    """Whether messages may be superseded."""
    dropped: pa.Table
    """Runs of superseded messages that the file does not have: topic_id, and columns of `Cleaned.dropped`."""


class FinalTable:
    """The table during one term of leadership. The projector calls it between two passes, with its handles."""

    def __init__(
        self,
        files: Files,
        config: EngineConfig,
        clock: Clock,
        new_file_id: Callable[[], int],
        crash_point: crash.CrashPoint = crash.nowhere,
    ) -> None:
        """new_file_id: returns a random id below SEQUENCERS_FILES."""
        self._files, self._clock, self._new_file_id, self._crash_point = files, clock, new_file_id, crash_point
        self._leftovers = Leftovers(files)
        self._least = min(FEW_FILES, config.number("compact.min.files"))
        self._hold_ms = min(SETTLED_MS, config.ms("merge.grace.ms"))
        self._merged_at_ms: int | None = None
        self._due_at_ms: int | None = None
        self._synced, self._switched = _Steps(), _Steps()
        """Up to which the table was brought to the decided state, and up to which views read it."""
        self.compaction = Compaction(files, _REWRITTEN_BYTES)
        self._damaged, self._full = set[int](), set[int]()
        """Files that cannot be read, and those that no later pass tries to merge with the next file."""
        self.has_more, self.floor = False, 0
        """Whether files wait for another pass to be rewritten; and the step that no reader may begin before."""

    @property
    def is_due(self) -> bool:
        """Whether there is work although no step has changed what is final."""
        return self.has_more or (self._due_at_ms is not None and self._clock.steady_ms() >= self._due_at_ms)

    def maintain(self, final: TableHandle, segments: TableHandle, live: LiveState, settled_step: int) -> bool:
        """Bring the table to the decided state, rewrite files, and let `segments` name them as places of messages.

        Args:
            live: as of the watermark just written.
            settled_step: no reader begins at an older step.

        Returns:
            Whether `segments` was changed. No reader may begin before the step `floor` then.

        Raises:
            CommitConflict: another sequencer has committed.
        """
        now_ms, is_changed = self._clock.steady_ms(), False
        rows, read_step = read_named_rows(segments, live)
        missing = self.sync(final, rows, read_step)
        self._synced.note(now_ms, pc.max(rows.column("step")).as_py() or 0)
        self._switched.note(now_ms, read_step)
        self._crash_point("projector.final_messages_synced")
        if rewrites := self._write_files(final, rows, live, now_ms):
            self._crash_point("finalizing.files_rewritten")
            is_changed = self._swap_rows(segments, rewrites)
            self._crash_point("finalizing.segments_swapped")
            rows, read_step = read_named_rows(segments, live)
            missing = self.sync(final, rows, read_step)
        self.compaction.end_pass(rows.column("file_id"), live.now_ms)
        step = min(settled_step, self._synced.find(now_ms - self._hold_ms))
        is_changed |= self._switch(segments, _list_switchable_rows(rows, read_step, final, missing), live, step)
        is_waiting = FINAL_PENDING in rows.column("kind").unique().to_pylist()
        # Files that were switched a moment ago are merged after the hold, also if nothing becomes final until then.
        is_waiting |= self.compaction.is_waiting or not self._switched.is_settled(now_ms - self._hold_ms)
        self._due_at_ms = self._clock.steady_ms() + self._hold_ms if is_waiting else None
        return is_changed

    def sync(self, final: TableHandle, rows: pa.Table, read_step: int) -> list[int]:
        """Add the files that rows of `segments` name, and remove the others. Return the ids of those not added.

        A file that lies whole below the log starts, or whose topic is gone, is not named any more. Messages of a new
        file are new for a stream that reads the table, those of a rewritten one are not. Removed ones have been read.

        A file that was missing may be there again when views read later steps. It comes into the table together with
        the next new file, and with its step there: views do not read that step yet.

        rows, read_step: of `read_named_rows`.
        """
        named = {file.file_id: file for file in list_named_files(rows)}
        live_files = final.files()
        stored = {parse_final_file_id(file.path) for file in live_files}
        added: dict[bool, list[NewFile]] = {False: [], True: []}
        missing: list[int] = []
        new = [file for file_id, file in named.items() if file_id not in stored]
        with Workers(_AT_ONCE, "lakemq-footers") as pool:  # on a store, each takes some requests, and the pass waits
            found = list(pool.map(partial(_find_file, self._files), new))
        next_step = max((file.step for file, new_file in zip(new, found, strict=True) if new_file), default=0)
        for file, new_file in zip(new, found, strict=True):
            is_late = file.kind == FINAL_PENDING and file.step <= read_step
            if new_file is None or (is_late and next_step <= read_step):
                missing.append(file.file_id)
            else:
                step = next_step if is_late else file.step
                at_step = replace(new_file[0], partition_values={"topic": file.topic, "step": step})
                added[new_file[1]].append(at_step)
        if added[False]:
            final.replace_at(final.version, _order_by_time(added[False], live_files))
        removed = [file for file in live_files if parse_final_file_id(file.path) not in named]
        if removed or added[True]:
            self._leftovers.announce(FINAL_MESSAGES.name, [file.path for file in removed])
            final.replace_at(final.version, added[True], removed, moved=True)
        self._leftovers.withdraw_new(FINAL_MESSAGES.name, [file.path for new in added.values() for file in new])
        return missing

    def _write_files(self, final: TableHandle, rows: pa.Table, live: LiveState, now_ms: int) -> list[_Rewrite]:
        """Write the files that take the place of others, about as many as one pass has time for."""
        stored = {parse_final_file_id(file.path): file for file in final.files()}
        merges = self.has_more or self._merged_at_ms is None or now_ms - self._merged_at_ms >= self._hold_ms
        if merges:
            self._merged_at_ms = now_ms
        self.has_more, size_bytes, rewrites = False, 0, list[_Rewrite]()
        # A query may have read `segments` a while before the table: it must find the steps that it has read of.
        last_step = self._switched.find(now_ms - self._hold_ms) if merges else 0
        named = list_named_files(_count_whole_rows(rows, live))
        groups = self._choose_files(named, stored, last_step)
        for group in chain(groups, self._choose_dirty(named, rewrites, stored, live)):
            if size_bytes >= _REWRITTEN_BYTES:
                self.has_more = True
                break
            size_bytes += sum(stored[file.file_id].size_bytes for file in group)
            try:
                rewrite = self._rewrite(group, stored, rows, live)
            except OSError as error:  # a full disk must not stop the projection
                log.warning("Files of final_messages are not rewritten now: %s", error)
                self.has_more = True
                break
            rewrites += [rewrite] if rewrite is not None else []
        self.has_more |= self.compaction.is_running
        return rewrites

    def _choose_dirty(
        self,
        named: Sequence[NamedFile],
        rewrites: Sequence[_Rewrite],
        stored: Mapping[int, StoredFile],
        live: LiveState,
    ) -> Iterator[list[NamedFile]]:
        """Yield the files that compaction cleans now: none, if this pass has rewritten others."""
        if rewrites:
            return
        for count, file in enumerate(self.compaction.choose(named, stored, live)):
            if len(rewrites) < count:  # an earlier one could not be rewritten, and later ones rely on it
                return
            yield [file]

    def _choose_files(
        self, named: Iterable[NamedFile], stored: Mapping[int, StoredFile], last_step: int
    ) -> Iterator[list[NamedFile]]:
        """Yield groups of neighbours that become one file: small ones, and each that has deleted messages.

        last_step: later files are not merged.
        """
        for _, of_topic in groupby(named, attrgetter("topic_id")):
            files = list(of_topic)
            ids = [file.file_id for file in files if file.step <= last_step]
            may_move = {file.file_id for file in files if file.kind == FINAL and file.file_id in stored} - self._full
            sizes = [stored[id_].size_bytes if id_ in may_move else -1 for id_ in ids]
            first = choose_last_files(sizes, self._least)
            if first < len(ids):
                yield files[first : len(ids)]
            for file in (*files[:first], *files[len(ids) :]):
                if _is_cut(file, stored) and file.file_id not in self._damaged:
                    yield [file]

    def _rewrite(
        self, group: Sequence[NamedFile], stored: Mapping[int, StoredFile], rows: pa.Table, live: LiveState
    ) -> _Rewrite | None:
        """Write the messages of these files that are not deleted to a new file. None: they stay as they are."""
        parts = list[pa.Table]()
        for file in group:
            try:
                part = _read_kept_messages(self._files, file, live)
            except READ_ERRORS as error:
                self._damaged.add(file.file_id)
                self._full.add(file.file_id)
                log.warning("%s is not rewritten: %s", file.name, " ".join(str(error).split()))
                break
            if parts and sum(each.nbytes for each in parts) + part.nbytes > FILE_BYTES:
                break
            parts.append(part)
        replaced = group[: len(parts)]
        needs_rewrite = self.compaction.is_chosen(replaced) or any(_is_cut(file, stored) for file in replaced)
        if len(parts) < 2 and not needs_rewrite:
            self._full.update(file.file_id for file in replaced)
            return None
        messages = pa.concat_tables(parts).sort_by([("partition", "ascending"), ("offset", "ascending")])
        messages, tombstones, dropped = self.compaction.clean(replaced, messages, live)
        ranges = _find_ranges(rows, replaced)
        oldest_ms = min(stored[file.file_id].modified_ms for file in replaced)
        files = []
        if messages.num_rows:
            topic, file_id = replaced[0].topic, FINAL_FILES | self._new_file_id()
            written = write_final_file(
                self._files, self._leftovers, topic, messages, file_id, self._crash_point, oldest_ms, tombstones
            )
            files.append(written)
        described = describe_ranges(_cut_ranges(ranges, live), messages if messages.num_rows else None)
        record = RangesFinalized(replaced[0].topic_id, replaced[0].topic, files, described)
        is_cleaned = pc.any(pc.equal(messages.column("ttl_ms"), SUPERSEDED)).as_py() or False
        dropped = dropped.append_column("topic_id", pa.repeat(replaced[0].topic_id, dropped.num_rows))
        return _Rewrite(replaced, ranges, record, is_cleaned, dropped)

    def _swap_rows(self, segments: TableHandle, rewrites: Sequence[_Rewrite]) -> bool:
        """Let `segments` name the new files. Return whether it was changed."""
        is_changed = False
        for kind in (FINAL_PENDING, FINAL):
            chosen = [rewrite for rewrite in rewrites if rewrite.replaced[-1].kind == kind]
            if not chosen:
                continue
            replaced = pa.concat_tables(rewrite.ranges for rewrite in chosen)
            new = [row for each in chosen for row in build_final_rows(each.replaced[-1].step, each.record, kind)]
            ids = [file.file_id for each in chosen for file in each.replaced]
            find_sources = partial(points_at_files, file_ids=ids) if kind == FINAL else None
            cleaned = [file.file_id for each in chosen if each.is_cleaned for file in each.record.files]
            finals, floor = SEGMENTS.table(new), segments.floor()
            dropped = pa.concat_tables(rewrite.dropped for rewrite in chosen)
            blocked = self._change_rows(segments, replaced, finals, find_sources, floor, cleaned, dropped)
            if blocked:
                log.error(
                    "TABLE_DAMAGED: segments and final_messages differ in step %d. Run lakemq doctor.", min(blocked)
                )
                self._full.update(ids)
                self._damaged.update(ids)
            is_changed |= not blocked
        return is_changed

    def _switch(self, segments: TableHandle, rows: pa.Table, live: LiveState, step: int) -> bool:
        """Let data rows name final files up to a step, and views read these files. Return whether it is so.

        Both are one commit. A file that a log start has cut, and that is not rewritten yet, holds up its step.

        rows: of `_list_switchable_rows`.
        """
        steps = rows.column("step").to_numpy()
        has_file = rows.column("file_id").is_valid().to_numpy()
        is_cut = has_file & (rows.column("base_offset").to_numpy() < find_log_starts(rows, live))
        step = min([step, *(steps[is_cut] - 1)])
        while (steps <= step).any():
            chosen = rows.filter(pa.array(steps <= step))
            stored = segments.read(where=pc.field("step") <= step, kind=(FINAL_PENDING, FINAL_PENDING))
            stored = stored.filter(pa.array(_mask_places(stored, set(_list_tuples(chosen, _PLACE)))))
            at = stored.schema.get_field_index("kind")
            new = stored.set_column(at, "kind", pa.repeat(FINAL, stored.num_rows))
            blocked = self._change_rows(segments, stored, new, partial(_mask_published, ranges=stored), step)
            if not blocked:
                self._switched.note(self._clock.steady_ms(), step)
                self._crash_point("finalizing.segments_switched")
                return True
            log.warning(
                "Messages of step %d stay in messages: segments has other counts than their files. Run lakemq fsck.",
                min(blocked),
            )
            step = min(blocked) - 1
        return False

    def _change_rows(
        self,
        segments: TableHandle,
        replaced: pa.Table,
        finals: pa.Table,
        find_sources: Callable[[pa.Table], Mask] | None,
        floor: int,
        cleaned: Sequence[int] = (),
        dropped: pa.Table | None = None,
    ) -> list[int]:
        """Replace rows of final ranges, and let data rows name their files, in one commit.

        Args:
            replaced, finals: the rows that go and those that come instead.
            find_sources: returns which data rows have the messages of `finals`. None: no data row is changed.
            floor: no reader begins at an older step.
            cleaned: files that may have superseded messages.
            dropped: runs of superseded messages that no file has any more.

        Returns:
            Steps of `finals` whose messages are not those of the data rows. Then nothing is changed.
        """
        places = set(_list_tuples(replaced, _PLACE))

        def find_changed(part: pa.Table) -> Mask:
            is_replaced = _mask_places(part, places)
            if find_sources is None:
                return is_replaced
            is_data: Mask = pc.equal(part.column("kind"), "data").to_numpy(zero_copy_only=False)
            return is_replaced | (is_data & find_sources(part))

        bounds = pc.min_max(replaced.column("topic_id")).as_py()
        near = segments.files(topic_id=(bounds["min"], bounds["max"]))
        stored = [file for file in near if find_changed(segments.read(_FOUND_BY, files=[file])).any()]
        rows = segments.read(files=stored)
        is_changed = find_changed(rows)
        is_source = is_changed & ~_mask_places(rows, places)
        moved, new_rows = [], [rows.filter(pa.array(~is_changed)), finals]
        blocked = list[int]()
        for topic_id in [] if find_sources is None else pc.unique(replaced.column("topic_id")).to_pylist():
            of_topic = pc.field("topic_id") == topic_id
            sources = rows.filter(pa.array(is_source)).filter(of_topic).sort_by(_IN_ORDER)
            is_committed = self._mask_committed(segments, topic_id, sources)
            ranges = finals.filter(of_topic & pc.field("file_id").is_valid()).sort_by(_IN_ORDER)
            committed = sources.filter(pa.array(is_committed))
            if dropped is not None:
                parts = cut_out_runs(committed, dropped.filter(of_topic).sort_by(_IN_ORDER))
                if parts is None:
                    blocked += finals.filter(of_topic).column("step").to_pylist()
                    continue
                committed, compacted = parts
                moved.append(compacted)
            result = move_to_final_files(committed, ranges)
            blocked += ranges.column("step").filter(pa.array(~result.is_whole)).to_pylist()
            moved.append(result.segments.filter(pa.array(result.is_moved)))
            new_rows += [sources.filter(pa.array(~is_committed)), result.segments.filter(pa.array(~result.is_moved))]
        if blocked:
            return blocked
        if moved:
            marked = _mark_cleaned(pa.concat_tables(moved), cleaned)
            new_rows.append(coalesce_segments(marked, floor, read_log_bounds(segments)))
        added = write_merged_file(self._files, self._leftovers, SEGMENTS, pa.concat_tables(new_rows), stored)
        floor = max(floor, segments.floor())
        segments.replace_at(segments.version, added, stored, segments.last_step() or None, floor or None)
        self.floor = max(self.floor, floor)
        return []

    def _mask_committed(self, segments: TableHandle, topic_id: int, sources: pa.Table) -> Mask:
        """Return which data rows of a topic are committed. Those of an ended transaction are, unless it was aborted."""
        mask = np.ones(sources.num_rows, np.bool_)
        if pc.any(sources.column("transactional")).as_py():
            of_topic = pc.field("topic_id") == topic_id
            aborts = segments.read(_AUTHOR, of_topic, kind=("abort", "abort"), topic_id=(topic_id, topic_id))
            numbered = sources.select(_AUTHOR).append_column("number", pa.array(np.arange(sources.num_rows)))
            mask[numbered.join(aborts, [*_AUTHOR], join_type="left semi").column("number").to_numpy()] = False
        return mask


class _Steps:
    """Steps, and when each was reached."""

    def __init__(self) -> None:
        self._reached = deque[tuple[int, int]]()

    def note(self, now_ms: int, step: int) -> None:
        """Note that this step is reached now, if it was not reached before."""
        if not self._reached or step > self._reached[-1][1]:
            self._reached.append((now_ms, step))

    def is_settled(self, until_ms: int) -> bool:
        """Return whether the last step was reached by this time."""
        return not self._reached or self._reached[-1][0] <= until_ms

    def find(self, until_ms: int) -> int:
        """Return the last step that was reached by this time; 0: there is none. Later calls ask for later times."""
        while len(self._reached) > 1 and self._reached[1][0] <= until_ms:
            self._reached.popleft()
        return self._reached[0][1] if self._reached and self._reached[0][0] <= until_ms else 0


_PLACE = ("topic_id", "partition", "base_offset")
_FOUND_BY = ("kind", *_PLACE, "last_offset", "file_id")
_AUTHOR = ("partition", "producer_id", "producer_epoch", "transactional")
"""By these, a marker ends a transaction in a partition of a topic."""
_IN_ORDER = [("partition", "ascending"), ("base_offset", "ascending")]


def _mask_published(rows: pa.Table, ranges: pa.Table) -> Mask:
    """Return which data rows name a published file, and may have messages of the ranges."""
    partitions, index = np.unique(_number_partitions(ranges), return_inverse=True)
    low, high = np.full(len(partitions), np.iinfo(np.int64).max), np.full(len(partitions), -1)
    np.minimum.at(low, index, ranges.column("base_offset").to_numpy())
    np.maximum.at(high, index, ranges.column("last_offset").to_numpy())
    numbers = _number_partitions(rows)
    at = np.minimum(np.searchsorted(partitions, numbers), len(partitions) - 1)
    base, last = rows.column("base_offset").to_numpy(), rows.column("last_offset").to_numpy()
    is_near: Mask = (partitions[at] == numbers) & (base <= high[at]) & (last >= low[at])
    return is_near & (rows.column("file_id").fill_null(FINAL_FILES).to_numpy() < FINAL_FILES)


def _mark_cleaned(rows: pa.Table, cleaned: Sequence[int]) -> pa.Table:
    """Return data rows that say of these files that messages may be superseded. Where some may expire, that says it."""
    is_cleaned = pc.is_in(rows.column("file_id"), pa.array(cleaned, pa.int64()))
    is_marked = pc.and_(is_cleaned, rows.column("ttl_from_ms").is_null())
    ttl_ms = pc.if_else(is_marked, pa.scalar(SUPERSEDED, pa.int64()), rows.column("ttl_ms"))
    return rows.set_column(rows.schema.get_field_index("ttl_ms"), "ttl_ms", ttl_ms)


def _number_partitions(rows: pa.Table) -> Numbers:
    """Return a number per row that stands for its topic and partition."""
    numbers: Numbers = (rows.column("topic_id").to_numpy() << 32) + rows.column("partition").to_numpy()
    return numbers


def _is_cut(file: NamedFile, stored: Mapping[int, StoredFile]) -> bool:
    """Return whether a file of the table has messages that are deleted."""
    return file.file_id in stored and file.record_count != stored[file.file_id].record_count


def _mask_places(rows: pa.Table, places: set[tuple[Any, ...]]) -> Mask:
    """Return which rows of final messages begin at one of these places: topic, partition, offset."""
    mask: Mask = np.array(pc.is_in(rows.column("kind"), pa.array(_FINAL)))
    of_final = rows.filter(pa.array(mask))
    mask[mask] = [place in places for place in _list_tuples(of_final, _PLACE)]
    return mask


def choose_last_files(sizes: Sequence[int], least: int) -> int:
    """Return the number of the first of the last files, which become one; `len(sizes)` if they stay.

    No file is larger than all after it together. So each merge puts a byte into a file at least twice as large.

    sizes: in bytes, in the order of the files. -1: the file must stay.
    """
    first, total = len(sizes), 0
    while first and sizes[first - 1] >= 0 and total + sizes[first - 1] <= _REWRITTEN_BYTES:
        if first < len(sizes) and sizes[first - 1] > total:
            break
        first -= 1
        total += sizes[first]
    return first if len(sizes) - first >= least else len(sizes)


def read_named_rows(segments: TableHandle, live: LiveState) -> tuple[pa.Table, int]:
    """Return the rows of final messages that are not deleted, by topic, step, partition and offset.

    And the last step that views read: they look at the rows of deleted messages, too, as long as these are there.
    """
    rows = segments.read(_NAMED, kind=_FINAL)
    read_step = pc.max(rows.column("step").filter(pc.equal(rows.column("kind"), FINAL))).as_py() or 0
    is_there = pc.is_in(rows.column("topic_id"), pa.array(sorted(live.topics), pa.int64())).to_numpy()
    rows = rows.filter(pa.array(is_there & ~mask_deleted_segments(rows, live)))
    return rows.sort_by([(name, "ascending") for name in ("topic_id", "step", "partition", "base_offset")]), read_step


def _list_switchable_rows(rows: pa.Table, read_step: int, final: TableHandle, missing: Sequence[int]) -> pa.Table:
    """Return the pending rows whose files the table has, with the steps from which on they may be switched.

    For a file that came late into the table, that is a pending step after which views read its step there.

    rows, read_step: of `read_named_rows`.
    """
    is_missing = pc.is_in(rows.column("file_id"), pa.array(missing, pa.int64()))
    rows = rows.filter(pc.and_not(pc.equal(rows.column("kind"), FINAL_PENDING), is_missing))
    steps = rows.column("step").to_numpy().copy()
    is_late = steps <= read_step
    if is_late.any():
        stored = {parse_final_file_id(file.path): file.partition_values["step"] for file in final.files()}
        late_ids = rows.column("file_id").filter(pa.array(is_late)).to_pylist()
        pending = np.unique(steps[~is_late])
        at = np.searchsorted(pending, [stored.get(file_id, 0) for file_id in late_ids])
        steps[is_late] = np.append(pending, np.iinfo(np.int64).max)[at]
    return rows.set_column(rows.schema.get_field_index("step"), "step", pa.array(steps))


def list_named_files(rows: pa.Table) -> list[NamedFile]:
    """Return the files by topic and step."""
    named = rows.filter(pc.field("file_id").is_valid()).group_by("file_id", use_threads=False)
    firsts = [(name, "first") for name in ("topic_id", "topic", "step", "footer_hash", "kind")]
    files = named.aggregate([*firsts, ("record_count", "sum")])
    files = files.sort_by([("topic_id_first", "ascending"), ("step_first", "ascending")])  # grouping keeps no order
    names = ["file_id", *(f"{name}_first" for name, _ in firsts), "record_count_sum"]
    return [NamedFile(*values) for values in _list_tuples(files, names)]


def _count_whole_rows(rows: pa.Table, live: LiveState) -> pa.Table:
    """Return the rows without messages where the log start has moved into a row: the file must be rewritten."""
    is_whole = rows.column("base_offset").to_numpy() >= find_log_starts(rows, live)
    counts = np.where(is_whole, rows.column("record_count").to_numpy(), 0)
    return rows.set_column(rows.schema.get_field_index("record_count"), "record_count", pa.array(counts))


def _find_ranges(rows: pa.Table, replaced: Sequence[NamedFile]) -> pa.Table:
    """Return the rows that name these files, and those without a file that lie between them."""
    rows = rows.filter(pc.field("topic_id") == replaced[0].topic_id)
    is_named = pc.is_in(rows.column("file_id"), pa.array([file.file_id for file in replaced], pa.int64()))
    named = rows.filter(is_named)
    extents = named.group_by("partition").aggregate([("base_offset", "min"), ("last_offset", "max")])
    names = ("partition", "base_offset_min", "last_offset_max")
    bounds = {partition: (low, high) for partition, low, high in _list_tuples(extents, names)}
    empty = rows.filter(pc.field("file_id").is_null())
    is_between = [
        partition in bounds and bounds[partition][0] < first and last < bounds[partition][1]
        for partition, first, last in _list_tuples(empty, ("partition", "base_offset", "last_offset"))
    ]
    return pa.concat_tables([named, empty.filter(pa.array(is_between, pa.bool_()))])


def _list_tuples(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows.column(name).to_pylist() for name in names), strict=True)


def _cut_ranges(ranges: pa.Table, live: LiveState) -> pa.Table:
    """Return the ranges from the log starts on."""
    bases = np.maximum(ranges.column("base_offset").to_numpy(), find_log_starts(ranges, live))
    return ranges.set_column(ranges.schema.get_field_index("base_offset"), "base_offset", pa.array(bases))


def _read_kept_messages(files: Files, file: NamedFile, live: LiveState) -> pa.Table:
    """Return the messages of a file that are not deleted. Raises OSError, ValueError, ArrowException."""
    with files.open_input(file.name) as source:
        footer = read_footer(source)
        if footer.is_other_than(file.footer_hash):
            raise ValueError("rewritten or damaged")
        rows = open_parquet(source, footer.parse()).read(FILE_SCHEMA.names).cast(FILE_SCHEMA)
    starts = live.topics[file.topic_id].log_starts[rows.column("partition").to_numpy()]
    return rows.filter(pa.array(rows.column("offset").to_numpy() >= starts))


def count_missing_files(segments: TableHandle, live: LiveState) -> int:
    """Return how many files `final_messages` lacks, or has got back, while views read later ones."""
    rows, read_step = read_named_rows(segments, live)
    is_late = (pc.field("kind") == FINAL_PENDING) & (pc.field("step") <= read_step)
    return int(pc.count_distinct(rows.filter(is_late).column("file_id")).as_py())


def _find_file(files: Files, file: NamedFile) -> tuple[NewFile, bool] | None:
    """Return the file for a commit, and whether it was rewritten.

    None, with a line in the log, if it is not there as it was written.
    """
    try:
        size_bytes, metadata = _read_metadata(files, file)
    except (FileNotFoundError, ValueError) as error:
        log.error(
            "TABLE_DAMAGED: %s cannot be read: %s. Its messages are missing in final_messages, and fetches have them."
            " Restore the file from a backup.",
            file.name,
            error,
        )
        return None
    partition = {"topic": file.topic, "step": file.step}
    oldest_ms = read_oldest_ms(metadata)
    modified_ms = (files.modified_ms(file.name) or 0) if oldest_ms is None else oldest_ms
    new = NewFile(file.path, size_bytes, modified_ms, _read_statistics(metadata), partition)
    return new, oldest_ms is not None


def _order_by_time(files: Iterable[NewFile], live_files: Iterable[StoredFile]) -> list[NewFile]:
    """Return the files, by topic and step, with a time after that of each earlier one of their topic.

    A stream begins with the files in the order of time, and a store tells times in seconds.
    """
    latest_ms = dict[str, int]()
    for stored in live_files:
        topic = unquote(stored.path).partition("/")[0]
        latest_ms[topic] = max(latest_ms.get(topic, 0), stored.modified_ms)
    ordered = list[NewFile]()
    for file in files:
        topic = unquote(file.path).partition("/")[0]
        latest_ms[topic] = max(file.modified_ms, latest_ms.get(topic, -1) + 1)
        ordered.append(replace(file, modified_ms=latest_ms[topic]))
    return ordered


def _read_metadata(files: Files, file: NamedFile) -> tuple[int, pq.FileMetaData]:
    """Return the size of a file and its footer. Raises FileNotFoundError, ValueError: another file, or none."""
    with files.open_input(file.name) as source:
        footer = read_footer(source)
    if footer.is_other_than(file.footer_hash):
        raise ValueError("rewritten or damaged")
    return footer.size_bytes, footer.parse()


def _read_statistics(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Return Delta's statistics of a file from its footer."""
    names = metadata.schema.names
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    for name in _BOUNDED:
        column = names.index(name)
        bounds = [metadata.row_group(i).column(column).statistics for i in range(metadata.num_row_groups)]
        low, high = min(part.min_raw for part in bounds), max(part.max_raw for part in bounds)
        if name != "timestamp":
            least[name], most[name] = low, high
        elif low >= MIN_TIMESTAMP_US and high <= MAX_TIMESTAMP_US:  # others come from writers that check no times
            # Delta knows milliseconds: the upper bound is rounded up, but few readers know a year 10000
            least[name] = _format_time(low)
            most[name] = _format_time(min(high + 999, MAX_TIMESTAMP_US))
    return {
        "numRecords": metadata.num_rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": dict.fromkeys(least, 0),
    }


def _format_time(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def needs_sync(live: LiveState) -> bool:
    """Return whether `final_messages` may have files, as far as the topics show."""
    return any(bool(np.any(topic.final_offsets > topic.log_starts)) for topic in live.topics.values())
