"""A producer that several threads use, and a sequencer, connection or answer that goes away."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from unit.served import CONFIG, new_name, run_in_thread, served, until, values

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.producer.delivery import RecordFuture
from lakemq.engine.client.producer.producer import TransactionalProducer
from lakemq.engine.client.transactions.scope import TransactionScope
from lakemq.engine.protocol.values.kinds import AnyResult
from lakemq.engine.protocol.values.log import Produce, Published
from lakemq.engine.protocol.values.transactions import EndTransaction
from lakemq.errors import (
    BufferFull,
    IllegalState,
    LakeMQError,
    RequestTimedOut,
    TransactionAborted,
    UnknownServerError,
    UnknownTopicOrPartition,
)

pytestmark = [pytest.mark.slow, pytest.mark.extended]

THREADS = 8


@pytest.fixture
def mq_without_sequencer(tmp_path: Path) -> Iterator[Connection]:
    """A namespace with a topic `t` and no sequencer, in which requests are given up soon."""
    config = {**CONFIG, "request.timeout.ms": 50}
    with served(tmp_path) as first:
        first.topics.create("t")
    with lakemq.connect(str(tmp_path / "mq"), config=config) as mq:
        yield mq


def run_in_threads(call: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """Start the threads together, and return what each returns or raises."""
    begun = threading.Barrier(count)

    def run(number: int) -> Any:
        begun.wait()
        try:
            return call(number)
        except LakeMQError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


@contextmanager
def call_meanwhile(call: Callable[[], None]) -> Iterator[None]:
    """Make the call again and again in another thread, until the block ends."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            call()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def intercept(mq: Connection, monkeypatch: pytest.MonkeyPatch, change: Callable[..., list[Future]]) -> None:
    """Send each letter through `change(ask, requests)`."""
    ask = mq.requester.submit_all
    monkeypatch.setattr(mq.requester, "submit_all", lambda requests: change(ask, requests))


