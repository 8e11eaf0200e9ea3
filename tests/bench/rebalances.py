"""Rebalances under load: a new owner soon has its first record, and other members notice nothing. No JVM."""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing.synchronize import Event
from typing import Any

from figures import Figure, median
from groups import SESSION_MS, MemberProcesses, _read_notes, join_group
from serving import run_sequencer

import lakemq
from lakemq.assignors import Member
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.queue.queue_consumer import QueueConsumer
from lakemq.engine.protocol.assignors.registry import BUILT_IN

ROUNDS = 5
WINDOW_S = 1.0
SATURATING = 4
"""How many processes send as fast as they get answers."""

spawn = multiprocessing.get_context("spawn")


def run(partitions: int, members: int, ranges: int) -> Iterator[Figure]:
    yield from _measure_assignors(partitions, members)
    for part in (_measure_join, _measure_unaffected_member, _measure_late_session_end):
        with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, run_sequencer(folder):
            yield part(folder)
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, run_sequencer(folder):
        yield _with_ranges(folder, ranges)


# -- assignors ----------------------------------------------------------------------------------------------


def _measure_assignors(partitions: int, members: int) -> Iterator[Figure]:
    """Add one member to a group in which all others have their share."""
    for name in ("sticky", "cooperative-sticky"):
        counts, assign = {"t": partitions}, BUILT_IN[name]
        ids = [f"member-{n:05d}" for n in range(members)]
        old = assign(counts, {id_: Member(("t",), (), None) for id_ in ids[1:]})
        group_members = {id_: Member(("t",), tuple(old.get(id_, ())), None) for id_ in ids}
        start_s = time.perf_counter()
        new = assign(counts, group_members)
        took_s = time.perf_counter() - start_s
        moves = sum(len(set(new[id_]) - set(old.get(id_, ()))) for id_ in ids)
        case = f"{name}, {partitions:,} partitions to {members} members"
        yield Figure(f"{case}: assigned in", took_s, "s", 0.3, "<=")
        yield Figure(f"{case}: moves for one more member", moves, "", partitions // members, "<=")


# -- queues -------------------------------------------------------------------------------------------------


def _member(mq: Connection, group: str) -> QueueConsumer:
    consumer = mq.consumer(group, topics=["t"], protocol="queue", auto_offset_reset="earliest")
    assert isinstance(consumer, QueueConsumer)
    return consumer


def _fill_topic(mq: Connection, partitions: int, count: int) -> None:
    """Create a topic with so many messages in each partition."""
    mq.topics.create("t", partitions=partitions)
    with mq.producer() as producer:
        for i in range(partitions * count):
            producer.send("t", b"%d" % i, partition=i % partitions)


def _measure_join(folder: str) -> Figure:
    """The owner of all partitions at once acknowledges its messages of partitions that are going to move."""
    with lakemq.connect(folder) as mq, lakemq.connect(folder) as other:
        _fill_topic(mq, 6, 500)
        durations_s = []
        for number in range(ROUNDS):
            with _member(mq, f"g{number}") as owner:
                batch = owner.poll(60, timeout_ms=5_000)
                start_s = time.perf_counter()
                with _member(other, f"g{number}") as joiner:
                    while not joiner.poll(60):
                        owner.ack(batch)
                        batch = owner.poll(60)
                    durations_s.append(time.perf_counter() - start_s)
    return Figure(
        "a member of a queue joins: first record of a moved partition",
        median(durations_s),
        "s",
        0.3,
        "<=",
        "its joining included; 10 messages of each partition with its owner",
    )


def _with_ranges(folder: str, ranges: int) -> Figure:
    """Every second message of a partition is acknowledged before it moves."""
    durations_s = []
    with lakemq.connect(folder) as mq, lakemq.connect(folder) as other:
        _fill_topic(mq, 2, 2 * ranges)
        for number in range(ROUNDS):
            mq.groups.create(f"g{number}", {"group.protocol": "queue", "max.handoff.ms": 0})
            with _member(mq, f"g{number}") as owner:
                messages: list[Any] = []
                while len(messages) < 4 * ranges:
                    messages += owner.poll(4 * ranges, timeout_ms=5_000)
                owner.ack([message for message in messages if message.offset % 2])
                owner.flush()
                start_s = time.perf_counter()
                with _member(other, f"g{number}") as joiner:
                    while not joiner.poll(60):
                        owner.poll()
                    durations_s.append(time.perf_counter() - start_s)
    return Figure(f"a handoff with {ranges:,} ranges open", median(durations_s), "s", 1, "<=", "its joining included")


# -- unaffected members -------------------------------------------------------------------------------------


def _measure_unaffected_member(folder: str) -> Figure:
    """A member goes on with the partitions that it keeps while another one joins and leaves."""
    with lakemq.connect(folder) as mq:
        mq.topics.create("t", partitions=6)
        members = MemberProcesses(folder)
        notes, _ = members.start(), members.start()
        members.until_each_has(3)
        quiet, busy = [], []
        with lakemq.connect(folder) as other, _run_meanwhile(lambda stop: _trickle(folder, stop)):
            time.sleep(1)
            for _ in range(ROUNDS):
                quiet.append(_longest_gap(notes, lambda: time.sleep(WINDOW_S)))
                busy.append(_longest_gap(notes, lambda: _come_and_go(other)))
        members.close()
    bound = median(quiet) * 1.2 + 50
    note = f"without a rebalance {median(quiet):.0f} ms"
    return Figure("a member that keeps its partitions: longest gap of data", median(busy), "ms", bound, "<=", note)


def _come_and_go(mq: Connection) -> None:
    """Cause two rebalances in the time of a window."""
    until = time.monotonic() + WINDOW_S / 2
    with join_group(mq, "g", "t") as consumer:
        while time.monotonic() < until or not consumer.assignment():
            consumer.poll(timeout_ms=20, poll_ms=1)
    time.sleep(WINDOW_S / 2)


def _longest_gap(notes: str, act: Callable[[], None]) -> float:
    """Return the longest gap between two polls with messages that the member notes meanwhile, in ms."""
    start = time.time()
    act()
    end = time.time()
    time.sleep(0.1)
    times = [noted_at for noted_at, _, sent in _read_notes(notes) if start <= noted_at <= end and sent]
    return max(after - before for before, after in pairwise([start, *times, end])) * 1000


@contextmanager
def _run_meanwhile(act: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run a thread while the block runs."""
    stop = threading.Event()
    thread = threading.Thread(target=act, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _trickle(folder: str, stop: threading.Event) -> None:
    """Send a message to each partition every 20 ms."""
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


def _measure_late_session_end(folder: str) -> Figure:
    """The end of a session is noticed although letters wait in every step."""
    with lakemq.connect(folder) as mq:
        mq.topics.create("t", partitions=6)
        mq.topics.create("other")
    members, stop = MemberProcesses(folder), spawn.Event()
    last = [members.start() for _ in range(2)][-1]
    members.until_each_has(3)
    children = [spawn.Process(target=_saturate, args=(folder, stop)) for _ in range(SATURATING)]
    for child in children:
        child.start()
    try:
        time.sleep(5)
        paused_at = members.pause(last)
        late_s = members.until_each_has(6) - paused_at - SESSION_MS / 1000
    finally:
        stop.set()
        for child in children:
            child.join()
        members.close()
    return Figure("a session ends while letters always wait: late by", late_s, "s", 2, "<=", "a paused process")


if __name__ == "__main__":
    for figure in run(10_000, 500, 1_000):
        print(f"{figure.name}: {figure.value:.3g} {figure.unit} ({figure.sense} {figure.target:g}) {figure.note}")
