"""How long a message takes until a follower has it: in the sender's process, in another one, by tail and by poll.

The sequencer, and the follower of another process, are processes of their own. The kinds of followers take turns in
short rounds, so that all see the same drift of the machine.
"""

import multiprocessing
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe

from figures import Figure, median, percentile
from serving import run_sequencer

import lakemq

TOPIC = "followed"
WARM_UP = 20
_LAST = b"last"
KINDS = ["tail, same process", "tail, other process", "poll, same process", "poll, other process"]


def run(sends: int, rounds: int) -> Iterator[Figure]:
    waits: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, run_sequencer(folder):
        _measure(folder, sends, rounds, waits)
    for kind, (acknowledged, fetchable) in waits.items():
        for what, seconds in (("acknowledged", acknowledged), ("fetchable", fetchable)):
            yield Figure(f"send -> {what}, {kind}, p50", median(seconds) * 1e3, "ms", 2, "<=")
            yield Figure(f"send -> {what}, {kind}, p99", percentile(seconds, 0.99) * 1e3, "ms", 8, "<=")


def _measure(folder: str, sends: int, rounds: int, waits: dict[str, tuple[list[float], list[float]]]) -> None:
    with lakemq.connect(folder) as mq:
        mq.topics.create(TOPIC, partitions=1)
        for _ in range(rounds):
            for kind in KINDS:
                acknowledged, fetchable = measure_round(mq, kind, sends)
                waits[kind][0].extend(acknowledged)
                waits[kind][1].extend(fetchable)


def measure_round(mq: lakemq.Connection, kind: str, sends: int) -> tuple[list[float], list[float]]:
    """Return the seconds from each send to its acknowledgement, and until the follower has the message.

    A value is the time of its send. All processes of a machine read the same clock.
    """
    acknowledged = []
    with _start_follower(mq.namespace.path, kind) as pipe, mq.producer(linger_ms=0) as producer:
        assert pipe.recv() == "ready"
        time.sleep(0.3)
        for _ in range(WARM_UP + sends):
            start_s = time.perf_counter()
            producer.send(TOPIC, repr(start_s)).result()
            acknowledged.append(time.perf_counter() - start_s)
        producer.send(TOPIC, _LAST).result()
        fetchable = pipe.recv()
    return acknowledged[WARM_UP:], fetchable[WARM_UP:]


@contextmanager
def _start_follower(path: str, kind: str) -> Iterator[Pipe]:
    method, place = kind.split(", ")
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    start = threading.Thread if place == "same process" else context.Process
    follower = start(target=_follow, args=(path, method, there))
    follower.start()
    try:
        yield here
    finally:
        follower.join()


def _follow(path: str, method: str, pipe: Pipe) -> None:
    """Send the seconds between the times that the values name and their arrival, once the last message is there."""
    waits: list[float] = []
    with lakemq.connect(path) as mq:
        arrivals = _tail(mq) if method == "tail" else _poll(mq)
        next(arrivals)
        pipe.send("ready")
        for values in arrivals:
            now_s = time.perf_counter()
            waits.extend(now_s - float(value) for value in values if value != _LAST)
            if _LAST in values:
                break
    pipe.send(waits)


def _tail(mq: lakemq.Connection) -> Iterator[list[bytes]]:
    tables = mq.tail(TOPIC)
    yield []
    for table in tables:
        yield table.column("value").to_pylist()


def _poll(mq: lakemq.Connection) -> Iterator[list[bytes]]:
    with mq.consumer("bench", assign=[TOPIC], auto_offset_reset="latest") as consumer:
        consumer.poll()
        yield []
        while True:
            batch = consumer.poll(timeout_ms=1_000)
            yield [message.value for message in batch]
