"""A client that does its work in another way, beside the plain one: workers, and sends of asyncio."""

import asyncio
import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from figures import Figure, measure_in_turn, median
from serving import run_sequencer
from without_jvm import rows

import lakemq
import lakemq.aio

SENDERS = 100


def run(message_count: int, sends_each: int, rounds: int) -> Iterator[Figure]:
    with (
        tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder,
        run_sequencer(folder),
        lakemq.connect(folder) as mq,
    ):
        mq.topics.create("read", partitions=8)
        mq.topics.create("sent", partitions=8)
        mq.publish("read", rows(message_count))
        yield _worker_over_loop(mq, message_count, rounds)
        yield _tasks_over_threads(mq, folder, sends_each, rounds)


def _worker_over_loop(mq: lakemq.Connection, count: int, rounds: int) -> Figure:
    """Compare the processor time of a worker with that of a loop, in this process. The first pair warms up."""
    numbers = itertools.count()

    def loop() -> None:
        with mq.consumer(f"loop-{next(numbers)}", topics=["read"]) as consumer:
            done_count = 0
            while done_count < count:
                for message in consumer.poll(timeout_ms=5_000):
                    consumer.ack(message)
                    done_count += 1
            consumer.flush()

    def work() -> None:
        handled, stop = itertools.count(1), threading.Event()

        def handle(_: object) -> None:
            if next(handled) == count:
                stop.set()

        mq.run_worker(handle, ["read"], group=f"worker-{next(numbers)}", concurrency=8, stop=stop)

    pairs = [(_cpu_seconds(loop), _cpu_seconds(work)) for _ in range(1 + rounds)][1:]
    loop_us, work_us = (median(column) / count * 1e6 for column in zip(*pairs, strict=True))
    note = f"processor time of a message: {work_us:.2f} us, in the loop {loop_us:.2f} us"
    ratio = median([loop_s / work_s for loop_s, work_s in pairs])
    return Figure("worker over a bare loop, small messages, empty handler", ratio, "x", 0.8, ">=", note)


def _cpu_seconds(action: Callable[[], object]) -> float:
    start_s = time.process_time()
    action()
    return time.process_time() - start_s


def _tasks_over_threads(mq: lakemq.Connection, folder: str, sends_each: int, rounds: int) -> Figure:
    """Compare single sends that tasks await with sends that threads wait for. The first pair warms up."""

    def send_in_threads() -> None:
        def send(producer: lakemq.Producer) -> None:
            for _ in range(sends_each):
                producer.send("sent", b"v").result()

        with mq.producer() as producer, ThreadPoolExecutor(SENDERS) as pool:
            list(pool.map(send, [producer] * SENDERS))

    async def send_in_tasks() -> None:
        async with lakemq.aio.connect(folder) as aio, aio.producer() as producer:

            async def send() -> None:
                for _ in range(sends_each):
                    await producer.send("sent", b"v")

            await asyncio.gather(*(send() for _ in range(SENDERS)))

    times = measure_in_turn([send_in_threads, lambda: asyncio.run(send_in_tasks())], 1 + rounds)
    pairs = list(zip(*times, strict=True))[1:]
    in_threads, in_tasks = (SENDERS * sends_each / median(column) / 1e3 for column in zip(*pairs, strict=True))
    note = f"{in_tasks:.1f} and {in_threads:.1f} k messages/s"
    ratio = median([threads_s / tasks_s for threads_s, tasks_s in pairs])
    return Figure(f"awaited sends of {SENDERS} tasks over those of {SENDERS} threads", ratio, "x", 0.8, ">=", note)
