"""Publishers in Spark and Python and two sequencers race, one of them is killed: all is there once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import lakemq
from lakemq.engine.client.connection import Connection

ROWS = 3
SPARK, PYTHON = {"s0", "s1"}, {"p0", "p1", "p2", "p3"}
MORE = 24
"""What each publishes at least once the leader is gone: all of them are at work when it dies, however long they took to
start, which a number of publishes alone does not see to."""

SEQUENCER = """
import sys, time, lakemq
with lakemq.connect(sys.argv[1], config={"lease.ms": 1500}) as mq, mq.serving():
    print("ready", flush=True)
    time.sleep(600)
"""

PUBLISHER = """
import itertools, sys, threading, lakemq, pyarrow as pa
from concurrent.futures import ThreadPoolExecutor

kind, path, name, rows, more = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
spark = None
if kind == "spark":
    from lakemq.spark import spark_session
    spark = spark_session(master="local[2]", extra={"spark.driver.memory": "512m"})

def frame(number):
    listed = [(f"{name}-{i}", f"{name}/{number}/{i}") for i in range(rows)]
    if spark is not None:
        return spark.createDataFrame(listed, "key string, value string").coalesce(1)
    return pa.table({"key": [k for k, _ in listed], "value": [v for _, v in listed]})

def publish(number):
    done = mq.publish("t", frame(number))
    assert sum(unit.record_count for unit in done.units) == rows
    with lock:
        print(number, flush=True)

def go_on(left):
    while left > 0:
        left -= told.is_set()
        publish(next(numbers))

lock, told, numbers, threads = threading.Lock(), threading.Event(), itertools.count(), 8 if spark else 1
threading.Thread(target=lambda: (sys.stdin.read(), told.set()), daemon=True).start()
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.namespace import open_namespace
with Connection(open_namespace(path), spark) as mq, ThreadPoolExecutor(threads) as pool:
    list(pool.map(go_on, [more // threads] * threads))
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_every_acknowledged_publish_is_there_once(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    with lakemq.connect(str(path), create=True) as mq, mq.serving():
        mq.topics.create("t", partitions=4)
    sequencers = [start(SEQUENCER, path) for _ in range(2)]
    publishers = {name: start(PUBLISHER, "spark", path, name, ROWS, MORE) for name in SPARK}
    try:
        with lakemq.connect(str(path)) as mq:
            until_seen(mq, SPARK)
            # Spark takes long to start: only now, so that they do not publish without end meanwhile
            publishers |= {name: start(PUBLISHER, "python", path, name, ROWS, MORE) for name in PYTHON}
            until_seen(mq, PYTHON)
            epoch = kill_the_leader(mq, sequencers)
        for process in publishers.values():
            process.stdin.close()
        answered = {name: process.stdout.read().split() for name, process in publishers.items()}
        assert {name: process.wait(240) for name, process in publishers.items()} == dict.fromkeys(publishers, 0)
    finally:
        for process in [*sequencers, *publishers.values()]:
            process.kill()
            process.wait()
    assert all(len(numbers) > MORE for numbers in answered.values())
    check(path, {f"{name}/{number}/{i}" for name in answered for number in answered[name] for i in range(ROWS)}, epoch)


def until_seen(mq: Connection, names: set[str]) -> None:
    """Until a message of each publisher is there."""
    deadline = time.monotonic() + 120
    while not names <= {(m.value or b"").decode().partition("/")[0] for m in mq.fetch("t")}:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def kill_the_leader(mq: Connection, sequencers: list[subprocess.Popen[str]]) -> int:
    """Its epoch."""
    state = mq.state()
    (process,) = [one for one in sequencers if f"-{one.pid}-" in state.leader]
    process.kill()
    process.wait()
    return state.leader_epoch


def check(path: Path, wanted: set[str], epoch: int) -> None:
    """epoch: of the leader that was killed."""
    with lakemq.connect(str(path)) as mq:
        assert mq.state().leader_epoch > epoch
        table = mq.fetch("t").to_arrow()
    counts = Counter(value.decode() for value in table.column("value").to_pylist())
    assert set(counts) == wanted
    assert set(counts.values()) == {1}
    for partition in range(4):
        offsets = sorted(
            o
            for o, p in zip(table.column("offset").to_pylist(), table.column("partition").to_pylist(), strict=True)
            if p == partition
        )
        assert offsets == list(range(len(offsets))), json.dumps(offsets[:20])
