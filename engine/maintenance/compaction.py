"""Compaction: of the final messages of a key in a partition, only the newest stays.

Invariant: a message goes only if a later final message of its partition has its key, or if it has no key, or if it is a
tombstone, no older message of its key is left, and `delete.retention.ms` has passed since then. A message that goes
leaves an empty row at its place. So a file still has exactly the committed messages of its ranges, and the place of
each message follows from `segments`. Readers leave out rows with the time to live SUPERSEDED. A long run of empty rows
is dropped, and a row of `segments` has its offsets instead.

A run cleans the files of a topic up to some step, as Kafka's cleaner does. It reads the keys of the files that have
come since the last run, then empties messages in all files, from the oldest on. Both are done in parts, between passes.
A run that ends early is begun again, and does not harm: what a later message supersedes stays superseded.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import groupby, takewhile
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.messages import FILE_SCHEMA, SUPERSEDED
from lakemq.tables.specs.spec import TIME
from lakemq.tables.specs.topics import FINAL
from lakemq.tables.storage.delta.commits import StoredFile
from lakemq.tables.storage.object_stores.files import Files
from lakemq.tables.storage.parquet import open_parquet

from ..namespace.data_file import read_footer
from ..protocol.values.topics import Topic
from .final_files import READ_ERRORS, NamedFile, read_tombstones
from .retention import LiveState

log = logging.getLogger("lakemq.serve")

Mask = npt.NDArray[np.bool_]

_KEY_BYTES = 64 << 20
"""Bytes of keys that a run keeps, about. If there are more, it ends at an earlier step, and the next run goes on."""
_REST_MS = 60_000
"""How long a topic rests after a run that has failed."""
_KEY = ("partition", "key", "offset")
_CONTENT = ("key", "value", "headers", "dead_letter")
"""Columns of which a superseded message has none."""


def find_newest(messages: pa.Table) -> pa.Table:
    """Return the last offset of each key in each partition. messages, result: columns partition, key, offset."""
    keyed = messages.select(_KEY).filter(pc.field("key").is_valid())
    newest = keyed.group_by(["partition", "key"], use_threads=False).aggregate([("offset", "max")])
    return newest.select(["partition", "key", "offset_max"]).rename_columns(_KEY)


def find_superseded(messages: pa.Table, newest: pa.Table, may_drop: Mask) -> Mask:
    """Return which messages go that have not gone yet.

    Args:
        messages: columns partition, key, offset, ttl_ms, and value unless there is no tombstone.
        newest: offsets by partition and key, as `find_newest` returns them.
        may_drop: which messages go if they are tombstones.
    """
    numbered = messages.select(_KEY).append_column("number", pa.array(np.arange(messages.num_rows)))
    later = newest.rename_columns(["partition", "key", "newest"])
    pairs = numbered.join(later, ["partition", "key"], join_type="inner", use_threads=False)
    goes: Mask = np.zeros(messages.num_rows, np.bool_)
    goes[pairs.filter(pc.field("offset") < pc.field("newest")).column("number").to_numpy()] = True
    goes |= messages.column("key").is_null().to_numpy()
    goes |= mask_tombstones(messages) & may_drop
    return goes & ~_mask_gone(messages)


def mask_tombstones(messages: pa.Table) -> Mask:
    """Return which messages are tombstones that have not gone. messages: as in `find_superseded`."""
    if "value" not in messages.column_names:
        return np.zeros(messages.num_rows, np.bool_)
    mask: Mask = messages.column("value").is_null().to_numpy() & ~_mask_gone(messages)
    return mask


def _mask_gone(messages: pa.Table) -> Mask:
    mask: Mask = pc.equal(messages.column("ttl_ms"), SUPERSEDED).fill_null(False).to_numpy()
    return mask


def empty_messages(messages: pa.Table, goes: Mask) -> pa.Table:
    """Return all messages, those that go without content."""
    places = pa.array(np.arange(messages.num_rows), mask=goes)
    columns = {name: messages.column(name).take(places) for name in _CONTENT}
    for name, value in (("ttl_ms", pa.scalar(SUPERSEDED, pa.int64())), ("expires_at", pa.scalar(0).cast(TIME))):
        columns[name] = pc.if_else(pa.array(goes), value, messages.column(name))
    for name, column in columns.items():
        messages = messages.set_column(messages.schema.get_field_index(name), messages.schema.field(name), column)
    return messages


# Since when the older messages of the keys of tombstones have gone. A file notes it in its footer.


class TombstoneSpan(NamedTuple):
    """Tombstones of a file with offsets from first to last. Other messages may lie between them.

    since_ms: when the last older message of their keys has gone; UNKNOWN_MS: some may be left.
    """

    partition: int
    first: int
    last: int
    since_ms: int


UNKNOWN_MS = -1
Numbers = npt.NDArray[np.int64]


def find_times(messages: pa.Table, spans: Sequence[TombstoneSpan]) -> Numbers:
    """Return the time of the span that has the message, for each; UNKNOWN_MS: none has it.

    messages: columns partition and offset, sorted by them.
    """
    partition, offset = (messages.column(name).to_numpy() for name in ("partition", "offset"))
    times = np.full(messages.num_rows, UNKNOWN_MS, np.int64)
    for span in spans:
        begin, end = np.searchsorted(partition, [span.partition, span.partition + 1])
        low, high = begin + np.searchsorted(offset[begin:end], [span.first, span.last + 1])
        times[low:high] = span.since_ms
    return times


def find_spans(messages: pa.Table, is_tombstone: Mask, times: Numbers) -> list[TombstoneSpan]:
    """Return the spans of tombstones: neighbours of a partition with the same time."""
    at = np.flatnonzero(is_tombstone)
    if not len(at):
        return []
    partition, offset = (messages.column(name).to_numpy()[at] for name in ("partition", "offset"))
    times = times[at]
    begins = np.flatnonzero(np.append(True, (np.diff(partition) != 0) | (np.diff(times) != 0)))
    ends = np.append(begins[1:], len(at)) - 1
    columns = partition[begins], offset[begins], offset[ends], times[begins]
    return [TombstoneSpan(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _parse_spans(note: str | None) -> list[TombstoneSpan]:
    return [TombstoneSpan(*row) for row in json.loads(note or "[]")]


# Long runs of empty rows.


LONG_RUN = 4_096
"""Empty rows that are dropped together. One takes 1.5 bytes in a file, a row of `segments` 200 in memory."""


class Cleaned(NamedTuple):
    """What a rewritten file has.

    Attributes:
        messages: without content if they are superseded, and without long runs of these.
        tombstones: the note for its footer, or None.
        dropped: the runs: partition, base_offset, last_offset and record_count, which counts messages.
    """

    messages: pa.Table
    tombstones: str | None
    dropped: pa.Table


_DROPPED = pa.schema(
    [
        ("partition", pa.int32()),
        ("base_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("record_count", pa.int64()),
    ]
)


def drop_long_runs(messages: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the messages without long runs of superseded ones, and the runs (columns of `Cleaned.dropped`).

    messages: by partition and offset.
    """
    is_gone, partition, offset = _mask_gone(messages), *(messages.column(n).to_numpy() for n in ("partition", "offset"))
    begins = np.flatnonzero(np.append(len(offset) > 0, (np.diff(partition) != 0) | (np.diff(is_gone) != 0)))
    counts = np.diff(begins, append=len(offset))
    is_long = is_gone[begins] & (counts >= LONG_RUN)
    begins, counts = begins[is_long], counts[is_long]
    columns = partition[begins], offset[begins], offset[begins + counts - 1], counts
    dropped = pa.table([pa.array(column) for column in columns], schema=_DROPPED)
    stays = np.ones(len(offset), np.bool_)
    for begin, count in zip(begins.tolist(), counts.tolist(), strict=True):
        stays[begin : begin + count] = False
    return messages.filter(pa.array(stays)), dropped


