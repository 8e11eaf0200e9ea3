"""Messages that are too old, or beyond the size limit, are deleted from the log start, in whole segments."""

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from clocks import ManualClock
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from protocol_harness import AtOnce
from unit.served import values

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.maintenance import housekeeping
from lakemq.engine.maintenance.retention import find_outgrown
from lakemq.engine.protocol.values.state import State
from lakemq.engine.protocol.values.topics import LogOutgrown, Topic
from lakemq.engine.sequencer.searches import RETENTION_LOOK_TIMEOUT_MS, RetentionSearch
from lakemq.tables.specs.messages import FINAL_MESSAGES, MESSAGES
from lakemq.tables.specs.topics import SEGMENTS, SegmentRow
from lakemq.tables.storage.delta.commits import NewFile
from lakemq.tables.storage.delta.store import Store
from lakemq.tables.storage.object_stores.files import LocalFiles

NOW_MS = 1_000
FILE_BYTES, FILE_ROWS = 1_000, 100
"""Ten bytes a row."""


# -- the findings of a look ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class SegmentShape:
    """A segment. decided_ms is set if it was delayed. timestamp_ms is None for a marker and a compacted segment."""

    count: int
    timestamp_ms: int | None
    decided_ms: int | None = None
    is_compacted: bool = False

    @property
    def aged_ms(self) -> int | None:
        return self.timestamp_ms if self.decided_ms is None else self.decided_ms


def make_log(topic_id: int, partition: int, shapes: list[SegmentShape]) -> list[SegmentRow]:
    rows, offset = [], 0
    for shape in shapes:
        is_marker = shape.timestamp_ms is None and not shape.is_compacted
        rows.append(
            SegmentRow(
                step=1,
                kind="compacted" if shape.is_compacted else "commit" if is_marker else "data",
                topic_id=topic_id,
                topic=f"t{topic_id}",
                partition=partition,
                base_offset=offset,
                record_count=shape.count,
                last_offset=offset + shape.count - 1,
                file_id=None if shape.timestamp_ms is None else 1,
                first_row=None if shape.timestamp_ms is None else 0,
                min_timestamp_ms=None if shape.timestamp_ms is None else 0,
                max_timestamp_ms=shape.timestamp_ms,
                decided_at_ms=shape.decided_ms,
                transactional=is_marker,
                origin="publish" if shape.decided_ms is None else "delay",
            )
        )
        offset += shape.count
    return rows


def make_topic(topic_id: int, ends: list[int], starts: list[int], **config: int) -> Topic:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    return Topic(topic_id, f"t{topic_id}", settings, [], np.array(ends), np.array(starts), np.array(starts))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return create_store(tmp_path)


def create_store(folder: Path) -> Store:
    new = Store(LocalFiles(str(folder)))
    for spec in (SEGMENTS, MESSAGES, FINAL_MESSAGES):
        new.create(spec)
    messages = new.open(MESSAGES)
    new.files.put(f"{MESSAGES.name}/{1:016x}.parquet", b"")
    messages.replace_at(0, [NewFile(f"{1:016x}.parquet", FILE_BYTES, 0, {"numRecords": FILE_ROWS})])
    return new


