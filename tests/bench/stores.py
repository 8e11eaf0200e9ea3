"""An object store: requests per step, pass and follower, and how long clients wait. No JVM.

The store is the S3 server of `make test-stores`. Where nothing else is said, clients use the mailbox.
"""

import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import obstore
from counted_store import TOPIC, S3Server, count_requests, new_path, run_slow_proxy, serve_namespace, serve_store
from figures import Figure, measure_in_turn, median
from serving import run_sequencer
from without_jvm import rows

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.tables.storage.object_stores.store_options import connect

WARM_UP = 10
NO_PASSES = {"project.interval.ms": 3_600_000}
"""With this setting the requests of steps are not mixed with those of projections."""

PUTS_OF_A_COMMIT = 2
"""A file of rows, and the entry of Delta's log that names it."""

SETTLE_S = 10
"""Time after the last request in which the leader comes to list the mailbox less often."""

IDLE_SETTINGS = {"project.interval.ms": 60_000, "lease.ms": 30_000}
UNTIL_IDLE_S = 90
"""Time after which the tables have all that changed, and the readers know that."""

LEASE_MS = 3_000
WAYS: dict[str, dict[str, int | str]] = {"mailbox": {}, "line": {"line.listen": "127.0.0.1:0"}}
"""How requests reach the leader -> the setting for it."""

DELAY_MS = 15
"""Time that a slow store takes for each request. One on this machine answers within a millisecond."""

ROW_BYTES = 1_000
PART_BYTES = 8 << 20
FILES_AT_ONCE = 4


def run(sends: int, idle_s: float, published_mb: int, take_overs: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, serve_store(folder) as server:
        for way, config in WAYS.items():
            yield from _requests_of_a_leader(server, way, config, sends, idle_s)
        yield _requests_of_idle_consumers(server, idle_s)
        yield from _requests_of_a_pass(server)
        for way, config in WAYS.items():
            yield from _waits(server, way, config, sends)
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


def _requests_of_a_leader(
    server: S3Server, way: str, config: Mapping[str, int | str], sends: int, idle_s: float
) -> Iterator[Figure]:
    """Count what acknowledgements cost on a slow store, and what its leader does while nobody sends."""
    with (
        count_requests(server, DELAY_MS) as (counted, counter),
        serve_namespace(counted, {**NO_PASSES, **config}) as mq,
        mq.producer(linger_ms=0) as producer,
    ):
        for number in range(WARM_UP):
            producer.send(TOPIC, b"%d" % number).result()
        counter.take()
        for number in range(sends):
            producer.send(TOPIC, b"%d" % number).result()
        counts = counter.take()
        time.sleep(SETTLE_S)
        counter.take()
        time.sleep(idle_s)
        idle_count = counter.take().total() * 60 / idle_s
    kinds = ", ".join(f"{c.method} {c.folder} {n / sends:.1f}" for c, n in counts.most_common())
    name = f"requests per acknowledged step by {way}, {DELAY_MS} ms a request"
    yield Figure(name, counts.total() / sends, "requests", 14 if way == "mailbox" else 3, "<=", kinds)
    name = f"requests of an idle leader in a minute, {way}"
    yield Figure(name, idle_count, "requests", 400 if way == "mailbox" else 60, "<=")


def _requests_of_idle_consumers(server: S3Server, idle_s: float) -> Figure:
    """Count the requests of a leader and two members of a queue group, on lines, while nobody sends."""
    ends = threading.Event()

    def consume(consumer: QueueConsumer) -> None:
        while not ends.is_set():
            consumer.poll(timeout_ms=1_000)

    with (
        count_requests(server, DELAY_MS) as (counted, counter),
        serve_namespace(counted, {**IDLE_SETTINGS, **WAYS["line"]}) as mq,
        mq.consumer("readers", topics=[TOPIC], protocol="queue") as first,
        mq.consumer("readers", topics=[TOPIC], protocol="queue") as second,
        ThreadPoolExecutor(2) as pool,
    ):
        polls = [pool.submit(consume, consumer) for consumer in (first, second)]
        time.sleep(UNTIL_IDLE_S)
        counter.take()
        time.sleep(idle_s)
        counts = counter.take()
        ends.set()
        for poll in polls:
            poll.result()
    kinds = ", ".join(f"{c.method} {c.folder} {n}" for c, n in counts.most_common())
    name = "requests of an idle leader and two consumers in a minute, line"
    return Figure(name, counts.total() * 60 / idle_s, "requests", 60, "<=", kinds)


def _requests_of_a_pass(server: S3Server) -> Iterator[Figure]:
    """Count what a commit to a table costs in a pass: the passes after a message have some, the watermark included.

    They are the rows, the entry, and the look at the entry before.
    """
    with count_requests(server) as (counted, counter), serve_namespace(counted, {"project.interval.ms": 2_000}) as mq:
        _send(mq, WARM_UP)
        time.sleep(5)
        counter.take()
        _send(mq, 1)
        time.sleep(5)
        counts = counter.take()
    other = ("steps", "mailbox", "replies", "beats", "line", "")
    of_tables = {request: count for request, count in counts.items() if request.folder not in other}
    puts = sum(count for request, count in of_tables.items() if request.method == "PUT")
    commits = puts / PUTS_OF_A_COMMIT
    kinds = ", ".join(f"{c.method} {c.folder} {n}" for c, n in of_tables.items())
    each = sum(of_tables.values()) / max(1, commits)
    yield Figure("requests of a pass per table with rows", each, "requests", 3, "<=", kinds)


def _waits(server: S3Server, way: str, config: Mapping[str, int | str], sends: int) -> Iterator[Figure]:
    with serve_namespace(server, config) as mq:
        waits = _send(mq, WARM_UP + sends)[WARM_UP:]
    yield Figure(f"send -> acknowledged by {way}, p50", median(waits) * 1e3, "ms", 20, "<=")
    with run_slow_proxy(server, DELAY_MS) as slow, serve_namespace(slow, config) as mq:
        waits = _send(mq, WARM_UP + sends)[WARM_UP:]
    target = 130 if way == "mailbox" else 60
    yield Figure(f"the same with {DELAY_MS} ms a request, p50", median(waits) * 1e3, "ms", target, "<=")


def _publish_over_puts(server: S3Server, published_mb: int) -> Figure:
    """Compare a publish in Arrow with putting the files that it made, in the same parts, by obstore alone."""
    # their values do not compress, so that as much is put as is published
    table = rows(published_mb * 1_000, ROW_BYTES)
    with serve_namespace(server) as mq:
        mq.publish(TOPIC, table.slice(0, 1_000))
        files = mq.namespace.files
        before = set(files.list("messages"))
        mq.publish(TOPIC, table)
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
        published, puts = measure_in_turn([lambda: mq.publish(TOPIC, table), put_all], 3)
    note = f"{sum(map(len, bodies)) >> 20} MiB in {len(bodies)} files; publish {median(published):.1f} s"
    name = f"puts of the same files over an Arrow publish of {table.nbytes >> 20} MiB"
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
