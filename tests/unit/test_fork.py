"""Forks after `connect`: a child is refused at once and clearly, and the parent goes on. Spawned children work.

delta-rs, which reads the tables, cannot be used in a child of a process that has used it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa
import pytest
from unit.served import new_name, new_topic, until, values

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.consumer import Consumer
from lakemq.engine.client.transactions.scope import TransactionScope
from lakemq.engine.namespace.processes.process import OwnLock, check_same_process, pause_garbage_collection
from lakemq.engine.protocol.values.consuming.offsets import CommitOffsets, OffsetCommit
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


CALLS: dict[str, Callable[[Connection, str], Any]] = {
    "ask": lambda mq, t: mq.requester.ask(CommitOffsets("g", [OffsetCommit(t, 0, 0)])),
    "state": lambda mq, t: mq.state(),
    "topics.list": lambda mq, t: mq.topics.list(),
    "topics.create": lambda mq, t: mq.topics.create("fork"),
    "publish": lambda mq, t: mq.publish(t, ROWS),
    "producer": lambda mq, t: mq.producer(),
    "transaction": lambda mq, t: mq.transaction("fork"),
    "consumer": lambda mq, t: mq.consumer("g", assign=[t]),
    "fetch": lambda mq, t: mq.fetch(t),
    "tail": lambda mq, t: next(mq.tail(t)),
    "offsets": lambda mq, t: mq.end_offsets(t),
    "groups": lambda mq, t: mq.groups.list(),
    "transactions": lambda mq, t: mq.transactions.all(),
    "serving": lambda mq, t: mq.serving(),
    "step_until_idle": lambda mq, t: mq.step_until_idle(),
    "connect": lambda mq, t: lakemq.connect(mq.namespace.path),
}


CALLS_OF_TRANSACTIONS: dict[str, Callable[[TransactionScope, TransactionScope, str], Any]] = {
    "enter": lambda transaction, other, t: other.__enter__(),
    "publish": lambda transaction, other, t: transaction.publish(t, ROWS),
    "send_offsets": lambda transaction, other, t: transaction.send_offsets({(t, 0): 0}, "g"),
    "leave": lambda transaction, other, t: transaction.__exit__(None, None, None),
}

CALLS_OF_CONSUMERS: dict[str, Callable[[Consumer, str], Any]] = {
    "poll": lambda consumer, t: consumer.poll(),
    "position": lambda consumer, t: consumer.position(t, 0),
    "seek": lambda consumer, t: consumer.seek(t, 0, 1),
    "lag": lambda consumer, t: consumer.lag(),
    "commit": lambda consumer, t: consumer.commit(),
    "commit of offsets": lambda consumer, t: consumer.commit({(t, 0): 1}),
    "committed": lambda consumer, t: consumer.committed(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_forked_child_is_refused_though_the_parent_is_at_work(mq: Connection, call: str):
    topic = new_topic(mq)
    with mq._fetcher._lock.own:  # as another thread of the parent may hold it at the moment of the fork
        outcome = run_in_fork(lambda: CALLS[call](mq, topic))
    assert_refused(outcome)


@pytest.mark.parametrize("call", CALLS_OF_TRANSACTIONS)
def test_a_transaction_is_its_processs(mq: Connection, call: str):
    topic = new_topic(mq)
    with mq.transaction(new_name("fork")) as transaction:
        transaction.publish(topic, ROWS)
        other = mq.transaction(new_name("fork"))
        with transaction._manager.lock, other._manager.lock:
            child = run_in_thread(lambda: run_in_fork(lambda: CALLS_OF_TRANSACTIONS[call](transaction, other, topic)))
        assert_refused(child)
    assert values(mq, topic) == ["x"]


def _reads(topic: str, protocol: str | None) -> dict[str, Any]:
    return {"assign": [topic]} if protocol is None else {"topics": [topic], "protocol": protocol}


@pytest.mark.parametrize("protocol", [None, "cooperative"])
@pytest.mark.parametrize("call", CALLS_OF_CONSUMERS)
def test_a_consumer_is_its_processs(mq: Connection, call: str, protocol: str | None):
    topic = new_topic(mq)
    mq.publish(topic, ROWS)
    with mq.consumer(new_name("g"), **_reads(topic, protocol), auto_offset_reset="earliest") as consumer:
        until(lambda: bool(consumer.poll(1)))
        consumer.seek(topic, 0, 0)
        with consumer._lock.own:
            child = run_in_thread(lambda: run_in_fork(lambda: CALLS_OF_CONSUMERS[call](consumer, topic)))
        assert_refused(child)
        assert consumer.position(topic, 0) == 0


CALLS_OF_QUEUES: dict[str, Callable[[Any, Any], Any]] = {
    **{name: call for name, call in CALLS_OF_CONSUMERS.items() if name != "seek"},
    "ack": lambda consumer, batch: consumer.ack(batch),
    "nack": lambda consumer, batch: consumer.nack(batch),
    "reject": lambda consumer, batch: consumer.reject(batch),
    "ack_through": lambda consumer, batch: consumer.ack_through(batch),
    "flush": lambda consumer, _: consumer.flush(),
}


@pytest.mark.parametrize("call", CALLS_OF_QUEUES)
def test_a_consumer_of_a_queue_is_its_processs(mq: Connection, call: str):
    topic = new_topic(mq)
    mq.publish(topic, ROWS)
    with mq.consumer(new_name("g"), **_reads(topic, "queue"), auto_offset_reset="earliest") as consumer:
        batch = consumer.poll(timeout_ms=10_000)
        argument = batch if call in ("ack", "nack", "reject", "ack_through") else topic
        with consumer._lock.own:
            child = run_in_thread(lambda: run_in_fork(lambda: CALLS_OF_QUEUES[call](consumer, argument)))
        assert_refused(child)
        assert consumer.lag() == {(topic, 0): 1}


def assert_refused(outcome: str) -> None:
    assert outcome.startswith("IllegalState: ILLEGAL_STATE")
    assert "spawn or forkserver" in outcome


def run_in_thread(work: Callable[[], Any]) -> Any:
    """Run the work in a thread that does not hold the locks, because their holder may enter again."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_a_child_that_leaves_a_transaction_ends_as_it_wants(mq: Connection):
    topic = new_topic(mq)

    def leave() -> None:
        with end_transaction(transaction):
            raise KeyboardInterrupt("as it wants")

    with mq.transaction(new_name("fork")) as transaction:
        transaction.publish(topic, ROWS)
        assert run_in_fork(leave) == "KeyboardInterrupt: as it wants"
    assert values(mq, topic) == ["x"]


