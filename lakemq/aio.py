"""LakeMQ for asyncio: the same client, awaitable.

    async with lakemq.aio.connect("data/shop") as mq, mq.producer() as producer:
        metadata = await producer.send("orders", "a book")

Nothing here blocks the event loop. Sends need no thread: the producer's own thread ends their futures. Calls that wait
run in a few threads of the connection, and the polls of each consumer in one of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, overload

import lakemq
from lakemq.engine.client.arguments import parse_whole_number
from lakemq.engine.client.consume.batch import ConsumerBatch
from lakemq.engine.client.consume.consumer import POLL_RECORDS, Consumer, Unseen
from lakemq.engine.client.consume.queue_consumer import QueueConsumer

if TYPE_CHECKING:
    from typing import Unpack

    from lakemq.engine.client.consume.batch import Messages
    from lakemq.engine.client.consume.group_consumer import GroupConsumer
    from lakemq.engine.client.consume.options import MemberKeywords, Names, ReaderKeywords
    from lakemq.engine.client.consume.position_consumer import AssignedConsumer
    from lakemq.engine.client.fetch.fetch_result import Message
    from lakemq.engine.client.offsets import ConsumedOffsets, TopicPartition
    from lakemq.engine.client.producer.failures import FlushReport
    from lakemq.engine.client.producer.options import ProducerKeywords
    from lakemq.engine.client.producer.producer import Producer

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=Consumer)
SomeConsumer = TypeVar("SomeConsumer", bound="AsyncConsumer[Any]")
Run = Callable[..., Any]
"""Awaits a call that runs in a thread of the connection."""

_THREADS = 4
"""Threads of a connection. Each waits for the sequencer most of the time."""
_SLICE_MS = 250
"""How long a poll waits at most before it looks whether it was cancelled."""
_KEEP_UP_MS = 1_000
"""After this long without a poll, a loop over messages looks whether the partitions have changed."""


async def _run_in(pool: ThreadPoolExecutor, call: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
    """Await a call in a thread of the pool. If the wait is cancelled, the call still runs, also if it has not begun."""
    ended: Future[T] = Future()
    ended.set_running_or_notify_cancel()  # from here on it cannot be cancelled

    def run() -> None:
        try:
            ended.set_result(call(*arguments, **keywords))
        except BaseException as error:
            ended.set_exception(error)

    pool.submit(contextvars.copy_context().run, run)
    return await asyncio.wrap_future(ended)


def _close_result(connecting: Future[lakemq.Connection]) -> None:
    if not connecting.cancelled():
        connecting.result().close()


@asynccontextmanager
async def connect(path: str, **options: Any) -> AsyncIterator[AsyncConnection]:
    """Connect to a namespace, and close the connection at the end of the block.

    Args:
        path: folder or object-store URI of the namespace.
        **options: as of `lakemq.connect`.

    Example:
        >>> async with lakemq.aio.connect("data/shop") as mq:  # doctest: +SKIP
        ...     await mq.run(mq.sync.topics.create, "orders", 4)
    """
    pool = ThreadPoolExecutor(_THREADS, "lakemq-aio")
    try:
        connecting = pool.submit(contextvars.copy_context().run, partial(lakemq.connect, path, **options))
        try:
            sync = await asyncio.wrap_future(connecting)
        except asyncio.CancelledError:  # the call goes on in its thread
            pool.submit(_close_result, connecting)
            raise
        try:
            yield AsyncConnection(sync, partial(_run_in, pool))
        finally:
            await asyncio.shield(_run_in(pool, sync.close))
    finally:
        pool.shutdown(wait=False)


class AsyncConnection:
    """A connection of an event loop, as `connect` gives it.

    Attributes:
        sync: the connection underneath, for everything else. Its calls block: await them with `run`.
    """

    def __init__(self, sync: lakemq.Connection, run: Run) -> None:
        self.sync, self._run = sync, run

    async def run(self, call: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> T:
        """Await a call that blocks, such as a method of `sync`. A cancelled call still ends in its thread.

        Args:
            call: any method of `sync` and of what it gives, as `topics` and `schedules`; or a function of yours.
            *arguments: of the call. Type checkers compare them with it.
            **keywords: of the call.

        Returns:
            What the call returns. To read a fetch or a stream to its end, put the loop into a function of yours.

        Raises:
            LakeMQError: what the call raises.

        Example:
            >>> await mq.run(mq.sync.schedules.create, "daily", "reports", cron="0 8 * * *")  # doctest: +SKIP
        """
        result: T = await self._run(call, *arguments, **keywords)
        return result

    def producer(self, **options: Unpack[ProducerKeywords]) -> AsyncProducer:
        """Return a producer. Use it with `async with`. Its options are those of `lakemq.Connection.producer`."""
        options["max_block_ms"] = 0
        return AsyncProducer(self.sync.producer(**options), self._run)

    @overload
    def consumer(
        self,
        group: str,
        *,
        topics: Names = ...,
        protocol: Literal["queue"] | None = None,
        **options: Unpack[MemberKeywords],
    ) -> AsyncQueueConsumer: ...

    @overload
    def consumer(
        self,
        group: str,
        *,
        topics: Names = ...,
        protocol: Literal["cooperative", "classic"],
        **options: Unpack[MemberKeywords],
    ) -> AsyncConsumer[GroupConsumer]: ...

    @overload
    def consumer(
        self, group: str, *, assign: Sequence[str | tuple[str, int]], **options: Unpack[ReaderKeywords]
    ) -> AsyncConsumer[AssignedConsumer]: ...

    def consumer(self, group: str, **options: Any) -> AsyncConsumer[Any]:
        """Return a consumer, which joins its group at the beginning of `async with`.

        Its options are those of `lakemq.Connection.consumer`. Without a protocol, the group must be a queue group.
        """
        join: Callable[[], Any] = partial(self.sync.consumer, group, **options)
        if "assign" in options or options.get("protocol") in ("cooperative", "classic"):
            return AsyncConsumer(join, self._run)
        return AsyncQueueConsumer(join, self._run)


class AsyncProducer:
    """A producer whose futures are awaited. Use it with `async with`; at the end it sends what it has.

    Attributes:
        sync: the producer underneath.
        send: as `lakemq.Producer.send`: puts a record into the buffer, and returns its future. The record is sent also
            if nobody awaits that, or the wait is cancelled. It never waits: it raises BufferFull if there is no room.

    Example:
        >>> metadata = await producer.send("orders", "a book", key="Ada")  # doctest: +SKIP
    """

    def __init__(self, sync: Producer, run: Run) -> None:
        self.sync, self._run, self.send = sync, run, sync.send

    async def flush(self, timeout_ms: int | None = None) -> FlushReport:
        """As `lakemq.Producer.flush`. Errors of futures that this thread has awaited are not raised again."""
        reports: list[FlushReport] = []
        flush = self.sync._failures.bind_to_thread(lambda: reports.append(self.sync.flush(timeout_ms)))
        await self._run(flush)
        return reports[0]

    async def close(self) -> None:
        """Send the buffer, and end. Raises what `flush` raises."""
        await asyncio.shield(self._run(self.sync._failures.bind_to_thread(self.sync.close)))

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncConsumer(Generic[C]):
    """A consumer whose polls are awaited. Use it with `async with`; one task polls it.

    A cancelled poll gives back the messages that it has found: the next poll returns them.
    """

    def __init__(self, join: Callable[[], C], run: Run) -> None:
        """join: returns the consumer underneath."""
        self._join, self._run = join, run
        self._joined: C | None = None
        self._polls = ThreadPoolExecutor(1, "lakemq-poll")
        self._poll_ends = threading.Event()
        """Set to end the newest poll."""
        self._missed: BaseException | None = None
        """The error of a cancelled poll, which the next poll raises."""

    @property
    def sync(self) -> C:
        """The consumer underneath, for everything else. Its calls block. Raises IllegalState before `async with`."""
        if self._joined is None:
            raise lakemq.errors.IllegalState("The consumer has not joined its group.", expected="async with consumer")
        return self._joined

    async def poll(self, max_records: int = 10_000, timeout_ms: int = 0) -> ConsumerBatch:
        """Return the next messages, or an empty batch that says why in `outcome`.

        If the task is cancelled, the next poll returns the messages that this one has found.

        Args:
            max_records: the most messages.
            timeout_ms: how long to wait for the first message.

        Raises:
            LakeMQError: as the poll of `lakemq.Consumer`.

        Example:
            >>> batch = await consumer.poll(timeout_ms=1_000)  # doctest: +SKIP
        """
        return await self._in_polls(partial(self._poll, max_records, timeout_ms), self._give_back)

    async def _in_polls(self, call: Callable[[threading.Event], T], give_back: Callable[[T], object]) -> T:
        """Await a call in the thread of polls. If the task is cancelled, give back what the call has returned.

        The thread does one thing after the other, so the next poll comes after what was given back.
        """
        is_cancelled = self._poll_ends = threading.Event()
        context = contextvars.copy_context()
        future: Future[T] = self._polls.submit(context.run, partial(self._raise_missed_or, call), is_cancelled)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            is_cancelled.set()
            self._polls.submit(self._take_back, future, give_back)
            raise

    def _raise_missed_or(self, call: Callable[[threading.Event], T], is_cancelled: threading.Event) -> T:
        missed, self._missed = self._missed, None
        if missed is not None:
            raise missed
        return call(is_cancelled)

    def _take_back(self, future: Future[T], give_back: Callable[[T], object]) -> None:
        if future.cancelled():  # it had not begun
            return
        try:
            give_back(future.result())
        except BaseException as error:
            self._missed = error

    def _give_back(self, batch: ConsumerBatch) -> None:
        if batch:
            with self.sync._lock.own:
                self.sync._reader.mark_unseen(batch)

    def _poll(self, max_records: int, timeout_ms: int, is_cancelled: threading.Event) -> ConsumerBatch:
        """Poll in slices, so that a cancelled poll ends soon."""
        clock = self.sync._clock
        deadline_ms = clock.steady_ms() + parse_whole_number("timeout_ms", timeout_ms, 0)
        while True:
            left_ms = max(0, deadline_ms - clock.steady_ms())
            batch = self.sync.poll(max_records, min(left_ms, _SLICE_MS))
            if batch or left_ms <= _SLICE_MS or is_cancelled.is_set():
                break
        try:
            batch.load()  # here, and not in the event loop
        except BaseException:
            self._give_back(batch)
            raise
        return batch

    def _poll_unseen(self, is_cancelled: threading.Event) -> Unseen:
        """Poll for a loop. The messages are given back already: each counts as read when the loop gets it."""
        batch = self._poll(POLL_RECORDS, _KEEP_UP_MS, is_cancelled)
        with self.sync._lock.own:
            return self.sync._reader.mark_unseen(batch)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over the messages one by one, and wait for more: `async for message in consumer`.

        The loop ends when the consumer is closed.
        Each message counts as read when the loop gets it. What it did not get, the next poll or loop reads.
        """
        sync, clock = self.sync, self.sync._clock
        while not sync._lock.is_closed:
            unseen = await self._in_polls(self._poll_unseen, lambda unseen: None)
            kept_up_ms = clock.steady_ms()
            for message in unseen.messages:
                if clock.steady_ms() - kept_up_ms >= _KEEP_UP_MS and not sync._lock.is_closed:
                    await self._in_polls(self._keep_up, lambda _: None)
                    kept_up_ms = clock.steady_ms()
                with sync._lock.own:
                    if sync._lock.is_closed:
                        return
                    is_shown = unseen.show(message)
                if is_shown:  # nothing is awaited between this and the loop's body, so no message is lost
                    yield message
            with sync._lock.own:
                unseen.end()

    def _keep_up(self, _: threading.Event) -> None:
        with self.sync._lock.own:
            self.sync._reader.begin_poll(newest=True)

    async def commit(
        self, what: ConsumerBatch | Mapping[TopicPartition, int] | None = None, metadata: str | None = None
    ) -> ConsumedOffsets:
        """As the commit of `lakemq.GroupConsumer` or `lakemq.QueueConsumer`."""
        offsets: ConsumedOffsets = await self._run(self.sync.commit, what, metadata)
        return offsets

    async def close(self) -> None:
        """End the present poll, and leave the group. Messages that a cancelled poll has found go back unseen."""
        if self._joined is not None:
            self._poll_ends.set()
            await asyncio.shield(_run_in(self._polls, self._joined.close))

    async def __aenter__(self: SomeConsumer) -> SomeConsumer:
        joined: C = await self._in_polls(lambda _: self._join(), lambda consumer: consumer.close())
        self._joined = joined
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncQueueConsumer(AsyncConsumer[QueueConsumer]):
    """A member of a queue group, whose calls are those of `lakemq.QueueConsumer`. A cancelled one still counts.

    Example:
        >>> async for order in consumer:  # doctest: +SKIP
        ...     await consumer.ack(order)
    """

    async def ack(self, what: Messages) -> None:
        """Accept a message, a list of messages or a batch. Single ones gather: `flush` before you pause."""
        await self._run(self.sync.ack, what)

    async def nack(self, what: Messages, delay_ms: int | None = None, error: str = "") -> None:
        """Give messages back: they are delivered again, after `delay_ms` or as nack.backoff.ms says."""
        await self._run(self.sync.nack, what, delay_ms, error)

    async def reject(self, what: Messages, error: str = "") -> None:
        """Make messages dead letters at once. error: what went wrong."""
        await self._run(self.sync.reject, what, error)

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until the group has noted all acknowledgements made so far."""
        await self._run(self.sync.flush, timeout_ms)
