"""Delayed messages as a user sees them: published, waiting, released, fetched, and refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner
from unit.served import CONFIG, new_topic, served, until, values

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.delayed.delayed import RescheduleResult
from lakemq.engine.client.sql.query import run_query
from lakemq.engine.maintenance.housekeeping import _drop_outdated_rows
from lakemq.engine.namespace.loading import later_ranges
from lakemq.errors import (
    DelayQueueFull,
    DelayTooLong,
    InvalidReceipt,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    LakeMQError,
)
from lakemq.jobs.cli import app
from lakemq.jobs.release_delayed import release, sentence
from lakemq.tables.specs.delayed import DELAYED
from lakemq.tables.specs.messages import HEADERS

YEAR_9999_MS = 253_402_300_799_999


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with served(tmp_path_factory.mktemp("delays")) as connection:
        yield connection


def create_quick_topic(mq: Connection, **config: Any) -> str:
    """Create a topic with short slots."""
    name = new_topic(mq)
    mq.topics.alter(name, {"delay.slot.ms": 50, **config})
    return name


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def wait_for_messages(mq: Connection, topic: str, count: int) -> int:
    """Wait until the topic has this many messages, and return the time."""
    until(lambda: len(values(mq, topic)) >= count)
    return now_ms()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["send", "few", "riding", "stored"])
def test_a_message_comes_when_it_is_due_and_not_before(mq: Connection, how: str) -> None:
    topic, due_ms = create_quick_topic(mq), now_ms() + 700
    if how == "send":
        with mq.producer() as producer:
            place = producer.send(topic, "late", deliver_at=due_ms).result()
            assert producer.send(topic, "now").result().offset == 0
        assert place.offset == -1
        assert due_ms <= (place.deliver_at_ms or 0) < due_ms + 50
    else:
        size = {"few": 1, "riding": 300, "stored": 3000}[how]
        late = pa.table({"value": ["late"], "deliver_at": [due_ms]})
        rows_due_now = pa.table({"value": ["now"] * size, "deliver_at": pa.nulls(size, pa.int64())})
        assert mq.publish(topic, pa.concat_tables([late, rows_due_now])).units[0].record_count == size
    count = len(values(mq, topic))
    assert "late" not in values(mq, topic)
    assert due_ms <= wait_for_messages(mq, topic, count + 1) < due_ms + 3_000
    assert values(mq, topic)[-1] == "late"


def test_what_is_released_looks_like_any_other_message(mq: Connection) -> None:
    topic = create_quick_topic(mq)
    with mq.producer() as producer:
        producer.send(topic, "v", "k", {"h": b"x"}, timestamp_ms=5_000_000, deliver_at=now_ms())
    wait_for_messages(mq, topic, 1)
    (message,) = mq.fetch(topic)
    assert (message.key, message.value, message.headers) == (b"k", b"v", (("h", b"x"),))
    assert message.timestamp == datetime.fromtimestamp(5_000, timezone.utc)


@pytest.mark.slow
def test_a_delay_counts_from_the_timestamp_or_from_the_call_where_the_topic_stamps(mq: Connection) -> None:
    by_timestamp, by_call = (
        create_quick_topic(mq),
        create_quick_topic(mq, **{"message.timestamp.type": "LogAppendTime"}),
    )
    with mq.producer() as producer:
        before_ms = now_ms()
        first = producer.send(by_timestamp, "v", timestamp_ms=1_000, delay_ms=60).result()
        second = producer.send(by_call, "v", timestamp_ms=1_000, delay_ms=600).result()
    assert first.deliver_at_ms == 1_100
    assert before_ms + 600 <= (second.deliver_at_ms or 0) <= now_ms() + 650
    due_ms = second.deliver_at_ms or 0
    wait_for_messages(mq, by_call, 1)
    (message,) = mq.fetch(by_call)
    assert message.timestamp >= datetime.fromtimestamp(due_ms / 1000, timezone.utc)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["few", "stored"])
def test_they_come_in_the_order_in_which_they_are_due(mq: Connection, how: str) -> None:
    topic, base_ms = create_quick_topic(mq), now_ms() + 300
    padding = "x" * (0 if how == "few" else 100)
    late = [(7 * i) % 60 for i in range(60)]
    table = pa.table({"value": [f"{i:02}{padding}" for i in late], "deliver_at": [base_ms + 10 * i for i in late]})
    mq.publish(topic, table)
    wait_for_messages(mq, topic, 60)
    slots = [-(-(base_ms + 10 * int(value[:2])) // 50) for value in values(mq, topic)]
    assert slots == sorted(slots)
    assert {value[:2] for value in values(mq, topic)} == {f"{i:02}" for i in late}


@pytest.mark.parametrize(
    ("asked_s", "level_s"), [(0.001, 5), (5, 5), (5.001, 10), (17, 30), (2701, 3600), (7200, 7200)]
)
def test_with_levels_a_delay_is_rounded_up(mq: Connection, asked_s: float, level_s: int) -> None:
    topic = create_quick_topic(mq, **{"delay.mode": "levels"})
    with mq.producer() as producer:
        sent = producer.send(topic, "v", timestamp_ms=now_ms() // 50 * 50, delay_ms=int(asked_s * 1000)).result()
    assert (sent.deliver_at_ms or 0) - sent.timestamp_ms == level_s * 1000


def test_above_the_last_level_it_is_refused_or_becomes_the_last(mq: Connection) -> None:
    topic = create_quick_topic(mq, **{"delay.mode": "levels"})
    with mq.producer(on_error="fail") as producer:
        assert isinstance(producer.send(topic, "v", delay_ms=7_200_001).exception(), DelayTooLong)
        mq.topics.alter(topic, {"delay.levels.overflow": "clamp"})
        sent = producer.send(topic, "v", timestamp_ms=50, delay_ms=7_200_001).result()
        assert sent.deliver_at_ms == 7_200_050


def test_400_days(mq: Connection) -> None:
    topic, delay_ms = create_quick_topic(mq), 400 * 86_400_000
    with mq.producer() as producer:
        sent = producer.send(topic, "v", delay_ms=delay_ms).result()
        last = producer.send(topic, "v", deliver_at=YEAR_9999_MS // 50 * 50).result()
    assert delay_ms <= (sent.deliver_at_ms or 0) - sent.timestamp_ms < delay_ms + 50
    assert last.deliver_at_ms == YEAR_9999_MS // 50 * 50


@pytest.mark.parametrize(
    ("delay", "error"),
    [
        ({"delay_ms": -1}, InvalidTimestamp),
        ({"delay_ms": 1.5}, InvalidTimestamp),
        ({"delay_ms": float("nan")}, InvalidTimestamp),
        ({"delay_ms": True}, InvalidTimestamp),
        ({"delay_ms": timedelta(seconds=1)}, InvalidTimestamp),
        ({"deliver_at": -1}, InvalidTimestamp),
        ({"deliver_at": YEAR_9999_MS + 1}, InvalidTimestamp),
        ({"deliver_at": "tomorrow"}, InvalidTimestamp),
        ({"deliver_at": datetime(1969, 12, 31, tzinfo=timezone.utc)}, InvalidTimestamp),
        ({"deliver_at": 1, "delay_ms": 1}, InvalidRecord),
    ],
)
def test_a_delay_that_is_none_is_refused_in_the_call(mq: Connection, delay: Any, error: type[LakeMQError]) -> None:
    topic = new_topic(mq)
    with mq.producer() as producer:
        with pytest.raises(error):
            producer.send(topic, "v", **delay)
        if not isinstance(delay.get("deliver_at"), str):
            with pytest.raises(error):
                mq.publish(topic, pa.table({"value": ["v"]}), **delay)
    assert values(mq, topic) == []


def test_rows_with_a_delay_that_is_none_are_rejected(mq: Connection) -> None:
    topic = new_topic(mq)
    published = mq.publish(topic, pa.table({"value": ["a", "b", "c"], "delay_ms": [-1, 2**62, 10**9]}))
    assert (published.rejected_count, sum(unit.record_count for unit in published.waiting)) == (2, 1)
    with pytest.raises(InvalidTimestamp, match="negative"):
        mq.publish(topic, pa.table({"value": ["a"], "delay_ms": [-1]}), on_error="fail")
    two_times = pa.table({"value": ["a", "b"], "delay_ms": [1, None], "deliver_at": [1, 1]})
    assert mq.publish(topic, two_times).rejected_count == 1
    with pytest.raises(InvalidRecord, match="both deliver_at and delay_ms"):
        mq.publish(topic, two_times, on_error="fail")


def test_a_keyword_is_for_all_rows_and_wins_over_a_column(mq: Connection) -> None:
    topic, table = new_topic(mq), pa.table({"value": ["a", "b"], "delay_ms": [0, 0], "at": [10**12] * 2})
    far = datetime.fromtimestamp(now_ms() / 1000, timezone.utc) + timedelta(days=1)
    for options in ({"deliver_at": far}, {"delay_ms": 86_400_000}):
        assert sum(unit.record_count for unit in mq.publish(topic, table, **options).waiting) == 2
    with pytest.raises(InvalidTimestamp, match="no time zone"):
        mq.publish(topic, table, deliver_at=far.replace(tzinfo=None))
    assert values(mq, topic) == []
    mq.publish(topic, table, deliver_at="at")
    assert wait_for_messages(mq, topic, 2)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["send", "few", "riding", "stored"])
def test_headers_say_when_and_are_taken_off(mq: Connection, how: str) -> None:
    topic, count = create_quick_topic(mq), {"send": 1, "few": 1, "riding": 300, "stored": 5_000}[how]
    due_ms, headers = now_ms() + 700, [("a", b"1"), ("DELAY_MS", b"300"), ("b", b"2")]
    if how == "send":
        with mq.producer() as producer:
            assert producer.send(topic, "v", headers=headers).result().offset == -1
            assert producer.send(topic, "v", headers={"DELIVER_AT": b"%d" % due_ms}).result().offset == -1
            assert isinstance(producer.send(topic, "v", headers={"DELAY_MS": b"soon"}).exception(), InvalidTimestamp)
    else:
        rows = [headers, [("DELIVER_AT", b"%d" % due_ms)], [("DELAY_MS", b"soon")], None] * count
        published = mq.publish(topic, pa.table({"value": ["v"] * 4 * count, "headers": pa.array(rows, HEADERS)}))
        assert (published.rejected_count, sum(unit.record_count for unit in published.waiting)) == (count, 2 * count)
    wait_for_messages(mq, topic, 2 * count)
    read_headers = {message.headers for message in mq.fetch(topic)}
    assert read_headers <= {(("a", b"1"), ("b", b"2")), ()}


def test_what_is_said_in_the_call_wins_over_headers(mq: Connection) -> None:
    topic = new_topic(mq)
    with mq.producer() as producer:
        sent = producer.send(topic, "v", headers={"DELAY_MS": b"1"}, timestamp_ms=0, delay_ms=10**13).result()
    assert sent.deliver_at_ms == 10**13


@pytest.mark.slow
def test_a_full_queue_is_refused_and_may_be_asked_again(mq: Connection) -> None:
    topic = create_quick_topic(mq, **{"delay.max.pending": 1})
    mq.publish(topic, pa.table({"value": ["a"]}), delay_ms=400)
    with pytest.raises(DelayQueueFull) as refused:
        mq.publish(topic, pa.table({"value": ["b"]}), delay_ms=400)
    assert refused.value.retriable
    wait_for_messages(mq, topic, 1)
    mq.publish(topic, pa.table({"value": ["b"]}), delay_ms=0)
    wait_for_messages(mq, topic, 2)


def test_fan_out_waits_in_each_topic(mq: Connection) -> None:
    topics = [new_topic(mq), new_topic(mq)]
    mq.topics.alter(topics[0], {"delay.slot.ms": 50}, subscriptions=["late/>"])
    mq.topics.alter(topics[1], {"delay.slot.ms": 70}, subscriptions=["late/>"])
    mq.publish("late/x", pa.table({"value": ["a", "b"], "delay_ms": [100, 200]}))
    for topic in topics:
        wait_for_messages(mq, topic, 2)
        assert values(mq, topic) == ["a", "b"]


def test_in_a_transaction_it_waits_from_the_commit_on(mq: Connection) -> None:
    topic = create_quick_topic(mq)
    producer = mq.producer(f"{topic}-etl")
    producer.begin_transaction()
    producer.send(topic, "now")
    late = producer.send(topic, "late", delay_ms=0)
    producer.commit_transaction()
    assert late.result().offset == -1
    wait_for_messages(mq, topic, 2)
    producer.begin_transaction()
    producer.send(topic, "never", delay_ms=0)
    producer.abort_transaction()
    with mq.transaction(f"{topic}-tables") as transaction:
        transaction.publish(topic, pa.table({"value": ["later"]}), delay_ms=100)
    wait_for_messages(mq, topic, 3)
    assert values(mq, topic) == ["now", "late", "later"]
    producer.close()


@pytest.mark.extended
@pytest.mark.slow
def test_a_delay_is_on_time_beside_a_million_messages_that_nobody_consumes(tmp_path: Path) -> None:
    with served(tmp_path) as mq:
        topic = new_topic(mq)
        mq.topics.alter(topic, {"message.timestamp.type": "LogAppendTime"})
        mq.publish(topic, pa.table({"value": np.arange(1_000_000).astype("S7")}))
        due_ms = -(-(now_ms() + 5_000) // 1000) * 1000
        mq.delayed.schedule(topic, "late", deliver_at=due_ms)
        until(lambda: sum(mq.end_offsets(topic).values()) == 1_000_001)
        (message,) = mq.fetch(topic, start=1_000_000).to_arrow().to_pylist()
        assert message["value"] == b"late"
        late_ms = message["timestamp"].timestamp() * 1000 - due_ms
        assert 0 <= late_ms < 2_000


@pytest.mark.slow
def test_a_new_leader_knows_what_waits_and_what_was_released(tmp_path: Path) -> None:
    with served(tmp_path) as mq:
        topic = create_quick_topic(mq)
        padding = "x" * 100
        due_ms = [now_ms() + 100 * i for i in range(40)]
        mq.publish(topic, pa.table({"value": [f"{i:02}{padding}" for i in range(40)], "deliver_at": due_ms}))
        mq.publish(topic, pa.table({"value": ["few"]}), deliver_at=due_ms[-1])
        wait_for_messages(mq, topic, 5)
    with served(tmp_path) as mq:
        assert len(values(mq, topic)) < 41
        wait_for_messages(mq, topic, 41)
        assert [value[:2] for value in values(mq, topic)] == [f"{i:02}" for i in range(40)] + ["fe"]


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize("min_rows", [later_ranges.MIN_ROWS, 1])
def test_a_new_leader_cancels_reschedules_and_drops_what_it_has_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, min_rows: int
) -> None:
    """Messages that are due within a day are packed when a leader begins, or while it already works."""
    monkeypatch.setattr(later_ranges, "MIN_ROWS", min_rows)
    with served(tmp_path) as mq:
        topic, doomed = create_quick_topic(mq), create_quick_topic(mq)
        with mq.producer() as producer:
            sent = [producer.send(topic, f"{number}", delay_ms=86_400_000 + number * 60_000) for number in range(20)]
        receipts = [future.receipt or "" for future in sent]
        receipts_of_rows = (
            mq.publish(topic, pa.table({"value": list("abc")}), delay_ms=86_400_000).receipts()["receipt"].to_pylist()
        )
        mq.delayed.cancel(receipts_of_rows[1])
        mq.publish(doomed, pa.table({"value": ["x", "y"]}), delay_ms=86_400_000)
    with served(tmp_path) as mq:
        assert len(mq._whole_state().delays.ranges.packed) >= 21
        assert mq.delayed.cancel(receipts[3]) == "cancelled"
        assert mq.delayed.cancel(receipts[3]) == "cancelled"
        assert mq.delayed.cancel(receipts_of_rows[1]) == "cancelled"
        assert mq.delayed.reschedule(receipts[4], delay_ms=0).outcome == "rescheduled"
        wait_for_messages(mq, topic, 1)
        assert values(mq, topic) == ["4"]
        assert mq.delayed.cancel(receipts[4]) == "rescheduled"
        mq.topics.delete(doomed)
        (waiting,) = mq.delayed.all()
        assert (waiting.topic, waiting.messages) == (topic, 20 - 2 + 2)
        assert mq.delayed.cancel_where(topic).num_rows == 20
        assert mq.delayed.all() == []
    with served(tmp_path) as mq:
        assert mq.delayed.all() == []


@pytest.mark.slow
@pytest.mark.extended
def test_a_file_that_is_gone_stops_nobody_else(tmp_path: Path) -> None:
    with served(tmp_path) as mq:
        topic = create_quick_topic(mq)
        padding = "x" * 1000
        due_ms = [now_ms() + 1000 + i for i in range(0, 300, 100)]
        before = set((tmp_path / "mq" / "messages").glob("*.parquet"))
        table = pa.table({"value": [padding] * 3, "deliver_at": due_ms})
        mq.publish(topic, table)
        mq.publish(topic, pa.table({"value": ["few"]}), delay_ms=1_500)
        (lost,) = set((tmp_path / "mq" / "messages").glob("*.parquet")) - before
    lost.rename(tmp_path / "lost")
    with served(tmp_path) as mq:
        wait_for_messages(mq, topic, 1)
        assert values(mq, topic) == ["few"]
    (tmp_path / "lost").rename(lost)
    with served(tmp_path) as mq:
        wait_for_messages(mq, topic, 4)
        assert len(values(mq, topic)) == 4


@pytest.mark.slow
def test_a_run_of_a_schedule_releases_all_that_is_due(tmp_path: Path) -> None:
    config = {**CONFIG, "release.max.ranges": 3}
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=config) as mq:
        with mq.serving():
            mq.topics.create("t", config={"delay.slot.ms": 50})
            due_ms = [now_ms() + 400 + 50 * i for i in range(20)]
            mq.publish("t", pa.table({"value": [f"{i:02}" + "x" * 200 for i in range(20)], "deliver_at": due_ms}))
        time.sleep(1.5)
        before = len(values(mq, "t"))
        mq.step_until_idle(wait_ms=5_000)
        assert [value[:2] for value in values(mq, "t")] == [f"{i:02}" for i in range(20)]
        assert before < 20


@pytest.mark.slow
@pytest.mark.extended
def test_the_table_tells_what_waits_and_what_became_of_it(tmp_path: Path) -> None:
    with served(tmp_path) as mq:
        topic = create_quick_topic(mq)
        mq.publish(topic, pa.table({"value": ["a"]}), delay_ms=0)
        mq.publish(topic, pa.table({"value": ["b"]}), delay_ms=10**9)
        wait_for_messages(mq, topic, 1)
    with served(tmp_path) as mq:
        rows = mq.namespace.store.open(DELAYED).read().sort_by("step").to_pylist()
        newest = {(row["file_id"], row["first_row"]): row for row in rows}
        states = sorted((row["state"], row["released_count"], row["removed"]) for row in newest.values())
        assert states == [("released", 1, True), ("waiting", 0, False)]
        pending = sql(mq, "SELECT topic, state, messages, ranges, first_due >= due_hour FROM pending_delayed")
        assert pending == [(topic, "waiting", 1, 1, True)]
        rows = sql(mq, "SELECT topic, partition, key, deliver_at >= timestamp FROM pending_delayed_rows")
        assert rows == [(topic, 0, None, True)]
        history = "SELECT state, messages, late_ms, ended_by FROM delayed_history"
        ((*state_and_count, late_ms, changed_by),) = sql(mq, history)
        assert (state_and_count, changed_by) == (["released", 1], None)
        assert 0 <= late_ms < 10_000
        moved = mq.delayed.schedule(topic, "c", delay_ms=10**9)
        mq.delayed.cancel(mq.delayed.reschedule(moved, delay_ms=10**8).receipt or "")
        until(lambda: len(sql(mq, history)) == 3)
        ended = [row for row in sql(mq, history) if row[0] != "released"]
        assert sorted(row[:3] for row in ended) == [("cancelled", 1, None), ("rescheduled", 1, None)]
        assert all(row[3].startswith(mq.requester._client_id) for row in ended)


@pytest.mark.slow
@pytest.mark.extended
def test_the_history_counts_each_message_as_what_became_of_it(tmp_path: Path) -> None:
    """Ten messages of one range: seven are cancelled, one is rescheduled, two are released."""
    with served(tmp_path) as mq:
        topic = create_quick_topic(mq)
        due_ms = now_ms() + 3_000
        receipts = mq.publish(topic, pa.table({"value": list("abcdefghij")}), deliver_at=due_ms).receipts()
        texts = receipts.column("receipt").to_pylist()
        assert mq.delayed.cancel_all(texts[1:8]) == ["cancelled"] * 7
        assert mq.delayed.reschedule(texts[9], delay_ms=10**9).outcome == "rescheduled"
        wait_for_messages(mq, topic, 2)
        doomed = create_quick_topic(mq)
        mq.publish(doomed, pa.table({"value": ["x", "y"]}), delay_ms=10**9)
        with suppress(ZeroDivisionError), mq.transaction("etl") as transaction:
            transaction.publish(topic, pa.table({"value": ["z"]}), delay_ms=10**9)
            raise ZeroDivisionError
        mq.topics.delete(doomed)
    with served(tmp_path) as mq:
        history = (
            f"SELECT state, sum(messages) FROM delayed_history WHERE topic IN ('{topic}', '{doomed}') GROUP BY state"
        )
        counts = {(state, int(count)) for state, count in sql(mq, history)}
        assert counts == {("released", 2), ("cancelled", 7 + 2), ("rescheduled", 1), ("aborted", 1)}
        late = sql(mq, f"SELECT late_ms FROM delayed_history WHERE topic = '{topic}' AND state = 'released'")
        assert all(late_ms >= 0 for (late_ms,) in late)


def sql(mq: Connection, query: str) -> list[tuple[Any, ...]]:
    return list(run_query(mq.namespace, query)[1])


@pytest.mark.slow
def test_who_serves_rests_while_what_waits_is_far_away(mq: Connection) -> None:
    mq.publish(new_topic(mq), pa.table({"value": ["a"]}), delay_ms=10**9)
    time.sleep(0.5)
    began, step = time.process_time(), mq.state().step
    time.sleep(1)
    assert time.process_time() - began < 0.5
    assert mq.state().step <= step + 2


# -- receipts ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_message_that_is_cancelled_never_comes(mq: Connection) -> None:
    topic = create_quick_topic(mq)
    receipt = mq.delayed.schedule(topic, "never", "k", delay_ms=600)
    kept_receipt = mq.delayed.schedule(topic, "comes", delay_ms=600)
    assert mq.delayed.cancel(receipt) == "cancelled"
    wait_for_messages(mq, topic, 1)
    time.sleep(0.2)
    assert values(mq, topic) == ["comes"]
    assert mq.delayed.cancel_all([receipt, kept_receipt]) == ["cancelled", "released"]
    assert mq.delayed.cancel_all([]) == []
    assert mq.delayed.pointer_ms() > 0


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize("count", [1, 30, 2_000])
def test_every_receipt_of_a_batch_names_its_own_message(mq: Connection, count: int) -> None:
    """The rows ride in the journal or are in a file. The topics differ in partitions and in how they round times."""
    topics = [new_topic(mq, 3), new_topic(mq, 2), new_topic(mq, 2)]
    for topic, slot_ms in zip(topics, (50, 20, 20), strict=True):
        mq.topics.alter(topic, {"delay.slot.ms": slot_ms}, subscriptions=[f"{topics[0]}/>"])
    base_ms = now_ms() + 5_000
    with mq.producer(linger_ms=200) as producer:
        sent = [
            producer.send(f"{topics[0]}/x", f"{i}", f"k{i % 7}", deliver_at=base_ms + (37 * i) % 500 if i % 5 else None)
            for i in range(count)
        ]
        producer.flush()
        receipts = {i: metadata.receipt for i, metadata in enumerate(sent)}
    assert all((receipts[i] is None) == (i % 5 == 0) for i in receipts)
    cancelled = {i for i in receipts if i % 5 and i % 3 == 0}
    assert set(mq.delayed.cancel_all([receipts[i] or "" for i in sorted(cancelled)])) <= {"cancelled"}
    assert now_ms() < base_ms, "the machine is too slow for this test"
    expected = sorted(str(i) for i in range(count) if i not in cancelled)
    for topic in topics:
        wait_for_messages(mq, topic, len(expected))
        assert sorted(values(mq, topic)) == expected


@pytest.mark.slow
def test_what_is_rescheduled_comes_at_the_other_time_and_has_another_receipt(mq: Connection) -> None:
    topic = create_quick_topic(mq)
    first = mq.delayed.schedule(topic, "moved", delay_ms=10**9)
    mq.delayed.schedule(topic, "before", delay_ms=100)
    due_ms = now_ms() + 500
    moved = mq.delayed.reschedule(first, deliver_at=due_ms)
    assert moved.outcome == "rescheduled"
    assert due_ms <= (moved.deliver_at_ms or 0) < due_ms + 50
    assert mq.delayed.reschedule(first, delay_ms=0) == RescheduleResult("rescheduled")
    assert mq.delayed.cancel(first) == "rescheduled"
    assert (moved.deliver_at_ms or 0) <= wait_for_messages(mq, topic, 2)
    assert values(mq, topic) == ["before", "moved"]
    assert mq.delayed.cancel_all([first, moved.receipt or ""]) == ["rescheduled", "released"]
    assert mq.delayed.reschedule(moved.receipt or "", delay_ms=0) == RescheduleResult("released")


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize("count", [30, 2_000])
def test_rows_in_the_middle_are_rescheduled_again_and_again(mq: Connection, count: int) -> None:
    topic, other = create_quick_topic(mq), create_quick_topic(mq)
    mq.topics.alter(other, {}, subscriptions=[f"{topic}/>"])
    mq.topics.alter(topic, {}, subscriptions=[f"{topic}/>"])
    with mq.producer(linger_ms=200) as producer:
        base_ms = now_ms() + 10**8
        sent = [producer.send(f"{topic}/x", f"{i}", deliver_at=base_ms + i) for i in range(count)]
    chosen = [0, count // 2, count - 1]
    receipts = {i: sent[i].receipt or "" for i in chosen}
    for delay_ms in (10**7, 10**8, 300):
        results = {i: mq.delayed.reschedule(receipt, delay_ms=delay_ms) for i, receipt in receipts.items()}
        receipts = {i: result.receipt or "" for i, result in results.items()}
    assert mq.delayed.cancel(receipts.pop(0)) == "cancelled"
    for name in (topic, other):
        wait_for_messages(mq, name, 2)
        assert sorted(values(mq, name)) == sorted(map(str, chosen[1:]))
        assert mq.delayed.all(name)[0].messages == count - 3


def test_a_time_that_is_none_reschedules_nothing(mq: Connection) -> None:
    topic = create_quick_topic(mq, **{"delay.mode": "levels"})
    receipt = mq.delayed.schedule(topic, "v", delay_ms=5_000)
    for options, error in (
        ({}, InvalidRequest),
        ({"delay_ms": -1}, InvalidTimestamp),
        ({"deliver_at": YEAR_9999_MS}, DelayTooLong),
        ({"deliver_at": 1, "delay_ms": 1}, InvalidRecord),
    ):
        with pytest.raises(error):
            mq.delayed.reschedule(receipt, **options)
    before_ms = now_ms()
    moved = mq.delayed.reschedule(receipt, delay_ms=6_000)
    assert 10_000 <= (moved.deliver_at_ms or 0) - before_ms < 20_000
    assert mq.delayed.cancel(moved.receipt or "") == "cancelled"


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize("count", [3, 400, pytest.param(300_000, marks=pytest.mark.long)])
def test_receipts_of_a_publish_are_a_table(mq: Connection, count: int) -> None:
    """Few rows, rows that ride in the journal, and rows in several files. Each receipt names its own message."""
    topic = new_topic(mq, 3)
    far_ms = now_ms() // 1000 * 1000 + 10**9
    table = pa.table(
        {
            "key": [f"k{i}" for i in range(count)],
            "value": ["x"] * count,
            "deliver_at": [None if i % 3 == 1 else far_ms + 1000 * ((7 * i) % 9000) for i in range(count)],
        }
    )
    receipts = mq.publish(topic, table).receipts()
    assert receipts.column("row").to_pylist() == [i for i in range(count) if i % 3 != 1]
    matching = mq.delayed.cancel_where(topic, dry_run=True)
    expected = {f"k{row['row']}".encode(): (row["deliver_at"], row["receipt"]) for row in receipts.to_pylist()}
    assert {row["key"]: (row["deliver_at"], row["receipt"]) for row in matching.to_pylist()} == expected
    assert set(mq.delayed.cancel_all(receipts)) == {"cancelled"}
    assert mq.delayed.all(topic) == []


@pytest.mark.slow
@pytest.mark.extended
def test_of_fan_out_each_row_has_one_receipt(mq: Connection) -> None:
    topics = [new_topic(mq, 3), new_topic(mq, 2), new_topic(mq, 2)]
    for topic, slot_ms in zip(topics, (50, 20, 20), strict=True):
        mq.topics.alter(topic, {"delay.slot.ms": slot_ms}, subscriptions=[f"{topics[0]}/>"])
    rows = pa.table({"value": [f"{i}" for i in range(500)], "delay_ms": [10**9 + (31 * i) % 977 for i in range(500)]})
    receipts = mq.publish(f"{topics[0]}/x", rows).receipts()
    assert set(mq.delayed.cancel_all(receipts.column("receipt"))) == {"cancelled"}
    assert not any(mq.delayed.all(topic) for topic in topics)


def test_of_what_does_not_wait_there_are_no_receipts(mq: Connection) -> None:
    assert mq.publish(new_topic(mq), pa.table({"value": ["a"]})).receipts().num_rows == 0


@pytest.mark.slow
@pytest.mark.extended
def test_what_something_is_true_of_is_cancelled(mq: Connection) -> None:
    topic, other = create_quick_topic(mq), create_quick_topic(mq)
    late_ms = now_ms() + 10**9
    rows = {"key": ["a", "b"] * 50, "value": ["v"] * 100, "deliver_at": [late_ms + i * 50 for i in range(100)]}
    receipts = mq.publish(topic, pa.table(rows)).receipts().column("receipt").to_pylist()
    receipt_of_other = mq.delayed.schedule(other, "v", key="a", headers={"h": b"x"}, delay_ms=10**9)
    moved = mq.delayed.reschedule(receipts[0], delay_ms=3 * 10**9).receipt
    mq.delayed.cancel(receipts[2])
    assert mq.delayed.cancel_where(topic, "nobody").num_rows == 0
    preview = mq.delayed.cancel_where(topic, b"a", dry_run=True)
    assert (preview.num_rows, set(preview.column("outcome").to_pylist())) == (49, {"waiting"})
    assert moved in preview.column("receipt").to_pylist()
    late = f"deliver_at >= '{datetime.fromtimestamp(late_ms / 1000 + 4.5, timezone.utc)}' AND key = 'b'"
    cancelled = mq.delayed.cancel_where(topic, predicate=late)
    assert set(cancelled.column("outcome").to_pylist()) == {"cancelled"}
    assert 4 <= cancelled.num_rows <= 6
    assert mq.delayed.all(topic)[0].messages == 99 - cancelled.num_rows
    assert mq.delayed.cancel_where(other, predicate="headers[1].key = 'h'").column("receipt").to_pylist() == [
        receipt_of_other
    ]
    assert mq.delayed.cancel_where(topic).num_rows == 99 - cancelled.num_rows
    with pytest.raises(InvalidRequest):
        mq.delayed.cancel_where()


@pytest.mark.parametrize("predicate", ["nope = 1", "1) or (1=1", "true; SELECT 1", "EXISTS (FROM '/etc/passwd')"])
def test_a_predicate_that_is_none_is_refused(mq: Connection, predicate: str) -> None:
    with pytest.raises(InvalidRequest, match="predicate"):
        mq.delayed.cancel_where(predicate=predicate)


@pytest.mark.slow
@pytest.mark.extended
def test_of_a_cancel_and_a_release_that_meet_one_happens(mq: Connection) -> None:
    topic, count = create_quick_topic(mq), 300
    due_ms = now_ms() + 900
    rows = pa.table({"value": [f"{i:03}" for i in range(count)], "deliver_at": [due_ms + 15 * i for i in range(count)]})
    receipts = mq.publish(topic, rows).receipts()
    wait_for_messages(mq, topic, 1)
    chosen = [*range(0, count, 7)]
    first_outcomes = [mq.delayed.cancel(receipt.as_py()) for receipt in receipts.column("receipt").take(chosen)]
    outcomes = mq.delayed.cancel_where(topic).column("outcome").to_pylist() + first_outcomes
    wait_for_messages(mq, topic, count - outcomes.count("cancelled"))
    time.sleep(0.3)
    assert len(values(mq, topic)) == count - outcomes.count("cancelled")
    assert {f"{i:03}" for i, outcome in zip(chosen, first_outcomes, strict=True) if outcome == "cancelled"}.isdisjoint(
        values(mq, topic)
    )
    assert set(outcomes) == {"cancelled", "released"}
    assert mq.delayed.all(topic) == []


@pytest.mark.slow
@pytest.mark.extended
def test_the_job_releases_what_is_due_and_tells(tmp_path: Path) -> None:
    path = str(tmp_path / "mq")
    with lakemq.connect(path, create=True, config=CONFIG) as mq, mq.serving():
        topic, padding = create_quick_topic(mq), "x" * 300
        far = [now_ms() + 200 + 50 * i for i in range(20)] + [now_ms() + 30 * 60_000 + i for i in range(3)]
        mq.publish(topic, pa.table({"value": [padding] * 23, "deliver_at": far}))
        mq.delayed.schedule(topic, "soon", delay_ms=100)
    time.sleep(1.5)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["--path", path, "delayed", "release", *arguments])
        assert result.exit_code == 0, result.stderr
        return result.stdout

    assert "messages released, the first of them 0:00:" in run()
    assert run().startswith("nothing released; next due 2")
    with lakemq.connect(path, config=CONFIG) as mq, mq.serving():
        assert len(values(mq, topic)) == 21
        mq.delayed.schedule(topic, "then", deliver_at=now_ms() + 4_000)
        assert run("--until", str(now_ms() + 4_300)).startswith("1 messages released")
        assert values(mq, topic)[-1] == "then"


@pytest.mark.slow
@pytest.mark.extended
def test_a_job_that_watches_tells_of_each_release_until_it_is_stopped(tmp_path: Path) -> None:
    stop, sentences = threading.Event(), list[str]()
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=CONFIG) as mq:
        watching = threading.Thread(
            target=release, args=(mq, None, True, stop, lambda progress: sentences.append(sentence(progress)))
        )
        watching.start()
        topic = create_quick_topic(mq)
        for count in (1, 2):
            mq.publish(topic, pa.table({"value": ["x"]}), delay_ms=50)
            until(lambda count=count: len(sentences) >= count)  # type: ignore[misc]
        stop.set()
        watching.join()
    assert [line.split(",")[0] for line in sentences] == ["1 messages released"] * 2 + ["2 messages released"]
    assert sentences[-1].endswith("none wait")


@pytest.mark.slow
@pytest.mark.extended
def test_a_job_fails_on_what_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    with lakemq.connect(str(path), create=True, config=CONFIG) as mq, mq.serving():
        mq.topics.create("t", config={"delay.slot.ms": 50})
        due_ms = [now_ms() + 3_000, now_ms() + 3_300]  # not before the file has left the folder
        mq.publish("t", pa.table({"value": ["x" * 2000] * 2, "deliver_at": due_ms}))
    (lost,) = (path / "messages").glob("*.parquet")
    lost.unlink()
    result = CliRunner().invoke(app, ["--path", str(path), "delayed", "release", "--until", str(due_ms[1] + 100)])
    assert result.exit_code != 0
    assert "2 messages" in result.stderr


@pytest.mark.slow
@pytest.mark.extended
def test_what_waits_is_told_by_topic(mq: Connection) -> None:
    topic = create_quick_topic(mq)
    mq.publish(topic, pa.table({"value": ["a", "b"], "delay_ms": [10**8, 10**9]}))
    producer = mq.producer(f"{topic}-etl")
    producer.begin_transaction()
    producer.send(topic, "c", delay_ms=10**9)
    producer.flush()
    (waiting,) = mq.delayed.all(topic)
    assert (waiting.messages, waiting.open) == (3, 1)
    assert waiting.last_due_ms - waiting.first_due_ms >= 9 * 10**8 - 50
    assert waiting in mq.delayed.all()
    producer.abort_transaction()
    producer.close()
    assert mq.delayed.all(topic)[0].messages == 2


@pytest.mark.parametrize("receipt", ["", "x", "lmq1:a", "lmq1:a:1.2.3", "lmq1:other:1.2.3.4", "lmq1:other:1.2.3.4\n"])
def test_a_receipt_that_is_none_is_refused(mq: Connection, receipt: str) -> None:
    with pytest.raises(InvalidReceipt):
        mq.delayed.cancel(receipt)


def test_a_forged_receipt_finds_nothing(mq: Connection) -> None:
    topic = create_quick_topic(mq)
    real = mq.delayed.schedule(topic, "v", delay_ms=10**9)
    places = real.rpartition(":")[2].split(".")
    for position, number in ((0, "fff"), (1, "fff"), (2, "fff"), (3, "1")):
        forged = real.rpartition(":")[0] + ":" + ".".join([*places[:position], number, *places[position + 1 :]])
        assert mq.delayed.cancel(forged) == "not_found"
    with pytest.raises(LakeMQError):
        mq.delayed.cancel(real.rpartition(":")[0] + ":" + ".".join([*places[:3], "f" * 16]))
    assert mq.delayed.cancel(real) == "cancelled"


@pytest.mark.slow
@pytest.mark.extended
def test_what_became_of_a_message_is_told_for_as_long_as_the_history_lasts(tmp_path: Path) -> None:
    """The outcome comes from the journal's tail, then from the table, also after a merge. Later it is gone."""
    path, config = str(tmp_path / "mq"), {**CONFIG, "compact.min.files": 2, "checkpoint.interval": 5}
    with lakemq.connect(path, create=True, config=config) as mq, mq.serving():
        topic = create_quick_topic(mq)
        ids = [mq.delayed.schedule(topic, f"{i}", delay_ms=10**9 if i < 2 else 0) for i in range(3)]
        wait_for_messages(mq, topic, 1)
        assert mq.delayed.cancel(ids[0]) == "cancelled"
        assert mq.delayed.reschedule(ids[1], delay_ms=0).outcome == "rescheduled"
        wait_for_messages(mq, topic, 2)
        for _ in range(12):
            assert mq.delayed.cancel_all(ids) == ["cancelled", "rescheduled", "released"]
            mq.delayed.cancel(mq.delayed.schedule(topic, "more", delay_ms=10**9))
            time.sleep(0.3)
    assert count_kept_rows(path, {**config, "delay.history.ms": 10**9}) > 0
    assert count_kept_rows(path, {**config, "delay.history.ms": 0}) == 0


