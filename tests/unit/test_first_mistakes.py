"""Mistakes of a first hour: the answer says what was found, and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from unit.served import new_topic

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.errors import LakeMQError, NamespaceError


def test_uri_with_one_slash_is_not_a_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("", "s3:/bucket/mq", "dbfs:/mq", "hdfs:/mq"):
        with pytest.raises(NamespaceError, match=r"expected a path or a URI.*\. Expected"):
            lakemq.connect(path, create=True)
    assert not list(tmp_path.iterdir())


MISTAKES: list[tuple[Callable[[Connection, str], object], str]] = [
    (
        lambda mq, topic: mq.publish(topic, pa.table({"id": [1], "vlaue": ["a"]})),
        r"no column for the value. Found \['id', 'vlaue'\]. Expected value, or value=.",
    ),
    (lambda mq, topic: mq.publish(topic, pd.DataFrame([[1, 2]])), r"no column for the value. Found \['0', '1'\]"),
    (
        lambda mq, topic: mq.publish(topic, pa.table({"value": [1]})),
        r"value is not usable: neither text nor bytes. Found 'int64'. Expected string or binary.",
    ),
    (
        lambda mq, topic: mq.publish(topic, pd.DataFrame({"value": ["a", 1]})),
        r"Arrow: Conversion failed for column value with type object: Expected bytes, got a 'int' object. Found",
    ),
    (lambda mq, topic: mq.fetch(topic, partitions=[9]).to_arrow(), "no such partition. Found 9. Expected 0 to 1."),
    (
        lambda mq, topic: mq.publish(topic, pa.table({"value": ["a"], "partition": [9]}), on_error="fail"),
        r"The topic has no such partition. Expected 0 to 1.",
    ),
    (
        lambda mq, topic: mq.publish(topic, pa.table({"value": ["a" * 1_048_589]}), on_error="fail"),
        r"larger than the topic's max.message.bytes. Expected at most 1048588 bytes.",
    ),
    (lambda mq, topic: mq.consumer("g", assign=[(topic, 9)]).poll(), "no such partition. Found 9. Expected 0 to 1."),
    (lambda mq, topic: mq.topics.create("new", config={"ttl.ms": None}), "ttl.ms is not valid. Found 'None'. Exp"),
    (lambda mq, topic: mq.fetch(topic, start=9), "does not hold this offset. Found 9. Expected 0 to [01]"),
    (lambda mq, topic: mq.fetch(topic, start={0: 0, 1: 9}), "does not hold this offset. Found 9. Expected 0 to "),
    (lambda mq, topic: mq.dead_letters.redrive(topic), "' is no dead-letter topic. Found"),
    (
        lambda mq, topic: mq.sql(f"SELECT * FROM `{topic}`", wait_ms=20_000),
        "is a topic. Read it with: FROM log_committed WHERE topic = '",
    ),
    (lambda mq, topic: mq.sql("SELECT 1", as_of="yesterday"), "Found 'yesterday'. Expected the number of a step, or a"),  # type: ignore[arg-type]
    (lambda mq, topic: mq.topics.create(topic, 7, exist_ok=True), r"topics\.alter\.$"),
]


def test_refusals_name_what_was_found_and_expected(mq: Connection) -> None:
    topic = new_topic(mq, 2)
    mq.publish(topic, pa.table({"value": ["a"]}))
    for mistake, answer in MISTAKES:
        with pytest.raises(LakeMQError, match=answer):
            mistake(mq, topic)


def test_records_are_refused_with_the_type_that_their_part_must_have(mq: Connection) -> None:
    topic, time = new_topic(mq), "Expected epoch milliseconds as a whole number, or a datetime."
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"headers": {"k": 5}}, "value is not bytes. Found 'int'. Expected bytes or None."),
        ({"headers": [(b"k", b"v")]}, r"Found '\(bytes, bytes\)'. Expected \(text, bytes\)."),
        ({"headers": ["k", "v"]}, "not a pair"),
        ({"deliver_at": "tomorrow"}, f"Found 'tomorrow'. {time}"),
        ({"deliver_at": 1795741039.5}, time),
        ({"deliver_at": date(2026, 1, 1)}, time),
    ]
    with mq.producer() as producer:
        for arguments, answer in mistakes:
            with pytest.raises(LakeMQError, match=answer):
                producer.send(topic, "value", **arguments)
