"""Delayed messages: how late they come, the cost of releasing many, and the cost of waiting ones. No JVM.

The sequencer is a process of its own. A released message can be fetched when the end of the log says so.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from figures import Figure, median, percentile
from serving import run_sequencer

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.tables.specs.delayed import DELAYED

HOUR_MS = 3_600_000
PARTITIONS = 8
spawn = multiprocessing.get_context("spawn")


def run(bulk: int, singles: int, pending: int, seconds: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, run_sequencer(folder):
        yield from _at_once(folder, bulk, singles)
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, run_sequencer(folder):
        yield from _spread(folder, bulk)
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, run_sequencer(folder):
        yield from _lateness(folder, seconds)
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder:
        yield from _pending(folder, pending)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def rows(count: int, size: int = 92) -> pa.Table:
    rng = np.random.default_rng(1)
    values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), count, [None, pa.py_buffer(rng.bytes(size * count))])
    keys = pa.array(rng.integers(0, 10_000, count).astype("S8"), pa.binary())
    return pa.table({"key": keys, "value": values.cast(pa.binary())})


def with_delays(table: pa.Table, due_ms: np.ndarray) -> pa.Table:
    return table.append_column("deliver_at", pa.array(due_ms, pa.int64()))


def wait_for_messages(mq: Connection, topic: str, count: int) -> float:
    """Wait until so many messages can be fetched, and return the time."""
    deadline_s = time.time() + 120
    while sum(mq.end_offsets(topic).values()) < count:
        if time.time() > deadline_s:
            raise TimeoutError(f"{count} messages of {topic}")
        time.sleep(0.005)
    return time.time()


@contextmanager
def sending(mq: Connection) -> Iterator[list[float]]:
    """Send to another topic while the block runs, one message after the other. Yield the durations."""
    mq.topics.create("meanwhile", exist_ok=True)
    stop, durations_s = threading.Event(), list[float]()

    def send() -> None:
        with mq.producer(linger_ms=0) as producer:
            while not stop.wait(0.02):
                start_s = time.perf_counter()
                producer.send("meanwhile", "x").result()
                durations_s.append(time.perf_counter() - start_s)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield durations_s
    finally:
        stop.set()
        thread.join()


# -- all at once --------------------------------------------------------------------------------------------


def _at_once(folder: str, bulk: int, singles: int) -> Iterator[Figure]:
    with lakemq.connect(folder) as mq:
        took_s = _measure_release(mq, "bulk", rows(bulk), 4_000)
        yield Figure(f"{bulk:,} due at once, in bulk: fetchable after", took_s, "s", 1, "<=")
        few = max(1, bulk // 20)
        small, large = (_measure_release(mq, f"of-{size}", rows(few, size), 6_000) for size in (92, 10_240))
        note = f"{few:,} messages; what is above 1.2 may be 50 ms"
        yield Figure("of 10 KiB over of 100 B, at once", large / max(small, 0.05), "x", 1.2, "<=", note)
        mq.topics.create("singles", PARTITIONS)
        chance, due_ms = np.random.default_rng(2), now_ms() + 30_000
        with mq.producer(linger_ms=5) as producer:
            for i in chance.permutation(singles).tolist():
                producer.send("singles", b"%d" % i, key=b"%d" % i, deliver_at=due_ms)
        due_s = -(-due_ms // 1000)
        time.sleep(max(0.0, due_s - time.time() - 1))
        with sending(mq) as durations_s:
            took_s = wait_for_messages(mq, "singles", singles) - due_s
            time.sleep(0.2)
        yield Figure(f"{singles:,} of single sends, scattered: fetchable after", took_s, "s", 3, "<=")
        yield Figure("a send during that release, p99", percentile(durations_s, 0.99) * 1e3, "ms", 200, "<=")
        yield from _standstill(mq, bulk)


def _measure_release(mq: Connection, topic: str, table: pa.Table, ahead_ms: int) -> float:
    """Return the seconds from the time when all of it is due."""
    mq.topics.create(topic, PARTITIONS)
    due_s = (now_ms() + ahead_ms) // 1000 + 1
    mq.publish(topic, table, deliver_at=due_s * 1000)
    assert time.time() < due_s, "published too late"
    return wait_for_messages(mq, topic, table.num_rows) - due_s


def _standstill(mq: Connection, count: int) -> Iterator[Figure]:
    """Publish three days' backlog of due messages at once."""
    mq.topics.create("days", PARTITIONS, config={"retention.ms": -1})
    due_ms = now_ms() - np.sort(np.random.default_rng(3).integers(0, 72 * HOUR_MS, count))[::-1]
    with sending(mq) as durations_s:
        mq.publish("days", with_delays(rows(count), due_ms))
        start_s = time.time()
        took_s = wait_for_messages(mq, "days", count) - start_s
    yield Figure("a send while three days are caught up, p99", percentile(durations_s, 0.99) * 1e3, "ms", 200, "<=")
    yield Figure(f"three days of {count:,} messages, caught up in", took_s, "s", 30, "<=", "no target in the table")


# -- spread over time ---------------------------------------------------------------------------------------


