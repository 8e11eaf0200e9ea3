"""Forks after `connect`: a child is refused at once and clearly, and the parent goes on. Spawned children work.

delta-rs, which reads the tables, cannot be used in a child of a process that has used it.
"""

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from targets import extended_but
from unit.consuming import name_what_to_read
from unit.served import new_name, new_topic, run_in_thread, until, values

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.protocol.values.offsets import CommitOffsets, OffsetCommit
from lakemq.errors import IllegalState

pytestmark = [pytest.mark.slow, pytest.mark.extended]

CHILD_S = 20
ROWS = pa.table({"value": ["x"]})


def run_in_fork(work: Callable[[], Any]) -> str:
    """Run the work in a forked child, and return its result or its error as text. The child must end."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        watch = threading.Timer(CHILD_S, os._exit, [9])
        watch.daemon = True
        watch.start()
        try:
            outcome = str(work())
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        os.write(write, outcome.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as opened:
        outcome = opened.read()
    assert os.waitpid(child, 0)[1] == 0, "the child hung"
    return outcome


def catch_in_child(calls: dict[str, Callable[[], Any]]) -> Callable[[], str]:
    """Return work that makes each call, and returns the names of those that were not refused with a way out."""

    def work() -> str:
        accepted = []
        for name, call in calls.items():
            try:
                call()
            except IllegalState as error:
                if "spawn or forkserver" in str(error):
                    continue
            accepted.append(name)
        return str(accepted)

    return work


def test_forked_child_is_refused_by_every_call_of_the_connection(mq: Connection):
    topic = new_topic(mq)
    calls: dict[str, Callable[[], Any]] = {
        "ask": lambda: mq.requester.ask(CommitOffsets("g", [OffsetCommit(topic, 0, 0)])),
        "state": mq.state,
        "topics.list": mq.topics.list,
        "topics.create": lambda: mq.topics.create("fork"),
        "publish": lambda: mq.publish(topic, ROWS),
        "producer": mq.producer,
        "transaction": lambda: mq.transaction("fork"),
        "consumer": lambda: mq.consumer("g", assign=[topic]),
        "fetch": lambda: mq.fetch(topic),
        "tail": lambda: next(mq.tail(topic)),
        "offsets": lambda: mq.end_offsets(topic),
        "groups": mq.groups.list,
        "transactions": mq.transactions.all,
        "serving": mq.serving,
        "step_until_idle": mq.step_until_idle,
        "connect": lambda: lakemq.connect(mq.namespace.path),
    }
    with mq._fetcher._lock.own:  # as another thread of the parent may hold it at the moment of the fork
        assert run_in_fork(catch_in_child(calls)) == "[]"


@pytest.mark.parametrize("protocol", extended_but(["queue"], [None, "cooperative", "queue"]))
def test_forked_child_is_refused_by_a_consumer(mq: Connection, protocol: str | None):
    topic = new_topic(mq)
    mq.publish(topic, ROWS)
    with mq.consumer(new_name("g"), **name_what_to_read(topic, protocol), auto_offset_reset="earliest") as consumer:
        batches: list[Any] = []
        until(lambda: bool(batches.append(consumer.poll(1)) or batches[-1]))
        calls: dict[str, Callable[[], Any]] = {
            "poll": consumer.poll,
            "position": lambda: consumer.position(topic, 0),
            "lag": consumer.lag,
            "commit": consumer.commit,
            "commit of offsets": lambda: consumer.commit({(topic, 0): 1}),
            "committed": consumer.committed,
        }
        acknowledges = ("ack", "nack", "reject", "ack_through")
        if protocol == "queue":
            calls |= {name: lambda name=name: getattr(consumer, name)(batches[-1]) for name in acknowledges}
            calls["flush"] = consumer.flush  # type: ignore[attr-defined]
        else:
            consumer.seek(topic, 0, 0)
            calls["seek"] = lambda: consumer.seek(topic, 0, 1)
        with consumer._lock.own:
            assert run_in_thread(lambda: run_in_fork(catch_in_child(calls))) == "[]"
        assert consumer.lag() == {(topic, 0): 1}


def test_live_objects_refuse_pickling_and_results_survive_it(mq: Connection):
    topic = new_topic(mq)
    published = mq.publish(topic, ROWS)
    with (
        mq.consumer(new_name("g"), topics=[topic], auto_offset_reset="earliest") as consumer,
        mq.producer() as producer,
    ):
        batch = consumer.poll(timeout_ms=10_000)
        live = [mq, consumer, batch, producer, mq.fetch(topic), mq.topics, mq.groups, mq.delayed, mq.transactions]
        live += [mq.transaction(new_name("t")), mq.stream("g", topics=[topic]), mq.dead_letters, mq.observer()]
        for value in live:
            with pytest.raises(IllegalState, match=rf"This {type(value).__name__} cannot be pickled.*lakemq\.connect"):
                multiprocessing.get_context("spawn").Process(target=print, args=(value,)).start()
        consumer.ack(batch)
        for result in (list(batch), batch.to_arrow(), published, mq.topics.describe(topic)):
            assert pickle.loads(pickle.dumps(result)) == result


def test_close_in_a_child_ends_nothing_of_its_parent(mq: Connection):
    topic = new_topic(mq)
    with mq.producer() as producer:
        producer.send(topic, "before")
        producer.flush()
        assert run_in_fork(mq.close) == "None"
        producer.send(topic, "after")
    assert values(mq, topic) == ["before", "after"]


def _commit_one(path: str, topic: str, partition: int) -> None:
    with lakemq.connect(path) as mq:
        mq.requester.ask(CommitOffsets("spawned", [OffsetCommit(topic, partition, 1)]))
        mq.publish(topic, pa.table({"value": [f"from {partition}"]}))


@pytest.mark.parametrize("method", extended_but(["forkserver"], ["spawn", "forkserver"]))
def test_children_with_their_own_connection_work(mq: Connection, method: str):
    topic = new_topic(mq, partitions=4)
    mq.publish(topic, pa.table({"value": [str(p) for p in range(4)], "partition": list(range(4))}))
    with multiprocessing.get_context(method).Pool(4) as pool:
        pool.starmap(_commit_one, [(mq.namespace.path, topic, p) for p in range(4)])
    lags = [partition for partition in mq.groups.lag("spawned") if partition.topic == topic]
    assert [(lag.partition, lag.committed_offset) for lag in lags] == [(p, 1) for p in range(4)]
    assert {f"from {p}" for p in range(4)} <= set(values(mq, topic))