def find_limits(store: Store, topic: Topic, *files: list[SegmentRow]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the new log starts of the partitions, by age and by size."""
    segments = store.open(SEGMENTS)
    old = segments.files()
    if old:
        segments.replace_at(segments.version, [], old)
    for rows in files:
        if rows:
            segments.append_at(segments.version, SEGMENTS.table(rows))
    outgrown = find_outgrown(store, {topic.topic_id: topic}, NOW_MS)
    return (outgrown[0].by_age, outgrown[0].by_size) if outgrown else ({}, {})


@pytest.mark.slow
def test_retention_bytes_deletes_no_more_than_needed(store: Store) -> None:
    rows = make_log(7, 0, [SegmentShape(2, 0), SegmentShape(3, 0), SegmentShape(1, 0)])
    for bound, expected in ((0, 6), (10, 5), (11, 2), (40, 2), (41, 0), (60, 0), (1 << 62, 0)):
        topic = make_topic(7, [6], [0], retention_ms=-1, retention_bytes=bound)
        assert find_limits(store, topic, rows) == ({}, {0: expected} if expected else {}), bound


def test_segments_missing_in_the_table_and_after_a_gap_stay(store: Store) -> None:
    rows = make_log(7, 0, [SegmentShape(2, 0), SegmentShape(2, 0), SegmentShape(2, 0)])
    assert find_limits(store, make_topic(7, [9], [0], retention_ms=1), rows[1:]) == ({}, {})
    assert find_limits(store, make_topic(7, [9], [0], retention_ms=1), [rows[0], rows[2]]) == ({0: 2}, {})


def test_unlimited_and_empty_topics_are_not_searched(store: Store, tmp_path: Path) -> None:
    unlimited = make_topic(7, [9], [0], retention_ms=-1)
    empty = make_topic(8, [9], [9], retention_ms=0, retention_bytes=0)
    (tmp_path / SEGMENTS.name).rename(tmp_path / "away")
    assert find_outgrown(store, {7: unlimited, 8: empty}, NOW_MS) == []


times = st.none() | st.integers(0, 2 * NOW_MS)
one_segment = (
    st.builds(SegmentShape, st.integers(1, 4), times)
    | st.builds(SegmentShape, st.integers(1, 4), st.integers(0, 2 * NOW_MS), st.integers(0, NOW_MS))
    | st.builds(SegmentShape, st.integers(1, 4), st.none(), is_compacted=st.just(True))
)
some_logs = st.dictionaries(st.tuples(st.integers(1, 3), st.integers(0, 2)), st.lists(one_segment, max_size=8))


def find_limits_by_segment(topic: Topic, partition: int, shapes: list[SegmentShape]) -> tuple[int, int]:
    """Return the log start by age and by size, computed segment by segment."""
    start, (age, size) = int(topic.log_starts[partition]), (topic.setting(f"retention.{n}") for n in ("ms", "bytes"))
    ends = np.cumsum([0, *(shape.count for shape in shapes)]).tolist()
    above = [(end, shape) for end, shape in zip(ends[1:], shapes, strict=True) if end > start]
    by_age = by_size = start
    is_held = False
    for end, shape in above:
        if age < 0 or (shape.aged_ms is not None and NOW_MS - shape.aged_ms <= age):
            break
        is_held = shape.is_compacted or (is_held and shape.timestamp_ms is None)
        by_age = by_age if is_held else end
    rows = {end: 0 if shape.timestamp_ms is None else end - max(start, end - shape.count) for end, shape in above}
    remaining = 10 * sum(rows.values())
    is_held = False
    for end, shape in above:
        remaining -= 10 * rows[end]
        if size < 0 or remaining < size:
            break
        is_held = shape.is_compacted or (is_held and shape.timestamp_ms is None)
        by_size = by_size if is_held else end
    return by_age, by_size


COMPACTED, YOUNG, MARKER, OLD = (
    SegmentShape(4, None, is_compacted=True),
    SegmentShape(1, NOW_MS),
    SegmentShape(1, None),
    SegmentShape(1, 0),
)


@pytest.mark.slow
@examples(60)
@example({(1, 0): [COMPACTED, YOUNG, MARKER, OLD]}, [0] * 9, [(100, -1)] * 3, 1)
@example({(1, 0): [COMPACTED, YOUNG, COMPACTED, OLD]}, [0] * 9, [(100, -1)] * 3, 1)
@given(
    some_logs,
    st.lists(st.integers(0, 12), min_size=9, max_size=9),
    st.lists(st.tuples(st.sampled_from([-1, 0, 100, 900, 2**63 - 1]), st.integers(-1, 120)), min_size=3, max_size=3),
    st.integers(1, 4),
)
def test_search_finds_the_log_starts_of_a_plain_computation(
    tmp_path_factory: pytest.TempPathFactory,
    logs: dict[tuple[int, int], list[SegmentShape]],
    starts: list[int],
    settings: list[tuple[int, int]],
    file_count: int,
) -> None:
    store = create_store(tmp_path_factory.mktemp("look"))
    topics: dict[int, Topic] = {}
    for topic_id, (age, size) in enumerate(settings, 1):
        ends = [sum(log.count for log in logs.get((topic_id, p), [])) for p in range(3)]
        begins = [min(starts[3 * topic_id - 3 + p], end) for p, end in enumerate(ends)]
        topics[topic_id] = make_topic(topic_id, ends, begins, retention_ms=age, retention_bytes=size)
    rows = [row for place, shapes in logs.items() for row in make_log(*place, shapes)]
    segments = store.open(SEGMENTS)
    for number in range(file_count):
        if part := rows[number::file_count]:
            segments.append_at(segments.version, SEGMENTS.table(part))
    outgrown_by_topic = {outgrown.topic_id: outgrown for outgrown in find_outgrown(store, topics, NOW_MS)}
    for topic_id, topic in topics.items():
        nothing = LogOutgrown(topic_id, 0, 0, {}, {})
        outgrown = outgrown_by_topic.get(topic_id, nothing)
        for p in range(3):
            start = int(topic.log_starts[p])
            expected = find_limits_by_segment(topic, p, logs.get((topic_id, p), []))
            assert (outgrown.by_age.get(p, start), outgrown.by_size.get(p, start)) == expected, (topic_id, p)


# -- when a look runs ---------------------------------------------------------------------------------------


def test_searches_are_an_interval_apart_and_a_failed_one_deletes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    clock, looks = ManualClock(), list[int]()
    outgrown = LogOutgrown(1, 0, 0, {0: 1}, {})

    def look(_: Any, now_ms: int) -> list[LogOutgrown]:
        looks.append(now_ms)
        if len(looks) == 2:
            raise OSError("the store is away")
        return [outgrown] * 500

    retention = RetentionSearch(look, AtOnce(), clock, 1_000)
    assert (retention.take_outgrown(State(), 5), retention.due_in_ms()) == ([], 1_000)
    clock.sleep(1_000)
    assert (retention.take_outgrown(State(), 6), looks, retention.is_working) == ([], [6], True)
    assert [len(retention.take_outgrown(State(), 7)) for _ in range(11)] == [50] * 10 + [0]
    assert not retention.is_working
    clock.sleep(1_000)
    with caplog.at_level(logging.WARNING):
        assert [retention.take_outgrown(State(), 8) for _ in range(2)] == [[], []]
    assert "the store is away" in caplog.text
    retention.make_due()
    retention.take_outgrown(State(), 9)
    assert looks == [6, 8, 9]


def test_search_without_a_result_is_given_up() -> None:
    class Never(AtOnce):
        def submit(self, *_: Any, **__: Any) -> Any:
            return Future()

    clock = ManualClock()
    retention = RetentionSearch(lambda *_: [], Never(), clock, 1_000)
    retention.make_due()
    retention.take_outgrown(State(), 1)
    assert retention.is_working
    clock.sleep(RETENTION_LOOK_TIMEOUT_MS)
    assert not retention.is_working


# -- as users see it ----------------------------------------------------------------------------------------

CONFIG = {
    "engine.idle.ms": 2,
    "lease.ms": 500,
    "project.interval.ms": 0,
    "compact.min.files": 2,
    "merge.grace.ms": 0,
    "retention.check.interval.ms": 1_000,
    "reader.grace.ms": 1_000,
}
LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


@pytest.fixture
def mq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    monkeypatch.setattr(housekeeping, "LOAD_MS", 0)
    monkeypatch.setattr(housekeeping, "QUIET_MS", 0)
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=CONFIG | {"final.interval.ms": 0}) as connection:
        yield connection


def serve(mq: Connection, *work: Any) -> None:
    """Lead while the actions run, and until nothing is left to do."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            mq.step_until_idle(wait_ms=2_000)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for action in work:
            action()
    finally:
        stop.set()
        thread.join()
    mq.step_until_idle(wait_ms=2_000)


def send(mq: Connection, topic: str, *texts: str, timestamp: datetime | None = LONG_AGO) -> None:
    columns: dict[str, Any] = {"value": list(texts)}
    if timestamp is not None:
        columns["timestamp"] = pa.array([timestamp] * len(texts), pa.timestamp("us", "UTC"))
    mq.publish(topic, pa.table(columns))


@pytest.mark.extended
@pytest.mark.slow
def test_old_messages_and_their_files_are_deleted(mq: Connection) -> None:
    folder = Path(mq.namespace.path) / MESSAGES.name
    big = "x" * 200_000
    serve(
        mq,
        lambda: mq.topics.create("t", 1, config={"retention.ms": -1}),
        lambda: mq.topics.create("kept", 1, config={"retention.ms": -1}),
        lambda: send(mq, "t", big, "old"),
    )
    # each in a pass of its own, because rows that share a file are deleted with the last of them
    serve(mq, lambda: send(mq, "t", "young", timestamp=None))
    serve(mq, lambda: send(mq, "kept", "old"))
    assert mq.beginning_offsets("t") == {0: 0}
    before = {file.name for file in folder.glob("*.parquet") if file.stat().st_size > 1_000}
    serve(mq, lambda: mq.topics.alter("t", config={"retention.ms": 3_600_000}))
    assert mq.beginning_offsets("t") == {0: 2}
    assert (values(mq, "t"), values(mq, "kept")) == (["young"], ["old"])
    assert mq.topics.describe("t").beginning_offsets == [2]
    deadline_s = time.monotonic() + 30
    while before & {file.name for file in folder.glob("*.parquet")}:
        assert time.monotonic() < deadline_s, "what held the messages is still there"
        serve(mq, lambda: send(mq, "kept", "more"))
    assert values(mq, "t") == ["young"]
    rows = mq.namespace.store.open(SEGMENTS).read().to_pylist()
    assert [row["base_offset"] for row in rows if row["topic"] == "t" and row["kind"] == "data"] == [2]
    assert [row["base_offset"] for row in rows if row["topic"] == "t" and row["kind"] == "log_start"] == [2]
    with lakemq.connect(mq.namespace.path) as fresh:
        assert (fresh.beginning_offsets("t"), values(fresh, "t")) == ({0: 2}, ["young"])
