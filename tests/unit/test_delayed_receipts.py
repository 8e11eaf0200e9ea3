"""Receipts of delayed messages: they cancel and reschedule their own message, and no other."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from unit.served import create_quick_topic, new_topic, now_ms, values, wait_for_messages

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.delayed import RescheduleResult
from lakemq.errors import DelayTooLong, InvalidReceipt, InvalidRecord, InvalidRequest, InvalidTimestamp, LakeMQError

YEAR_9999_MS = 253_402_300_799_999
SERVED_WITH = {"project.interval.ms": 50}
"""A search reads what is projected."""


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize("count", [30, 2_000])
def test_each_receipt_of_a_batch_names_its_own_message(mq: Connection, count: int) -> None:
    """The rows ride in the journal or are in a file. The topics differ in partitions and in how they round times."""
    topics = [new_topic(mq, 3), new_topic(mq, 2), new_topic(mq, 2)]
    for topic, slot_ms in zip(topics, (50, 20, 20), strict=True):
        mq.topics.alter(topic, {"delay.slot.ms": slot_ms}, subscriptions=[f"{topics[0]}/>"])
    base_ms = now_ms() + 10**9
    with mq.producer(linger_ms=200) as producer:
        sent = [
            producer.send(f"{topics[0]}/x", "v", f"{i}", deliver_at=base_ms + (37 * i) % 500 if i % 5 else None)
            for i in range(count)
        ]
        producer.flush()
        receipts = {i: metadata.receipt for i, metadata in enumerate(sent)}
    assert all((receipts[i] is None) == (i % 5 == 0) for i in receipts)
    cancelled = {i for i in receipts if i % 5 and i % 3 == 0}
    assert set(mq.delayed.cancel_all([receipts[i] or "" for i in sorted(cancelled)])) == {"cancelled"}
    expected = sorted(b"%d" % i for i in range(count) if i % 5 and i not in cancelled)
    for topic in topics:
        assert sorted(mq.delayed.cancel_where(topic)["key"].to_pylist()) == expected


@pytest.mark.slow
def test_rescheduled_message_comes_at_its_new_time_with_a_new_receipt(mq: Connection) -> None:
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


def test_bad_time_reschedules_nothing(mq: Connection) -> None:
    topic = create_quick_topic(mq, **{"delay.mode": "levels"})
    receipt = mq.delayed.schedule(topic, "v", delay_ms=5_000)
    for options, error in (
        ({}, InvalidRequest),
        ({"delay_ms": -1}, InvalidTimestamp),
        ({"deliver_at": now_ms() - 100}, InvalidTimestamp),
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
@pytest.mark.parametrize("count", [3, 400])
def test_receipts_of_a_publish_name_their_rows(mq: Connection, count: int) -> None:
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
def test_cancel_where_cancels_matching_messages(mq: Connection) -> None:
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
    late = f"deliver_at >= '{datetime.fromtimestamp(late_ms / 1000 + 4.5, UTC)}' AND key = 'b'"
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


def test_bad_predicate_is_refused(mq: Connection) -> None:
    for predicate in ("nope = 1", "1) or (1=1", "true; SELECT 1", "EXISTS (FROM '/etc/passwd')"):
        with pytest.raises(InvalidRequest, match="predicate"):
            mq.delayed.cancel_where(predicate=predicate)


def test_malformed_receipt_is_refused(mq: Connection) -> None:
    for receipt in ("", "x", "lmq1:a", "lmq1:a:1.2.3", "lmq1:other:1.2.3.4", "lmq1:other:1.2.3.4\n"):
        with pytest.raises(InvalidReceipt):
            mq.delayed.cancel(receipt)


def test_forged_receipt_finds_no_message(mq: Connection) -> None:
    topic = create_quick_topic(mq)
    real = mq.delayed.schedule(topic, "v", delay_ms=10**9)
    places = real.rpartition(":")[2].split(".")
    for position, number in ((0, "fff"), (1, "fff"), (2, "fff"), (3, "1")):
        forged = real.rpartition(":")[0] + ":" + ".".join([*places[:position], number, *places[position + 1 :]])
        assert mq.delayed.cancel(forged) == "not_found"
    with pytest.raises(LakeMQError):
        mq.delayed.cancel(real.rpartition(":")[0] + ":" + ".".join([*places[:3], "f" * 16]))
    assert mq.delayed.cancel(real) == "cancelled"
