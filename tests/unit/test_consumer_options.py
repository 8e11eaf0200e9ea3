"""The options of `mq.consumer`: documented keywords with their defaults; and what type checkers know of them."""

import logging
from typing import Any

import pytest
from unit.consuming import add, name_what_to_read, new_group, texts
from unit.served import new_name, new_topic, until

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.group_consumer import read_member_options
from lakemq.errors import InvalidRequest

QUEUE = {"group.protocol": "queue"}


@pytest.mark.parametrize(("heartbeat_ms", "warns"), [(2_000, False), (2_001, True)])
def test_session_shorter_than_three_heartbeats_logs_a_warning(
    heartbeat_ms: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    read_member_options(["t"], QUEUE, {"session_timeout_ms": 6_000, "heartbeat_interval_ms": heartbeat_ms})
    assert ("third of the session" in caplog.text) == warns


def test_session_as_short_as_a_heartbeat_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="less than 6000 ms"):
        read_member_options(["t"], QUEUE, {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 6_000})


def test_assignor_is_a_name_or_a_list_in_order_of_preference() -> None:
    for assignor, assignors in (
        (None, []),
        ("sticky", ["sticky"]),
        (["cooperative-sticky", "range"], ["cooperative-sticky", "range"]),
        (("range", "range", "sticky"), ["range", "sticky"]),
    ):
        chosen = read_member_options(["t"], QUEUE, {"assignor": assignor})
        assert (chosen.assignors, chosen.config) == (assignors, QUEUE)
    wrong: Any
    for wrong in ([], [3], {"range": 1}, 3, [f"a{n}" for n in range(21)]):
        with pytest.raises(InvalidRequest, match="assignor"):
            read_member_options(["t"], QUEUE, {"assignor": wrong})


CLASSIC = pytest.param("classic", marks=pytest.mark.extended)
READERS = pytest.mark.parametrize("protocol", [None, "queue", "cooperative", CLASSIC])


@pytest.mark.slow
@READERS
def test_new_group_logs_how_many_offsets_it_reads(
    mq: Connection, protocol: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = new_topic(mq, 2), new_group(mq, protocol)
    add(mq, topic, {0: 3, 1: 1})
    with caplog.at_level(logging.INFO, "lakemq.consumer"):
        with mq.consumer(group, **name_what_to_read(topic, protocol)) as consumer:
            read_texts: list[str] = []
            until(lambda: bool(read_texts.extend(texts(consumer.poll(timeout_ms=20))) or len(read_texts) == 4))
            consumer.commit()
        with mq.consumer(group, **name_what_to_read(topic, protocol)) as consumer:
            consumer.poll()
    log_records = [record for record in caplog.records if "is new to" in record.message]
    assert [(record.levelname, record.message) for record in log_records] == [
        (
            "INFO",
            f"Group {group} is new to {topic} and begins at its start: it reads the 4 offsets that are already there.",
        )
    ]


@pytest.mark.slow
@READERS
def test_new_group_at_latest_logs_how_many_offsets_it_skips(
    mq: Connection, protocol: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    add(mq, topic, {0: 3, 1: 1})
    with mq.consumer(group, **name_what_to_read(topic, protocol), auto_offset_reset="latest") as consumer:
        consumer.poll()
        with mq.consumer(
            new_name("g"), **name_what_to_read(new_topic(mq), protocol), auto_offset_reset="latest"
        ) as other:
            other.poll()  # of an empty topic it skips nothing
    log_records = [record for record in caplog.records if "is new to" in record.message]
    assert [record.levelname for record in log_records] == ["WARNING"]
    assert f"Group {group} is new to {topic} and begins behind 4 offsets" in log_records[0].message