@contextmanager
def end_transaction(transaction: TransactionScope) -> Iterator[None]:
    """End a block that was entered before the fork."""
    with ExitStack() as stack:
        stack.push(transaction)
        yield


def test_a_child_that_closes_ends_nothing_of_its_parents(mq: Connection):
    topic = new_topic(mq)
    with mq.producer() as producer:
        producer.send(topic, "before")
        producer.flush()
        assert run_in_fork(mq.close) == "None"
        producer.send(topic, "after")
    assert values(mq, topic) == ["before", "after"]


def test_children_that_were_refused_leave_the_parent_its_numbers(mq: Connection):
    """Four children request something. None gets the answer of another, and the parent's next answer is its own."""
    topic = new_topic(mq, partitions=5)
    mq.publish(topic, pa.table({"value": ["x"], "partition": [4]}))

    def commit(partition: int) -> Any:
        return mq.requester.ask(CommitOffsets("four", [OffsetCommit(topic, partition, 0)]))

    outcomes = [run_in_fork(lambda p=p: commit(p)) for p in range(4)]
    assert all(outcome.startswith("IllegalState") for outcome in outcomes)
    commit(4)
    assert [(lag.topic, lag.partition) for lag in mq.groups.lag("four")] == [(topic, 4)]


def _commit_one(path: str, topic: str, partition: int) -> None:
    with lakemq.connect(path) as mq:
        mq.requester.ask(CommitOffsets("spawned", [OffsetCommit(topic, partition, 1)]))
        mq.publish(topic, pa.table({"value": [f"from {partition}"]}))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_that_connect_by_themselves_work(mq: Connection, method: str):
    topic = new_topic(mq, partitions=4)
    mq.publish(topic, pa.table({"value": [str(p) for p in range(4)], "partition": list(range(4))}))
    with multiprocessing.get_context(method).Pool(4) as pool:
        pool.starmap(_commit_one, [(mq.namespace.path, topic, p) for p in range(4)])
    lags = [partition for partition in mq.groups.lag("spawned") if partition.topic == topic]
    assert [(lag.partition, lag.committed_offset) for lag in lags] == [(p, 1) for p in range(4)]
    assert {f"from {p}" for p in range(4)} <= set(values(mq, topic))


def test_what_belongs_to_a_process_says_so():
    check_same_process(os.getpid(), "It")
    with pytest.raises(IllegalState, match=r"It was made in another process \(fork\): make one there\."):
        check_same_process(os.getpid() + 1, "It")
    lock = OwnLock("It")
    with lock.own:
        assert run_in_fork(lambda: lock.own).startswith("IllegalState")
    with lock.own:
        pass


def test_a_child_that_comes_while_no_garbage_is_collected_collects_its_own() -> None:
    with pause_garbage_collection():
        with pause_garbage_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
        assert run_in_fork(gc.isenabled) == "True"
    assert gc.isenabled()
