"""Streams of a group: a function gets micro-batches, which the processes that run it share."""

import threading
import time
from typing import Any

import pyarrow as pa
import pytest
from targets import extended_but
from unit.consuming import add
from unit.served import new_name, new_topic, until, values

from lakemq.engine.client.connection import Connection
from lakemq.errors import InvalidRequest, TransactionAbortable, UnknownTopicOrPartition

pytestmark = pytest.mark.slow


def texts(rows: pa.Table) -> list[str]:
    return [value.decode() for value in rows["value"].to_pylist()]


@pytest.mark.parametrize("protocol", extended_but(["queue"], ["cooperative", "queue"]))
def test_batch_is_committed_when_the_function_returns(mq: Connection, protocol: str) -> None:
    topic, group, read_texts = new_topic(mq, 2), new_name("g"), list[str]()
    add(mq, topic, {0: 5, 1: 5})
    stream = mq.stream(group, topics=[topic], protocol=protocol, auto_offset_reset="earliest")
    assert stream.foreach_batch(lambda rows: read_texts.extend(texts(rows)), max_records=4, available_now=True) == 10
    assert sorted(read_texts) == [f"{p}.{i}" for p in range(2) for i in range(5)]
    assert stream.foreach_batch(lambda rows: read_texts.extend(texts(rows)), available_now=True) == 0
    assert mq.groups.describe(group).lag == 0


@pytest.mark.parametrize("protocol", extended_but(["queue"], ["cooperative", "queue"]))
def test_function_that_raises_ends_the_stream_and_its_batch_comes_again(mq: Connection, protocol: str) -> None:
    topic, group, read_texts = new_topic(mq), new_name("g"), list[str]()
    add(mq, topic, {0: 3})
    if protocol == "queue":
        mq.groups.create(group, {"rebalance.delay.ms": 0})

    def fail(rows: pa.Table) -> None:
        raise RuntimeError("on purpose")

    options = {"protocol": protocol, "auto_offset_reset": "earliest"}
    no_function: Any = None
    with pytest.raises(InvalidRequest):
        mq.stream(group, topics=[topic], **options).foreach_batch(no_function)
    with pytest.raises(RuntimeError, match="on purpose"):
        mq.stream(group, topics=[topic], **options).foreach_batch(fail)
    assert mq.groups.members(group) == []
    mq.stream(group, topics=[topic], **options).foreach_batch(
        lambda rows: read_texts.extend(texts(rows)), available_now=True
    )
    assert read_texts == ["0.0", "0.1", "0.2"]


@pytest.mark.parametrize("protocol", extended_but(["queue"], ["cooperative", "queue"]))
def test_batch_with_a_moved_partition_is_aborted_and_comes_again(mq: Connection, protocol: str) -> None:
    """The transaction is aborted. The part that is left comes again, and the new owner gets the rest."""
    topic, out, group = new_topic(mq, 2), new_topic(mq), new_name("g")
    mq.groups.create(group, {"group.protocol": protocol, "max.handoff.ms": 0, "rebalance.delay.ms": 0})
    add(mq, topic, {0: 2, 1: 2})
    batches: list[list[str]] = []

    def work(rows: pa.Table, txn: Any) -> None:
        batches.append(sorted(texts(rows)))
        txn.publish(out, rows.select(["value"]))
        if len(batches) == 1:
            # the first owner counts as lost while it works, and a second one is there
            mq.groups.remove_members(group, [mq.groups.members(group)[0].member_id])
            with mq.consumer(group, topics=[topic], auto_offset_reset="earliest") as other:
                until(lambda: bool(other.poll(1)) or len(other.assignment()) == 2)

    stream = mq.stream(group, topics=[topic], auto_offset_reset="earliest")
    stream.foreach_batch(work, transactional_id=new_name("tx"), available_now=True)
    assert sorted(values(mq, out)) == ["0.0", "0.1", "1.0", "1.1"]
    assert batches[0] == ["0.0", "0.1", "1.0", "1.1"]
    assert mq.groups.describe(group).lag == 0


def test_transaction_that_can_only_be_aborted_ends_the_stream(mq: Connection) -> None:
    """Another attempt would fail as well."""
    topic, group = new_topic(mq), new_name("g")
    add(mq, topic, {0: 1})

    def ignore_error(rows: pa.Table, txn: Any) -> None:
        with pytest.raises(UnknownTopicOrPartition):
            txn.publish("nobody-knows-it", rows.select(["value"]))

    stream = mq.stream(group, topics=[topic], auto_offset_reset="earliest")
    with pytest.raises(TransactionAbortable):
        stream.foreach_batch(ignore_error, transactional_id=new_name("tx"))


def test_two_streams_share_the_partitions_until_they_are_stopped(mq: Connection) -> None:
    topic, group = new_topic(mq, 2), new_name("g")
    streams = [mq.stream(group, topics=[topic], auto_offset_reset="earliest") for _ in range(2)]
    texts_of_each: list[list[str]] = [[], []]
    threads = [
        threading.Thread(target=stream.foreach_batch, args=(lambda rows, i=i: texts_of_each[i].extend(texts(rows)),))
        for i, stream in enumerate(streams)
    ]
    for thread in threads:
        thread.start()
    until(lambda: mq.groups.list() != [] and group in mq.groups.list() and len(mq.groups.members(group)) == 2)
    until(lambda: len({assignment.owner for assignment in mq.groups.assignments(group)} - {None}) == 2)
    add(mq, topic, {0: 3, 1: 3})
    until(lambda: len(texts_of_each[0]) == len(texts_of_each[1]) == 3)
    for stream in streams:
        stream.stop()
    for thread in threads:
        thread.join(10)
    assert sorted(texts_of_each[0] + texts_of_each[1]) == [f"{p}.{i}" for p in range(2) for i in range(3)]


def test_batches_of_a_stream_begin_every_ms_apart(mq: Connection) -> None:
    topic, began = new_topic(mq), list[float]()
    add(mq, topic, {0: 4})
    stream = mq.stream(new_name("g"), topics=[topic], auto_offset_reset="earliest")
    start_s = time.monotonic()
    stream.foreach_batch(lambda _: began.append(time.monotonic()), max_records=1, every_ms=100, available_now=True)
    assert len(began) == 4
    # a batch begins before its rows are read, and the function is called after that
    assert all(time_s - start_s > 0.09 * number for number, time_s in enumerate(began))
