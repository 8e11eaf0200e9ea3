"""Single sends, each awaited before the next: from 100 tasks of an event loop, and from 100 threads."""

import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator

from figures import Figure, median
from serving import run_sequencer

import lakemq.aio

TOPIC = "awaited"
SENDERS = 100
VALUE = b"x" * 100


def run(sends: int, rounds: int) -> Iterator[Figure]:
    """sends: of each task and of each thread in a round."""
    rates: dict[str, list[float]] = {"tasks": [], "threads": []}
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, run_sequencer(folder):
        with lakemq.connect(folder) as mq:
            mq.topics.create(TOPIC, partitions=4)
        for round_ in range(rounds + 1):
            task_s, thread_s = asyncio.run(_send_from_tasks(folder, sends)), _send_from_threads(folder, sends)
            if round_:  # the first is to warm up
                rates["tasks"].append(SENDERS * sends / task_s)
                rates["threads"].append(SENDERS * sends / thread_s)
    note = ", ".join(f"{median(values):,.0f}/s from {SENDERS} {kind}" for kind, values in rates.items())
    yield Figure(
        "awaited single sends, tasks / threads", median(rates["tasks"]) / median(rates["threads"]), "x", 0.8, ">=", note
    )


async def _send_from_tasks(folder: str, sends: int) -> float:
    async with lakemq.aio.connect(folder) as mq, mq.producer() as producer:

        async def send() -> None:
            for _ in range(sends):
                await producer.send(TOPIC, VALUE)

        await producer.send(TOPIC, VALUE)
        start_s = time.perf_counter()
        await asyncio.gather(*(send() for _ in range(SENDERS)))
        return time.perf_counter() - start_s


def _send_from_threads(folder: str, sends: int) -> float:
    with lakemq.connect(folder) as mq, mq.producer() as producer:

        def send() -> None:
            for _ in range(sends):
                producer.send(TOPIC, VALUE).result()

        producer.send(TOPIC, VALUE).result()
        threads = [threading.Thread(target=send) for _ in range(SENDERS)]
        start_s = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - start_s
