"""Rebalances under load: who takes over has its first record soon, who is not concerned notices nothing. No JVM."""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from figures import Figure, median
from groups import SESSION_MS, Members, _noted, joined
from serving import served

import lakemq
from lakemq.assignors import Member
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.engine.protocol.assignors.registry import BUILT_IN

ROUNDS = 5
WINDOW_S = 1.0
SATURATING = 4
"""Processes that send as fast as they are answered."""

spawn = multiprocessing.get_context("spawn")


def run(partitions: int, members: int, ranges: int) -> Iterator[Figure]:
    yield from _assigned(partitions, members)
    for part in (_joins, _untouched, _late):
        with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, served(folder):
            yield part(folder)
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, served(folder):
        yield _with_ranges(folder, ranges)


# -- assignors ----------------------------------------------------------------------------------------------


def _assigned(partitions: int, members: int) -> Iterator[Figure]:
    """One member more, where all others have their share."""
    for name in ("sticky", "cooperative-sticky"):
        counts, assign = {"t": partitions}, BUILT_IN[name]
        ids = [f"member-{n:05d}" for n in range(members)]
        had = assign(counts, {id_: Member(("t",), (), None) for id_ in ids[1:]})
        known = {id_: Member(("t",), tuple(had.get(id_, ())), None) for id_ in ids}
        started = time.perf_counter()
        has = assign(counts, known)
        taken = time.perf_counter() - started
        moves = sum(len(set(has[id_]) - set(had.get(id_, ()))) for id_ in ids)
        told = f"{name}, {partitions:,} partitions to {members} members"
        yield Figure(f"{told}: assigned in", taken, "s", 0.3, "<=")
        yield Figure(f"{told}: moves for one more member", moves, "", partitions // members, "<=")


# -- queues -------------------------------------------------------------------------------------------------


def _member(mq: Connection, group: str) -> QueueConsumer:
    consumer = mq.consumer(group, topics=["t"], protocol="queue", auto_offset_reset="earliest")
    assert isinstance(consumer, QueueConsumer)
    return consumer


def _filled(mq: Connection, partitions: int, count: int) -> None:
    """As many messages in each partition."""
    mq.topics.create("t", partitions=partitions)
    with mq.producer() as producer:
        for i in range(partitions * count):
            producer.send("t", b"%d" % i, partition=i % partitions)


def _joins(folder: str) -> Figure:
    """The one that has all acknowledges at once what it has of what is to move."""
    with lakemq.connect(folder) as mq, lakemq.connect(folder) as other:
        _filled(mq, 6, 500)
        taken = []
        for number in range(ROUNDS):
            with _member(mq, f"g{number}") as one:
                batch = one.poll(60, timeout_ms=5_000)
                started = time.perf_counter()
                with _member(other, f"g{number}") as two:
                    while not two.poll(60):
                        one.ack(batch)
                        batch = one.poll(60)
                    taken.append(time.perf_counter() - started)
    return Figure(
        "a member of a queue joins: first record of a moved partition",
        median(taken),
        "s",
        0.3,
        "<=",
        "its joining included; 10 messages of each partition with its owner",
    )


def _with_ranges(folder: str, ranges: int) -> Figure:
    """Every second message is acknowledged, of a partition that moves as it is."""
    taken = []
    with lakemq.connect(folder) as mq, lakemq.connect(folder) as other:
        _filled(mq, 2, 2 * ranges)
        for number in range(ROUNDS):
            mq.groups.create(f"g{number}", {"group.protocol": "queue", "max.handoff.ms": 0})
            with _member(mq, f"g{number}") as one:
                got: list[Any] = []
                while len(got) < 4 * ranges:
                    got += one.poll(4 * ranges, timeout_ms=5_000)
                one.ack([message for message in got if message.offset % 2])
                one.flush()
                started = time.perf_counter()
                with _member(other, f"g{number}") as two:
                    while not two.poll(60):
                        one.poll()
                    taken.append(time.perf_counter() - started)
    return Figure(f"a handoff with {ranges:,} ranges open", median(taken), "s", 1, "<=", "its joining included")


# -- what is not concerned ----------------------------------------------------------------------------------


def _untouched(folder: str) -> Figure:
    """What a member keeps goes on while another one comes and goes."""
    with lakemq.connect(folder) as mq:
        mq.topics.create("t", partitions=6)
        members = Members(folder)
        notes, _ = members.start(), members.start()
        members.until_each_has(3)
        quiet, busy = [], []
        with lakemq.connect(folder) as other, _meanwhile(lambda stop: _trickle(folder, stop)):
            time.sleep(1)
            for _ in range(ROUNDS):
                quiet.append(_longest_gap(notes, lambda: time.sleep(WINDOW_S)))
                busy.append(_longest_gap(notes, lambda: _come_and_go(other)))
        members.close()
    bound = median(quiet) * 1.2 + 50
    told = f"without a rebalance {median(quiet):.0f} ms"
    return Figure("a member that keeps its partitions: longest gap of data", median(busy), "ms", bound, "<=", told)


def _come_and_go(mq: Connection) -> None:
    """A rebalance, and another one, in the time of a window."""
    until = time.monotonic() + WINDOW_S / 2
    with joined(mq, "g", "t") as one:
        while time.monotonic() < until or not one.assignment():
            one.poll(timeout_ms=20, poll_ms=1)
    time.sleep(WINDOW_S / 2)


def _longest_gap(notes: str, act: Callable[[], None]) -> float:
    """ms between two polls with messages, of those that this has noted meanwhile."""
    begun = time.time()
    act()
    ended = time.time()
    time.sleep(0.1)
    times = [at for at, _, sent in _noted(notes) if begun <= at <= ended and sent]
    return max(after - before for before, after in pairwise([begun, *times, ended])) * 1000


@contextmanager
def _meanwhile(act: Callable[[threading.Event], None]) -> Iterator[None]:
    """A thread, for as long as a block takes."""
    stop = threading.Event()
    thread = threading.Thread(target=act, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _trickle(folder: str, stop: threading.Event) -> None:
    """A message into each partition every 20 ms."""
    with lakemq.connect(folder) as mq, mq.producer(linger_ms=0) as producer:
        while not stop.wait(0.02):
            for partition in range(6):
                producer.send("t", f"{time.time()}", partition=partition)
            producer.flush()


# -- a mailbox that is never empty --------------------------------------------------------------------------


def _saturate(folder: str, stop: Event) -> None:
    with lakemq.connect(folder) as mq, mq.producer(linger_ms=0) as producer:
        while not stop.is_set():
            producer.send("other", "x")
            producer.flush()


def _late(folder: str) -> Figure:
    """The end of a session is told of though letters wait in every step."""
    with lakemq.connect(folder) as mq:
        mq.topics.create("t", partitions=6)
        mq.topics.create("other")
    members, stop = Members(folder), spawn.Event()
    last = [members.start() for _ in range(2)][-1]
    members.until_each_has(3)
    children = [spawn.Process(target=_saturate, args=(folder, stop)) for _ in range(SATURATING)]
    for child in children:
        child.start()
    time.sleep(5)
    members.kill(last)
    last_beat = max(path.stat().st_mtime for path in Path(folder, "beats").iterdir())
    late_s = members.until_each_has(6) - last_beat - SESSION_MS / 1000
    stop.set()
    for child in children:
        child.join()
    members.close()
    return Figure("a session ends while letters always wait: late by", late_s, "s", 2, "<=", "from the last beat put")


if __name__ == "__main__":
    for figure in run(10_000, 500, 1_000):
        print(f"{figure.name}: {figure.value:.3g} {figure.unit} ({figure.sense} {figure.target:g}) {figure.note}")
