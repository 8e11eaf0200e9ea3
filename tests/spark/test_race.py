"""Publishers in Spark and Python and two sequencers race, one of them is killed: all is there once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import lakemq

PUBLISHES = 60
ROWS = 3

SEQUENCER = """
import sys, time, lakemq
with lakemq.connect(sys.argv[1], config={"lease.ms": 1500}) as mq, mq.serving():
    print("ready", flush=True)
    time.sleep(600)
"""

PUBLISHER = """
import sys, threading, lakemq, pyarrow as pa
from concurrent.futures import ThreadPoolExecutor

kind, path, name, publishes, rows = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
spark = None
if kind == "spark":
    from lakemq.engine.namespace.namespace import open_namespace
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

lock = threading.Lock()
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.namespace import open_namespace
with Connection(open_namespace(path), spark) as mq, ThreadPoolExecutor(8 if spark else 1) as pool:
    list(pool.map(publish, range(publishes)))
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_every_acknowledged_publish_is_there_once(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    with lakemq.connect(str(path), create=True) as mq, mq.serving():
        mq.topics.create("t", partitions=4)
    sequencers = [start(SEQUENCER, path) for _ in range(2)]
    kinds = {"s0": "spark", "s1": "spark", "p0": "python", "p1": "python", "p2": "python", "p3": "python"}
    publishers = {name: start(PUBLISHER, kind, path, name, PUBLISHES, ROWS) for name, kind in kinds.items()}
    try:
        kill_the_leader(path, sequencers, publishers)
        acknowledged = {name: process.communicate(timeout=240)[0].split() for name, process in publishers.items()}
        assert {name: process.returncode for name, process in publishers.items()} == dict.fromkeys(kinds, 0)
    finally:
        for process in [*sequencers, *publishers.values()]:
            process.kill()
            process.wait()
    assert {name: len(set(numbers)) for name, numbers in acknowledged.items()} == dict.fromkeys(kinds, PUBLISHES)
    check(path, list(kinds))


def kill_the_leader(
    path: Path, sequencers: list[subprocess.Popen[str]], publishers: dict[str, subprocess.Popen[str]]
) -> None:
    """Once the first Spark publisher has been answered a few times, while all others are at work."""
    stdout = publishers["s0"].stdout
    assert stdout is not None
    with lakemq.connect(str(path)) as mq:
        deadline = time.monotonic() + 120
        while not any(m.value and m.value.startswith(b"s0/") for m in mq.fetch("t")):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        leader = mq.state().leader
    (process,) = [one for one in sequencers if f"-{one.pid}-" in leader]
    process.kill()
    process.wait()


def check(path: Path, names: list[str]) -> None:
    with lakemq.connect(str(path)) as mq:
        assert str(mq.state().leader_epoch) >= "2"
        table = mq.fetch("t").to_arrow()
    counts = Counter(value.decode() for value in table.column("value").to_pylist())
    wanted = {f"{name}/{number}/{i}" for name in names for number in range(PUBLISHES) for i in range(ROWS)}
    assert set(counts) == wanted
    assert set(counts.values()) == {1}
    for partition in range(4):
        offsets = sorted(
            o
            for o, p in zip(table.column("offset").to_pylist(), table.column("partition").to_pylist(), strict=True)
            if p == partition
        )
        assert offsets == list(range(len(offsets))), json.dumps(offsets[:20])
