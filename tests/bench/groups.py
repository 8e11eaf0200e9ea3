"""Groups: how long a handoff takes, and how fast a member reads. No JVM.

Members are processes, and so is the sequencer. Times are the machine's, the same for all.
"""

import itertools
import json
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pyarrow as pa
from figures import Figure, measure_in_turn, median, percentile
from serving import run_sequencer

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.group_consumer import MemberConsumer
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.storage.coordination.step_objects import STEPS_FOLDER

SESSION_MS = 6_000
QUICK_HEARTBEAT_MS = 100
"""So short that the time of a pause stands for the time of the last heartbeat before it."""
_Note = tuple[float, list[int], list[float]]
"""When it was noted, the member's partitions, and the times at which the messages of the poll were sent."""

spawn = multiprocessing.get_context("spawn")


def run(messages: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, run_sequencer(folder):
        yield from _measure_handoffs(folder)
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, run_sequencer(folder):
        yield from _reading(folder, messages)


def join_group(mq: Connection, group: str, topic: str, heartbeat_ms: int = 1_000) -> MemberConsumer:
    options = {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": heartbeat_ms, "auto_offset_reset": "earliest"}
    return mq.consumer(group, topics=[topic], protocol="cooperative", **options)


# -- handoffs -----------------------------------------------------------------------------------------------


def _member(folder: str, notes: str, stop: Event) -> None:
    """Poll without a rest. Note changes of the assignment, and when messages were sent."""
    with (
        lakemq.connect(folder) as mq,
        join_group(mq, "g", "t", QUICK_HEARTBEAT_MS) as consumer,
        Path(notes).open("w", buffering=1) as file,
    ):
        last_partitions: list[int] = []
        while not stop.is_set():
            batch = consumer.poll(timeout_ms=20, poll_ms=1)
            now_s = time.time()
            partitions = [partition for _, partition in consumer.assignment()]
            sent = [float(value) for value in batch.to_arrow()["value"].to_pylist()]
            if partitions != last_partitions or sent:
                file.write(json.dumps([now_s, partitions, sent]) + "\n")
                last_partitions = partitions


class MemberProcesses:
    """Processes, and their notes so far. Notes are files, because a queue may not survive a killed process."""

    def __init__(self, folder: str) -> None:
        self._folder, self._numbers = folder, itertools.count()
        self._children: dict[str, tuple[multiprocessing.process.BaseProcess, Event]] = {}
        self._paused: list[multiprocessing.process.BaseProcess] = []

    def start(self) -> str:
        notes, stop = f"{self._folder}/member-{next(self._numbers)}.json", spawn.Event()
        child = spawn.Process(target=_member, args=(self._folder, notes, stop))
        child.start()
        self._children[notes] = child, stop
        return notes

    def stop(self, notes: str) -> float:
        """Close a member, and return when it got the signal."""
        child, stop = self._children.pop(notes)
        signalled_at = time.time()
        stop.set()
        child.join(10)
        return signalled_at

    def kill(self, notes: str) -> float:
        """Kill a member, and return when."""
        child, _ = self._children.pop(notes)
        killed_at = time.time()
        child.kill()
        child.join()
        return killed_at

    def pause(self, notes: str) -> float:
        """Let a member do nothing any more, not even send heartbeats, and return since when. `close` kills it."""
        child, _ = self._children.pop(notes)
        paused_at = time.time()
        os.kill(child.pid or 0, signal.SIGSTOP)
        self._paused.append(child)
        return paused_at

    def until_each_has(self, count: int, timeout_s: float = 60) -> float:
        """Wait until each living member has so many partitions, and return when the last one got them."""
        deadline = time.time() + timeout_s
        while time.time() < deadline:
            last = [(_read_notes(notes) or [(0.0, [], [])])[-1] for notes in self._children]
            if all(len(partitions) == count for _, partitions, _ in last):
                return max(noted_at for noted_at, _, _ in last)
            time.sleep(0.01)
        raise TimeoutError(f"not each member has {count} partitions")

    def waits(self) -> list[float]:
        """Return the seconds from the sending of each message to the poll that returned it."""
        return [
            noted_at - sent for notes in self._children for noted_at, _, times in _read_notes(notes) for sent in times
        ]

    def close(self) -> None:
        for child in self._paused:
            child.kill()
        for notes in list(self._children):
            self.stop(notes)


def _read_notes(notes: str) -> list[_Note]:
    path = Path(notes)
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [tuple(json.loads(line)) for line in lines if line.endswith("\n")]


def _measure_handoffs(folder: str) -> Iterator[Figure]:
    with lakemq.connect(folder) as mq:
        mq.topics.create("t", partitions=6)
        members = MemberProcesses(folder)
        last = [members.start() for _ in range(3)][-1]
        members.until_each_has(2)
        with mq.producer(linger_ms=0) as producer:
            for i in range(300):
                producer.send("t", f"{time.time()}", key=b"%d" % i)
                producer.flush()
        time.sleep(0.5)
        waits = members.waits()
        left_s, started_s = [], []
        for _ in range(3):
            signalled_at = members.stop(last)
            left_s.append(members.until_each_has(3) - signalled_at)
            started_at = time.time()
            last = members.start()
            started_s.append(members.until_each_has(2) - started_at)
        killed_at = members.kill(last)
        killed_s = members.until_each_has(3) - killed_at
        yield Figure("sent -> handed out by a poll of another process, p50", median(waits) * 1e3, "ms", 25, "<=")
        yield Figure("sent -> handed out, p99", percentile(waits, 0.99) * 1e3, "ms", 100, "<=")
        yield Figure("a member leaves: reassigned after", median(left_s), "s", 0.15, "<=")
        yield Figure("a member's process starts: has its share after", median(started_s), "s", 2, "<=")
        yield Figure("one of 3 is killed: reassigned after", killed_s, "s", 1, "<=", "on the sequencer's machine")
        members.close()


# -- reading ------------------------------------------------------------------------------------------------


def _reading(folder: str, messages: int) -> Iterator[Figure]:
    with lakemq.connect(folder) as mq:
        mq.topics.create("t", partitions=8)
        rng = np.random.default_rng(1)
        for _ in range(max(1, messages // 1_000_000)):
            n = min(messages, 1_000_000)
            values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(92), n, [None, pa.py_buffer(rng.bytes(92 * n))])
            keys = pa.array(rng.integers(0, 10_000, n).astype("S8"), pa.binary())
            mq.publish("t", pa.table({"key": keys, "value": values.cast(pa.binary())}))
        time.sleep(3)
        with join_group(mq, "arrow", "t") as consumer:
            start_s, read = time.perf_counter(), 0
            while read < messages:
                batch = consumer.poll(100_000, timeout_ms=5_000)
                read += batch.to_arrow().num_rows
                consumer.commit(batch)
            took_s = time.perf_counter() - start_s
        yield Figure("one member, Arrow, a commit per 100,000", read / took_s / 1e6, "M/s", 3, ">=")
        with join_group(mq, "single", "t") as consumer:
            start_s, read, needed = time.perf_counter(), 0, min(messages, 500_000)
            while read < needed:
                batch = consumer.poll(10_000, timeout_ms=5_000)
                for _ in batch:
                    read += 1
                consumer.commit(batch)
            took_s = time.perf_counter() - start_s
        yield Figure("one member, message by message, a commit per 10,000", read / took_s / 1e6, "M/s", 0.5, ">=")
        yield from _queue(mq, min(messages, 1_000_000))
        yield _worker(mq, min(messages, 300_000))


def _queue(mq: Connection, messages: int) -> Iterator[Figure]:
    """Measure a member of a queue on the existing topic."""
    for how, target in (("batch by batch", 0.6), ("message by message", 0.3)):
        group = f"queue {how}".replace(" ", "-")
        mq.groups.create(group, {"group.protocol": "queue", "max.delivered.unacked.msgs.per.flow": 50_000})
        before = _journal_bytes(mq)
        with mq.consumer(group, topics=["t"], auto_offset_reset="earliest") as consumer:
            first = consumer.poll(1, timeout_ms=5_000)
            consumer.ack(first)
            start_s, read = time.perf_counter(), first.record_count
            while read < messages:
                batch = consumer.poll(10_000, timeout_ms=5_000)
                if target > 0.5:
                    read += batch.to_arrow().num_rows
                    consumer.ack(batch)
                else:
                    for message in batch:
                        consumer.ack(message)
                        read += 1
            consumer.flush()
            took_s = time.perf_counter() - start_s
        yield Figure(f"one member of a queue, acknowledged {how}", read / took_s / 1e6, "M/s", target, ">=")
        grown = (_journal_bytes(mq) - before) / read
        yield Figure(f"journal per million acknowledged {how}", grown, "MB", 5, "<=")


def _worker(mq: Connection, messages: int) -> Figure:
    """Compare a worker whose handler does nothing with a loop that polls and acknowledges."""
    numbers = itertools.count()

    def consume() -> None:
        with mq.consumer(f"loop-{next(numbers)}", topics=["t"]) as consumer:
            read = 0
            while read < messages:
                for message in consumer.poll(timeout_ms=5_000):
                    consumer.ack(message)
                    read += 1
            consumer.flush()

    def work() -> None:
        handled, stop = itertools.count(1), threading.Event()
        mq.run_worker(
            lambda _: stop.set() if next(handled) == messages else None,
            ["t"],
            group=f"worker-{next(numbers)}",
            stop=stop,
        )

    loop_s, worker_s = (median(times) for times in measure_in_turn([consume, work], 5))
    return Figure("a worker with 8 threads / a loop that acknowledges each message", loop_s / worker_s, "x", 0.8, ">=")


def _journal_bytes(mq: Connection) -> int:
    """Return the size of the table, with its log, and of the steps that are there."""
    folders = (Path(mq.namespace.path, name) for name in (JOURNAL.name, STEPS_FOLDER))
    return sum(file.stat().st_size for folder in folders for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    for figure in run(1_000_000):
        print(f"{figure.name}: {figure.value:.3g} {figure.unit} ({figure.sense} {figure.target:g})", flush=True)
