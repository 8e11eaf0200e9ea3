"""`lakemq.aio`: awaited sends and polls; what is cancelled loses no message."""

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest
from targets import extended_but
from unit.consuming import add, create_queue_group, new_group, read_deliveries, read_texts, texts
from unit.served import new_name, new_topic, until, values

import lakemq.aio
from lakemq.aio import AsyncConnection
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.fetch import fetch_result
from lakemq.engine.client.fetch.arrow import fetch_arrow
from lakemq.errors import BufferFull, IllegalState, InvalidRequest, StorageError, UnknownTopicOrPartition

SERVED_WITH = {"project.interval.ms": 50}

pytestmark = pytest.mark.slow


def in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own, with a connection to the module's namespace."""

    @functools.wraps(test)
    def run(mq: Connection, **fixtures: Any) -> None:
        async def connect() -> None:
            async with lakemq.aio.connect(mq.namespace.path) as connection:
                await asyncio.wait_for(test(connection, **fixtures), 60)

        asyncio.run(connect())

    _, *parameters = inspect.signature(test).parameters.values()
    own, _ = inspect.signature(run, follow_wrapped=False).parameters.values()
    run.__signature__ = inspect.Signature([own, *parameters])  # type: ignore[attr-defined]
    return run


async def take(consumer: lakemq.aio.AsyncConsumer[Any], count: int) -> list[str]:
    """Poll until so many messages have come, and return their values."""
    messages: list[str] = []
    while len(messages) < count:
        messages += texts(await consumer.poll(timeout_ms=200))
    return messages


