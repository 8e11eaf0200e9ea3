"""A namespace is deleted and created again at its path, while a client still has the former one open."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from targets import extended_but

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.errors import InconsistentClusterId
from lakemq.tables.storage.coordination import step_objects

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


def test_producer_of_a_deleted_namespace_is_refused_by_its_successor(path: Path, first: Connection) -> None:
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


def test_leader_of_a_deleted_namespace_projects_nothing_into_its_successor(path: Path) -> None:
    # With a long lease the living leader puts no step while its folder is deleted.
    late = lakemq.connect(str(path), create=True, config={**CONFIG, "project.interval.ms": 60_000, "lease.ms": 600_000})
    serving = late.serving()
    late.topics.create("old")
    late.publish("old", pa.table({"value": ["a"]}))
    with recreate_namespace(path) as second:
        serving.close()  # which projects the decisions
        late.close()
        assert {name: DeltaTable(str(path / name)).version() for name in TABLES} == dict.fromkeys(TABLES, 0)
        assert list((path / "messages").glob("*.parquet")) == []
        with second.serving():
            second.topics.create("new")
        assert [topic.topic for topic in second.topics.list()] == ["new"]


def publish_anew(path: Path, count: int) -> None:
    with recreate_namespace(path) as second, second.serving():
        second.topics.create("t")
        for i in range(count):
            second.publish("t", pa.table({"value": [f"new {i}"]}))


@pytest.mark.parametrize("count", [0, 9])
def test_connection_to_a_deleted_namespace_reads_nothing_of_its_successor(
    path: Path, first: Connection, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new namespace may have fewer or more steps than the old one had when it was read."""
    with first.serving():
        first.topics.create("t")
        first.publish("t", pa.table({"value": ["old"]}))
        assert [message.value for message in first.fetch("t")] == [b"old"]
    publish_anew(path, count)
    if count == 0:  # the next step of the old one is not there; the reader notices when it looks at its last one
        monkeypatch.setattr(step_objects, "LOOK_MS", 0)
    for _ in range(2):
        with pytest.raises(InconsistentClusterId, match="Connect again"):
            first.fetch("t")


@pytest.mark.parametrize("protocol", extended_but(["queue"], [None, "queue"]))
def test_consumer_of_a_deleted_namespace_is_refused(path: Path, first: Connection, protocol: str | None) -> None:
    with first.serving():
        first.topics.create("t")
        first.publish("t", pa.table({"value": ["old"]}))
        options: dict[str, Any] = {"assign": ["t"]} if protocol is None else {"topics": ["t"], "protocol": protocol}
        old = first.consumer("g", **options)
        while not old.poll(timeout_ms=200):
            pass
    publish_anew(path, 9)
    for _ in range(2):
        with pytest.raises(InconsistentClusterId, match="Connect again"):
            old.poll(timeout_ms=500)
