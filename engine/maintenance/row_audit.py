"""Audits beyond SQL: rows exist where tables point, and replaying the journal gives the tables.

One pass over the data files checks that all rows to which tables point exist, and are in their keys' partitions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.journal import JOURNAL, WATERMARKS, WatermarkRow
from lakemq.tables.specs.messages import (
    FINAL_FILES,
    FINAL_MESSAGES,
    MESSAGES,
    REJECTED_ROWS,
    SUPERSEDED,
    file_stem,
    final_file_path,
)
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.specs.topics import FINAL, FINAL_PENDING, SEGMENTS
from lakemq.tables.storage.delta.store import TableHandle, select_newest
from lakemq.tables.storage.native_calls import Workers
from lakemq.tables.storage.object_stores.files import Files
from lakemq.tables.storage.parquet import open_bounded_parquet

from ..namespace.config import EngineConfig
from ..namespace.data_file import is_expected_file, read_file_facts, read_footer
from ..namespace.load import BEGINNING
from ..namespace.step_reader import Snapshot
from ..protocol import machine
from ..protocol.codec.steps import decode_steps_after
from ..protocol.errors import StepTooOld
from ..protocol.hashing import Partitioner, partition_keys
from ..protocol.projection import PROJECT, RESTORED, project, restore
from ..protocol.rows.clients import build_watermark
from ..protocol.values.journal import Step
from ..protocol.values.state import State
from ..protocol.values.topics import Topic
from .merging import EQUAL_COLUMNS
from .removal import parse_file_id
from .retention import RETENTION, LiveState, read_live_state, trim_rows

Numbers = npt.NDArray[np.int64]

ANY_PARTITION = -1
"""Partition of a range of rejected rows: its rows are in no partition, and its file is known by name alone."""

POINTING: pa.Schema = pa.schema(
    [(name, pa.int64()) for name in ("file_id", "footer_hash", "first_row", "record_count", "file_partition", "placed")]
)
"""Ranges of needed rows.

