"""Write messages that become final to files of `final_messages`. A step decides afterwards that they are final.

The visible messages of a range are found by `segments` alone: rows of aborted transactions, markers and rejected rows
are left out. A range ends where the tables do not know yet how a transaction has ended, so a later run goes on there.
A written file is announced as left over. It is in use once a step names it.
"""

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.messages import FILE_SCHEMA, FINAL_FILES, FINAL_MESSAGES, MAX_TTL_MS, final_file_path
from lakemq.tables.specs.topics import SEGMENTS
from lakemq.tables.storage.delta.leftovers import Leftovers
from lakemq.tables.storage.delta.store import Store
from lakemq.tables.storage.object_stores.files import Files
from lakemq.tables.storage.parquet import open_bounded_parquet

from ..namespace import crash
from ..namespace.data_file import file_name, is_expected_file, read_footer, read_journaled_digest
from ..protocol.values.log import FinalFile, FinalRange, RangesWritten
from ..protocol.values.segments import cut_segments
from ..protocol.values.topics import Topic

log = logging.getLogger("lakemq.serve")

FILE_BYTES = 64 << 20
"""Unpacked bytes of the rows of a file, about. They are in memory while it is written."""
MOST_FILES = 256
"""Files of one run. With ten thousand quiet topics a run takes some of them, those of the longest wait first."""
STALE_MS = 300_000
"""Age at which written files that no step has decided are given up. Later they may be deleted as left over."""
_GROUP_BYTES = 8 << 20
UNPACKED = 4
"""Unpacked bytes for each byte of a file of `final_messages`, by which the files of a rewrite are chosen."""
_FEW_VALUES = [
    "topic_id",
    "partition",
    "timestamp_type",
    "producer_id",
    "producer_epoch",
    "origin",
    "dead_letter",
    "ttl_ms",
]
"""Columns with a dictionary. For keys and payloads it takes a third of the time of a file, and seldom saves bytes."""
_GROWING = ["offset", "timestamp", "sequence", "source_offset", "decided_at", "expires_at"]
_LONG_SEGMENT = 100
"""Rows of a segment, on average, from which on to join slices takes less time than to take each row."""
_MARKERS = ("commit", "abort")
_NO_MESSAGES = 0, None, None, None
"""Number of messages, file and bounds of timestamps of a range without messages."""
_BODY = ("key", "value", "headers", "timestamp", "ttl_ms")
_COLUMNS = (
    "step",
    "kind",
    "topic_id",
    "partition",
    "base_offset",
    "last_offset",
    "file_id",
    "footer_hash",
    "first_row",
    "append_time_ms",
    "decided_at_ms",
    "ttl_from_ms",
    "ttl_ms",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "first_offset",
    "transactional",
    "origin",
    "dead_letter",
    "source_offset",
)

Numbers = npt.NDArray[np.int64]
Batch = tuple[pa.Table, pa.Table | None]
"""Segments of a file, and their visible rows; None: there are none."""
READ_ERRORS = (OSError, ValueError, pa.ArrowException)
"""Errors of a file that is gone or damaged. A damaged page is an OSError."""


