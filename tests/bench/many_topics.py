"""A namespace of many topics: the cost of making them, and the cost of existing topics for other clients."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from control_plane import measure_start
from figures import Figure, measure_in_turn, median
from serving import run_sequencer

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.producer.producer import Producer

PARTITIONS = 10
THREADS = 50
WARM_UP = 20


def run(topics: int, sends: int) -> Iterator[Figure]:
    with (
        tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder,
        tempfile.TemporaryDirectory(prefix="lakemq-bench-") as other,
    ):
        with (
            run_sequencer(folder) as sequencer,
            run_sequencer(other),
            lakemq.connect(folder) as mq,
            lakemq.connect(other) as few,
        ):
            few.topics.create("sends", partitions=PARTITIONS)
            mq.topics.create("sends", partitions=PARTITIONS)
            start_s = time.perf_counter()
            _create(mq, topics)
            rate = topics / (time.perf_counter() - start_s)
            name = f"{topics:,} topics of {PARTITIONS} partitions"
            yield Figure(f"{name}: created", rate, "1/s", 500, ">=", f"by {THREADS} threads")
            time.sleep(3)
            alone, among = _sends([few, mq], sends)
            note = f"{median(alone) * 1e3:.1f} ms, then {median(among) * 1e3:.1f} ms"
            yield Figure(f"{name}: send over one without them", median(among) / median(alone), "ratio", 1.2, "<=", note)
            yield Figure(f"{name}: memory of the sequencer", _peak_mib(sequencer), "MiB", 500, "<=")
        starts = [measure_start(folder) for _ in range(3)]
        yield Figure(f"{name}: start of a sequencer", min(s for s, _ in starts), "s", 3, "<=")


def _create(mq: Connection, topics: int) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda i: mq.topics.create(f"topic-{i}", partitions=PARTITIONS), range(topics)))


def _sends(connections: list[Connection], sends: int) -> list[list[float]]:
    """Return the seconds of each acknowledged send per connection. Connections take turns, so all see the same
    machine.
    """
    with ExitStack() as stack:
        producers = [stack.enter_context(mq.producer(linger_ms=0)) for mq in connections]

        def send(producer: Producer) -> None:
            producer.send("sends", b"x" * 92, key=b"k")
            producer.flush()

        durations_s = measure_in_turn([partial(send, producer) for producer in producers], sends)
    return [times[WARM_UP:] for times in durations_s]


def _peak_mib(process: subprocess.Popen[str]) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024