file_partition: or ANY_PARTITION; placed: the number of the topic's Placing. -1: no key decided.
"""

_AT_ONCE = 16
_COLUMNS = ["row", "partition", "key"]


class Placing(NamedTuple):
    """How a topic maps keys to partitions at present."""

    partition_count: int
    partitioner: Partitioner

    @classmethod
    def of(cls, topic: Topic) -> Placing:
        return cls(topic.partition_count, topic.setting("partitioner"))


class Flaws(NamedTuple):
    """For each range, the number of missing rows, and of rows in another partition than their key says."""

    missing: Numbers
    elsewhere: Numbers


Topics = Mapping[int, str]
"""Topics by the ids of data files. A file of `final_messages` lies in the folder of its topic."""


def _find_path(file_id: int, topics: Topics) -> str:
    """Return the path of a data file below its table."""
    return final_file_path(topics[file_id], file_id) if file_id >= FINAL_FILES else f"{file_stem(file_id)}.parquet"


def find_file_flaws(snapshot: Snapshot, files: Files, ranges: pa.Table, topics: Topics) -> dict[str, str]:
    """Return path -> the flaw of a data file, "" if none: for files of `messages` and files that ranges point at.

    A file of `final_messages` need not be in that table: one that is rewritten just now comes into `segments` first.
    """
    registered = {file.path: file.record_count for file in snapshot.handles[MESSAGES.name].files()}
    in_partitions = ranges.filter(pc.field("file_partition") != ANY_PARTITION)
    pairs = zip(in_partitions["file_id"].to_pylist(), in_partitions["footer_hash"].to_pylist(), strict=True)
    needed = {_find_path(file_id, topics): footer for file_id, footer in pairs}
    pointed_at = {_find_path(file_id, topics) for file_id in ranges["file_id"].unique().to_pylist()}

    def flaw(path: str) -> str:
        folder, _, name = path.rpartition("/")
        file_id = parse_file_id(name)
        topic = folder.removeprefix("topic=")
        facts = None if file_id < 0 else read_file_facts(files, file_id, needed.get(path), topic)
        if facts is None:
            return "gone" if file_id >= 0 else "a foreign file"
        if facts.flaw:
            return facts.flaw
        if path in needed and not is_expected_file(needed[path], facts.footer_hash, facts.is_journaled):
            return "rewritten or damaged"
        if folder:
            return ""
        if path not in registered:
            return "not in messages"
        return "" if registered[path] == facts.record_count else "not as messages says"

    all_paths = sorted(pointed_at | registered.keys())
    with Workers(_AT_ONCE, "lakemq-footers") as pool:
        return dict(zip(all_paths, pool.map(flaw, all_paths), strict=True))


def find_range_flaws(
    files: Files, ranges: pa.Table, placings: Sequence[Placing], flaws: Mapping[str, str], topics: Topics
) -> Flaws:
    """Return the flaws of ranges, columns of POINTING. Of a flawed file, every row is missing."""
    columns = {name: ranges.column(name).to_numpy() for name in POINTING.names if name != "footer_hash"}
    missing, elsewhere = columns["record_count"].copy(), np.zeros(ranges.num_rows, np.int64)
    for file_id, indexes in _group_by_file(columns["file_id"]):
        path = _find_path(file_id, topics)
        if flaws[path]:
            continue
        try:
            rows = _read_rows(files, file_id, path)
        except (OSError, ValueError, pa.ArrowException):
            continue  # a page is damaged: all rows of the file count as missing
        first, counts, partition, placed = (
            columns[name][indexes] for name in ("first_row", "record_count", "file_partition", "placed")
        )
        missing[indexes], elsewhere[indexes] = _count_flaws(rows, first, counts, partition, placed, placings)
    return Flaws(missing, elsewhere)


def _read_rows(files: Files, file_id: int, path: str) -> pa.Table:
    """Return the rows of a data file with their numbers, which a file of `final_messages` does not have."""
    is_final = file_id >= FINAL_FILES
    with files.open_input(f"{(FINAL_MESSAGES if is_final else MESSAGES).name}/{path}") as source:
        parquet = open_bounded_parquet(source, read_footer(source).parse())
        rows = parquet.read(_COLUMNS[is_final:])
    return rows.add_column(0, _COLUMNS[0], pa.array(np.arange(rows.num_rows))) if is_final else rows


def _group_by_file(file_ids: Numbers) -> Iterator[tuple[int, Numbers]]:
    order = np.argsort(file_ids, kind="stable")
    ids, begins = np.unique(file_ids[order], return_index=True)
    yield from zip(ids.tolist(), np.split(order, begins[1:]), strict=True) if len(ids) else ()


def _count_flaws(
    rows: pa.Table,
    first: Numbers,
    counts: Numbers,
    partition: Numbers,
    placed: Numbers,
    placings: Sequence[Placing],
) -> tuple[Numbers, Numbers]:
    """Return (missing, elsewhere) for each range of one file, whose rows are numbered from 0."""
    actual, keys = rows.column("partition").to_numpy().astype(np.int64), rows.column("key")
    numbers = rows.column("row").to_numpy()
    is_whole = np.array_equal(numbers, np.arange(len(numbers)))
    ends = np.cumsum(counts)
    index = np.repeat(first - (ends - counts), counts) + np.arange(ends[-1])
    is_there = (index >= 0) & (index < len(actual)) & is_whole
    index = np.where(is_there, index, 0)
    expected = np.repeat(partition, counts)
    is_there &= (expected == ANY_PARTITION) | (actual[index] == expected) if len(actual) else False
    lost = np.add.reduceat((~is_there).astype(np.int64), ends - counts)
    astray = np.zeros(len(counts), np.int64)
    has_key = pc.is_valid(keys).to_numpy()
    for number in np.unique(placed[placed >= 0]).tolist():
        where = partition_keys(keys, placings[number].partition_count, placings[number].partitioner, 0)
        is_astray = (np.repeat(placed, counts) == number) & is_there & has_key[index] & (where[index] != expected)
        astray += np.add.reduceat(is_astray.astype(np.int64), ends - counts)
    return lost, astray


# Compare the tables with the decisions of the journal, as far back as the journal goes.


_SEGMENTS_AGREE = tuple(name for name in EQUAL_COLUMNS if name not in ("file_id", "file_partition"))
"""Columns that a merge leaves as they were decided."""
_SEGMENTS_SUM_UP = (
    ("base_offset", "min"),
    ("last_offset", "max"),
    ("record_count", "sum"),
    ("min_timestamp_ms", "min"),
    ("max_timestamp_ms", "max"),
    ("base_sequence", "min"),
    ("first_offset", "min"),
    ("source_offset", "min"),
)
"""Aggregates of a step's segments that stay the same, however a merge cuts or joins them."""

