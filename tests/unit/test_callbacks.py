"""Callbacks that raise or call back, and threads that cannot start: no record is lost, and nothing hangs."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from unit.served import CONFIG, new_name, served, until, values

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.options import RebalanceListener
from lakemq.errors import IllegalState, UnknownServerError

pytestmark = [pytest.mark.slow, pytest.mark.extended]


@pytest.mark.parametrize("raised", [asyncio.CancelledError, SystemExit, KeyboardInterrupt, ValueError])
def test_callback_that_raises_stops_no_later_record(mq: Connection, topic: str, raised: type[BaseException]) -> None:
    def bad(error: Any, metadata: Any) -> None:
        raise raised

    with mq.producer(linger_ms=0) as producer:
        producer.send(topic, "0", on_delivery=bad).result(10)
        assert producer.send(topic, "1").result(10).offset == 1
        producer.flush()
        producer.send(topic, "2")
    assert values(mq, topic) == ["0", "1", "2"]


def test_commit_interrupted_in_a_callback_settles_its_futures(mq: Connection, topic: str) -> None:
    def interrupt(error: Any, metadata: Any) -> None:
        raise KeyboardInterrupt

    with mq.producer(new_name("etl"), linger_ms=60_000) as producer:
        producer.begin_transaction()
        producer.send(topic, "0", on_delivery=interrupt)
        second = producer.send(topic, "1")
        with pytest.raises(KeyboardInterrupt):
            producer.commit_transaction()
        assert second.result(5).offset == 1, "it is committed"
        producer.begin_transaction()
        producer.send(topic, "2")
        producer.commit_transaction()
        producer.flush()
    assert values(mq, topic) == ["0", "1", "2"]


class InterruptedListener(RebalanceListener):
    """Ctrl-C comes while it handles revoked partitions."""

    def on_revoked(self, partitions: Any) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("call", ["close", "unsubscribe"])
def test_ctrl_c_in_listener_ends_leave_without_answer(tmp_path: Path, call: str) -> None:
    with lakemq.connect(tmp_path / "mq", create=True, config=CONFIG) as mq:
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


def test_connection_is_not_closed_in_a_callback(tmp_path: Path) -> None:
    refused: list[BaseException] = []
    with served(tmp_path) as mq:
        mq.topics.create("t")

        def close(error: Any, metadata: Any) -> None:
            try:
                mq.close()
            except IllegalState as illegal:
                refused.append(illegal)

        producer = mq.producer(linger_ms=0)
        producer.send("t", "0", on_delivery=close).result(10)
        later = producer.send("t", "1")
        mq.close()
        assert later.result(0).offset == 1
    assert len(refused) == 1


def test_thread_that_cannot_start_refuses_one_request(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        monkeypatch.undo()
        raise RuntimeError("can't start new thread")

    with Connection(mq.namespace) as other:
        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(UnknownServerError, match="could not be started; nothing was sent"):
            other.topics.create(new_name("t"))
        assert other.topics.create(new_name("t")).partitions == 1
