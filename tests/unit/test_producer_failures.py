"""Failures of a producer: the thread that gets each of them, and that a known failure refuses no later record."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from unit.served import new_name, values

from lakemq.engine.client.connection import Connection
from lakemq.errors import LakeMQError, UnknownTopicOrPartition


def test_error_read_from_a_future_refuses_no_later_record(mq: Connection, topic: str):
    with mq.producer() as producer:
        with pytest.raises(UnknownTopicOrPartition):
            producer.send(new_name("missing"), "lost").result()
        assert isinstance(producer.send(new_name("missing"), "lost").exception(), UnknownTopicOrPartition)
        producer.send(topic, "good").result()
        producer.flush()
        producer.send_arrow(topic, mq.fetch(topic).to_arrow().select(["value"]))
    assert values(mq, topic) == ["good", "good"]


def test_error_passed_to_a_callback_refuses_no_later_record(mq: Connection, topic: str):
    errors: list[LakeMQError | None] = []
    called = threading.Event()

    def look(future: Any) -> None:
        errors.append(future.exception())
        called.set()

    with mq.producer(linger_ms=0) as producer:
        producer.send(new_name("missing"), "lost", on_delivery=lambda error, _: errors.append(error))
        producer.flush()
        producer.send(topic, "good")
        producer.send(new_name("missing"), "lost").add_done_callback(look)
        assert called.wait(30)
        producer.send(topic, "good")
    assert [type(error) for error in errors] == [UnknownTopicOrPartition] * 2
    assert values(mq, topic) == ["good", "good"]


def test_callback_that_ignores_the_error_leaves_it_to_the_next_flush(mq: Connection, topic: str):
    called = threading.Event()
    with mq.producer(linger_ms=0) as producer:
        producer.send(new_name("missing"), "lost").add_done_callback(lambda _: called.set())
        assert called.wait(30)
        producer.send(topic, "good")
        with pytest.raises(UnknownTopicOrPartition):
            producer.flush()
    assert values(mq, topic) == ["good"]


def test_calls_that_act_for_a_thread_get_each_error_once_whichever_threads_run_them(mq: Connection):
    with mq.producer(linger_ms=0) as producer:
        flush = producer._failures.bind_to_thread(producer.flush)
        with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
            first.submit(flush).result()
            producer.send(new_name("missing"), "lost").add_done_callback(lambda _: None)
            with pytest.raises(UnknownTopicOrPartition):
                second.submit(flush).result()
            first.submit(flush).result()


def test_error_of_a_record_fails_no_send_of_any_thread_and_each_flush(
    mq: Connection, topic: str, caplog: pytest.LogCaptureFixture
):
    """An error belongs to its future, its callback, and to `flush`, which each thread may be the only one to call."""
    missing = new_name("missing")
    has_failed = threading.Barrier(9)

    def send_and_flush(number: int) -> str:
        producer.send(topic, f"before {number}")
        has_failed.wait(60)
        producer.send(topic, f"after {number}")
        try:
            producer.flush()
        except UnknownTopicOrPartition as error:
            return str(error)
        return "no error"

    with mq.producer(linger_ms=0) as producer, ThreadPoolExecutor(8) as pool:
        flushes = [pool.submit(send_and_flush, number) for number in range(8)]
        assert producer.send(missing, "lost").exception()
        producer.send(missing, "lost").add_done_callback(lambda _: has_failed.wait(60))
        assert all(missing in flush.result(60) for flush in flushes)
        with pytest.raises(UnknownTopicOrPartition):
            producer.flush()
    assert sorted(values(mq, topic)) == sorted(f"{when} {n}" for when in ("before", "after") for n in range(8))
    assert [record.levelname for record in caplog.records if missing in record.message] == ["WARNING"]