_REJECTIONS_AGREE = ("source", "error", "reason", "rejected_at_ms")


class ReplayComparison(NamedTuple):
    """The result. after_step, step: the decisions between them were replayed; differing: table -> rows that differ."""

    after_step: int
    step: int
    differing: dict[str, int]


def compare_with_replay(snapshot: Snapshot, config: EngineConfig) -> ReplayComparison:
    """Compare the tables at the watermark with an earlier watermark plus all decisions of the journal since.

    Positions in data files are left out: merges change them, and decide nothing.

    Raises:
        StepTooOld: the journal was cut meanwhile.
    """
    journal, last = snapshot.handles[JOURNAL.name], snapshot.watermark.step
    first = min((int(f.statistics["min.step"]) for f in journal.files()), default=None)
    is_whole = first == 1 and not any(snapshot.handles[name].floor() for name in PROJECT)
    base = BEGINNING if is_whole else find_base(snapshot, first)
    steps = decode_steps_after(journal.read(step=(base.step + 1, last)), base.step)
    if steps is None or base.step + len(steps) != last:
        raise StepTooOld("The journal was cut meanwhile.", found=base.step, expected="a later step")
    replay = replay_steps(snapshot, base, steps)
    differing = {name: count_differing(BY_NAME[name], snapshot, replay, config) for name in PROJECT}
    counters = build_watermark(replay.state, snapshot.watermark.floor)
    differing[WATERMARKS.name] = int(WATERMARKS.rows(counters)[0] != replace(snapshot.watermark, versions=[]))
    return ReplayComparison(base.step, last, differing)


class Replay(NamedTuple):
    """The decisions of the journal after an earlier watermark, folded and projected.

    state: the fold. then: table -> its rows as of `base`, those of a changelog. decided: table -> the rows since.
    """

    base: WatermarkRow
    state: State
    then: Mapping[str, pa.Table]
    decided: Mapping[str, pa.Table]


def replay_steps(snapshot: Snapshot, base: WatermarkRow, steps: Sequence[Step], ends: Sequence[int] = ()) -> Replay:
    """Fold and project these steps, which follow `base`, on the tables as of `base`.

    ends: the last steps of passes, in order. Each pass gives rows of its own, as when it was written.
    """
    then = {name: _read_as_of(snapshot.handles[name], base.step) for name in PROJECT}
    state = restore(base, {name: then[name] for name in RESTORED})
    decided, begin = defaultdict[str, list[pa.Table]](list), 0
    for end in (*(end - base.step for end in ends), len(steps)):
        if part := steps[begin:end]:
            for name, rows in project(machine.replay(state, part), part).items():
                decided[name].append(rows)
            state.changes.clear()
            begin = end
    return Replay(base, state, then, {name: pa.concat_tables(parts) for name, parts in decided.items()})


def find_base(snapshot: Snapshot, first: int | None) -> WatermarkRow:
    """Return the earliest watermark whose tables can still be read, and from which the journal has no gap.

    first: the step with which the journal begins.
    """
    oldest = max(snapshot.watermark.floor, *(handle.floor() for handle in snapshot.handles.values()))
    if first is not None:
        oldest = max(oldest, first - 1)
    rows = snapshot.handles[WATERMARKS.name].read(step=(oldest, snapshot.watermark.step))
    base: WatermarkRow = WATERMARKS.rows(rows.sort_by("step").slice(0, 1))[0] if rows.num_rows else snapshot.watermark
    return base


def _read_as_of(handle: TableHandle, step: int) -> pa.Table:
    """Return a changelog's newest rows per key at the step. Of a log, return none: its rows never change."""
    spec = handle.spec
    if spec.shape != "changelog":
        return spec.empty()
    return select_newest(spec.validate(handle.read(step=(None, step))), spec.keys)


