"""`lakemq transactions`, `describe-producers` and `groups`, on a namespace with transactions in every state."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from unit.served import Lakemq, read_objects

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.errors import ProducerFenced

pytestmark = pytest.mark.slow

Found = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A namespace with a sequencer that leads, and a topic `in` with five messages in each of two partitions."""
    path = str(tmp_path_factory.mktemp("cli") / "mq")
    with lakemq.connect(path, create=True) as connection, connection.serving():
        connection.topics.create("in", partitions=2)
        connection.topics.create("out")
        rows = {"value": [str(n) for n in range(10)], "partition": [0, 1] * 5}
        connection.publish("in", pa.table(rows))
        yield connection


@pytest.fixture
def found(mq: Connection) -> Found:
    """Return the objects that the command prints."""
    return partial(read_objects, mq.namespace.path)


@pytest.fixture(scope="module")
def committed(mq: Connection) -> str:
    """A transactional id that has committed a transaction, with offsets of the group `mirror`."""
    with mq.transaction("done", batch_id=7) as txn:
        txn.publish("out", pa.table({"value": ["a", "b"]}))
        txn.send_offsets({("in", 0): 3}, "mirror", metadata="halfway")
    return "done"


@pytest.fixture
def open_one(mq: Connection) -> Iterator[str]:
    """A transactional id with a transaction that is open while a test runs."""
    producer = mq.producer("busy")
    producer.begin_transaction()
    producer.send("out", value="c")
    producer.flush()
    yield "busy"
    try:
        producer.abort_transaction()
    except ProducerFenced:
        return  # a test has aborted it


def test_list_shows_ids_with_what_they_have_open(found: Found, lake: Lakemq, committed: str, open_one: str) -> None:
    lake("transactions", "list", "--state", "ongoing", code=2)
    listed = {one["transactional_id"]: one for one in found("transactions", "list")}
    assert {name: one["state"] for name, one in listed.items()} == {"busy": "Ongoing", "done": "CompleteCommit"}
    assert (listed[open_one]["partitions"], listed[open_one]["groups"]) == (["out-0"], [])
    assert listed[open_one]["open_ms"] >= 0
    assert listed[open_one]["started_at"].endswith("Z")
    assert (listed[committed]["partitions"], listed[committed]["open_ms"]) == ([], None)
    assert found("transactions", "describe", open_one)[0]["partitions"] == ["out-0"]


def test_describe_producers_lists_open_transactions(lake: Lakemq, found: Found, committed: str, open_one: str) -> None:
    producers = {one["transactional_id"]: one for one in found("describe-producers", "out", "0")}
    assert producers[open_one]["first_offset"] is not None
    assert producers[open_one]["last_sequence"] == 0
    assert committed not in producers  # its new epoch has written nothing yet
    assert found("describe-producers", "in", "1") == []
    for tp in (("out", "1"), ("nowhere", "0")):
        assert lake("describe-producers", *tp, code=1).stderr.startswith("UNKNOWN_TOPIC_OR_PARTITION: ")
    lake("describe-producers", "out", "first", code=2)


@pytest.mark.extended
def test_lag_of_a_group_that_reads_uncommitted_is_not_negative(mq: Connection, lake: Lakemq, found: Found) -> None:
    mq.topics.create("ahead")
    producer = mq.producer("slow")
    producer.begin_transaction()
    producer.send("ahead", value="open")
    producer.flush()
    with mq.consumer("eager", assign=["ahead"], isolation="read_uncommitted") as consumer:
        consumer.commit(consumer.poll())
    (row,) = found("groups", "lag", "eager")
    assert (row["committed_offset"], row["last_stable_offset"], row["lag"]) == (1, 0, 0)
    mq.topics.delete("ahead")
    assert lake("groups", "lag", "eager", code=1).stderr.startswith("GROUP_ID_NOT_FOUND: ")
    producer.abort_transaction()
