"""Compaction: of each key only the newest message stays, for every reader, as in Kafka."""

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from examples import examples
from finals import PATIENCE_S, check_each_added_once, let_readers_move_on, read_final_messages
from hypothesis import given
from targets import extended_but
from unit.served import until

import lakemq
from lakemq import Connection
from lakemq.engine.maintenance import compaction
from lakemq.engine.maintenance.retention import LiveState
from lakemq.engine.maintenance.row_audit import compare_with_replay
from lakemq.engine.namespace.step_reader import take_snapshot
from lakemq.errors import InvalidConfig, InvalidRecord
from lakemq.jobs.audit import audit
from lakemq.tables.specs.messages import FILE_SCHEMA, SUPERSEDED
from lakemq.tables.storage.object_stores.files import LocalFiles
from lakemq.testing import MovableClock, read_dead_letters, serve, wait_until

CONFIG = {
    "engine.tick.ms": 10,
    "project.interval.ms": 50,
    "final.interval.ms": 100,
    "compact.min.files": 3,
    "merge.grace.ms": 9_000,
}
TOMBSTONES_MS = 300_000
COMPACT = {"cleanup.policy": "compact", "delete.retention.ms": TOMBSTONES_MS, "min.cleanable.dirty.ratio": 0}
"""A run begins whenever there is a new file: how many files there are depends on the machine's speed."""

Row = tuple[int, str | None, str | None]
"""Partition, key and value; the row's place is its offset."""


@pytest.fixture
def mq(tmp_path: Path, mq_clock: MovableClock) -> Iterator[Connection]:
    with serve(tmp_path / "mq", mq_clock, CONFIG) as connection:
        yield connection


# -- the decision -----------------------------------------------------------------------------------------


def to_file(rows: list[Row], first: int = 0) -> pa.Table:
    partitions, keys, values = zip(*rows, strict=True)
    columns: dict[str, Any] = {
        "partition": pa.array(partitions, pa.int32()),
        "offset": pa.array(range(first, first + len(rows)), pa.int64()),
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
    }
    nulls = {field.name: pa.nulls(len(rows), field.type) for field in FILE_SCHEMA}
    return pa.table(list((nulls | columns).values()), schema=pa.schema([f.with_nullable(True) for f in FILE_SCHEMA]))


def list_shown(messages: pa.Table) -> list[tuple[int, int, bytes, bytes | None]]:
    shown = messages.filter(pc.fill_null(pc.not_equal(messages.column("ttl_ms"), SUPERSEDED), True))
    return list(zip(*(shown.column(name).to_pylist() for name in ("partition", "offset", "key", "value")), strict=True))


rows_drawn = st.lists(
    st.tuples(st.integers(0, 1), st.none() | st.sampled_from("abcde"), st.none() | st.sampled_from("xy")),
    min_size=1,
    max_size=40,
)


@examples(300)
@given(rows_drawn, st.lists(st.integers(1, 8), min_size=40, max_size=40), st.randoms(use_true_random=False))
def test_runs_leave_the_newest_message_of_each_key(rows: list[Row], sizes: list[int], drawn: random.Random) -> None:
    """Runs go up to any file, one after the other, and look at all files before it, as often as they like."""
    files, first = [], 0
    for size in sizes:
        if first < len(rows):
            files.append(to_file(rows[first : first + size], first))
            first += size
    begin = 0
    while begin < len(files):
        end = drawn.randint(begin + 1, len(files))
        newest = compaction.find_newest(pa.concat_tables(files[begin:end]))
        for i in [*range(end)] * drawn.randint(1, 2):
            none = np.zeros(len(files[i]), np.bool_)
            files[i] = compaction.empty_messages(files[i], compaction.find_superseded(files[i], newest, none))
        begin = end
    newest_by_key = {(p, key): (offset, value) for offset, (p, key, value) in enumerate(rows) if key is not None}
    expected = {
        (p, offset, key.encode(), value and value.encode()) for (p, key), (offset, value) in newest_by_key.items()
    }
    messages = pa.concat_tables(files)
    assert messages.num_rows == len(rows)
    assert sorted(list_shown(messages)) == sorted(expected)