def count_differing(spec: TableSpec, snapshot: Snapshot, replay: Replay, config: EngineConfig) -> int:
    """Return how many rows of a table at the watermark differ from those of the replay."""
    handle, last = snapshot.handles[spec.name], snapshot.watermark.step
    # up to its floor, a log may have rows that stand for those of several steps
    after = max(replay.base.step, 0 if spec.shape == "changelog" else handle.floor())
    decided_rows = replay.decided.get(spec.name, spec.empty())
    if spec.shape == "changelog":
        expected = select_newest(pa.concat_tables([replay.then[spec.name], decided_rows]), spec.keys)
        stored = _read_as_of(handle, last)
        return _count_unlike(_drop_steps(stored), _drop_steps(expected), spec.keys)
    decided_rows = decided_rows.filter(pc.field("step") > after)
    stored, live_state = spec.validate(handle.read(step=(after + 1, last))), read_live_state(replay.state)
    retention_ms = config.ms(RETENTION[spec.name]) if spec.name in RETENTION else 0
    stored, expected = (trim_rows(spec, rows, live_state, retention_ms, whole=True) for rows in (stored, decided_rows))
    if spec is SEGMENTS:
        # Rewritten final files have other rows. That they have all messages is a rule of final_messages.
        is_final = pc.field("kind").isin([FINAL, FINAL_PENDING])
        stored, expected = (rows.filter(~is_final) for rows in (stored, expected))
        marks = pc.equal(stored.column("ttl_ms"), SUPERSEDED)  # compaction sets it where it has emptied messages
        ttl_ms = pc.if_else(marks, pa.scalar(None, pa.int64()), stored.column("ttl_ms"))
        stored = stored.set_column(stored.schema.get_field_index("ttl_ms"), "ttl_ms", ttl_ms)
        return _count_unlike(*_sum_up_segments(stored, expected, live_state), ("step", *_SEGMENTS_AGREE))
    if spec is REJECTED_ROWS:
        keys = ("step", *_REJECTIONS_AGREE)
        return _count_unlike(_sum_records(stored, keys), _sum_records(expected, keys), keys)
    return _count_unlike(stored, expected, (*spec.keys, "step"))


def _drop_steps(rows: pa.Table) -> pa.Table:
    """Return the existing keys without their steps: the pass in which a row was written does not matter."""
    return rows.filter(~pc.field("removed")).drop_columns("step")


def _sum_records(rows: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    counted = rows.group_by(list(keys)).aggregate([("record_count", "sum")])
    return counted.select([*keys, "record_count_sum"])


def _sum_up_segments(stored: pa.Table, expected: pa.Table, live_state: LiveState) -> tuple[pa.Table, pa.Table]:
    """Sum up both per step, without ranges that retention deleted: these leave with some merge."""
    keys = ["step", *_SEGMENTS_AGREE]
    both = [rows.group_by(keys).aggregate([*_SEGMENTS_SUM_UP]) for rows in (stored, expected)]
    starts = pa.table(
        {
            "topic_id": pa.array([id for id, topic in live_state.topics.items() for _ in topic.log_starts], pa.int64()),
            "partition": pa.array(
                [p for topic in live_state.topics.values() for p in range(topic.log_count)], pa.int32()
            ),
            "log_start": pa.array(
                [int(at) for topic in live_state.topics.values() for at in topic.log_starts], pa.int64()
            ),
        }
    )
    deleted = (
        both[1].join(starts, ["topic_id", "partition"]).filter(pc.field("base_offset_min") < pc.field("log_start"))
    )
    gone = _unique_keys(deleted, keys)
    remaining = (rows.filter(pc.invert(pc.is_in(_join_keys(rows, keys), gone))) for rows in both)
    return next(remaining), next(remaining)


def _unique_keys(rows: pa.Table, keys: list[str]) -> pa.Array:
    return _join_keys(rows, keys).combine_chunks().unique() if rows.num_rows else pa.array([], pa.string())


def _join_keys(rows: pa.Table, keys: list[str]) -> pa.ChunkedArray:
    """Return the keys of each row as one text."""
    texts = [pc.fill_null(rows.column(name).cast(pa.string()), "\0") for name in keys]
    return pc.binary_join_element_wise(*texts, "\x1f")


def _count_unlike(stored: pa.Table, expected: pa.Table, keys: tuple[str, ...]) -> int:
    """Return how many rows are in only one of the tables."""
    order = [(name, "ascending") for name in keys]
    stored, expected = stored.sort_by(order), expected.select(stored.column_names).sort_by(order)
    if stored.cast(expected.schema).combine_chunks().equals(expected.combine_chunks()):
        return 0
    stored_counts, expected_counts = _count_rows(stored), _count_rows(expected)
    return ((stored_counts - expected_counts) + (expected_counts - stored_counts)).total()


def _count_rows(rows: pa.Table) -> Counter[str]:
    return Counter(repr(tuple(row.values())) for row in rows.to_pylist())
