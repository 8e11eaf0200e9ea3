"""Merging small data files into sorted ones, and removing those that nothing needs any more.

Invariants. Until the grace is over both files are there, the old and the merged: killed anywhere, what segments say is
right, and the next run finds what nothing refers to. A leader deletes a file only after it has itself committed, in its
term, to every table that may come to name it: who was stopped while about to name it has lost by then.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemq.tables.specs.dead_letters import DEAD_LETTERS
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.messages import MESSAGES, SEQUENCERS_FILES, file_stem
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.specs.segments import SEGMENTS
from lakemq.tables.storage.changelog import newest
from lakemq.tables.storage.commits import StoredFile
from lakemq.tables.storage.leftovers import Due, Leftovers
from lakemq.tables.storage.mailbox import Mailbox
from lakemq.tables.storage.store import Store, TableHandle

from ..namespace import crash
from ..namespace.clock import Clock
from ..namespace.config import EngineConfig
from ..namespace.data_file import BODY, WrittenFile, file_name, is_as_written, look, new_data_file, registered
from ..protocol.codec.journal import decode_steps
from ..protocol.codec.letter import decode_letter
from ..protocol.projection import files_named
from ..protocol.values.log import Produce
from . import merging
from .merging import Numbers
from .trimming import Living, is_deleted
from .writing import write_merged

log = logging.getLogger("lakemq.serve")

SMALL_BYTES = 8 << 20
"""Files below this size are merged."""

FEW_FILES = 8
"""So many small files are merged when no more have come since the last look."""

SETTLED_MS = 60_000
"""Least age of a file of the sequencer's that is merged, and time between two looks, unless merge.grace.ms is less."""

_GROUP_BYTES = 8 << 20
"""Of a row group of a merged file: who fetches one topic of many reads those that it is in."""

_UNPACKED_BYTES = 8 * SMALL_BYTES
"""A small file that holds more than this is left as it is: what is merged is held in memory."""

_WAIT_S = 2
"""For others to have no files that are not to be removed: where messages keep dying there are some most of the time."""

POINTING = tuple(spec.name for spec in TABLES if spec.shape != "data" and "file_id" in spec.stored_schema.names)
"""The tables whose rows say where message rows are."""

MOVED = (SEGMENTS.name, DEAD_LETTERS.name)
"""Those of them that are rewritten. A file that another one names is not merged."""

TABLES_LOOKED_AT = (MESSAGES.name, *POINTING)

Handles = Mapping[str, TableHandle]
"""The leader's own, each at the version of its last commit."""


@dataclass
class _Pointing:
    """Of one table: its files in which rows point at files that are merged, and all their rows."""

    handle: TableHandle
    stored: list[StoredFile]
    rows: pa.Table


@dataclass
class _Seen:
    """What was learnt of `messages`: when its small files were written, and which cannot be read."""

    version: int = -1
    written_ms: dict[str, int] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)