class FinalFileWriter:
    """Writes the files of one term, in a thread of its own."""

    def __init__(self, store: Store, new_file_id: Callable[[], int], crash_point: crash.CrashPoint) -> None:
        """new_file_id: returns a random id below SEQUENCERS_FILES."""
        self._store, self._new_file_id, self._crash_point = store, new_file_id, crash_point
        self._leftovers = Leftovers(store.files)
        self._turns: dict[int, int] = {}
        self._turn = 0

    def write(self, topics: Mapping[int, Topic], put: Callable[[RangesWritten], None]) -> None:
        """Write the messages between the final and the last stable offsets, as far as `segments` has them.

        A topic whose files cannot be read is logged, and left to the next run.

        Args:
            topics: as of a step; they do not change meanwhile.
            put: takes each file when it is written.

        Raises:
            OSError: `segments` cannot be read, or a file not be written.
        """
        self._turn += 1
        waiting = [topic for topic in topics.values() if (topic.final_offsets < topic.last_stable_offsets).any()]
        waiting.sort(key=lambda topic: self._turns.get(topic.topic_id, 0))
        self._turns = {topic_id: turn for topic_id, turn in self._turns.items() if topic_id in topics}
        chosen = waiting[:MOST_FILES]
        segments = _read_segments(self._store, chosen)
        files = chain.from_iterable(self._write_topic(topic, segments) for topic in chosen)
        for written in islice(files, MOST_FILES):
            put(written)

    def _write_topic(self, topic: Topic, segments: pa.Table) -> Iterator[RangesWritten]:
        self._turns[topic.topic_id] = self._turn
        chosen = _choose_segments(topic, segments.filter(pc.field("topic_id") == topic.topic_id))
        for batch, rows in _skip_unreadable(topic.topic, _read_batches(self._store.files, chosen)):
            files = [] if rows is None else [self._write_file(topic, rows)]
            self._crash_point("finalizing.file_written")
            yield RangesWritten(topic.topic_id, files, describe_ranges(batch, rows))

    def _write_file(self, topic: Topic, rows: pa.Table) -> FinalFile:
        rows = rows.append_column("topic_id", pa.repeat(topic.topic_id, rows.num_rows)).select(FILE_SCHEMA.names)
        file_id = FINAL_FILES | self._new_file_id()
        return write_final_file(self._store.files, self._leftovers, topic.topic, rows, file_id, self._crash_point)


class NamedFile(NamedTuple):
    """A file that rows of `segments` name. record_count: messages that these rows count and that are not deleted."""

    file_id: int
    topic_id: int
    topic: str
    step: int
    footer_hash: int
    kind: str
    record_count: int

    @property
    def path(self) -> str:
        return final_file_path(self.topic, self.file_id)

    @property
    def name(self) -> str:
        return f"{FINAL_MESSAGES.name}/{self.path}"


_OLDEST = b"lakemq.oldest.ms"
"""Metadata of a rewritten file: the time of the oldest file whose messages it has."""
_TOMBSTONES = b"lakemq.tombstones"
"""Metadata of a rewritten file of a compacted topic: what compaction notes of its tombstones."""


