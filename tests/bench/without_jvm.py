"""The Python side alone: Arrow in and out, single records, the first send of a process."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from figures import Figure, median, seconds
from serving import run_sequencer

import lakemq

FIRST_SEND = """
import sys, time
started = time.perf_counter()
import lakemq
mq = lakemq.connect(sys.argv[1])
with mq.producer() as producer:
    producer.send("bench", key=b"k", value=b"v")
    producer.flush()
    print(time.perf_counter() - started)
"""


def rows(count: int, value_bytes: int = 92) -> pa.Table:
    """Return rows with keys of 8 bytes out of 100,000, values that do not compress, and the current time."""
    random = np.random.default_rng(7)
    keys = np.char.mod("k%07d", random.integers(0, 100_000, count)).astype("S8")
    values = random.integers(0, 256, count * value_bytes, np.uint8).tobytes()
    offsets = np.arange(0, (count + 1) * value_bytes, value_bytes, np.int32)
    value = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(values)])
    return pa.table({"key": pa.array(keys.tolist(), pa.binary()), "value": value})


def run(count: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, run_sequencer(folder):
        with lakemq.connect(folder) as mq:
            for name in ("arrow", "records", "bench"):
                mq.topics.create(name, partitions=8)
            table = rows(count)
            with mq.producer() as producer:
                durations_s = [
                    seconds(lambda: (producer.send_arrow("arrow", table), producer.flush())) for _ in range(4)
                ]
            yield Figure("Python producer, Arrow in", count / min(durations_s[1:]) / 1e6, "M messages/s", 2, ">=")
            fetched = mq.fetch("arrow", start=mq.beginning_offsets("arrow"), end=_first_ends(mq, count))
            best = min(seconds(fetched.to_arrow) for _ in range(4))
            yield Figure("fetch in Arrow", fetched.record_count / best / 1e6, "M messages/s", 10, ">=")
            yield _record_by_record(mq, count // 4)
            yield _by_iteration(mq, count // 4)
        firsts = [_first_send(folder) for _ in range(4)]
        commands = [seconds(lambda: _command(folder)) for _ in range(5)]
        yield Figure("`lakemq topics list`, as a command", median(commands[1:]), "s", 0.6, "<=", "with all extras")
        yield Figure("import, connect, first send, without a JVM", median(firsts[1:]), "s", 1.0, "<=")


def _first_ends(mq: lakemq.Connection, count: int) -> dict[int, int]:
    """Return the end offsets of the first publish, which are the segments of one data file."""
    segments = mq.fetch("arrow").plan.segments
    first = segments.column("file_id")[0].as_py()
    ends: dict[int, int] = {}
    for row in segments.to_pylist():
        if row["file_id"] == first:
            ends[row["partition"]] = max(ends.get(row["partition"], 0), row["base_offset"] + row["record_count"])
    return ends


def _record_by_record(mq: lakemq.Connection, count: int) -> Figure:
    records = [(b"k%07d" % (i % 100_000), os.urandom(92)) for i in range(count)]

    def send() -> None:
        for key, value in records:
            producer.send("records", value, key)
        producer.flush()

    with mq.producer() as producer:
        best = min(seconds(send) for _ in range(3))
    return Figure("Python producer, record by record", count / best / 1e3, "k messages/s", 800, ">=")


def _by_iteration(mq: lakemq.Connection, count: int) -> Figure:
    fetched = mq.fetch("records", partitions=[0, 1])
    assert fetched.record_count >= count // 2

    def iterate() -> None:
        for message in fetched:
            assert message.value

    best = min(seconds(iterate) for _ in range(3))
    return Figure("for message in a fetch", fetched.record_count / best / 1e6, "M messages/s", 0.6, ">=")


def _command(folder: str) -> None:
    command = [sys.executable, "-m", "lakemq.jobs.cli", "--path", folder, "topics", "list"]
    subprocess.run(command, capture_output=True, check=True)


def _first_send(folder: str) -> float:
    completed = subprocess.run([sys.executable, "-c", FIRST_SEND, folder], capture_output=True, text=True, check=True)
    return float(completed.stdout)