class DataFiles:
    """Of one term of leadership. Works between two passes, with the handles that those commit by."""

    def __init__(
        self,
        store: Store,
        config: EngineConfig,
        clock: Clock,
        new_file_id: Callable[[], int],
        removing: Lock,
        reached: crash.Reached = crash.nowhere,
    ) -> None:
        """new_file_id: random, below SEQUENCERS_FILES. removing: held while files are removed; who holds it has found
        files that a step is to name.
        """
        self._store, self._files, self._config, self._clock = store, store.files, config, clock
        self._new_file_id, self._removing, self._reached = new_file_id, removing, reached
        self._leftovers, self._seen = Leftovers(store.files), _Seen()
        self._grace_ms = config.ms("merge.grace.ms")
        self._settled_ms = min(SETTLED_MS, self._grace_ms)
        self._looked_at_ms: int | None = None
        self._counted_at_ms: int | None = None
        self._count_every_ms = config.ms("retention.check.interval.ms")
        self.wasted: frozenset[str] = frozenset()
        """Files of `segments` of which so many rows were deleted that they are to be merged, whatever their size."""

    def is_due(self) -> bool:
        """Whether it is time to look at the files."""
        last_ms = self._looked_at_ms
        return last_ms is None or self._clock.steady_ms() - last_ms >= self._settled_ms

    def maintain(self, handles: Handles, step: int, floor: int, then: Living | None = None) -> bool:
        """Remove and merge what there is; whether segments up to the floor were put together.

        handles: of TABLES_LOOKED_AT. step: of the watermark just written. floor: nobody begins to read from an older
        one. then: what there was at some step from which nobody begins to read an older one. Raises CommitConflict.
        """
        self._looked_at_ms = self._clock.steady_ms()
        self._remove(handles, step)
        last_ms = self._counted_at_ms
        if then is not None and (last_ms is None or self._looked_at_ms - last_ms >= self._count_every_ms):
            self._counted_at_ms = self._looked_at_ms
            self._count(handles, then)
        chosen = self._chosen(handles[MESSAGES.name])
        try:
            return bool(chosen) and self._merge(handles, chosen, floor)
        except (ValueError, LookupError, MemoryError, pa.ArrowException):
            # of what stands in the files and tables; nobody shall wait for it to be mended
            log.exception("Data files cannot be merged: %s", ", ".join(file.path for file in chosen))
            self._seen.damaged |= {file.path for file in chosen}
            return False

    # -- merging ----------------------------------------------------------------------------------------

    def _chosen(self, messages: TableHandle) -> list[StoredFile]:
        """Files that are small, not replaced yet, and so old that nothing new will point at them."""
        seen, version = self._seen, messages.version
        least = min(FEW_FILES, self._least) if version == seen.version else self._least
        seen.version = version
        small = [
            file
            for file in messages.files()
            if file.size_bytes < SMALL_BYTES and file_id_of(file.path) >= 0 and file.path not in seen.damaged
        ]
        if len(small) < least:
            return []
        announced = self._leftovers.announced(MESSAGES.name)
        small = [file for file in small if file.path not in announced]
        seen.written_ms = {f.path: seen.written_ms.get(f.path, -1) for f in small}
        now_ms, old = self._files.time_ms(), []
        for file in small:
            if seen.written_ms[file.path] < 0:
                seen.written_ms[file.path] = self._files.modified_ms(f"{MESSAGES.name}/{file.path}") or now_ms
            if now_ms - seen.written_ms[file.path] > self._least_age_ms(file_id_of(file.path)):
                old.append(file)
        indexes = merging.files_to_merge(np.array([f.size_bytes for f in old], np.int64), least)
        return sorted((old[i] for i in indexes.tolist()), key=lambda file: file_id_of(file.path))

    @property
    def _least(self) -> int:
        return self._config.number("compact.min.files")

    def _least_age_ms(self, file_id: int) -> int:
        # a publisher's may still be named by a request
        return self._settled_ms if file_id >= SEQUENCERS_FILES else self._config.ms("publish.max.duration.ms")

    def _merge(self, handles: Handles, chosen: Sequence[StoredFile], floor: int) -> bool:
        ids = np.array([file_id_of(file.path) for file in chosen], np.int64)
        elsewhere = [_named_by(handles[name]) for name in POINTING if name not in MOVED]
        pointing = {name: self._pointing(handles[name], ids) for name in MOVED}
        bodies = self._bodies(chosen, ids, pointing[SEGMENTS.name].rows, set().union(*elsewhere))
        if len(bodies) < 2:
            return False
        kept, counts = np.array(sorted(bodies), np.int64), np.array([bodies[i].num_rows for i in sorted(bodies)])
        ranges, pointed = {}, {}
        for name, one in pointing.items():
            ranges[name] = one.rows.filter(pa.array(merging.of_files(one.rows, kept)))
            pointed[name] = merging.rows_pointed_at(ranges[name], kept, counts)
        segments, shown, refused = ranges[SEGMENTS.name], pointed[SEGMENTS.name], pointed[DEAD_LETTERS.name]
        order, place = merging.places(segments, shown, refused, int(counts.sum()))
        body = pa.concat_tables([bodies[i] for i in kept.tolist()]).take(pa.array(order))
        merged, its_list = self._written(handles[MESSAGES.name], body, kept)
        for name, one in pointing.items():
            if ranges[name].num_rows and merged is not None:
                rows = merging.moved(ranges[name], pointed[name], place, merged.file_id)
                if name == SEGMENTS.name:
                    rows = merging.coalesced(merging.with_footer(rows, merged.footer_hash), floor)
                self._swap(one, rows, kept, floor if name == SEGMENTS.name else 0)
                self._reached("housekeeping.segments_swapped")
        if its_list is not None:
            self._leftovers.withdraw(its_list)
        return True

    def _pointing(self, handle: TableHandle, ids: Numbers) -> _Pointing:
        """Of files in which none of the ids is, only that column is read."""
        stored = [
            file for file in handle.files() if merging.of_files(handle.read(["file_id"], files=[file]), ids).any()
        ]
        return _Pointing(handle, stored, handle.read(files=stored))

    def _bodies(
        self, chosen: Sequence[StoredFile], ids: Numbers, segments: pa.Table, elsewhere: set[int]
    ) -> dict[int, pa.Table]:
        """file_id -> its rows, of those files that are what was written."""
        footers = dict(zip(*(segments.column(name).to_pylist() for name in ("file_id", "footer_hash")), strict=True))
        bodies: dict[int, pa.Table] = {}
        for file, file_id in zip(chosen, ids.tolist(), strict=True):
            if file_id in elsewhere:
                continue
            try:
                bodies[file_id] = self._body(file, file_id, footers)
            except (OSError, ValueError, pa.ArrowException) as error:
                self._seen.damaged.add(file.path)
                log.warning("Data file %s is left out of merges: %s", file_stem(file_id), error)
        return bodies

    def _body(self, file: StoredFile, file_id: int, footers: dict[int, int | None]) -> pa.Table:
        facts = look(self._files, file_id)
        if facts is None or facts.flaw:
            raise ValueError("gone" if facts is None else facts.flaw)
        if file_id in footers and not is_as_written(footers[file_id], facts.footer_hash, facts.is_journaled):
            raise ValueError("rewritten or damaged")
        with self._files.open_input(file_name(file_id)) as source:
            parquet = pq.ParquetFile(source)
            groups = range(parquet.metadata.num_row_groups)
            if sum(parquet.metadata.row_group(i).total_byte_size for i in groups) > _UNPACKED_BYTES:
                raise ValueError("too large once it is unpacked")
            rows = parquet.read(["row", *BODY])
        if not np.array_equal(rows.column("row").to_numpy(), np.arange(file.record_count)):
            raise ValueError("its rows are not where they were")
        return rows.select(BODY)

    def _written(
        self, messages: TableHandle, body: pa.Table, replaced: Numbers
    ) -> tuple[WrittenFile | None, str | None]:
        """The merged file, part of `messages` beside the old ones, and the list that says so until it is in use.

        Said before: which are of no use once nothing points at them. None: no row of those is needed.
        """
        self._leftovers.announce(MESSAGES.name, map(_path, replaced.tolist()))
        if not body.num_rows:
            return None, None
        file_id = SEQUENCERS_FILES | self._new_file_id()
        its_list = self._leftovers.announce(MESSAGES.name, [_path(file_id)])
        rows_at_once = max(1, body.num_rows * _GROUP_BYTES // max(1, body.nbytes))
        with new_data_file(self._files, file_id) as writer:
            for first in range(0, body.num_rows, rows_at_once):
                writer.write(body.slice(first, rows_at_once))
        written = writer.written(self._files)
        self._reached("housekeeping.merged_data_written")
        messages.replace_at(messages.version, [registered(written)], moved=True)
        self._reached("housekeeping.merged_registered")
        return written, its_list

    def _swap(self, one: _Pointing, rows: pa.Table, ids: Numbers, floor: int) -> None:
        """The rows instead of those of the table that point at these files, in one commit."""
        handle = one.handle
        others = one.rows.filter(pa.array(~merging.of_files(one.rows, ids)))
        added = write_merged(self._files, self._leftovers, handle.spec, pa.concat_tables([others, rows]), one.stored)
        handle.replace_at(
            handle.version, added, one.stored, handle.last_step() or None, max(floor, handle.floor()) or None
        )

    # -- what was deleted ---------------------------------------------------------------------------------

    def _count(self, handles: Handles, then: Living) -> None:
        """Files of `segments` that hold mostly what is deleted, and data files that nothing points at, are found.

        Those are announced, as if they had been replaced: they go when that was long enough ago.
        """
        wasted, named, segments = set(), set[int](), handles[SEGMENTS.name]
        for file in segments.files():
            rows = segments.read(["topic_id", "partition", "last_offset", "file_id"], files=[file])
            named.update(rows.column("file_id").unique().drop_null().to_pylist())
            if 2 * np.count_nonzero(is_deleted(rows, then)) > rows.num_rows:
                wasted.add(file.path)
        self.wasted = frozenset(wasted)
        named = named.union(*(_named_by(handles[name]) for name in POINTING if name != SEGMENTS.name))
        paths = {f.path for f in handles[MESSAGES.name].files() if (i := file_id_of(f.path)) >= 0 and i not in named}
        if paths and (new := paths - self._leftovers.announced(MESSAGES.name)):
            self._leftovers.announce(MESSAGES.name, sorted(new))

    # -- removing ---------------------------------------------------------------------------------------

    def _remove(self, handles: Handles, step: int) -> None:
        """What was replaced, or written for nothing, longer ago than the grace, and is named nowhere."""
        due = self._leftovers.due(MESSAGES.name, self._grace_ms)
        if not due.lists or not self._removing.acquire(timeout=_WAIT_S):
            return  # with the next look
        try:
            self._remove_due(due, handles, step)
        finally:
            self._removing.release()

    def _remove_due(self, due: Due, handles: Handles, step: int) -> None:
        messages = handles[MESSAGES.name]
        for name in TABLES_LOOKED_AT:
            handles[name].claim()
        gone = self._unnamed(due, handles, step)
        live = [file for file in messages.files() if file.path in gone]
        if live:
            messages.replace_at(messages.version, [], live)
            self._reached("housekeeping.old_removed")
        if self._leftovers.clear(due, MESSAGES.name, gone) and gone:
            self._reached("housekeeping.old_deleted")

    def _unnamed(self, due: Due, handles: Handles, step: int) -> set[str]:
        """In this order: what a letter names is in the journal before the letter is gone."""
        is_publishers = any(file_id_of(path) < SEQUENCERS_FILES for path in due.paths)
        named = {-1, *(self._named_in_letters() if is_publishers else ())}
        tail = self._store.open(JOURNAL).read(
            [name for name in JOURNAL.stored_schema.names if name != "rows"], step=(step + 1, None)
        )
        named |= files_named(decode_steps(tail))
        named = named.union(*(_named_by(handles[name]) for name in POINTING))
        return {path for path in due.paths if file_id_of(path) not in named}

    def _named_in_letters(self) -> Iterator[int]:
        """By publishers. What cannot be read has not been looked at: a file so old will be refused then."""
        mailbox = Mailbox(self._files)
        for name in mailbox.look_through():
            try:
                body = mailbox.take(name)
                requests = [] if body is None else decode_letter(body)[0].requests
            except (OSError, ValueError):
                continue
            for request in requests:
                if isinstance(request, Produce):
                    yield from (file.file_id for file in request.files)


_NAME = re.compile(r"([0-9a-f]{16})\.parquet")


def _path(file_id: int) -> str:
    return f"{file_stem(file_id)}.parquet"


def file_id_of(path: str) -> int:
    """Of a data file; -1 for what somebody else has put there, which nobody touches."""
    name = _NAME.fullmatch(path)
    return int(name[1], 16) if name else -1


def _named_by(handle: TableHandle) -> set[int]:
    """All files that rows of the table point at; of a changelog's those that stand for something still."""
    if handle.spec.shape != "changelog":
        return set(handle.read(["file_id"]).column("file_id").unique().drop_null().to_pylist())
    rows = newest(handle.read(["step", "removed", *handle.spec.keys]), handle.spec.keys)
    return set(rows.filter(~pc.field("removed")).column("file_id").to_pylist())
