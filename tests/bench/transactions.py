"""The cost of transactions: beside the same work without one, one after the other, and a thousand at once."""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.queues import Queue

import numpy as np
import pyarrow as pa
from figures import Figure, measure_in_turn, median, percentile, seconds
from serving import run_sequencer

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.producer.transactional import TransactionalProducer

PARTITIONS = 8
WARM_UP = 20


def run(rows: int, sends: int, producers: int, processes: int, rounds: int) -> Iterator[Figure]:
    yield fetched_over_plain(rows, rounds)
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, run_sequencer(folder):
        with lakemq.connect(folder) as mq:
            durations_s = one_producer(mq, sends)
        yield Figure("transaction of 10 records, 2 topics, offsets, p50", median(durations_s) * 1e3, "ms", 10, "<=")
        yield Figure(
            "transaction of 10 records, 2 topics, offsets, p99", percentile(durations_s, 0.99) * 1e3, "ms", 40, "<="
        )
        rate = many_producers(folder, producers, processes, rounds)
        name = f"{producers:,} producers in {processes} processes committing at once"
        yield Figure(name, rate, "transactions/s", 2000, ">=")


def fetched_over_plain(rows: int, rounds: int, batches: int = 100) -> Figure:
    """Return the median seconds of a fetch of `rows` over those of one that skips as many rows in aborted batches."""
    with (
        tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder,
        lakemq.connect(folder, create=True) as mq,
        mq.serving(),
    ):
        mq.topics.create("plain", partitions=PARTITIONS)
        mq.topics.create("half", partitions=PARTITIONS)
        count = rows // batches
        keys = pa.array([b"k%07d" % (n % 100_000) for n in range(count)])
        table = pa.table({"key": keys, "value": pa.array(_random_values(count))})
        for number in range(2 * batches):
            if number % 2 == 0:
                mq.publish("plain", table)
            _publish_in_transaction(mq, table, commit=number % 2 == 0)

        def build_fetch(topic: str) -> Callable[[], None]:
            def once() -> None:
                assert mq.fetch(topic).to_arrow().num_rows == count * batches

            return once

        plain, half = build_fetch("plain"), build_fetch("half")
        plain(), half()
        without, with_aborted = measure_in_turn([plain, half], rounds)
    ratio = median(without) / median(with_aborted)
    return Figure("fetch with half of all batches aborted over without", ratio, "ratio", 0.95, ">=")


class _AbortOnPurpose(Exception):
    pass


def _publish_in_transaction(mq: Connection, table: pa.Table, commit: bool) -> None:
    try:
        with mq.transaction("bench") as txn:
            txn.publish("half", table)
            if not commit:
                raise _AbortOnPurpose
    except _AbortOnPurpose:
        pass


def _random_values(count: int) -> list[bytes]:
    return [bytes(row) for row in np.random.default_rng(1).integers(0, 256, (count, 92), np.uint8)]


def one_producer(mq: Connection, sends: int) -> list[float]:
    """Return the seconds of each transaction: 10 records for two topics, and an offset."""
    for topic in ("in", "a", "b"):
        mq.topics.create(topic, partitions=PARTITIONS)
    mq.publish("in", pa.table({"value": [b"x"] * 100, "partition": [0] * 100}))
    durations_s = []
    with mq.producer("bench") as producer:
        for number in range(sends):
            durations_s.append(seconds(lambda offset=number % 100: _transaction(producer, offset)))
    return durations_s[WARM_UP:]


def _transaction(producer: TransactionalProducer, offset: int) -> None:
    producer.begin_transaction()
    for record in range(10):
        producer.send("ab"[record % 2], b"x" * 92, key=b"k%d" % record)
    producer.send_offsets_to_transaction({("in", 0): offset}, "group")
    producer.commit_transaction()


def many_producers(folder: str, producers: int, processes: int, rounds: int) -> float:
    """Return transactions per second of producers with different ids that each commit, wait, and commit again."""
    context = multiprocessing.get_context("spawn")
    queue: Queue[float] = context.Queue()
    start = context.Barrier(processes)
    each = producers // processes
    children = [
        context.Process(target=_producer_process, args=(folder, number, each, rounds, start, queue))
        for number in range(processes)
    ]
    for child in children:
        child.start()
    longest = max(queue.get() for _ in children)
    for child in children:
        child.join()
    return each * processes * rounds / longest


def _producer_process(
    folder: str, process: int, producers: int, rounds: int, start: threading.Barrier, queue: Queue[float]
) -> None:
    with lakemq.connect(folder) as mq:
        own_producers = [mq.producer(f"bench-{process}-{number}") for number in range(producers)]

        def commit(producer: TransactionalProducer) -> None:
            for number in range(rounds):
                _transaction(producer, number % 100)

        threads = [threading.Thread(target=commit, args=(producer,)) for producer in own_producers]
        start.wait()
        start_s = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        queue.put(time.perf_counter() - start_s)