def test_tombstone_is_removed_only_when_its_time_has_come() -> None:
    messages = to_file([(0, "a", "1"), (0, "a", None), (0, "b", None), (0, None, "keyless")])
    newest, none = compaction.find_newest(messages), np.zeros(4, np.bool_)
    assert compaction.find_superseded(messages, newest, none).tolist() == [True, False, False, True]
    cleaned = compaction.empty_messages(messages, compaction.find_superseded(messages, newest, none))
    assert compaction.find_superseded(cleaned, newest, ~none).tolist() == [False, True, True, False]
    assert compaction.find_superseded(cleaned, newest, np.arange(4) == 2).tolist() == [False, False, True, False]


def test_file_notes_of_each_tombstone_since_when_older_messages_have_gone() -> None:
    rows: list[Row] = [(0, "a", None), (0, "b", "1"), (0, "c", None), (0, "d", None), (1, "a", None)]
    messages = to_file(rows)
    spans = compaction.find_spans(
        messages, compaction.mask_tombstones(messages), np.array([7, compaction.UNKNOWN_MS, 7, 8, 7])
    )
    assert spans == [(0, 0, 2, 7), (0, 3, 3, 8), (1, 4, 4, 7)]
    assert compaction.find_times(messages, spans).tolist() == [7, 7, 7, 8, 7]
    assert compaction.find_times(messages.slice(2), spans[1:]).tolist() == [compaction.UNKNOWN_MS, 8, 7]


