"""An object store: requests per step, pass and follower, and how long clients wait. No JVM.

The store is the S3 server of `make test-stores`. Clients use the mailbox.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import obstore
import pyarrow as pa
from counted_store import (
    TOPIC,
    S3Server,
    count_requests,
    new_path,
    run_slow_proxy,
    serve_namespace,
    serve_store,
)
from figures import Figure, measure_in_turn, median
from serving import run_sequencer

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.tables.storage.object_stores.store_options import connect

WARM_UP = 10
NO_PASSES = {"project.interval.ms": 3_600_000}
"""With this setting the requests of steps are not mixed with those of projections."""

LEASE_MS = 3_000
ROW_BYTES = 1_000
PART_BYTES = 8 << 20
FILES_AT_ONCE = 4


def run(sends: int, published_mb: int, take_overs: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, serve_store(folder) as server:
        yield _requests_of_a_step(server, sends)
        yield from _requests_of_a_pass(server)
        yield _requests_of_a_follower(server, sends)
        yield from _waits(server, sends)
        yield _publish_over_puts(server, published_mb)
        yield _take_over(server, take_overs)


def _send(mq: Connection, count: int) -> list[float]:
    """Send one message after the other. Return the seconds until each acknowledgement."""
    waits = []
    with mq.producer(linger_ms=0) as producer:
        for number in range(count):
            start_s = time.perf_counter()
            producer.send(TOPIC, b"%d" % number).result()
            waits.append(time.perf_counter() - start_s)
    return waits


def _requests_of_a_step(server: S3Server, sends: int) -> Figure:
    with (
        count_requests(server) as (counted, counter),
        serve_namespace(counted, NO_PASSES) as mq,
        mq.producer(linger_ms=0) as producer,
    ):
        for number in range(WARM_UP):
            producer.send(TOPIC, b"%d" % number).result()
        counter.take()
        for number in range(sends):
            producer.send(TOPIC, b"%d" % number).result()
        counts = counter.take()
    kinds = ", ".join(f"{c.method} {c.folder} {n / sends:.1f}" for c, n in counts.most_common())
    return Figure("requests per acknowledged step by mailbox", counts.total() / sends, "requests", 14, "<=", kinds)


def _requests_of_a_pass(server: S3Server) -> Iterator[Figure]:
    """Count what a pass over new rows of a few tables costs, the watermark included."""
    with count_requests(server) as (counted, counter), serve_namespace(counted, {"project.interval.ms": 2_000}) as mq:
        _send(mq, WARM_UP)
        time.sleep(5)
        counter.take()
        _send(mq, 1)
        time.sleep(5)
        counts = counter.take()
    other = ("steps", "mailbox", "replies", "beats", "line", "")
    of_tables = {request: count for request, count in counts.items() if request.folder not in other}
    commits = {request.folder for request in of_tables if request.method == "PUT"}
    kinds = ", ".join(f"{c.method} {c.folder} {n}" for c, n in of_tables.items())
    each = sum(of_tables.values()) / max(1, len(commits))
    yield Figure("requests of a pass per table with rows", each, "requests", 3, "<=", kinds)


def _requests_of_a_follower(server: S3Server, sends: int) -> Figure:
    with (
        count_requests(server) as (counted, counter),
        serve_namespace(server, NO_PASSES) as mq,
        lakemq.connect(mq.namespace.path, storage_options=counted.options) as follower,
    ):
        first_step = follower.state().step
        counter.take()
        _send(mq, sends)
        steps = follower.state().step - first_step
        beyond = counter.take().total() - steps
    note = f"{steps} steps; the look at the step that it stood on, and the read that finds no further step"
    return Figure("requests of a follower per burst, beyond one per step", beyond, "requests", 2, "<=", note)


def _waits(server: S3Server, sends: int) -> Iterator[Figure]:
    with serve_namespace(server) as mq:
        waits = _send(mq, WARM_UP + sends)[WARM_UP:]
    yield Figure("send -> acknowledged by mailbox, p50", median(waits) * 1e3, "ms", 20, "<=")
    with run_slow_proxy(server, 15) as slow, serve_namespace(slow) as mq:
        waits = _send(mq, WARM_UP + sends)[WARM_UP:]
    yield Figure("the same with 15 ms a request, p50", median(waits) * 1e3, "ms", 130, "<=")


def _publish_over_puts(server: S3Server, published_mb: int) -> Figure:
    """Compare a publish in Arrow with putting the files that it made, in the same parts, by obstore alone."""
    # random bytes do not compress, so that as much is put as is published
    chunk = pa.array([os.urandom(ROW_BYTES) for _ in range(1_000)])
    rows = pa.table({"value": pa.chunked_array([chunk] * published_mb)})
    with serve_namespace(server) as mq:
        mq.publish(TOPIC, rows.slice(0, 1_000))
        files = mq.namespace.files
        before = set(files.list("messages"))
        mq.publish(TOPIC, rows)
        names = sorted(set(files.list("messages")) - before)
        bodies = [files.get(name) for name in names]
        _, bulk = connect(new_path(server), server.options)

        def put(body: bytes) -> None:
            name = f"{time.perf_counter_ns()}"
            obstore.put(bulk, name, body, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=FILES_AT_ONCE)

        def put_all() -> None:
            with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
                list(pool.map(put, bodies))

        put_all()
        published, puts = measure_in_turn([lambda: mq.publish(TOPIC, rows), put_all], 3)
    note = f"{sum(map(len, bodies)) >> 20} MiB in {len(bodies)} files; publish {median(published):.1f} s"
    name = f"puts of the same files over an Arrow publish of {rows.nbytes >> 20} MiB"
    return Figure(name, median(puts) / median(published), "x", 0.8, ">=", note)


def _take_over(server: S3Server, rounds: int) -> Figure:
    """Return the longest time from kill -9 of the leader to the next acknowledgement, with a standby."""
    took_s = []
    for _ in range(rounds):
        with ExitStack() as stack:
            path, config = new_path(server), {"lease.ms": LEASE_MS}
            leader = stack.enter_context(run_sequencer(path, config, server.options))
            mq = stack.enter_context(lakemq.connect(path, storage_options=server.options))
            mq.topics.create(TOPIC)
            stack.enter_context(run_sequencer(path, config, server.options))
            time.sleep(2)
            _send(mq, WARM_UP)
            leader.send_signal(signal.SIGKILL)
            took_s += _send(mq, 1)
    note = f"lease.ms = {LEASE_MS}"
    return Figure("take-over after kill -9 beyond the lease", max(took_s) - LEASE_MS / 1e3, "s", 1, "<=", note)