def count_kept_rows(path: str, config: dict[str, Any]) -> int:
    """Return how many rows of ended ranges a merge of the whole table keeps."""
    with lakemq.connect(path, config=config) as mq:
        handle = mq.namespace.store.open(DELAYED)
        rows, now = handle.read(), now_ms()
        since_ms = now - mq.namespace.config.ms("delay.history.ms")
        return _drop_outdated_rows(DELAYED, rows, handle.last_step(), whole=True, history_since_ms=since_ms).num_rows


@pytest.mark.long  # ten seconds of processes
def test_the_command_lists_and_cancels(mq: Connection) -> None:
    topic = create_quick_topic(mq)
    receipt = mq.delayed.schedule(topic, "v", delay_ms=10**9)

    def run(*arguments: str) -> list[list[str]]:
        result = CliRunner().invoke(app, ["--path", mq.namespace.path, "delayed", *arguments])
        assert result.exit_code == 0, result.stderr
        return [line.split() for line in result.stdout.splitlines()[1:]]

    assert [topic, "1", "0", "1"] in [line[:4] for line in run("list")]
    assert [line[:2] for line in run("describe", topic)] == [[topic, "1"]]
    ((outcome, *_, moved),) = run("reschedule", receipt, "--deliver-at", "2200-01-01")
    assert outcome == "rescheduled"
    assert run("cancel", receipt, moved) == [[receipt, "rescheduled"], [moved, "cancelled"]]
    mq.publish(topic, pa.table({"key": ["a", "b", "b"], "value": ["v"] * 3}), delay_ms=10**9)
    assert [line[-1] for line in run("cancel", "--topic", topic, "--key", "b", "--dry-run")] == ["waiting"] * 2
    assert [line[-1] for line in run("cancel", "--topic", topic, "--where", "key = 'a'", "--yes")] == ["cancelled"]
    assert run("purge", topic, "--yes") == [["cancelled", "2"]]
    assert run("describe", topic) == []
    publish = ["--path", mq.namespace.path, "publish", "--topic", topic, "--format", "lines", "--delay-ms", "1000000"]
    result = CliRunner().invoke(app, publish, input="a\nb\n")
    assert "delayed messages, which wait for their time: 2" in result.stderr
    assert run("purge", topic, "--yes") == [["cancelled", "2"]]
