"""Calls that Ctrl-C or a signal handler interrupts: the next calls neither hang nor miss anything."""

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from unit.served import CONFIG, until

import lakemq
from lakemq.engine.client.connection import Connection

pytestmark = [pytest.mark.slow, pytest.mark.extended]


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[Connection]:
    path = str(tmp_path / "mq")
    with lakemq.connect(path, create=True, config={**CONFIG, "project.interval.ms": 60_000}) as mq, mq.serving():
        mq.topics.create("t", partitions=2)
        yield mq


def interrupt(work: Callable[[], Any], event: str, function: str) -> None:
    """Do the work, and raise KeyboardInterrupt where the first such function of ours is called or returns."""

    def trace(frame: FrameType, trace_event: str, _: Any) -> Any:
        if "lakemq" not in frame.f_globals["__name__"]:
            return None
        if trace_event == event and frame.f_code.co_name == function:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        sys.settrace(before)


def within_s(seconds: float, work: Callable[[], Any]) -> Any:
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(work).result(seconds)
    finally:
        pool.shutdown(wait=False)


@pytest.mark.parametrize("event", ["call", "return"])
def test_interrupted_poll_and_begin_can_be_repeated(mq: Connection, event: str) -> None:
    mq.publish("t", pa.table({"value": ["x"]}))
    consumer = mq.consumer("g", assign=["t"])
    interrupt(consumer.poll, event, "_find_bounds")
    assert within_s(10, lambda: consumer.poll().to_arrow().num_rows) == 1
    transaction = mq.producer("p", linger_ms=0)
    interrupt(transaction.begin_transaction, event, "check_not_fenced")
    within_s(10, transaction.begin_transaction)
    within_s(10, transaction.abort_transaction)


class InterruptedListener(lakemq.RebalanceListener):
    """Ctrl-C comes while it handles revoked partitions."""

    def on_revoked(self, partitions: Any) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("call", ["close", "unsubscribe"])
def test_ctrl_c_in_listener_ends_leave_without_answer(tmp_path: Path, call: str) -> None:
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=CONFIG) as mq:
        with mq.serving():
            mq.topics.create("t")
            consumer = mq.consumer("g", topics=["t"], protocol="cooperative", listener=InterruptedListener())
            until(lambda: bool(consumer.poll().outcome and consumer.assignment()))
        began_s = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            getattr(consumer, call)()
        assert time.monotonic() - began_s < 10  # without an answer the request would time out after 30 s
        with mq.serving():  # the connection waits for the answer when it is closed
            until(lambda: mq.requester.waited_ms() is None)


def test_ctrl_c_in_abort_ends_close_of_producer_without_answer(tmp_path: Path) -> None:
    with lakemq.connect(str(tmp_path / "mq"), create=True, config=CONFIG) as mq:
        with mq.serving():
            mq.topics.create("t")
            producer = mq.producer("id", linger_ms=0)
        producer.begin_transaction()
        producer.send("t", "x")
        until(lambda: mq.requester.waited_ms() is not None)
        began_s = time.monotonic()
        interrupt(producer.close, "call", "abort")
        assert time.monotonic() - began_s < 10