def _spread(folder: str, count: int) -> Iterator[Figure]:
    """Publish messages that were due over the last two hours, with a slot a second, and messages due over 400 days."""
    with lakemq.connect(folder) as mq:
        keep = {"retention.ms": -1}
        table, durations_s, fetched = rows(count), dict[str, list[float]](), dict[str, list[float]]()
        ahead_ms = np.random.default_rng(4).integers(0, 2 * HOUR_MS, count)
        for number in range(3):
            for how, published in (("plain", table), ("spread", with_delays(table, now_ms() - ahead_ms))):
                mq.topics.create(f"{how}-{number}", PARTITIONS, config=keep)
                start_s = time.perf_counter()
                mq.publish(f"{how}-{number}", published)
                durations_s.setdefault(how, []).append(time.perf_counter() - start_s)
            wait_for_messages(mq, f"spread-{number}", count)
        ratio = median(durations_s["plain"]) / median(durations_s["spread"])
        yield Figure("publishing with delays over 2 h, over without, Arrow", ratio, "x", 0.5, ">=")
        time.sleep(3)
        for number in range(3):
            for how in ("plain", "spread"):
                fetched.setdefault(how, []).append(_measure_fetch(mq, f"{how}-{number}", count))
        ratio = median(fetched["plain"]) / median(fetched["spread"])
        yield Figure("fetching them after their release, over never delayed", ratio, "x", 0.5, ">=")
        mq.topics.create("days", PARTITIONS)
        days_ms = now_ms() + HOUR_MS + np.random.default_rng(5).integers(0, 400 * 24 * HOUR_MS, count)
        mq.publish("days", with_delays(table, days_ms))
        time.sleep(3)
        files = len(mq.namespace.store.open(DELAYED).files())
        yield Figure(f"files of `delayed` after {count:,} over 400 days", files, "", 100, "<=")


def _measure_fetch(mq: Connection, topic: str, count: int) -> float:
    start_s = time.perf_counter()
    assert mq.fetch(topic).to_arrow().num_rows == count
    return time.perf_counter() - start_s


# -- lateness -----------------------------------------------------------------------------------------------


def _publisher(folder: str, seconds: int, a_second: int) -> None:
    """Publish each second as many messages as are due two seconds later, each at a slot of 100 ms."""
    with lakemq.connect(folder) as mq:
        for second in range(seconds):
            start_s = time.time()
            due_ms = now_ms() + 2_000 + np.arange(a_second) * 1000 // a_second // 100 * 100
            values = pa.array(np.char.mod("%d", -(-due_ms // 100) * 100).tolist(), pa.string())
            keys = pa.array([f"{second}.{i}" for i in range(a_second)])
            mq.publish("late", with_delays(pa.table({"key": keys, "value": values}), due_ms))
            time.sleep(max(0.0, 1 - (time.time() - start_s)))


def _lateness(folder: str, seconds: int) -> Iterator[Figure]:
    a_second = 10_000
    with lakemq.connect(folder) as mq:
        mq.topics.create("late", PARTITIONS, config={"delay.slot.ms": 100})
        child = spawn.Process(target=_publisher, args=(folder, seconds, a_second))
        child.start()
        late_ms, received = list[np.ndarray](), 0
        for table in mq.tail("late", start="earliest", poll_ms=2):
            at_ms = now_ms()
            late_ms.append(at_ms - table["value"].cast(pa.string()).cast(pa.int64()).to_numpy())
            received += table.num_rows
            if received >= seconds * a_second:
                break
        child.join()
        all_ms = np.concatenate(late_ms)
        yield Figure(f"{a_second:,} due a second: seen after the slot, p50", median(all_ms.tolist()), "ms", 100, "<=")
        yield Figure("seen after the slot, p99", percentile(all_ms.tolist(), 0.99), "ms", 400, "<=")
        yield Figure("seen after the slot, least", float(all_ms.min()), "ms", 0, ">=", "never early")


# -- waiting messages ---------------------------------------------------------------------------------------


def _pending(folder: str, count: int) -> Iterator[Figure]:
    piece = min(count, 1_000_000)
    with run_sequencer(folder) as sequencer, lakemq.connect(folder) as mq:
        mq.topics.create("w", PARTITIONS)
        empty_ms = _ask_ms(mq)
        for number in range(count // piece):
            ahead_ms = np.random.default_rng(number).integers(HOUR_MS, 720 * HOUR_MS, piece)
            mq.publish("w", with_delays(rows(piece), now_ms() + ahead_ms))
        near = [mq.delayed.schedule("w", "x", delay_ms=30 * 60_000) for _ in range(100)]
        far = [mq.delayed.schedule("w", "x", delay_ms=9_000 * HOUR_MS) for _ in range(100)]
        time.sleep(5)
        note = f"{len(mq._whole_state().delays.ranges):,} ranges"
        rss_mib = _rss_mib(sequencer.pid)
        yield Figure(f"{count:,} wait: memory of the sequencer", rss_mib, "MiB", 400, "<=", note)
        yield Figure("an answer, over that of an empty namespace", _ask_ms(mq) / empty_ms, "x", 1.2, "<=")
        for name, receipts, target in (("soon", near, 15), ("in a year", far, 50)):
            durations_s = []
            for receipt in receipts:
                start_s = time.perf_counter()
                assert mq.delayed.cancel(receipt) == "cancelled"
                durations_s.append(time.perf_counter() - start_s)
            yield Figure(f"cancelling one that is due {name}, p50", median(durations_s) * 1e3, "ms", target, "<=")
        start_s = time.perf_counter()
        one_in = max(1, count // 100_000)
        cancelled = mq.delayed.cancel_where("w", predicate=f"hash(key, timestamp, deliver_at) % {one_in} = 0").num_rows
        took_s = time.perf_counter() - start_s
        yield Figure(f"cancelling {cancelled:,} of {count:,} by predicate", took_s, "s", 5, "<=")
    start_s = time.perf_counter()
    with run_sequencer(folder), lakemq.connect(folder) as mq:
        mq.topics.create("after")
        yield Figure("a sequencer starts, and answers, after", time.perf_counter() - start_s, "s", 3, "<=")


def _ask_ms(mq: Connection) -> float:
    durations_s = []
    for _ in range(200):
        start_s = time.perf_counter()
        mq.topics.alter("w", {})
        durations_s.append(time.perf_counter() - start_s)
    return median(durations_s) * 1e3


def _rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