@pytest.mark.parametrize(
    ("gone", "kept", "dropped"),
    [
        ([], [0, 1, 2, 3, 4, 5], []),
        ([0, 2, 5], [0, 1, 2, 3, 4, 5], []),
        ([0, 1, 4], [2, 3, 4, 5], [(0, 0, 1, 2)]),
        ([1, 2, 3, 4], [0, 5], [(0, 1, 2, 2), (1, 3, 4, 2)]),
        ([0, 1, 2, 3, 4, 5], [], [(0, 0, 2, 3), (1, 3, 5, 3)]),
    ],
)
def test_only_long_runs_of_empty_rows_are_dropped(
    monkeypatch: pytest.MonkeyPatch, gone: list[int], kept: list[int], dropped: list[tuple[int, ...]]
) -> None:
    monkeypatch.setattr(compaction, "LONG_RUN", 2)
    messages = to_file([(offset // 3, "k", "v") for offset in range(6)])
    rest, runs = compaction.drop_long_runs(compaction.empty_messages(messages, np.isin(np.arange(6), gone)))
    assert rest.column("offset").to_pylist() == kept
    assert [tuple(row.values()) for row in runs.to_pylist()] == dropped


# -- a namespace ------------------------------------------------------------------------------------------


def send(mq: Connection, topic: str, rows: list[tuple[str, str | None]], **columns: Any) -> None:
    keys, values = zip(*rows, strict=True)
    mq.publish(topic, pa.table({"key": keys, "value": pa.array(values, pa.string())} | columns))


def let_all_be_final(mq: Connection, topic: str = "t") -> None:
    def check() -> bool:
        state = mq.state().topic(topic)
        return bool((state.final_offsets == state.last_stable_offsets).all())

    wait_until(check, "final messages", PATIENCE_S)


def compact(mq: Connection, clock: MovableClock, is_done: Callable[[], bool]) -> None:
    """Put the clock ahead until compaction has done something."""

    def check() -> bool:
        let_readers_move_on(mq, clock)
        return is_done()

    wait_until(check, "compaction", PATIENCE_S)


def show(mq: Connection, topic: str = "t", **options: Any) -> list[tuple[int, bytes, bytes | None]]:
    with lakemq.connect(mq.namespace.path) as newcomer:
        return [(message.offset, message.key, message.value) for message in newcomer.fetch(topic, **options)]


HISTORY: list[tuple[str, str | None]] = [
    ("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", None), ("d", "1"), ("a", "3"), ("c", "2"),
]  # fmt: skip
KEPT = [(4, b"b", None), (5, b"d", b"1"), (6, b"a", b"3"), (7, b"c", b"2")]


@pytest.mark.parametrize("long_run", extended_but([2], [2, compaction.LONG_RUN]))
def test_every_reader_shows_the_newest_message_of_each_key(
    mq: Connection, mq_clock: MovableClock, monkeypatch: pytest.MonkeyPatch, long_run: int
) -> None:
    monkeypatch.setattr(compaction, "LONG_RUN", long_run)
    mq.topics.create("t", config=COMPACT)
    mq.groups.create("queue", {"group.protocol": "queue"})
    mq.groups.create("g", {"group.protocol": "cooperative"})
    for first in range(0, len(HISTORY), 2):
        send(
            mq, "t", HISTORY[first : first + 2], timestamp=pa.array([1_000_000 * first] * 2, pa.timestamp("ms", "UTC"))
        )
        let_all_be_final(mq)
    with mq.producer("tx") as producer:
        producer.begin_transaction()
        producer.send("t", "aborted", key="a")
        producer.flush()
        producer.abort_transaction()
    let_all_be_final(mq)
    compact(mq, mq_clock, lambda: len(show(mq)) == 4)
    assert show(mq) == show(mq, isolation="read_uncommitted", end={0: 8}) == show(mq, include_expired=True) == KEPT
    assert [show(mq, start={0: first}, end={0: first + 3}) for first in (0, 2, 5)] == [[], KEPT[:1], KEPT[1:]]
    result = mq.fetch("t")
    assert (len(result), result.offsets()[0].tolist()) == (4, [4, 5, 6, 7])
    in_view = mq.sql("SELECT offset, key, value FROM log_committed ORDER BY offset", wait_ms=9_000).to_pylist()
    assert [tuple(row.values()) for row in in_view] == KEPT
    in_table = read_final_messages(mq)
    assert in_table.num_rows == (4 if long_run == 2 else 8)
    in_table = in_table.filter(pc.field("ttl_ms").is_null())
    assert sorted(tuple(row.values()) for row in in_table.select(["offset", "key", "value"]).to_pylist()) == KEPT
    earliest = mq.offsets_for_times("t", {0: datetime.fromtimestamp(0, UTC)})[0]
    assert earliest is not None
    assert earliest[0] == 4
    with mq.consumer("g", topics=["t"]) as consumer:
        polled: list[Any] = []
        while len(polled) < 4:
            polled += consumer.poll(timeout_ms=3_000)
        assert [message.offset for message in polled] == [4, 5, 6, 7]
        consumer.commit()
    with mq.consumer("queue", topics=["t"], auto_offset_reset="earliest") as consumer:
        messages: list[Any] = []
        while len(messages) < 4:
            batch = consumer.poll(timeout_ms=3_000)
            messages += batch
            consumer.ack(batch)
        consumer.flush()
        assert [message.offset for message in messages] == [4, 5, 6, 7]
        until(lambda: not consumer.poll(timeout_ms=20) and sum(consumer.lag().values()) == 0)
    assert mq.groups.describe("queue").expired == 0
    assert "t.dlq" not in [topic.topic for topic in mq.state().topics.values()]
    assert [outcome.rule for outcome in audit(mq.namespace, None).outcomes if outcome.broken] == []
    assert compare_with_replay(take_snapshot(mq.namespace.store), mq.namespace.config).differing["segments"] == 0
    check_each_added_once(mq)


@pytest.mark.extended
def test_group_that_stands_among_removed_messages_reads_on_after_retention(
    mq: Connection, mq_clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removed messages have no age. They are deleted with the next message, not before it."""
    monkeypatch.setattr(compaction, "LONG_RUN", 2)
    hour_ms = 3_600_000
    mq.topics.create("t", config=COMPACT | {"cleanup.policy": "compact,delete", "retention.ms": 24 * hour_ms})
    mq.topics.create("old", config={"retention.ms": -1})
    send(mq, "t", [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1")])
    mq.groups.create("g", {"group.protocol": "cooperative"})
    mq.groups.reset_offsets("g", to={("t", 0): 1})
    let_all_be_final(mq)
    compact(mq, mq_clock, lambda: read_final_messages(mq).num_rows == 2)

    def look() -> None:
        """Wait until retention has looked at all topics once more."""
        send(mq, "old", [("k", "v")])
        mq.topics.alter("old", config={"retention.ms": 0})
        compact(mq, mq_clock, lambda: mq.beginning_offsets("old") == mq.end_offsets("old"))
        mq.topics.alter("old", config={"retention.ms": -1})

    look()
    assert mq.beginning_offsets("t") == {0: 0}
    with mq.consumer("g", topics=["t"], auto_offset_reset="latest") as consumer:
        assert [message.offset for message in consumer.poll(timeout_ms=PATIENCE_S * 1_000)] == [2, 3]
    mq_clock.advance(hours=25)
    look()
    assert mq.beginning_offsets("t") == {0: 4}


@pytest.mark.extended
def test_damaged_file_of_a_topic_holds_up_no_other_topic(mq: Connection, mq_clock: MovableClock) -> None:
    for topic in ("damaged", "t"):
        mq.topics.create(topic, config=COMPACT)
        send(mq, topic, [("a", "1"), ("a", "2")] * (3 if topic == "damaged" else 1))
        let_all_be_final(mq, topic)
    (file,) = Path(mq.namespace.path, "final_messages", "topic=damaged").iterdir()
    content = file.read_bytes()
    file.write_bytes(content[:4] + bytes(byte ^ 255 for byte in content[4:100]) + content[100:])
    compact(mq, mq_clock, lambda: len(show(mq)) == 1)
    assert show(mq) == [(1, b"a", b"2")]
    (serving,) = mq._open.serving
    assert serving.sequencer.compaction_due_since_ms is not None, "the damaged one waits"


@pytest.mark.extended
def test_message_that_a_queue_gives_up_and_that_is_superseded_is_no_dead_letter(
    mq: Connection, mq_clock: MovableClock
) -> None:
    mq.topics.create("t", config=COMPACT)
    mq.groups.create("g", {"group.protocol": "queue"})
    send(mq, "t", [("a", "1"), ("b", "1"), ("a", "2")])
    let_all_be_final(mq)
    with mq.consumer("g", topics=["t"], auto_offset_reset="earliest") as consumer:
        messages: list[Any] = []
        while len(messages) < 3:
            messages += consumer.poll(timeout_ms=3_000)
        compact(mq, mq_clock, lambda: len(show(mq)) == 2)
        consumer.reject(messages, error="no good")
        consumer.flush()
        assert {letter.value for letter in read_dead_letters(mq, at_least=2)} == {b"1", b"2"}
        until(lambda: sum(consumer.lag().values()) == 0)


def test_deleted_topics_wait_for_no_compaction() -> None:
    runs = compaction.Compaction(LocalFiles("."), 1)
    runs._run, runs._due_since_ms = compaction._Run(7, 0, 9), {7: 1_000, 8: 1_000}
    assert runs.choose([], {}, LiveState(9_000, {}, frozenset())) == []
    assert runs.due_since_ms is None


def test_message_without_key_is_refused_by_a_compacted_topic(mq: Connection) -> None:
    mq.topics.create("t", config=COMPACT)
    mq.topics.create("other")
    with pytest.raises(InvalidRecord, match=r"no key"), mq.producer() as producer:
        producer.send("t", "keyless").result()
    with pytest.raises(InvalidRecord, match=r"no key"):
        mq.publish("t", pa.table({"value": ["1"] * 1_000}), on_error="fail")
    mq.topics.alter("t", config={"cleanup.policy": "compact,delete"})
    with pytest.raises(InvalidRecord, match=r"no key"), mq.producer() as producer:
        producer.send("t", "keyless").result()
    mq.publish("other", pa.table({"value": ["1"]}))
    mq.topics.alter("t", config={"cleanup.policy": "delete"})
    mq.publish("t", pa.table({"value": ["1"]}))
    assert mq.end_offsets("t") == {0: 1}


def test_compaction_without_final_messages_is_refused(tmp_path: Path) -> None:
    with serve(tmp_path / "mq", settings={"final.interval.ms": 0}) as mq:
        with pytest.raises(InvalidConfig, match=r"final\.interval\.ms"):
            mq.topics.create("t", config=COMPACT)
        mq.topics.create("t")
        with pytest.raises(InvalidConfig, match=r"final\.interval\.ms"):
            mq.topics.alter("t", config={"cleanup.policy": "compact"})
