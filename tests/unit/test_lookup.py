"""Lookups of segments, in files and row groups of the table and in the tail, find exactly the stored ones."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unit.served import CONFIG

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.fetch import log_reader
from lakemq.engine.client.fetch import lookup as lookup_module
from lakemq.engine.client.fetch.log_reader import Reader, TailSegments
from lakemq.engine.client.fetch.lookup import LOOKUP_SCHEMA, Lookup, OffsetRange, StoredSegments
from lakemq.engine.protocol.values.journal import JournalEntry, Step
from lakemq.engine.protocol.values.log import Produced
from lakemq.engine.protocol.values.segments import Segments
from lakemq.errors import OffsetOutOfRange, TableDamaged
from lakemq.tables.specs.topics import SEGMENT_SCHEMA, SEGMENTS, SegmentRow
from lakemq.tables.storage.delta.commits import NewFile, compute_statistics
from lakemq.tables.storage.delta.store import Store
from lakemq.tables.storage.object_stores.files import LocalFiles
from lakemq.testing import MovableClock

pytestmark = [pytest.mark.slow, pytest.mark.extended]

PARTITIONS = 4


def draw_rows(random: random.Random, count: int, step: int) -> list[SegmentRow]:
    rows = []
    for _ in range(count):
        base, length = random.randrange(200), random.randrange(1, 5)
        kind = random.choice(["data", "data", "data", "abort", "commit", "log_start"])
        rows.append(
            SegmentRow(
                step=step,
                kind=kind,
                topic_id=random.randrange(1, 4),
                topic="t",
                partition=random.randrange(PARTITIONS),
                base_offset=base,
                record_count=length,
                last_offset=base + length - 1,
                transactional=kind != "data",
                origin="publish",
                first_offset=random.randrange(base + 1) if kind in ("abort", "commit") else None,
            )
        )
    return rows


def draw_lookup(random: random.Random) -> Lookup:
    ranges = [
        OffsetRange(partition, start, start + random.randrange(1, 60))
        for partition in random.sample(range(PARTITIONS), random.randrange(1, PARTITIONS + 1))
        for start in [random.randrange(200)]
    ]
    return Lookup(random.randrange(1, 5), ranges, random.random() < 0.5)


def is_wanted(row: SegmentRow, lookup: Lookup) -> bool:
    """Return whether the lookup matches the row, by a plain reading of the rule."""
    of_partition = {range_.partition: range_ for range_ in lookup.ranges}.get(row.partition)
    if row.topic_id != lookup.topic_id or of_partition is None:
        return False
    if row.kind == "log_start":
        return False
    if row.base_offset < of_partition.end and row.last_offset >= of_partition.start:
        return True
    if row.kind == "abort":
        return lookup.committed and row.first_offset < max(range_.end for range_ in lookup.ranges)  # type: ignore[operator]
    return False


def list_rows(rows: pa.Table) -> list[str]:
    return sorted(map(str, rows.select(LOOKUP_SCHEMA.names).to_pylist()))


def list_expected_rows(rows: list[SegmentRow], lookup: Lookup) -> list[str]:
    """Return the rows that match, without aborts that come before all ranges, which end nothing in them."""
    return list_rows(SEGMENTS.table(row for row in rows if is_wanted(row, lookup) and row.last_offset >= lookup.start))


@pytest.mark.parametrize("seed", range(6))
def test_lookup_finds_the_matching_segments_of_any_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(lookup_module, "_FEW_ROWS", 20)
    monkeypatch.setattr(lookup_module, "_MOST_ROWS_KEPT", 60)
    chance, store, rows = random.Random(seed), Store(LocalFiles(str(tmp_path))), list[SegmentRow]()
    store.create(SEGMENTS)
    table = store.open(SEGMENTS)
    stored = StoredSegments(store)
    for step in range(1, 13):
        new = draw_rows(chance, chance.choice([1, 5, 15, 100]), step)
        rows += new
        name = f"{step}.parquet"
        written = SEGMENTS.table(new).sort_by([(key, "ascending") for key in SEGMENTS.sort_by])
        if step % 4 == 3:  # as another engine would
            texts = [pa.large_string() if type == pa.string() else type for type in written.schema.types]
            written = written.cast(pa.schema(zip(written.column_names, texts, strict=True)))
        pq.write_table(written, tmp_path / SEGMENTS.name / name, row_group_size=7)
        statistics = {"numRecords": written.num_rows} if step % 4 == 2 else compute_statistics(SEGMENTS.table(new))
        table.replace_at(table.version, [NewFile(name, 1, 1, statistics)])
        if step % 3:
            continue
        stored.move_to(table, step - 1)
        for _ in range(15):
            lookup = draw_lookup(chance)
            selected = lookup.select_from(stored.find(lookup))
            selected = selected.filter(
                pa.array([last >= lookup.start for last in selected["last_offset"].to_pylist()], pa.bool_())
            )
            assert list_rows(selected) == list_expected_rows([row for row in rows if row.step < step], lookup)


# -- the tail -----------------------------------------------------------------------------------------------


def draw_log(chance: random.Random, steps: int) -> dict[int, list[SegmentRow]]:
    """Return the segments of each step, each at the end of its partition."""
    ends: dict[tuple[int, int], int] = {}
    log: dict[int, list[SegmentRow]] = {}
    for step in range(1, steps + 1):
        log[step] = []
        for row in draw_rows(chance, chance.randrange(4), step):
            base = ends.get((row.topic_id, row.partition), 0)
            ends[row.topic_id, row.partition] = base + row.record_count
            first = None if row.first_offset is None else chance.randrange(base + 1)
            last = base + row.record_count - 1
            log[step].append(replace(row, base_offset=base, last_offset=last, first_offset=first))
    return log


def make_step(step: int, rows: list[SegmentRow]) -> Step:
    part = Segments(SEGMENTS.table(rows).select(SEGMENT_SCHEMA.names).combine_chunks().to_batches()[0])
    return Step(step, 0, 1, [JournalEntry(Produced("t"), part)])


@pytest.mark.parametrize("newest", [0, 3, 1000])
def test_lookup_in_the_tail_is_the_same_in_every_form(newest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_MANY_NEWEST", newest)
    chance = random.Random(newest)
    for forgotten in (0, 0, 5, 12):
        tail, log = TailSegments(), draw_log(chance, 20)
        tail.add([make_step(step, rows) for step, rows in log.items() if rows])
        if forgotten:
            tail.forget(forgotten)
        rows = [row for step in range(forgotten + 1, 21) for row in log[step]]
        for _ in range(50):
            lookup = draw_lookup(chance)
            starts = {range_.partition: range_.start for range_ in lookup.ranges}
            matching = [row for row in rows if is_wanted(row, lookup)]
            # aborts before the range of their partition end nothing in it
            needed = [row for row in matching if row.last_offset >= starts[row.partition]]
            listed = list_rows(tail.find(lookup))
            assert set(list_rows(SEGMENTS.table(needed))) <= set(listed) <= set(list_rows(SEGMENTS.table(matching)))
            assert len(listed) == len(set(listed))


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[Connection]:
    with lakemq.connect(str(tmp_path / "mq"), create=True, config={**CONFIG, "project.interval.ms": 0}) as mq:
        mq.serving()
        mq.topics.create("t", partitions=2)
        yield mq


def test_lookup_without_all_offsets_loads_the_namespace_again(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    mq.publish("t", pa.table({"value": ["a", "b"], "partition": [0, 0]}))
    find, calls = log_reader._View.find, list[int]()

    def lack_once(view: Any, *arguments: Any) -> pa.Table:
        calls.append(1)
        found = find(view, *arguments)
        return found.slice(0, 0) if len(calls) == 1 else found

    monkeypatch.setattr(log_reader._View, "find", lack_once)
    assert [message.value for message in mq.fetch("t")] == [b"a", b"b"]
    assert len(calls) == 2


@pytest.mark.parametrize("deleted_meanwhile", [True, False])
def test_offsets_missing_after_a_second_load_are_deleted_or_damage(
    mq: Connection, monkeypatch: pytest.MonkeyPatch, deleted_meanwhile: bool
) -> None:
    mq.publish("t", pa.table({"value": ["a", "b"], "partition": [0, 0]}))
    mq.state()
    if deleted_meanwhile:
        mq.topics.delete_records("t", {0: 1})
    find = log_reader._View.find
    monkeypatch.setattr(log_reader._View, "find", lambda *arguments: find(*arguments).slice(0, 0))
    follower = Reader(mq.namespace.store, MovableClock())
    topic = follower.refresh().topic("t")
    error = OffsetOutOfRange if deleted_meanwhile else TableDamaged
    with pytest.raises(error, match="deleted meanwhile" if deleted_meanwhile else "2 offsets of t are in no row"):
        follower.find_segments(topic, [OffsetRange(0, 0, 2)], committed=True)
