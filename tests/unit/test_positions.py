"""The start of a fetch and of a tail: exact to the microsecond, never a negative offset, after deleted messages."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from unit.served import new_name, new_topic

from lakemq.engine.client.connection import Connection
from lakemq.errors import InvalidRequest, OffsetOutOfRange, UnknownTopicOrPartition

pytestmark = pytest.mark.slow

AT = datetime(2024, 5, 1, 12, 0, 0, 123_456, tzinfo=UTC)
US = timedelta(microseconds=1)


def read_texts(table: pa.Table) -> list[str]:
    return [value.decode() for value in table["value"].to_pylist()]


def add(mq: Connection, topic: str, *messages: str, partition: int = 0) -> None:
    mq.publish(topic, pa.table({"value": list(messages), "partition": [partition] * len(messages)}))


# -- times ----------------------------------------------------------------------------------------------


def test_fetch_begins_at_its_start_time_to_the_microsecond(mq: Connection, topic: str) -> None:
    stamps = [AT - 2 * US, AT - US, AT, AT + US, AT + 2 * US]
    table = pa.table({"value": ["-2", "-1", "0", "1", "2"], "timestamp": pa.array(stamps, pa.timestamp("us", "UTC"))})
    for part in (table[:3], table[3:4], table[4:]):  # segments share the millisecond
        mq.publish(topic, part)
    for i, stamp in enumerate(stamps):
        assert read_texts(mq.fetch(topic, start=stamp).to_arrow()) == ["-2", "-1", "0", "1", "2"][i:]
        assert read_texts(mq.fetch(topic, end=stamp).to_arrow()) == ["-2", "-1", "0", "1", "2"][:i]
        assert mq.offsets_for_times(topic, {0: stamp}) == {0: (i, 1_714_564_800_123)}
    assert mq.fetch(topic, start=AT + 3 * US).record_count == 0
    assert mq.offsets_for_times(topic, {0: 1_714_564_800_123}) == {0: (0, 1_714_564_800_123)}
    assert mq.offsets_for_times(topic, {0: 1_714_564_800_124}) == {0: None}


def test_bad_times_and_positions_are_refused(mq: Connection, topic: str) -> None:
    wrong: Any
    for wrong in ("today", 1.5, None, True, -(10**16), -(2**63)):
        with pytest.raises(InvalidRequest, match="is not valid"):
            mq.offsets_for_times(topic, {0: wrong})
    with pytest.raises(InvalidRequest, match="looks like seconds"):
        mq.offsets_for_times(topic, {0: 1_714_564_800})
    for wrong in ("soon", 1.0, True, {0: 1.0}, {0: "1"}, {0: None}, {0: [1]}, [0], None):
        with pytest.raises(InvalidRequest, match="is not valid"):
            mq.fetch(topic, start=wrong)


# -- offsets --------------------------------------------------------------------------------------------


def test_negative_offset_is_refused(mq: Connection, topic: str) -> None:
    add(mq, topic, "a")
    for end in ("start", "end"):
        for position in (-1, {0: -3}):
            with pytest.raises(OffsetOutOfRange, match="not negative"):
                mq.fetch(topic, **{end: position})  # type: ignore[arg-type]
    with mq.consumer(new_name("group"), assign=[topic]) as consumer, pytest.raises(OffsetOutOfRange):
        consumer.seek(topic, 0, -1)


# -- tails ----------------------------------------------------------------------------------------------


def test_tail_continues_at_the_log_start(mq: Connection) -> None:
    topic = new_topic(mq, 2)
    add(mq, topic, "0", "1", "2")
    tail = mq.tail(topic, start="earliest", poll_ms=1)
    assert read_texts(next(tail)) == ["0", "1", "2"]
    add(mq, topic, "3", "4")
    add(mq, topic, "other", partition=1)
    mq.topics.delete_records(topic, {0: 4})
    assert read_texts(next(tail)) == ["4", "other"]
    mq.topics.delete_records(topic, {0: -1})
    add(mq, topic, "5")
    assert read_texts(next(tail)) == ["5"]


def test_tail_begins_at_the_end_of_the_log_at_its_call_and_reads_added_partitions(mq: Connection, topic: str) -> None:
    add(mq, topic, "before")
    tail = mq.tail(topic, poll_ms=1)
    add(mq, topic, "after")
    assert read_texts(next(tail)) == ["after"]
    mq.topics.alter(topic, partitions=2)
    add(mq, topic, "added", partition=1)
    assert read_texts(next(tail)) == ["added"]


@pytest.mark.parametrize("is_recreated", [False, True])
def test_tail_of_a_deleted_topic_raises(mq: Connection, topic: str, is_recreated: bool) -> None:
    add(mq, topic, "old")
    tail = mq.tail(topic, start="earliest", poll_ms=1)
    assert read_texts(next(tail)) == ["old"]
    mq.topics.delete(topic)
    if is_recreated:
        mq.topics.create(topic)
        add(mq, topic, "new 0", "new 1")
    with pytest.raises(UnknownTopicOrPartition, match="deleted while it was followed"):
        next(tail)
