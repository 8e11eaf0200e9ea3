"""How long one client waits, and how many can wait at once. No JVM. The sequencer is a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.queues import Queue

from figures import Figure, median, percentile
from serving import run_sequencer

import lakemq

WARM_UP = 20


def run(sends: int, clients: int, processes: int, duration_s: float) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, run_sequencer(folder) as sequencer:
        with lakemq.connect(folder) as mq:
            mq.topics.create("latency", partitions=8)
            acknowledged = _one_client(mq, sends)
            cpu_s = _measure_cpu_per_step(mq, sequencer.pid, sends)
        yield Figure("send -> acknowledged, p50", median(acknowledged) * 1e3, "ms", 2, "<=")
        yield Figure("send -> acknowledged, p99", percentile(acknowledged, 0.99) * 1e3, "ms", 8, "<=")
        yield Figure("CPU of the sequencer per step of one message", cpu_s * 1e3, "ms", 1.5, "<=")
        waits = _many_clients(folder, 16, 2, duration_s, shared=False)
        name = "16 clients in 2 processes, a connection each"
        yield Figure(f"{name}, acknowledged", len(waits) / duration_s, "requests/s", 4000, ">=")
        yield Figure(f"{name}, p50", median(waits) * 1e3, "ms", 14, "<=")
        waits = _many_clients(folder, clients, processes, duration_s, shared=True)
        name = f"{clients:,} clients in {processes} processes"
        yield Figure(f"{name}, acknowledged", len(waits) / duration_s, "requests/s", 10_000, ">=")
        yield Figure(f"{name}, p99", percentile(waits, 0.99), "s", 0.6, "<=")


def _one_client(mq: lakemq.engine.client.connection.Connection, sends: int) -> list[float]:
    """Return the seconds from each send to its acknowledgement."""
    waits = []
    with mq.producer(linger_ms=0) as producer:
        for i in range(sends):
            start_s = time.perf_counter()
            producer.send("latency", b"%d" % i, key=b"k%d" % i)
            producer.flush()
            waits.append(time.perf_counter() - start_s)
    return waits[WARM_UP:]


def _measure_cpu_per_step(mq: lakemq.engine.client.connection.Connection, pid: int, sends: int) -> float:
    """Return the CPU seconds of the process per step, projections and housekeeping included."""
    with mq.producer(linger_ms=0) as producer:
        producer.send("latency", b"first").result()
        first_step, start_cpu_s = mq.state().step, _cpu_seconds(pid)
        for number in range(sends):
            producer.send("latency", b"%d" % number).result()
    return (_cpu_seconds(pid) - start_cpu_s) / (mq.state().step - first_step)


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _many_clients(folder: str, clients: int, processes: int, duration_s: float, shared: bool) -> list[float]:
    """Return the seconds of each send. shared: the clients of a process share its connection."""
    context = multiprocessing.get_context("spawn")
    queue: Queue[list[float]] = context.Queue()
    start = context.Barrier(processes)
    children = [
        context.Process(target=_client_process, args=(folder, clients // processes, duration_s, shared, start, queue))
        for _ in range(processes)
    ]
    for child in children:
        child.start()
    waits = [wait for _ in children for wait in queue.get()]
    for child in children:
        child.join()
    return waits


def _client_process(
    folder: str, threads: int, duration_s: float, shared: bool, start: threading.Barrier, queue: Queue[list[float]]
) -> None:
    """Run `threads` clients. Each sends one message and waits for its acknowledgement, again and again."""
    import pyarrow as pa

    waits: list[list[float]] = [[] for _ in range(threads)]
    with ExitStack() as stack:
        connections = [stack.enter_context(lakemq.connect(folder)) for _ in range(1 if shared else threads)]
        for connection in connections:
            connection.end_offsets("latency")
        start.wait()
        until = time.perf_counter() + duration_s

        def client(own_waits: list[float], name: int) -> None:
            table = pa.table({"key": [b"k%d" % name], "value": [b"x" * 92]})
            mq = connections[name % len(connections)]
            while time.perf_counter() < until:
                start_s = time.perf_counter()
                mq.publish("latency", table)
                own_waits.append(time.perf_counter() - start_s)

        running = [threading.Thread(target=client, args=(client_waits, i)) for i, client_waits in enumerate(waits)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    queue.put([wait for client_waits in waits for wait in client_waits])