def is_compacted(topic: Topic | None) -> bool:
    """Return whether compaction is a part of the cleanup policy of a topic. None: it does not exist."""
    return topic is not None and "compact" in topic.setting("cleanup.policy")


def _may_be_cleaned(file: NamedFile, stored: Mapping[int, StoredFile], until_ms: int | None) -> bool:
    """Return whether all messages of a file are read from it, and none is younger. until_ms: None: no age is needed."""
    if file.kind != FINAL or file.file_id not in stored:
        return False
    return until_ms is None or _read_time_ms(file, stored, "max") <= until_ms


def _read_time_ms(file: NamedFile, stored: Mapping[int, StoredFile], bound: str) -> float:
    """Return the smallest or largest timestamp of a file. bound: min, max."""
    timestamp: datetime = stored[file.file_id].statistics[f"{bound}.timestamp"]
    return timestamp.timestamp() * 1000


def _measure_dirt(files: Sequence[NamedFile], stored: Mapping[int, StoredFile], cleaned_step: int) -> float:
    """Return the share of bytes that are in files after a step."""
    sizes = np.array([stored[file.file_id].size_bytes if file.file_id in stored else 0 for file in files])
    is_dirty = np.array([file.step > cleaned_step for file in files], np.bool_)
    return float(sizes[is_dirty].sum() / sizes.sum()) if sizes.any() else 0.0


