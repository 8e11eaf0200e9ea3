"""The options of `mq.consumer`: documented keywords with their defaults."""

from __future__ import annotations

import inspect
import logging
import re
from typing import Any

import pytest
from unit.consuming import add, texts
from unit.served import new_name, new_topic, until

from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.member.member_options import read_member_options
from lakemq.engine.client.consume.options import ASSIGN_OPTIONS, CONSUMER, MEMBER_OPTIONS
from lakemq.engine.protocol.parameters import MEMBER
from lakemq.errors import InvalidConfig, InvalidRequest

QUEUE = {"group.protocol": "queue"}


def test_each_declared_option_is_a_keyword_that_the_docstring_explains() -> None:
    parameters = inspect.signature(Connection.consumer).parameters
    keywords = [name for name, parameter in parameters.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    assert sorted(keywords) == sorted(CONSUMER)
    explained = inspect.getdoc(Connection.consumer) or ""
    for name, option in CONSUMER.items():
        assert f"\n    {name}: " in explained
        if option.default is not None:
            assert str(option.default) in re.split(r"\n    \S", explained.split(f"\n    {name}: ")[1])[0]


def test_an_option_is_for_members_or_for_assigned_partitions_or_both() -> None:
    assert set(ASSIGN_OPTIONS) == {"auto_offset_reset", "isolation", "consumer_timeout_ms", "default_timeout_ms"}
    assert set(CONSUMER) == {*ASSIGN_OPTIONS, *MEMBER_OPTIONS, "topics", "assign", "protocol"}


def test_a_member_has_the_documented_defaults() -> None:
    chosen = read_member_options(["t"], QUEUE, {})
    for name in ("session_timeout_ms", "heartbeat_interval_ms", "max_poll_interval_ms", "auto_offset_reset"):
        assert getattr(chosen, name) == CONSUMER[name].default


def test_a_settings_file_gives_other_defaults_within_the_same_ranges() -> None:
    for key, parameter in MEMBER.declared.items():
        option = CONSUMER[key.replace(".", "_")]
        assert option.default == parameter.default
        if isinstance(option.default, int):
            assert (option.low, option.high) == (parameter.low, parameter.high)


@pytest.mark.parametrize(("heartbeat_ms", "warns"), [(2_000, False), (2_001, True), (5_999, True)])
def test_a_session_shorter_than_three_heartbeats_is_warned_of(
    heartbeat_ms: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    read_member_options(["t"], QUEUE, {"session_timeout_ms": 6_000, "heartbeat_interval_ms": heartbeat_ms})
    assert ("third of the session" in caplog.text) == warns


def test_a_session_as_short_as_a_heartbeat_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="less than 6000 ms"):
        read_member_options(["t"], QUEUE, {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 6_000})


@pytest.mark.parametrize(
    ("assignor", "assignors"),
    [
        (None, []),
        ("sticky", ["sticky"]),
        (["cooperative-sticky", "range"], ["cooperative-sticky", "range"]),
        (("range", "range", "sticky"), ["range", "sticky"]),
    ],
)
def test_an_assignor_may_be_a_list_in_order_of_preference(assignor: Any, assignors: list[str]) -> None:
    chosen = read_member_options(["t"], QUEUE, {"assignor": assignor})
    assert (chosen.assignors, chosen.config) == (assignors, QUEUE)


@pytest.mark.parametrize("assignor", [[], [3], {"range": 1}, 3, [f"a{n}" for n in range(21)]])
def test_a_list_of_assignors_that_is_none_is_refused(assignor: Any) -> None:
    with pytest.raises(InvalidRequest, match="assignor"):
        read_member_options(["t"], QUEUE, {"assignor": assignor})


@pytest.mark.slow
def test_none_is_the_default_and_what_is_unknown_is_named(mq: Connection) -> None:
    topic = new_topic(mq)
    with mq.consumer(new_name("g"), topics=[topic], session_timeout_ms=None, listener=None, ack_mode=None):
        pass
    with pytest.raises(InvalidConfig, match="did you mean session_timeout_ms"):
        mq.consumer(new_name("g"), topics=[topic], session_timeout=6_000)  # type: ignore[call-arg,unused-ignore]
    with pytest.raises(InvalidConfig, match="session_timeout_ms"):
        mq.consumer(new_name("g"), assign=[topic], session_timeout_ms=6_000)


def _reads(topic: str, protocol: str | None) -> dict[str, Any]:
    return {"assign": [topic]} if protocol is None else {"topics": [topic], "protocol": protocol}


CLASSIC = pytest.param("classic", marks=pytest.mark.extended)
READERS = pytest.mark.parametrize("protocol", [None, "queue", "cooperative", CLASSIC])


@pytest.mark.slow
@READERS
def test_a_new_group_begins_at_the_earliest_message_and_logs_how_many_there_are(
    mq: Connection, protocol: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    add(mq, topic, {0: 3, 1: 1})
    with caplog.at_level(logging.INFO, "lakemq.consumer"):
        with mq.consumer(group, **_reads(topic, protocol)) as consumer:
            read_texts: list[str] = []
            until(lambda: bool(read_texts.extend(texts(consumer.poll(timeout_ms=20))) or len(read_texts) == 4))
            consumer.commit()
        with mq.consumer(group, **_reads(topic, protocol)) as consumer:
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
def test_a_group_that_begins_at_the_latest_message_says_how_many_it_skips(
    mq: Connection, protocol: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    add(mq, topic, {0: 3, 1: 1})
    with mq.consumer(group, **_reads(topic, protocol), auto_offset_reset="latest") as consumer:
        consumer.poll()
    log_records = [record for record in caplog.records if "is new to" in record.message]
    assert [record.levelname for record in log_records] == ["WARNING"]
    assert f"Group {group} is new to {topic} and begins behind 4 offsets" in log_records[0].message


@pytest.mark.slow
@READERS
def test_a_group_that_begins_in_an_empty_topic_logs_nothing(
    mq: Connection, protocol: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(mq)
    with (
        caplog.at_level(logging.INFO, "lakemq.consumer"),
        mq.consumer(new_name("g"), **_reads(topic, protocol), auto_offset_reset="latest") as consumer,
    ):
        consumer.poll()
    assert "is new to" not in caplog.text
