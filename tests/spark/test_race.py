"""Publishers in Spark and Python and two sequencers race, and one sequencer is killed. Each message is there once."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.namespace import open_namespace

ROWS = 3
SPARK, PYTHON = "s0", {"p0", "p1", "p2", "p3"}
SPARK_THREADS = 8
MORE = 24
"""How many publishes each publisher makes at least after the leader's death. So all of them are at work when it
dies, even if they start slowly.
"""

SEQUENCER = """
import sys, time, lakemq
with lakemq.connect(sys.argv[1], config={"lease.ms": 1500}) as mq, mq.serving():
    print("ready", flush=True)
    time.sleep(600)
"""

PUBLISHER = """
import itertools, sys, threading, lakemq, pyarrow as pa

path, name, rows, left = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
told, numbers = threading.Event(), itertools.count()
threading.Thread(target=lambda: (sys.stdin.read(), told.set()), daemon=True).start()
with lakemq.connect(path) as mq:
    while left > 0:
        left -= told.is_set()
        number = next(numbers)
        values = [f"{name}/{number}/{i}" for i in range(rows)]
        done = mq.publish("t", pa.table({"key": [f"{name}-{i}" for i in range(rows)], "value": values}))
        assert sum(unit.record_count for unit in done.units) == rows
        print(number, flush=True)
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class InSpark:
    """Publishes from threads of this process, with its Spark session."""

    def __init__(self, mq: Connection, spark: SparkSession) -> None:
        self._mq, self._spark, self._leader_is_gone, self._numbers = mq, spark, threading.Event(), itertools.count()
        self._pool = ThreadPoolExecutor(SPARK_THREADS)
        self._work: list[Future[list[int]]] = [self._pool.submit(self._go_on) for _ in range(SPARK_THREADS)]

    def _go_on(self) -> list[int]:
        remaining, published = MORE // SPARK_THREADS, list[int]()
        while remaining > 0:
            remaining -= self._leader_is_gone.is_set()
            number = next(self._numbers)
            rows = [(f"{SPARK}-{i}", f"{SPARK}/{number}/{i}") for i in range(ROWS)]
            result = self._mq.publish("t", self._spark.createDataFrame(rows, "key string, value string").coalesce(1))
            assert sum(unit.record_count for unit in result.units) == ROWS
            published.append(number)
        return published

    def end(self) -> list[str]:
        """Return the numbers of the publishes."""
        self._leader_is_gone.set()
        self._pool.shutdown()
        return [str(number) for future in self._work for number in future.result()]


@pytest.mark.nightly
def test_every_acknowledged_publish_is_there_once(tmp_path: Path, spark: SparkSession) -> None:
    path = tmp_path / "mq"
    with lakemq.connect(str(path), create=True) as mq, mq.serving():
        mq.topics.create("t", partitions=4)
    sequencers, publishers = [start(SEQUENCER, path) for _ in range(2)], {}
    try:
        with Connection(open_namespace(str(path)), spark) as mq:
            in_spark = InSpark(mq, spark)
            try:
                wait_for_publishers(mq, {SPARK})
                publishers = {name: start(PUBLISHER, path, name, ROWS, MORE) for name in PYTHON}
                wait_for_publishers(mq, {SPARK} | PYTHON)
                epoch = kill_the_leader(mq, sequencers)
            finally:
                answered = {SPARK: in_spark.end()}
        for process in publishers.values():
            process.stdin.close()
        answered |= {name: process.stdout.read().split() for name, process in publishers.items()}
        assert {name: process.wait(240) for name, process in publishers.items()} == dict.fromkeys(publishers, 0)
    finally:
        for process in [*sequencers, *publishers.values()]:
            process.kill()
            process.wait()
    assert all(len(numbers) > MORE for numbers in answered.values())
    check(path, {f"{name}/{number}/{i}" for name in answered for number in answered[name] for i in range(ROWS)}, epoch)


def wait_for_publishers(mq: Connection, names: set[str]) -> None:
    """Wait until a message of each publisher is there."""
    deadline = time.monotonic() + 120
    while not names <= {(m.value or b"").decode().partition("/")[0] for m in mq.fetch("t")}:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def kill_the_leader(mq: Connection, sequencers: list[subprocess.Popen[str]]) -> int:
    """Kill the leader, and return its epoch."""
    state = mq.state()
    (process,) = [sequencer for sequencer in sequencers if f"-{sequencer.pid}-" in state.leader]
    process.kill()
    process.wait()
    return state.leader_epoch


def check(path: Path, expected: set[str], epoch: int) -> None:
    """Check the messages. epoch: that of the leader that was killed."""
    with lakemq.connect(str(path)) as mq:
        assert mq.state().leader_epoch > epoch
        table = mq.fetch("t").to_arrow()
    counts = Counter(value.decode() for value in table.column("value").to_pylist())
    assert set(counts) == expected
    assert set(counts.values()) == {1}
    for partition in range(4):
        offsets = sorted(
            o
            for o, p in zip(table.column("offset").to_pylist(), table.column("partition").to_pylist(), strict=True)
            if p == partition
        )
        assert offsets == list(range(len(offsets))), json.dumps(offsets[:20])