def write_final_file(
    files: Files,
    leftovers: Leftovers,
    topic: str,
    rows: pa.Table,
    file_id: int,
    crash_point: crash.CrashPoint,
    oldest_ms: int | None = None,
    tombstones: str | None = None,
) -> FinalFile:
    """Write a file of a topic durably, announced as left over.

    Args:
        rows: columns of FILE_SCHEMA, by partition and offset.
        oldest_ms: the time of the oldest file whose messages are written again.
        tombstones: what `read_tombstones` returns.
    """
    path = final_file_path(topic, file_id)
    name = f"{FINAL_MESSAGES.name}/{path}"
    leftovers.announce_new(FINAL_MESSAGES.name, path)
    crash_point("finalizing.announced")
    with (
        files.open_output(name) as sink,
        pq.ParquetWriter(
            sink,
            FILE_SCHEMA,
            compression="zstd",
            use_dictionary=_FEW_VALUES,
            column_encoding=dict.fromkeys(_GROWING, "DELTA_BINARY_PACKED"),
            write_statistics=[*_FEW_VALUES, *_GROWING],
            write_page_checksum=True,
        ) as writer,
    ):
        writer.write_table(rows, max(1, _GROUP_BYTES * rows.num_rows // max(1, rows.nbytes)))
        writer.add_key_value_metadata({"lakemq.written": uuid.uuid4().hex})
        for key, fact in ((_OLDEST, oldest_ms), (_TOMBSTONES, tombstones)):
            if fact is not None:
                writer.add_key_value_metadata({key.decode(): str(fact)})
    with files.open_input(name) as source:
        return FinalFile(file_id, read_footer(source).hash)


def read_oldest_ms(metadata: pq.FileMetaData) -> int | None:
    """Return the time of the oldest file whose messages a rewritten file has; None: the file has new messages."""
    time_ms = (metadata.metadata or {}).get(_OLDEST)
    return None if time_ms is None else int(time_ms)


def read_tombstones(files: Files, file: NamedFile) -> str | None:
    """Return what compaction has noted of the tombstones of a file; None: nothing."""
    with files.open_input(file.name) as source:
        note = (read_footer(source).parse().metadata or {}).get(_TOMBSTONES)
    return None if note is None else note.decode()


def _read_segments(store: Store, topics: Sequence[Topic]) -> pa.Table:
    """Return the segments and markers of the topics from their final offsets on, by partition and offset.

    Markers after the last stable offset say how earlier messages have ended.
    """
    ids = [topic.topic_id for topic in topics]
    if not ids:  # on a store, to open a table takes requests
        return SEGMENTS.empty().select(_COLUMNS)
    handle = store.open(SEGMENTS)
    first = min(int(topic.final_offsets.min()) for topic in topics)
    where = pc.field("topic_id").isin(ids) & pc.field("kind").isin(["data", *_MARKERS])
    rows = handle.read(_COLUMNS, where, last_offset=(first, None), topic_id=(min(ids), max(ids)))
    return rows.sort_by([("partition", "ascending"), ("base_offset", "ascending")])


def measure_final_lag_ms(store: Store, topics: Mapping[int, Topic], now_ms: int) -> int:
    """Return for how long the first of all messages that could be final and are not could be. 0: there is none.

    Raises OSError: the store failed.
    """
    waiting = [topic for topic in topics.values() if (topic.final_offsets < topic.last_stable_offsets).any()]
    segments = _read_segments(store, waiting)
    steps = list[int]()
    for topic in waiting:
        of_topic = segments.filter(pc.field("topic_id") == topic.topic_id)
        steps += _find_due_steps(_choose_segments(topic, of_topic), of_topic)
    if not steps:
        return 0
    times = store.open(JOURNAL).read(["decided_at_ms"], pc.field("step") >= min(steps), step=(min(steps), None))
    return max(0, now_ms - pc.min(times.column("decided_at_ms")).as_py()) if times.num_rows else 0


def _find_due_steps(chosen: pa.Table, segments: pa.Table) -> Iterator[int]:
    """Yield for each partition the step from which on the first of the chosen segments could be final.

    That is its own, or the end of the last transaction that began before it: until then it was not stable. The marker
    of that end may be after the last stable offset, so `segments` has all of the topic.
    """
    markers = segments.filter(pc.field("first_offset").is_valid()).sort_by("first_offset")
    marked, first, ended = (markers.column(name).to_numpy() for name in ("partition", "first_offset", "step"))
    partition, base, step = (chosen.column(name).to_numpy() for name in ("partition", "base_offset", "step"))
    ends = {marked[rows[0]]: rows for rows in _split_by_value(marked)}
    for rows in _split_by_value(partition):
        of_partition = ends.get(partition[rows[0]], rows[:0])
        last_ends = np.maximum.accumulate(np.append(0, ended[of_partition]))
        begun = np.searchsorted(first[of_partition], base[rows], "right")
        yield int(np.maximum(step[rows], last_ends[begun]).min())


def _split_by_value(values: Numbers) -> Iterator[Numbers]:
    """Yield the indices of each value, in their order. A topic may have 100,000 partitions."""
    order = np.argsort(values, kind="stable")
    return filter(len, np.split(order, np.flatnonzero(np.diff(values[order])) + 1))


def _choose_segments(topic: Topic, segments: pa.Table) -> pa.Table:
    """Return the segments that become final, cut to the final offset, with a column `is_visible`.

    In each partition these have no gap, and end before the last stable offset and before an unknown outcome.
    """
    finals, stable = topic.final_offsets, topic.last_stable_offsets
    segments = segments.filter(pc.field("partition") < len(finals))  # later ones are newer than the topic given
    partition, base, last = (segments.column(name).to_numpy() for name in ("partition", "base_offset", "last_offset"))
    is_message, ended_as = _find_outcomes(segments)
    chosen = np.zeros(segments.num_rows, np.bool_)
    for rows in _split_by_value(partition):
        number = partition[rows[0]]
        rows = rows[last[rows] >= finals[number]]
        if len(rows):
            follows = np.concatenate([[base[rows[0]] <= finals[number]], base[rows][1:] == last[rows][:-1] + 1])
            goes = follows & (last[rows] < stable[number]) & (ended_as[rows] != None)  # noqa: E711
            chosen[rows[: len(rows) if goes.all() else int(np.argmin(goes))]] = True
    is_visible = pa.array(is_message & (ended_as == "commit"))
    skipped = np.maximum(finals[partition] - base, 0)
    result = segments.append_column("is_visible", is_visible).filter(pa.array(chosen))
    return cut_segments(result, skipped[chosen], (last - base - skipped + 1)[chosen])


def _find_outcomes(segments: pa.Table) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.object_]]:
    """Return which segments are messages, and how each has ended: commit, abort, or None if it is not known yet."""
    kind = segments.column("kind").to_numpy(zero_copy_only=False)
    is_message: npt.NDArray[np.bool_] = kind == "data"
    is_open = segments.column("transactional").to_numpy(zero_copy_only=False) & is_message
    ended_as = np.full(len(kind), "commit", object)
    ended_as[is_open] = None
    if is_open.any():
        columns = (segments.column(name).to_pylist() for name in ("partition", "producer_id", "producer_epoch"))
        authors = list(zip(*columns, strict=True))
        outcomes = {authors[i]: kind[i] for i in np.flatnonzero(~is_message).tolist()}
        for i in np.flatnonzero(is_open).tolist():
            ended_as[i] = outcomes.get(authors[i])
    return is_message, ended_as


