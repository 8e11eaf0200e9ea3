"""Requests of a namespace on an object store at four loads, and their price per month on Amazon S3. No JVM."""

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from counted_store import TOPIC, CountedRequest, RequestCounter, count_requests, serve_namespace, serve_store
from figures import Figure

from lakemq.engine.client.connection import Connection

# Amazon S3 Standard in us-east-1, from its list of prices, as of November 2025. DELETE is free.
USD_PER_PUT_OR_LIST = 0.005 / 1_000
USD_PER_GET_OR_HEAD = 0.0004 / 1_000
MINUTES_PER_MONTH = 60 * 730

SETTINGS = {"engine.tick.ms": 100, "engine.idle.ms": 1_000, "project.interval.ms": 60_000}
"""The settings that the guide to object stores recommends."""

POLL_MS = 500
"""The time between two looks of a consumer that the guide recommends."""


class Load(NamedTuple):
    """The work of one producer and one consumer. poll_ms: the time between two looks of the consumer."""

    messages_per_s: float
    poll_ms: int = POLL_MS


LOADS = {
    "an idle namespace": Load(0),
    "an idle namespace, poll_ms=20": Load(0, 20),
    "a message a second": Load(1),
    "20 messages a second": Load(20),
}


def run(window_s: float) -> Iterator[Figure]:
    """Yield figures per load. window_s: how long each is counted; a minute has one projection."""
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, serve_store(folder) as server:
        for name, load in LOADS.items():
            with count_requests(server) as (counted, counter), serve_namespace(counted, SETTINGS) as mq:
                counts = _count(mq, counter, load, window_s)
            per_minute = {request: count * 60 / window_s for request, count in counts.items()}
            yield from _describe(name, per_minute)


def _count(mq: Connection, counter: RequestCounter, load: Load, window_s: float) -> Counter[CountedRequest]:
    with mq.producer(linger_ms=0) as producer, _consuming(mq, load.poll_ms):
        producer.send(TOPIC, b"first").result()
        time.sleep(5)
        counter.take()
        end_s = time.monotonic() + window_s
        while (left_s := end_s - time.monotonic()) > 0:
            if load.messages_per_s:
                producer.send(TOPIC, b"x" * 100)
            time.sleep(min(left_s, 1 / load.messages_per_s if load.messages_per_s else left_s))
        return counter.take()


@contextmanager
def _consuming(mq: Connection, poll_ms: int) -> Iterator[None]:
    """Read the topic until the block ends, as one consumer does."""
    ends = threading.Event()

    def consume() -> None:
        with mq.consumer("readers", assign=[TOPIC]) as consumer:
            while not ends.is_set():
                consumer.poll(1_000, 1_000, poll_ms)

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def _describe(name: str, per_minute: dict[CountedRequest, float]) -> Iterator[Figure]:
    billed = [request for request in per_minute if request.method in ("PUT", "LIST")]
    read = [request for request in per_minute if request.method in ("GET", "HEAD")]
    written_count = sum(per_minute[request] for request in billed)
    read_count = sum(per_minute[request] for request in read)
    usd = MINUTES_PER_MONTH * (written_count * USD_PER_PUT_OR_LIST + read_count * USD_PER_GET_OR_HEAD)
    folders: Counter[str] = Counter()
    for request, count in per_minute.items():
        folders[f"{request.method} {request.folder}"] += round(count)
    note = ", ".join(f"{kind} {count}" for kind, count in folders.most_common(8))
    yield Figure(f"{name}: PUT and LIST per minute", written_count, "requests", 10_000, "<=", note)
    yield Figure(f"{name}: GET and HEAD per minute", read_count, "requests", 100_000, "<=")
    yield Figure(f"{name}: price of the requests", usd, "USD/month", 1_000, "<=")