@dataclass
class _Run:
    """A run over a topic.

    Attributes:
        read_step: keys of files are read up to this step.
        done_step: files are cleaned up to this step.
        end_step: where the run ends.
        newest: of the keys that are read.
        chosen: files that are rewritten in this pass, before any later one is looked at.
        chosen_step: of the last file that this pass has looked at.
    """

    topic_id: int
    read_step: int
    end_step: int
    done_step: int = 0
    newest: pa.Table = field(default_factory=lambda: find_newest(FILE_SCHEMA.empty_table()))
    chosen: frozenset[int] = frozenset()
    chosen_step: int = 0


class Compaction:
    """The runs of a term of leadership, one at a time."""

    def __init__(self, files: Files, most_bytes: int) -> None:
        """most_bytes: of files that are read in a pass, about."""
        self._files, self._most_bytes = files, most_bytes
        self._cleaned: dict[int, int] = {}
        """By topic, the step up to which files are clean. A new leader knows of none, and reads all keys once."""
        self._run: _Run | None = None
        self._rest_until_ms: dict[int, int] = {}
        """By topic, until when no run begins after one that has failed."""
        self._due_since_ms: dict[int, int] = {}
        """By topic, since when it is due, until its run is done."""
        self.is_waiting = False
        """Whether a run will begin later, although nothing becomes final: when messages are older, or after a rest."""

    @property
    def is_running(self) -> bool:
        return self._run is not None

    @property
    def due_since_ms(self) -> int | None:
        """Since when a topic waits for its compaction to be done, in time of steps; None: none does. Thread-safe."""
        return min([*self._due_since_ms.values()], default=None)

    def choose(
        self, named: Sequence[NamedFile], stored: Mapping[int, StoredFile], live: LiveState
    ) -> Sequence[NamedFile]:
        """Go on with the run, or begin one, and return the files that are to be rewritten now, each alone.

        Nothing else may be rewritten in this pass. A file that takes the place of others later has the last of their
        steps, so it is cleaned again if one of them is not clean.

        Args:
            named: the files by topic and step.
            stored: the files of the table.
            live: as of the watermark just written.
        """
        files_by_topic = {topic_id: list(files) for topic_id, files in groupby(named, attrgetter("topic_id"))}
        waiting = self._due_since_ms.items()
        self._due_since_ms = {id_: since_ms for id_, since_ms in waiting if is_compacted(live.topics.get(id_))}
        run = self._run or self._begin(files_by_topic, stored, live)
        self._run = None
        if run is None or not is_compacted(live.topics.get(run.topic_id)):
            return []
        files = files_by_topic.get(run.topic_id, [])
        try:
            chosen, is_done = self._advance(run, files, stored, live)
        except READ_ERRORS as error:
            self._rest_until_ms[run.topic_id] = live.now_ms + _REST_MS
            topic = live.topics[run.topic_id].topic
            log.warning("Topic %s is not compacted now: %s.", topic, " ".join(str(error).split()))
            return []
        run.chosen = frozenset(file.file_id for file in chosen)
        if is_done and not chosen:
            self._cleaned[run.topic_id] = run.end_step
            self._due_since_ms.pop(run.topic_id, None)
        else:
            self._run = run
        return chosen

    def end_pass(self, named: pa.ChunkedArray, now_ms: int) -> None:
        """Note that a pass ends. Without all files that it has chosen, the run ends, too: later ones rely on them.

        named: the ids of files that `segments` names now.
        """
        if self._run is None:
            return
        if pc.any(pc.is_in(named, pa.array(sorted(self._run.chosen), pa.int64()))).as_py():
            self._rest_until_ms[self._run.topic_id] = now_ms + _REST_MS
            self._run = None
            return
        self._run.done_step, self._run.chosen = self._run.chosen_step, frozenset()

    def is_chosen(self, replaced: Sequence[NamedFile]) -> bool:
        """Return whether it is a file that was chosen to be cleaned."""
        return self._run is not None and len(replaced) == 1 and replaced[0].file_id in self._run.chosen

    def _begin(
        self, files_by_topic: Mapping[int, Sequence[NamedFile]], stored: Mapping[int, StoredFile], live: LiveState
    ) -> _Run | None:
        """Return a run over the topic with the largest share of bytes that are not cleaned, if it is large enough.

        A topic whose messages have waited for `max.compaction.lag.ms` comes before.
        """
        best, best_ratio, self.is_waiting, due_since_ms = None, 0.0, False, dict[int, int]()
        for topic_id, files in files_by_topic.items():
            topic = live.topics[topic_id]
            if not is_compacted(topic):
                continue
            cleaned_step = self._cleaned.get(topic_id, 0)
            least_ratio = float(topic.setting("min.cleanable.dirty.ratio"))
            least_lag_ms, most_lag_ms = (topic.setting(f"{bound}.compaction.lag.ms") for bound in ("min", "max"))
            dirt = _measure_dirt(files, stored, cleaned_step)
            self.is_waiting |= dirt > (0 if most_lag_ms < live.now_ms else least_ratio)
            until_ms = live.now_ms - least_lag_ms if least_lag_ms else None
            old = list(takewhile(partial(_may_be_cleaned, stored=stored, until_ms=until_ms), files))
            dirty = [file for file in old if file.step > cleaned_step]
            ratio = _measure_dirt(old, stored, cleaned_step)
            if any(_read_time_ms(file, stored, "min") < live.now_ms - most_lag_ms for file in dirty):
                ratio += 1
            if ratio > least_ratio:
                due_since_ms[topic_id] = self._due_since_ms.get(topic_id, live.now_ms)
                if ratio > best_ratio and live.now_ms >= self._rest_until_ms.get(topic_id, 0):
                    best, best_ratio = _Run(topic_id, cleaned_step, old[-1].step), ratio
        self._due_since_ms = due_since_ms
        return best

    def _advance(
        self, run: _Run, files: Sequence[NamedFile], stored: Mapping[int, StoredFile], live: LiveState
    ) -> tuple[Sequence[NamedFile], bool]:
        """Return the next files to rewrite, and whether all have been looked at. Raises READ_ERRORS."""
        if lost := [file.name for file in files if file.step <= run.end_step and file.file_id not in stored]:
            raise ValueError(f"{lost[0]} is not in the table")
        size_bytes, chosen = 0, list[NamedFile]()
        for file in files:
            if run.read_step < file.step <= run.end_step:
                if size_bytes >= self._most_bytes:
                    return [], False
                size_bytes += stored[file.file_id].size_bytes
                run.newest = find_newest(pa.concat_tables([run.newest, find_newest(self._read(file, _KEY))]))
                run.read_step = file.step
                if run.newest.nbytes > _KEY_BYTES:
                    run.end_step = file.step
        for file in files:
            if run.done_step < file.step <= run.end_step:
                if size_bytes >= self._most_bytes:
                    return chosen, False
                size_bytes += stored[file.file_id].size_bytes
                if self._needs_rewrite(run, file, live):
                    chosen.append(file)
                run.chosen_step = file.step
        return chosen, True

    def _needs_rewrite(self, run: _Run, file: NamedFile, live: LiveState) -> bool:
        """Return whether messages of a file go, or the time must be noted from which its tombstones stay."""
        note = read_tombstones(self._files, file)
        spans = _parse_spans(note)
        values = ["value"] if note is None or spans else []  # of all columns values take the longest time
        messages = self._read(file, (*_KEY, "ttl_ms", *values))
        times = find_times(messages, spans)
        goes = find_superseded(messages, run.newest, self._have_stayed(run.topic_id, times, live))
        return bool((goes | (mask_tombstones(messages) & (times == UNKNOWN_MS))).any())

    def clean(self, replaced: Sequence[NamedFile], messages: pa.Table, live: LiveState) -> Cleaned:
        """Return what a rewritten file has. Only files that were chosen are cleaned; in others all messages stay."""
        topic_id, run = replaced[0].topic_id, self._run
        if not is_compacted(live.topics[topic_id]):
            return Cleaned(messages, None, _DROPPED.empty_table())
        spans = [span for file in replaced for span in _parse_spans(read_tombstones(self._files, file))]
        times = find_times(messages, spans)
        if run is not None and self.is_chosen(replaced):
            goes = find_superseded(messages, run.newest, self._have_stayed(topic_id, times, live))
            messages, times = empty_messages(messages, goes), np.where(times == UNKNOWN_MS, live.now_ms, times)
        tombstones = json.dumps(find_spans(messages, mask_tombstones(messages), times))
        if any(file.kind != FINAL for file in replaced):
            return Cleaned(messages, tombstones, _DROPPED.empty_table())
        messages, dropped = drop_long_runs(messages)
        return Cleaned(messages, tombstones, dropped)

    def _have_stayed(self, topic_id: int, times: Numbers, live: LiveState) -> Mask:
        """Return which tombstones have stayed for long enough. times: as `find_times` returns them."""
        retention_ms = live.topics[topic_id].setting("delete.retention.ms")
        have_stayed: Mask = (times != UNKNOWN_MS) & (live.now_ms - times >= retention_ms)
        return have_stayed

    def _read(self, file: NamedFile, columns: Sequence[str]) -> pa.Table:
        with self._files.open_input(file.name) as source:
            footer = read_footer(source)
            if footer.is_other_than(file.footer_hash):
                raise ValueError(f"{file.name} was rewritten or damaged")
            return open_parquet(source, footer.parse()).read([*columns])
