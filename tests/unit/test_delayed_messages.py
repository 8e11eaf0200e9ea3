"""Delayed messages as a user sees them: published, waiting, released, fetched, and refused."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from unit.served import create_quick_topic, new_topic, now_ms, served, until, values, wait_for_messages

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.sequencer.sequencer import StepReport
from lakemq.errors import DelayTooLong, InvalidRecord, InvalidTimestamp, LakeMQError
from lakemq.tables.specs.messages import HEADERS

YEAR_9999_MS = 253_402_300_799_999


@pytest.mark.slow
@pytest.mark.parametrize("how", ["send", "riding", "stored"])
def test_delayed_message_comes_when_it_is_due(mq: Connection, how: str) -> None:
    topic, due_ms = create_quick_topic(mq), now_ms() + 300
    if how == "send":
        size = 1
        with mq.producer() as producer:
            place = producer.send(topic, "late", deliver_at=due_ms).result()
            assert producer.send(topic, "now").result().offset == 0
        assert place.offset == -1
        assert due_ms <= (place.deliver_at_ms or 0) < due_ms + 50
    else:
        size = {"riding": 300, "stored": 3000}[how]
        late = pa.table({"value": ["late"], "deliver_at": [due_ms]})
        rows_due_now = pa.table({"value": ["now"] * size, "deliver_at": pa.nulls(size, pa.int64())})
        assert mq.publish(topic, pa.concat_tables([late, rows_due_now])).units[0].record_count == size
    assert wait_for_messages(mq, topic, size + 1) >= due_ms
    assert values(mq, topic)[-1] == "late"


def test_released_message_looks_like_any_other(mq: Connection) -> None:
    topic = create_quick_topic(mq)
    with mq.producer() as producer:
        producer.send(topic, "v", "k", {"h": b"x"}, timestamp_ms=5_000_000, deliver_at=now_ms())
    wait_for_messages(mq, topic, 1)
    (message,) = mq.fetch(topic)
    assert (message.key, message.value, message.headers) == (b"k", b"v", (("h", b"x"),))
    assert message.timestamp == datetime.fromtimestamp(5_000, UTC)


@pytest.mark.slow
def test_delay_counts_from_the_call_whatever_the_timestamp_is(mq: Connection) -> None:
    by_producer, by_log = (
        create_quick_topic(mq),
        create_quick_topic(mq, **{"message.timestamp.type": "LogAppendTime"}),
    )
    dues_ms = {}
    with mq.producer() as producer:
        for topic in (by_producer, by_log):
            before_ms = now_ms()
            sent = producer.send(topic, "v", timestamp_ms=1_000, delay_ms=600).result()
            dues_ms[topic] = sent.deliver_at_ms or 0
            assert before_ms + 600 <= dues_ms[topic] <= now_ms() + 650
    for topic, due_ms in dues_ms.items():
        assert wait_for_messages(mq, topic, 1) >= due_ms
    (old,), (stamped,) = mq.fetch(by_producer), mq.fetch(by_log)
    assert old.timestamp == datetime.fromtimestamp(1, UTC)
    assert stamped.timestamp >= datetime.fromtimestamp(dues_ms[by_log] / 1000, UTC)


def test_delay_above_the_last_level_is_refused_or_clamped(mq: Connection) -> None:
    topic = create_quick_topic(mq, **{"delay.mode": "levels"})
    with mq.producer(on_error="fail") as producer:
        assert isinstance(producer.send(topic, "v", delay_ms=7_200_001).exception(), DelayTooLong)
        mq.topics.alter(topic, {"delay.levels.overflow": "clamp"})
        before_ms = now_ms()
        due_ms = producer.send(topic, "v", delay_ms=7_200_001).result().deliver_at_ms or 0
        assert before_ms <= due_ms - 7_200_000 < now_ms() + 50


def test_delay_may_be_400_days_or_end_in_the_year_9999(mq: Connection) -> None:
    topic, delay_ms = create_quick_topic(mq), 400 * 86_400_000
    with mq.producer() as producer:
        sent = producer.send(topic, "v", delay_ms=delay_ms).result()
        last = producer.send(topic, "v", deliver_at=YEAR_9999_MS // 50 * 50).result()
    assert delay_ms <= (sent.deliver_at_ms or 0) - sent.timestamp_ms < delay_ms + 50
    assert last.deliver_at_ms == YEAR_9999_MS // 50 * 50


BAD_DELAYS: list[tuple[type[LakeMQError], dict[str, Any]]] = [
    (InvalidTimestamp, {"delay_ms": -1}),
    (InvalidTimestamp, {"delay_ms": 1.5}),
    (InvalidTimestamp, {"delay_ms": float("nan")}),
    (InvalidTimestamp, {"delay_ms": True}),
    (InvalidTimestamp, {"delay_ms": timedelta(seconds=1)}),
    (InvalidTimestamp, {"deliver_at": -1}),
    (InvalidTimestamp, {"deliver_at": YEAR_9999_MS + 1}),
    (InvalidTimestamp, {"deliver_at": "tomorrow"}),
    (InvalidTimestamp, {"deliver_at": datetime(1969, 12, 31, tzinfo=UTC)}),
    (InvalidRecord, {"deliver_at": 1, "delay_ms": 1}),
]


def test_bad_delay_is_refused_in_the_call(mq: Connection) -> None:
    topic = new_topic(mq)
    with mq.producer() as producer:
        for error, delay in BAD_DELAYS:
            with pytest.raises(error):
                producer.send(topic, "v", **delay)
            if not isinstance(delay.get("deliver_at"), str):  # of a publish, it names a column
                with pytest.raises(error):
                    mq.publish(topic, pa.table({"value": ["v"]}), **delay)
    assert values(mq, topic) == []


def test_delay_keyword_precedes_a_column_for_all_rows(mq: Connection) -> None:
    topic, table = new_topic(mq), pa.table({"value": ["a", "b"], "delay_ms": [0, 0], "at": [10**12] * 2})
    far = datetime.fromtimestamp(now_ms() / 1000, UTC) + timedelta(days=1)
    for options in ({"deliver_at": far}, {"delay_ms": 86_400_000}):
        assert sum(unit.record_count for unit in mq.publish(topic, table, **options).waiting) == 2
    with pytest.raises(InvalidTimestamp, match="no time zone"):
        mq.publish(topic, table, deliver_at=far.replace(tzinfo=None))
    assert values(mq, topic) == []
    mq.publish(topic, table, deliver_at="at")
    assert wait_for_messages(mq, topic, 2)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["send", "riding"])
def test_delay_headers_set_the_time_and_are_removed(mq: Connection, how: str) -> None:
    topic, count = create_quick_topic(mq), {"send": 1, "riding": 300}[how]
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


def test_delayed_messages_of_a_destination_wait_in_each_topic(mq: Connection) -> None:
    topics = [new_topic(mq), new_topic(mq)]
    mq.topics.alter(topics[0], {"delay.slot.ms": 50}, subscriptions=["late/>"])
    mq.topics.alter(topics[1], {"delay.slot.ms": 70}, subscriptions=["late/>"])
    mq.publish("late/x", pa.table({"value": ["a", "b"], "delay_ms": [100, 200]}))
    for topic in topics:
        wait_for_messages(mq, topic, 2)
        assert values(mq, topic) == ["a", "b"]


@pytest.mark.slow
def test_sequencer_rests_while_delayed_messages_are_far_away(tmp_path: Path) -> None:
    with served(tmp_path) as mq:
        mq.publish(new_topic(mq), pa.table({"value": ["a"]}), delay_ms=10**9)
    with lakemq.connect(mq.namespace.path) as mq:
        sequencer = mq.sequencer()
        assert sequencer.try_lead()
        reports: list[StepReport] = []
        until(lambda: bool(reports.append(sequencer.step()) or not reports[-1].working))
        reports += [sequencer.step() for _ in range(3)]
        assert not any(report.working for report in reports[-4:])
        assert len({report.step for report in reports[-4:]}) == 1
        assert all(report.due_in_ms is None or report.due_in_ms > 1_000 for report in reports[-4:])
        sequencer.resign()