async def cancel_when(task: asyncio.Task[Any], condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# -- producers ------------------------------------------------------------------------------------------


@in_event_loop
async def test_a_send_is_awaited_wrapped_and_flushed(connection: AsyncConnection, topic: str) -> None:
    async with connection.producer() as producer:
        assert (await producer.send(topic, "a")).offset == 0
        assert (await asyncio.wrap_future(producer.send(topic, "b"))).offset == 1
        futures = [producer.send(topic, f"{number}") for number in range(3)]
        assert "RecordFuture" in repr(futures[0])
        assert not futures[0].cancel()
        assert (await producer.flush()).offsets() == {(topic, 0): (0, 4)}
        assert [future.done() for future in futures] == [True] * 3
        offsets = [metadata.offset for metadata in await asyncio.gather(*futures)]
        assert offsets == [2, 3, 4]
        producer.send(topic, "at the end")
    assert values(connection.sync, topic) == ["a", "b", "0", "1", "2", "at the end"]


@in_event_loop
async def test_an_error_that_was_awaited_is_not_raised_again_by_flush(connection: AsyncConnection) -> None:
    async with connection.producer() as producer:
        with pytest.raises(UnknownTopicOrPartition):
            await producer.send("missing", "a")
        await producer.flush()
        producer.send("missing", "b")
        with pytest.raises(UnknownTopicOrPartition):
            await producer.flush()


@in_event_loop
async def test_a_record_is_sent_although_its_wait_is_cancelled(connection: AsyncConnection, topic: str) -> None:
    async with connection.producer(linger_ms=50) as producer:

        async def send() -> None:
            await producer.send(topic, "sent")

        task = asyncio.create_task(send())
        await asyncio.sleep(0)
        await cancel_when(task, lambda: True)
    assert values(connection.sync, topic) == ["sent"]


@in_event_loop
async def test_a_full_buffer_refuses_a_send_and_does_not_block(connection: AsyncConnection, topic: str) -> None:
    async with connection.producer(buffer_memory=100, linger_ms=60_000) as producer:
        producer.send(topic, "a" * 60)
        with pytest.raises(BufferFull):
            producer.send(topic, "b" * 60)
        await producer.flush()
        producer.send(topic, "b" * 60)
        await producer.flush()


# -- consumers ------------------------------------------------------------------------------------------


@in_event_loop
async def test_messages_are_polled_acknowledged_given_back_and_rejected(
    connection: AsyncConnection, topic: str
) -> None:
    add(connection.sync, topic, {0: 4})
    group = create_queue_group(connection.sync)
    async with connection.consumer(group, topics=[topic]) as consumer:
        first, second, *more = await consumer.poll(timeout_ms=5_000)
        await consumer.ack(more)
        await consumer.reject(second, error="bad")
        await consumer.nack(first)
        (again,) = await consumer.poll(timeout_ms=5_000)
        assert again.delivery_count == 2
        await consumer.ack(again)
        await consumer.flush()
    until(lambda: connection.sync.groups.lag(group)[0].lag == 0)  # the dead letter is stored


@pytest.mark.parametrize("protocol", extended_but(["cooperative"], ["cooperative", "classic"]))
@in_event_loop
async def test_awaited_commit_returns_committed_offsets(connection: AsyncConnection, topic: str, protocol: Any) -> None:
    group = new_group(connection.sync, protocol)
    add(connection.sync, topic, {0: 2})
    async with connection.consumer(group, topics=[topic], protocol=protocol) as consumer:
        assert await take(consumer, 2) == ["0.0", "0.1"]
        assert await consumer.commit() == {(topic, 0): 2}


@in_event_loop
async def test_a_loop_gets_messages_one_by_one_and_leaves_the_others(connection: AsyncConnection, topic: str) -> None:
    add(connection.sync, topic, {0: 5})
    group = create_queue_group(connection.sync)
    async with connection.consumer(group, topics=[topic]) as consumer:
        async for message in consumer:
            await consumer.ack(message)
            if message.offset == 1:
                break
        assert await take(consumer, 3) == ["0.2", "0.3", "0.4"]


@in_event_loop
async def test_a_loop_ends_when_its_consumer_is_closed(connection: AsyncConnection, topic: str, group: str) -> None:
    add(connection.sync, topic, {0: 2})
    messages = []
    async with connection.consumer(group, assign=[topic]) as consumer:
        async for message in consumer:
            messages.append(message)
            if len(messages) == 2:
                await consumer.close()
    assert read_texts(messages) == ["0.0", "0.1"]


@pytest.mark.parametrize("way", ["poll", "loop"])
@in_event_loop
async def test_messages_are_read_outside_the_event_loop(
    connection: AsyncConnection, topic: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    connection.sync.publish(topic, pa.table({"value": ["x" * 5_000]}))  # a file
    threads: set[str] = set()

    def fetch(*arguments: Any) -> pa.Table:
        threads.add(threading.current_thread().name)
        return fetch_arrow(*arguments)

    monkeypatch.setattr(fetch_result, "fetch_arrow", fetch)
    async with connection.consumer(create_queue_group(connection.sync), topics=[topic]) as consumer:
        messages = list(await consumer.poll(timeout_ms=5_000)) if way == "poll" else [await anext(aiter(consumer))]
        assert read_texts(messages) == ["x" * 5_000]
    assert threads == {"lakemq-poll_0"}


@in_event_loop
async def test_messages_of_a_poll_that_cannot_read_them_come_with_the_next(
    connection: AsyncConnection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(connection.sync, topic, {0: 2})

    def fail(*_: Any) -> pa.Table:
        raise StorageError("down")

    async with connection.consumer(create_queue_group(connection.sync), topics=[topic]) as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(fetch_result, "fetch_arrow", fail)
            with pytest.raises(StorageError, match="down"):
                await consumer.poll(timeout_ms=5_000)
        assert await take(consumer, 2) == ["0.0", "0.1"]


# -- cancelling -----------------------------------------------------------------------------------------


class HeldPoll:
    """Holds the next poll of a consumer back after it has found messages, until they are released."""

    def __init__(self, consumer: lakemq.aio.AsyncConsumer[Any]) -> None:
        self.has_found, self.release, self._poll = threading.Event(), threading.Event(), consumer.sync.poll
        consumer.sync.poll = self._hold

    def _hold(self, *arguments: Any) -> Any:
        batch = self._poll(*arguments)
        if batch:
            self.has_found.set()
            assert self.release.wait(60)
        return batch


MOMENTS = ["when it has found messages", "while it waits", "when its result is there"]


@pytest.mark.parametrize("options", [{"topics": ...}, {"topics": ..., "protocol": "cooperative"}, {"assign": ...}])
@pytest.mark.parametrize("moment", extended_but(MOMENTS[:1], MOMENTS))
@in_event_loop
async def test_messages_of_a_cancelled_poll_come_with_the_next(
    connection: AsyncConnection, options: Any, moment: str
) -> None:
    topic, group = new_topic(connection.sync), new_name("g")
    options = {name: [topic] if value is ... else value for name, value in options.items()}
    async with connection.consumer(group, **options) as consumer:
        if moment == "while it waits":
            await cancel_when(asyncio.create_task(consumer.poll(timeout_ms=60_000)), lambda: bool(consumer._polls))
        add(connection.sync, topic, {0: 3})
        hold = HeldPoll(consumer)
        if moment == "when it has found messages":
            await cancel_when(asyncio.create_task(consumer.poll(timeout_ms=5_000)), hold.has_found.is_set)
        elif moment == "when its result is there":
            hold.release.set()
            task = asyncio.create_task(consumer.poll(timeout_ms=5_000))
            await asyncio.sleep(0)
            while not hold.has_found.is_set():
                await asyncio.sleep(0)
            consumer._polls.submit(int).result()  # blocks the loop until the poll's future is done
            await cancel_when(task, lambda: True)
        hold.release.set()
        assert await take(consumer, 3) == ["0.0", "0.1", "0.2"]


@in_event_loop
async def test_an_acknowledgement_counts_although_it_was_cancelled_before_a_thread_was_free(
    connection: AsyncConnection, topic: str
) -> None:
    add(connection.sync, topic, {0: 1})
    group = create_queue_group(connection.sync)
    meeting = threading.Barrier(lakemq.aio._THREADS + 1)
    async with connection.consumer(group, topics=[topic]) as consumer:
        (message,) = await consumer.poll(timeout_ms=5_000)
        busy = [asyncio.create_task(connection.run(meeting.wait, 60)) for _ in range(lakemq.aio._THREADS)]
        task = asyncio.create_task(consumer.ack(message))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        meeting.wait(60)
        await asyncio.gather(*busy)
        all_threads = threading.Barrier(lakemq.aio._THREADS)  # the acknowledgement has ended if they meet again
        await asyncio.gather(*(connection.run(all_threads.wait, 60) for _ in range(lakemq.aio._THREADS)))
        await consumer.flush()
    assert connection.sync.groups.lag(group)[0].lag == 0


@in_event_loop
async def test_messages_of_a_cancelled_poll_go_to_the_next_member_as_if_never_delivered(
    connection: AsyncConnection, topic: str
) -> None:
    add(connection.sync, topic, {0: 2})
    group = create_queue_group(connection.sync)
    async with connection.consumer(group, topics=[topic]) as consumer:
        hold = HeldPoll(consumer)
        task = asyncio.create_task(consumer.poll(timeout_ms=5_000))
        await cancel_when(task, hold.has_found.is_set)
        hold.release.set()
    assert read_deliveries(connection.sync, group, topic) == {0: [(0, 2, "available", 0)]}


@in_event_loop
async def test_the_next_poll_raises_the_error_of_a_cancelled_one(
    connection: AsyncConnection, topic: str, group: str
) -> None:
    async with connection.consumer(group, topics=[topic]) as consumer:
        poll, called = consumer.sync.poll, threading.Event()

        def fail(*_: Any) -> Any:
            called.set()
            consumer.sync.poll = poll  # type: ignore[method-assign]
            raise IllegalState("once")

        release: Future[None] = Future()
        consumer._polls.submit(release.result)
        consumer.sync.poll = fail  # type: ignore[method-assign]
        task: Coroutine[Any, Any, Any] = consumer.poll()
        running = asyncio.create_task(task)
        await asyncio.sleep(0)
        release.set_result(None)
        called.wait(60)  # the loop is blocked, so the task has not got the error
        await cancel_when(running, lambda: True)
        with pytest.raises(IllegalState, match="once"):
            await consumer.poll()
        assert not await consumer.poll()


@in_event_loop
async def test_a_member_whose_join_is_cancelled_leaves_its_group(
    connection: AsyncConnection, topic: str, group: str
) -> None:
    consumer = connection.consumer(group, topics=[topic])
    join, joined, release = consumer._join, list[Any](), threading.Event()

    def join_and_wait() -> Any:
        joined.append(join())
        release.wait(60)
        return joined[0]

    consumer._join = join_and_wait
    entering = asyncio.create_task(consumer.__aenter__())
    await cancel_when(entering, lambda: bool(joined))
    release.set()
    await connection.run(until, lambda: connection.sync.groups.describe(group).members == 0)


@in_event_loop
async def test_a_poll_ends_when_its_consumer_is_closed(connection: AsyncConnection, topic: str, group: str) -> None:
    async with connection.consumer(group, topics=[topic]) as consumer:
        poll = asyncio.create_task(consumer.poll(timeout_ms=3_600_000))
        await asyncio.sleep(0)  # it begins
        await consumer.close()
        assert not await poll


def test_a_cancelled_connect_is_closed(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    connect, connected, release = lakemq.connect, list[Connection](), threading.Event()

    def connect_and_wait(path: str) -> Connection:
        connected.append(connect(path))
        release.wait(60)
        return connected[0]

    monkeypatch.setattr(lakemq, "connect", connect_and_wait)

    async def main() -> None:
        entering = asyncio.create_task(lakemq.aio.connect(mq.namespace.path).__aenter__())
        await cancel_when(entering, lambda: bool(connected))
        release.set()

    asyncio.run(main())
    until(lambda: connected[0]._open._is_closed)


@in_event_loop
async def test_the_loop_goes_on_while_a_poll_waits_and_threads_stay_few(
    connection: AsyncConnection, topic: str, group: str
) -> None:
    async with connection.consumer(group, topics=[topic]) as consumer, connection.producer() as producer:
        poll = asyncio.create_task(consumer.poll(timeout_ms=60_000))
        await producer.send(topic, "woken")
        assert texts(await poll) == ["woken"]
        before = threading.active_count()
        await asyncio.gather(*(producer.send(topic, "x") for _ in range(500)))
        batch = await consumer.poll(timeout_ms=5_000)
        await asyncio.gather(*(consumer.ack(message) for message in batch))
        assert threading.active_count() - before <= 4


@in_event_loop
async def test_a_consumer_outside_its_block_is_refused(connection: AsyncConnection, topic: str, group: str) -> None:
    consumer = connection.consumer(group, topics=[topic])
    with pytest.raises(IllegalState, match="has not joined"):
        await consumer.poll()
    async with consumer:
        assert not await consumer.poll()
    with pytest.raises(IllegalState, match="is closed"):
        await consumer.poll()
    with pytest.raises(InvalidRequest):
        async with connection.consumer(group):
            pass
    assert (await connection.run(connection.sync.publish, topic, pa.table({"value": ["a"]}))).record_count == 1