def _read_batches(files: Files, segments: pa.Table) -> Iterator[Batch]:
    """Read the rows of the segments of a topic, those of one file after the other."""
    for batch in _cut_into_files(segments, files):
        visible = batch.filter(pc.field("is_visible"))
        yield batch, _read_rows(files, visible) if visible.num_rows else None


def _skip_unreadable(topic: str, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches until one cannot be read. What it raises is logged: other topics go on."""
    try:
        yield from batches
    except READ_ERRORS as error:
        log.warning("Messages of %s do not become final: %s. `lakemq doctor` names damaged files.", topic, error)


def _cut_into_files(segments: pa.Table, files: Files) -> Iterator[pa.Table]:
    """Yield the segments for a file each, by partition and offset.

    A file has the messages of some steps, so that each data file is read about once. A large segment is cut.
    """
    if not segments.num_rows:
        return
    segments = segments.sort_by([("step", "ascending"), ("partition", "ascending"), ("base_offset", "ascending")])
    bytes_per_row = _measure_rows(segments, files)
    row_bytes = np.array([bytes_per_row.get(file_id, 0.0) for file_id in segments.column("file_id").to_pylist()])
    counts = _count_offsets(segments)
    pieces = np.clip(np.ceil(counts * row_bytes / FILE_BYTES).astype(np.int64), 1, counts)
    index = np.repeat(np.arange(len(pieces)), pieces)
    nth = np.arange(len(index)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begins, ends = (counts[index] * number // pieces[index] for number in (nth, nth + 1))
    segments = cut_segments(segments.take(pa.array(index)), begins, ends - begins)
    up_to = np.cumsum((ends - begins) * row_bytes[index])
    begin = 0
    while begin < len(up_to):
        before = up_to[begin - 1] if begin else 0.0
        end = max(begin + 1, int(np.searchsorted(up_to, before + FILE_BYTES, side="right")))
        yield segments.slice(begin, end - begin).sort_by([("partition", "ascending"), ("base_offset", "ascending")])
        begin = end


def _measure_rows(segments: pa.Table, files: Files) -> dict[int, float]:
    """Return by data file how many bytes a row takes in memory, about. Raises ValueError: a file was rewritten."""
    bytes_per_row: dict[int, float] = {}
    for file_id, footer_hash in _list_files(segments):
        with files.open_input(file_name(file_id)) as source:
            footer = read_footer(source)
        metadata = footer.parse()
        if not is_expected_file(footer_hash, footer.hash, read_journaled_digest(metadata) is not None):
            raise ValueError(f"{file_name(file_id)} is not the file that was published")
        sizes = [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]
        bytes_per_row[file_id] = max(footer.size_bytes, sum(sizes)) / max(1, metadata.num_rows)
    return bytes_per_row


def _list_files(segments: pa.Table) -> Iterable[tuple[int, int | None]]:
    named = segments.filter(pc.field("is_visible")).select(["file_id", "footer_hash"])
    return dict(zip(*(named.column(name).to_pylist() for name in named.column_names), strict=True)).items()


def _count_offsets(segments: pa.Table) -> Numbers:
    counts: Numbers = segments.column("last_offset").to_numpy() - segments.column("base_offset").to_numpy() + 1
    return counts


class _Bodies(NamedTuple):
    """Rows of several data files. groups: by file, of each row group its first row in the file and its number here."""

    rows: pa.Table
    groups: Mapping[int, tuple[Numbers, Numbers]]

    def find(self, file_id: int, row: int) -> int:
        firsts, numbers = self.groups[file_id]
        group = int(np.searchsorted(firsts, row, side="right")) - 1
        return int(numbers[group] + row - firsts[group])


def _read_rows(files: Files, segments: pa.Table) -> pa.Table:
    """Return the rows of visible segments, by partition and offset, in the columns of FILE_SCHEMA but topic_id."""
    counts = _count_offsets(segments)
    places = [segments.column(name).to_pylist() for name in ("file_id", "first_row")]
    bodies = _read_bodies(files, list(zip(*places, counts.tolist(), strict=True)))
    starts = np.array([bodies.find(file_id, row) for file_id, row in zip(*places, strict=True)], np.int64)
    segment = np.repeat(np.arange(len(counts)), counts)
    nth = np.arange(len(segment)) - np.repeat(np.cumsum(counts) - counts, counts)
    if len(segment) > _LONG_SEGMENT * len(counts):
        slices = zip(starts.tolist(), counts.tolist(), strict=True)
        body = pa.concat_tables(bodies.rows.slice(start, count) for start, count in slices)
    else:
        body = bodies.rows.take(pa.array(starts[segment] + nth))
    facts, within = segments.take(pa.array(segment)), pa.array(nth)
    append_time = _to_time(facts.column("append_time_ms"))
    ttl_ms = pc.coalesce(body.column("ttl_ms"), facts.column("ttl_ms"))
    is_limited = pc.and_(pc.greater_equal(ttl_ms, 0), pc.less_equal(ttl_ms, MAX_TTL_MS))
    expires_ms = pc.if_else(is_limited, pc.add(facts.column("ttl_from_ms"), ttl_ms), pa.scalar(None, pa.int64()))
    types = pc.if_else(append_time.is_null(), "CreateTime", "LogAppendTime")
    columns = {
        "partition": facts.column("partition"),
        "offset": pc.add(facts.column("base_offset"), within),
        "timestamp": pc.coalesce(append_time, body.column("timestamp")),
        "timestamp_type": types,
        "key": body.column("key"),
        "value": body.column("value"),
        "headers": body.column("headers"),
        "producer_id": facts.column("producer_id"),
        "producer_epoch": facts.column("producer_epoch"),
        "sequence": pc.add(facts.column("base_sequence"), within),
        "transactional": facts.column("transactional"),
        "origin": facts.column("origin"),
        "dead_letter": facts.column("dead_letter"),
        "source_offset": pc.add(facts.column("source_offset"), within),
        "decided_at": _to_time(facts.column("decided_at_ms")),
        "expires_at": _to_time(expires_ms),
        "ttl_ms": ttl_ms,
    }
    return pa.table({name: column.cast(FILE_SCHEMA.field(name).type) for name, column in columns.items()})


def _to_time(column_ms: pa.ChunkedArray) -> pa.ChunkedArray:
    return column_ms.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


def _read_bodies(files: Files, places: Sequence[tuple[int, int, int]]) -> _Bodies:
    """Read the row groups that hold these rows. places: file_id, first row and number of rows of each segment."""
    places_by_file: dict[int, list[tuple[int, int]]] = {}
    for file_id, row, length in places:
        places_by_file.setdefault(file_id, []).append((row, length))
    parts: list[pa.Table] = []
    groups: dict[int, tuple[Numbers, Numbers]] = {}
    count = 0
    for file_id, of_file in places_by_file.items():
        with files.open_input(file_name(file_id)) as source:
            metadata = read_footer(source).parse()
            sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
            firsts = np.cumsum([0, *sizes])
            needed = sorted({group for row, length in of_file for group in _find_groups(firsts, row, length)})
            parquet = open_bounded_parquet(source, metadata)
            part = parquet.read_row_groups(needed, [*_BODY])
        taken = np.array([sizes[i] for i in needed], np.int64)
        groups[file_id] = firsts[needed], count + np.cumsum(taken) - taken
        parts.append(_decode(part))
        count += part.num_rows
    return _Bodies(pa.concat_tables(parts).combine_chunks(), groups)


def _find_groups(firsts: Numbers, row: int, count: int) -> range:
    begin, end = np.searchsorted(firsts, [row, row + count - 1], side="right") - 1
    return range(int(begin), int(end) + 1)


def _decode(part: pa.Table) -> pa.Table:
    """Return the rows without dictionaries. Raises ArrowInvalid: a name of a header is not UTF-8, or a time is missing.

    Many readers then refuse the whole table, and nothing has checked what publishers write to files.
    """
    schema = pa.schema([FILE_SCHEMA.field(name) for name in _BODY])
    rows = part.select(_BODY).cast(schema)
    rows.column("headers").validate(full=True)
    if rows.column("timestamp").null_count:
        raise pa.ArrowInvalid("a message has no timestamp")
    return rows


def describe_ranges(batch: pa.Table, rows: pa.Table | None) -> list[FinalRange]:
    """Return one range per partition. batch: its segments; rows: the visible messages."""
    found = {} if rows is None else _count_messages(rows)
    extents = batch.group_by("partition").aggregate([("base_offset", "min"), ("last_offset", "max")])
    return [
        FinalRange(
            row["partition"], row["base_offset_min"], row["last_offset_max"], *found.get(row["partition"], _NO_MESSAGES)
        )
        for row in extents.sort_by("partition").to_pylist()
    ]


def _count_messages(rows: pa.Table) -> dict[int, tuple[int, int, int, int]]:
    """Return by partition the number of messages, the number of the file, and the bounds of timestamps in ms."""
    times_us = rows.column("timestamp").cast(pa.int64())
    counted = pa.table({"partition": rows.column("partition"), "us": times_us}).group_by("partition")
    counts = counted.aggregate([("us", "count"), ("us", "min"), ("us", "max")]).to_pylist()
    return {row["partition"]: (row["us_count"], 0, row["us_min"] // 1000, row["us_max"] // 1000) for row in counts}
