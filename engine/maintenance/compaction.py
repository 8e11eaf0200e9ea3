"""Compaction: of the final messages of a key in a partition, only the newest stays.

Invariant: a message goes only if a later final message of its partition has its key, or if it has no key, or if it is a
tombstone, no older message of its key is left, and `delete.retention.ms` has passed since then. A message that goes
leaves an empty row at its place. So a file still has exactly the committed messages of its ranges, and the place of
each message follows from `segments`. Readers leave out rows with the time to live SUPERSEDED.

A run cleans the files of a topic up to some step, as Kafka's cleaner does. It reads the keys of the files that have
come since the last run, then empties messages in all files, from the oldest on. Both are done in parts, between passes.
A run that ends early is begun again, and does not harm: what a later message supersedes stays superseded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import groupby, takewhile
from operator import attrgetter

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
from .final_files import READ_ERRORS, NamedFile, read_compacted_ms
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


def find_superseded(messages: pa.Table, newest: pa.Table, drops_tombstones: bool) -> Mask:
    """Return which messages go that have not gone yet.

    Args:
        messages: columns partition, key, offset, ttl_ms, and value or its nulls.
        newest: offsets by partition and key, as `find_newest` returns them.
        drops_tombstones: whether tombstones have stayed for long enough.
    """
    numbered = messages.select(_KEY).append_column("number", pa.array(np.arange(messages.num_rows)))
    later = newest.rename_columns(["partition", "key", "newest"])
    pairs = numbered.join(later, ["partition", "key"], join_type="inner", use_threads=False)
    goes: Mask = np.zeros(messages.num_rows, np.bool_)
    goes[pairs.filter(pc.field("offset") < pc.field("newest")).column("number").to_numpy()] = True
    goes |= messages.column("key").is_null().to_numpy()
    if drops_tombstones:
        goes |= messages.column("value").is_null().to_numpy()
    return goes & ~_mask_gone(messages)


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


def is_compacted(topic: Topic | None) -> bool:
    """Return whether compaction is a part of the cleanup policy of a topic. None: it does not exist."""
    return topic is not None and "compact" in topic.setting("cleanup.policy")


def _may_be_cleaned(file: NamedFile, stored: Mapping[int, StoredFile], until_ms: int | None) -> bool:
    """Return whether all messages of a file are read from it, and none is younger. until_ms: None: no age is needed."""
    if file.kind != FINAL or file.file_id not in stored:
        return False
    newest: datetime = stored[file.file_id].statistics["max.timestamp"]
    return until_ms is None or newest.timestamp() * 1000 <= until_ms


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
        self.is_waiting = False
        """Whether a run will begin later, although nothing becomes final: when messages are older, or after a rest."""

    @property
    def is_running(self) -> bool:
        return self._run is not None

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
        """Return a run over the topic with the largest share of bytes that are not cleaned, if it is large enough."""
        best, best_ratio, self.is_waiting = None, 0.0, False
        for topic_id, files in files_by_topic.items():
            topic = live.topics[topic_id]
            if not is_compacted(topic):
                continue
            least_ratio, cleaned_step = (
                float(topic.setting("min.cleanable.dirty.ratio")),
                self._cleaned.get(topic_id, 0),
            )
            self.is_waiting |= _measure_dirt(files, stored, cleaned_step) > least_ratio
            if live.now_ms < self._rest_until_ms.get(topic_id, 0):
                continue
            lag_ms = topic.setting("min.compaction.lag.ms")
            until_ms = live.now_ms - lag_ms if lag_ms else None
            old = list(takewhile(partial(_may_be_cleaned, stored=stored, until_ms=until_ms), files))
            ratio = _measure_dirt(old, stored, cleaned_step)
            if ratio > max(best_ratio, least_ratio):
                best, best_ratio = _Run(topic_id, cleaned_step, old[-1].step), ratio
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
        messages = self._read(file, (*_KEY, "value", "ttl_ms"))
        compacted_ms = read_compacted_ms(self._files, file)
        goes = find_superseded(messages, run.newest, self._may_drop_tombstones(run.topic_id, compacted_ms, live))
        is_tombstone = messages.column("value").is_null().to_numpy() & ~_mask_gone(messages) & ~goes
        return bool(goes.any() or (compacted_ms is None and is_tombstone.any()))

    def clean(self, replaced: Sequence[NamedFile], messages: pa.Table, live: LiveState) -> tuple[pa.Table, int | None]:
        """Return the messages of a rewritten file, and since when the older messages of its tombstones have gone.

        None: that is not known. Only files that were chosen are cleaned; in others the messages stay as they are.
        """
        topic_id, run = replaced[0].topic_id, self._run
        if not is_compacted(live.topics[topic_id]):
            return messages, None
        times_ms = [self._find_compacted_ms(file) for file in replaced]
        known_ms = [time_ms for time_ms in times_ms if time_ms is not None]
        compacted_ms = max(known_ms) if len(known_ms) == len(times_ms) else None
        if run is None or not self.is_chosen(replaced):
            return messages, compacted_ms
        drops = self._may_drop_tombstones(topic_id, compacted_ms, live)
        goes = find_superseded(messages, run.newest, drops)
        return empty_messages(messages, goes), live.now_ms if compacted_ms is None else compacted_ms

    def _find_compacted_ms(self, file: NamedFile) -> int | None:
        """Return since when older messages of its tombstones have gone; None: that is not known. 0: it has none."""
        compacted_ms = read_compacted_ms(self._files, file)
        if compacted_ms is None:
            messages = self._read(file, ("value", "ttl_ms"))
            has_some = (messages.column("value").is_null().to_numpy() & ~_mask_gone(messages)).any()
            return None if has_some else 0
        return compacted_ms

    def _may_drop_tombstones(self, topic_id: int, compacted_ms: int | None, live: LiveState) -> bool:
        retention_ms = live.topics[topic_id].setting("delete.retention.ms")
        return compacted_ms is not None and live.now_ms - compacted_ms >= retention_ms

    def _read(self, file: NamedFile, columns: Sequence[str]) -> pa.Table:
        with self._files.open_input(file.name) as source:
            footer = read_footer(source)
            if footer.is_other_than(file.footer_hash):
                raise ValueError(f"{file.name} was rewritten or damaged")
            return open_parquet(source, footer.parse()).read([*columns])
