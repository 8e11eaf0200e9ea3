"""A namespace is deleted and created again at its path, while a client still has the former one open."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.errors import InconsistentClusterId

pytestmark = [pytest.mark.slow, pytest.mark.extended]

TABLES = ("journal", "topics", "partitions", "segments", "messages", "clients", "watermarks")
CONFIG = {"engine.tick.ms": 1, "engine.idle.ms": 10, "project.interval.ms": 10, "request.gap.ms": 100}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mq"


@pytest.fixture
def first(path: Path) -> Iterator[Connection]:
    mq = lakemq.connect(str(path), create=True, config=CONFIG)
    yield mq
    with suppress(InconsistentClusterId):  # a producer reports again what has failed
        mq.close()


def recreate_namespace(path: Path) -> Connection:
    for _ in range(100):  # the living leader may put an object while its folder is deleted
        with suppress(OSError):
            shutil.rmtree(path)
            break
    return lakemq.connect(str(path), create=True, config=CONFIG)


def test_what_a_producer_of_the_old_one_sends_does_not_pass_for_a_repeat(path: Path, first: Connection) -> None:
    with first.serving():
        first.topics.create("t")
        old = first.producer()
        for i in range(3):
            old.send("t", f"old {i}").result()
    with recreate_namespace(path) as second, second.serving():
        second.topics.create("t")
        new = second.producer()
        for i in range(5):
            new.send("t", f"new {i}").result()
        with pytest.raises(InconsistentClusterId, match="created again"):
            old.send("t", "the fourth").result()
        assert [message.value for message in second.fetch("t")] == [b"new %d" % i for i in range(5)]


@pytest.mark.parametrize("publishes", [False, True])
def test_a_leader_of_the_old_one_projects_nothing_into_it(path: Path, publishes: bool) -> None:
    late = lakemq.connect(str(path), create=True, config={**CONFIG, "project.interval.ms": 60_000})
    serving = late.serving()
    late.topics.create("old")
    if publishes:
        late.publish("old", pa.table({"value": ["a"]}))
    with recreate_namespace(path) as second:
        serving.close()  # which projects the decisions
        late.close()
        assert {name: DeltaTable(str(path / name)).version() for name in TABLES} == dict.fromkeys(TABLES, 0)
        assert list((path / "messages").glob("*.parquet")) == []
        with second.serving():
            second.topics.create("new")
        assert [topic.topic for topic in second.topics.list()] == ["new"]