def open_impatient_producer(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> TransactionalProducer:
    """Return a producer that does not ask again for the outcome of its transaction."""
    producer = mq.producer(new_name("id"), linger_ms=60_000)
    monkeypatch.setattr(producer._transactions, "_answer_timeout_ms", -1)
    return producer


def fail_requests(requests: Sequence[Any], error: LakeMQError) -> list[Future[AnyResult]]:
    futures: list[Future[AnyResult]] = [Future() for _ in requests]
    for future in futures:
        future.set_exception(error)
    return futures


# -- flush ----------------------------------------------------------------------------------------------


def test_flush_does_not_wait_for_later_records_of_other_threads(mq: Connection, topic: str):
    """Another thread sends without a pause, so the buffer is never empty."""
    with mq.producer(linger_ms=0, buffer_memory=1 << 20) as producer, call_meanwhile(lambda: producer.send(topic, "x")):
        for _ in range(5):
            future = producer.send(topic, "mine")
            producer.flush()
            assert future.done()


def test_error_in_the_background_is_raised_and_the_producer_goes_on(
    mq: Connection, topic: str, monkeypatch: pytest.MonkeyPatch
):
    secret = "4929-7226-1500-0064"

    def send(*_: Any) -> Any:
        raise ValueError(secret)

    with mq.producer(linger_ms=0) as producer:
        monkeypatch.setattr(producer._batches._publisher, "send", send)
        future = producer.send(topic, "a")
        with pytest.raises(LakeMQError) as caught:
            producer.flush()
        assert future.exception() is caught.value
        assert secret not in str(caught.value)
        monkeypatch.undo()
        producer.send(topic, "b")
        producer.flush()
    assert values(mq, topic) == ["b"]


def test_flush_and_close_end_without_a_sequencer(mq_without_sequencer: Connection):
    """There are several batches, and each one is given up in time. Then the producer closes."""
    producer = mq_without_sequencer.producer(linger_ms=0, delivery_timeout_ms=100, max_block_ms=50, buffer_memory=1000)
    futures = [producer.send("t", "x" * 200) for _ in range(3)]
    with suppress(BufferFull):
        while True:
            futures.append(producer.send("t", "x" * 200))
    with pytest.raises(RequestTimedOut):
        producer.flush()
    assert {type(future.exception(10)) for future in futures} == {RequestTimedOut}
    producer.close()


def test_flush_ends_after_its_timeout_and_the_producer_goes_on_sending(tmp_path: Path):
    with served(tmp_path) as mq:
        mq.topics.create("t")
        path = mq.namespace.path
    with lakemq.connect(path, config=CONFIG) as mq, mq.producer(linger_ms=0) as producer:
        future = producer.send("t", "x")
        with pytest.raises(RequestTimedOut, match="1 records are not acknowledged yet"):
            producer.flush(timeout_ms=0)
        with mq.serving():
            assert producer.flush(timeout_ms=60_000).offsets() == {("t", 0): (0, 0)}
            assert future.result().offset == 0


# -- transactions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("end", "flushed"), [("commit", False), ("abort", True)])
def test_record_sent_while_a_transaction_ends_is_refused(
    mq: Connection, topic: str, end: str, flushed: bool, monkeypatch: pytest.MonkeyPatch
):
    """The record belongs neither to this transaction nor to the next one."""
    late: list[Any] = []

    def change(ask: Callable[..., list[Future]], requests: Sequence[Any]) -> list[Future]:
        if isinstance(requests[-1][0], EndTransaction):
            calls = (
                lambda: producer.send(topic, "late"),
                lambda: producer.send_arrow(topic, pa.table({"value": ["late"]})),
                lambda: producer.send_offsets_to_transaction({(topic, 0): 0}, "g"),
                producer.begin_transaction,
                producer.commit_transaction,
                producer.abort_transaction,
            )
            late.extend(run_in_threads(lambda number: calls[number](), len(calls)))
        return ask(requests)

    intercept(mq, monkeypatch, change)
    with mq.producer(new_name("id"), linger_ms=60_000) as producer:
        for number in range(2):
            producer.begin_transaction()
            producer.send(topic, f"{number}")
            if flushed:
                producer.flush()
            producer.commit_transaction() if number or end == "commit" else producer.abort_transaction()
    assert [type(error) for error in late] == [IllegalState] * len(late)
    assert len(late) == 12 if flushed or end == "commit" else len(late) >= 6
    assert values(mq, topic) == (["0", "1"] if end == "commit" else ["1"])


def test_flush_of_another_thread_has_the_outcome_of_the_commit(
    mq: Connection, topic: str, monkeypatch: pytest.MonkeyPatch
):
    """The record of the flush travels with the commit. It is acknowledged with the commit, and not before."""
    answers, outcomes = [RequestTimedOut()], []

    def change(ask: Callable[..., list[Future]], requests: Sequence[Any]) -> list[Future]:
        if not isinstance(requests[-1][0], EndTransaction):
            return ask(requests)
        thread = threading.Thread(target=lambda: outcomes.extend(run_in_threads(lambda _: producer.flush(), 1)))
        thread.start()
        until(lambda: producer._buffer._flush_upto > 0)
        return fail_requests(requests, answers.pop()) if answers else ask(requests)

    with open_impatient_producer(mq, monkeypatch) as producer:
        intercept(mq, monkeypatch, change)
        producer.begin_transaction()
        future = producer.send(topic, "a")
        with pytest.raises(RequestTimedOut):
            producer.commit_transaction()
        until(lambda: len(outcomes) == 1)
        assert isinstance(outcomes[0], RequestTimedOut)
        with pytest.raises(RequestTimedOut):
            producer.flush()
        assert not future.done()
        producer.commit_transaction()
        assert future.result().offset == 0
        until(lambda: len(outcomes) == 2)
        assert not isinstance(outcomes[1], LakeMQError)
    assert values(mq, topic) == ["a"]


def test_leaving_a_transaction_waits_for_publishes_of_other_threads(mq: Connection, topic: str):
    publishing, go_on = threading.Event(), threading.Event()

    def publish_slowly(*arguments: Any) -> Published:
        publishing.set()
        assert go_on.wait(10)
        return mq._rows.publish_in_transaction(*arguments)

    manager = mq.transaction(new_name("id"))._manager
    with TransactionScope(manager, publish_slowly, Published([])) as transaction:
        thread = threading.Thread(target=lambda: transaction.publish(topic, pa.table({"value": ["a"]})))
        thread.start()
        assert publishing.wait(10)
        threading.Timer(0.05, go_on.set).start()
    assert values(mq, topic) == ["a"]
    thread.join()
    with mq.transaction(transaction._manager.transactional_id):
        for call in (
            lambda: transaction.publish(topic, pa.table({"value": ["too late"]})),
            lambda: transaction.send_offsets({(topic, 0): 0}, "g"),
        ):
            with pytest.raises(IllegalState):
                call()
    assert values(mq, topic) == ["a"]


def test_failed_sender_thread_fails_its_records_and_refuses_more(
    mq: Connection, topic: str, monkeypatch: pytest.MonkeyPatch
):
    producer = mq.producer(linger_ms=0)

    def settle(_: Any) -> None:
        monkeypatch.undo()
        raise MemoryError

    monkeypatch.setattr(producer._settler, "settle", settle)
    assert isinstance(producer.send(topic, "a").exception(60), UnknownServerError)
    with pytest.raises(IllegalState, match="closed"):
        producer.send(topic, "b")
    producer.close()


# -- callbacks and interrupts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "follows"),
    [("_take_unsent", "abort"), ("_prepare_requests", "flush"), ("_commit", "close"), ("settle", "abort")],
)
def test_interrupted_commit_can_be_aborted_flushed_or_closed(
    mq: Connection, topic: str, monkeypatch: pytest.MonkeyPatch, where: str, follows: str
):
    producer = mq.producer(new_name("id"), linger_ms=60_000)
    producer.begin_transaction()
    future = producer.send(topic, "a")
    part = producer._settler if where == "settle" else producer._batches
    work = getattr(part, where)

    def interrupt(*arguments: Any) -> None:
        monkeypatch.undo()
        if where == "_take_unsent":
            work(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(part, where, interrupt)
    with pytest.raises(KeyboardInterrupt):
        producer.commit_transaction()
    if follows == "flush":
        with suppress(LakeMQError):
            run_in_thread(producer.flush)
    if follows == "abort":
        with suppress(IllegalState):  # it is committed
            run_in_thread(producer.abort_transaction)
        producer.begin_transaction()
        producer.send(topic, "b")
        run_in_thread(producer.commit_transaction)
        assert values(mq, topic)[-1] == "b"
    run_in_thread(producer.close)
    assert isinstance(future.exception(0), LakeMQError)


# -- close ----------------------------------------------------------------------------------------------


def test_closing_connection_closes_all_producers_when_one_fails(tmp_path: Path):
    with served(tmp_path) as first:
        first.topics.create("t")
        mq = lakemq.connect(first.namespace.path, config=CONFIG)
        bad, good, transactional = (
            mq.producer(transactional_id, linger_ms=60_000) for transactional_id in (None, None, "id")
        )
        transactional.begin_transaction()
        bad.send("nobody-knows-it", "x")
        future = good.send("t", "kept")
        unsent = transactional.send("t", "never")
        with pytest.raises(UnknownTopicOrPartition):
            mq.close()
        assert (future.result().offset, type(unsent.exception())) == (0, TransactionAborted)
        assert not any(producer._sender._thread.is_alive() for producer in (bad, good, transactional))
        mq.close()
        assert values(first, "t") == ["kept"]


def test_records_accepted_while_the_connection_closes_are_sent(tmp_path: Path):
    with served(tmp_path) as first:
        first.topics.create("t")
        mq = lakemq.connect(first.namespace.path, config=CONFIG)
        producers = [mq.producer(linger_ms=1) for _ in range(2)]
        futures: list[RecordFuture] = []

        def send(number: int) -> None:
            if number == THREADS - 1:
                until(lambda: len(futures) > 20)
                mq.close()
                return
            while True:
                try:
                    futures.append(producers[number % 2].send("t", "x"))
                except IllegalState:
                    return

        run_in_threads(send)
        assert sorted(future.result(0).offset for future in futures) == list(range(len(futures)))
        assert len(values(first, "t")) == len(futures)


def test_closed_connection_refuses_every_call(tmp_path: Path):
    with served(tmp_path) as mq:
        mq.topics.create("t")
        producer, consumer = mq.producer(), mq.consumer("g", assign=["t"])
        tail = mq.tail("t", start=0)
        table = pa.table({"value": ["a"]})
        mq.publish("t", table)
        next(tail)
        topics, transactions, groups = mq.topics, mq.transactions, mq.groups
    for call in (
        lambda: producer.send("t", "a"),
        producer.flush,
        mq.producer,
        lambda: mq.producer("id"),
        lambda: mq.transaction("id"),
        lambda: mq.publish("t", table),
        lambda: mq.consumer("g", assign=["t"]),
        lambda: consumer.poll(),
        lambda: mq.fetch("t"),
        lambda: next(tail),
        lambda: next(mq.tail("t")),
        lambda: mq.beginning_offsets("t"),
        lambda: mq.end_offsets("t"),
        lambda: mq.offsets_for_times("t", {0: 0}),
        mq.state,
        mq.serving,
        mq.step_until_idle,
        topics.list,
        lambda: topics.create("u"),
        transactions.all,
        groups.list,
    ):
        with pytest.raises(IllegalState, match="closed"):
            call()


# -- answers that are missing ---------------------------------------------------------------------------


def test_producer_replaces_an_id_that_the_sequencer_has_forgotten(
    mq: Connection, topic: str, monkeypatch: pytest.MonkeyPatch
):
    forgets = False

    def change(ask: Callable[..., list[Future]], requests: Sequence[Any]) -> list[Future]:
        nonlocal forgets
        if not (forgets and isinstance(requests[0][0], Produce)):
            return ask(requests)
        forgets, unknown = False, msgspec.structs.replace(requests[0][0].producer, producer_id=10**6)
        return ask([(msgspec.structs.replace(request, producer=unknown), rows) for request, rows in requests])

    with mq.producer(linger_ms=0) as producer:
        producer.send(topic, "before").result()
        intercept(mq, monkeypatch, change)
        for number in range(2):
            forgets = True
            assert producer.send(topic, f"{number}").result().offset == 1 + number
            assert not forgets
    assert values(mq, topic) == ["before", "0", "1"]
