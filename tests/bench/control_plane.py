"""The costs of the sequencer alone: ranges decided and journaled, a large namespace, many steps."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from figures import Figure, median, seconds

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.data_file import new_file_id, write_data_file
from lakemq.engine.protocol.values.log import DataFile, Produce, Ranges
from lakemq.engine.protocol.values.topics import TopicRef
from lakemq.tables.specs.registry import BY_NAME
from lakemq.tables.specs.segments import SEGMENTS

PARTITIONS = 8

_START = r"""
import re, sys, time
import lakemq
started = time.perf_counter()
mq = lakemq.connect(sys.argv[1])
sequencer = mq.sequencer()
assert sequencer.try_lead()
begun = time.perf_counter() - started
# not ru_maxrss: a child begins with its parent's
peak_kib = re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]
print(begun, int(peak_kib) / 1024)
sequencer.resign()
"""


def ranges_per_second(ranges_per_request: int, requests: int, rows_per_range: int) -> float:
    """Return how many ranges are decided and journaled per second. One data file has all their rows."""
    with (
        tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder,
        lakemq.connect(folder, create=True) as mq,
        mq.serving(),
    ):
        topic = mq.topics.create("ranges", partitions=PARTITIONS)
        rows = ranges_per_request * rows_per_range
        file = _file(mq, rows)
        first = np.arange(0, rows, rows_per_range)
        zeros = [0] * ranges_per_request
        ranges = Ranges(
            topic_index=zeros,
            partition=(np.arange(ranges_per_request) % PARTITIONS).tolist(),
            file=zeros,
            first_row=first.tolist(),
            record_count=[rows_per_range] * ranges_per_request,
            min_timestamp_ms=zeros,
            max_timestamp_ms=zeros,
        )
        ref = TopicRef("ranges", topic.topic_id, PARTITIONS)
        produce = Produce(topics=[ref], ranges=ranges, metadata_step=mq.state().step, files=[file])

        def send() -> None:
            for future in [mq.requester.submit(produce) for _ in range(requests)]:
                future.result()

        send()
        return requests * ranges_per_request / min(seconds(send) for _ in range(3))


def _file(mq: Connection, rows: int) -> DataFile:
    body = {
        "topic": pa.repeat("ranges", rows),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), rows),
        "key": pa.nulls(rows, pa.binary()),
        "value": pa.nulls(rows, pa.binary()),
        "headers": pa.nulls(rows, BY_NAME["messages"].stored_schema.field("headers").type),
        "timestamp": pa.array(np.zeros(rows, np.int64)).cast(pa.timestamp("us", "UTC")),
        "deliver_at": pa.nulls(rows, pa.timestamp("us", "UTC")),
        "ttl_ms": pa.nulls(rows, pa.int64()),
    }
    return DataFile(*write_data_file(mq.namespace.files, new_file_id(), pa.table(body)))


def large_namespace(segments: int) -> Iterator[Figure]:
    """Measure a namespace whose log has very many segments, which the sequencer need not keep in memory."""
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder:
        with lakemq.connect(folder, create=True) as mq, mq.serving():
            topic = mq.topics.create("large", partitions=PARTITIONS)
            per_request = 50_000
            file = _file(mq, per_request)
            ref, step = TopicRef("large", topic.topic_id, PARTITIONS), mq.state().step
            zeros = [0] * per_request
            for _ in range(segments // per_request):
                ranges = Ranges(
                    topic_index=zeros,
                    partition=(np.arange(per_request) % PARTITIONS).tolist(),
                    file=zeros,
                    first_row=list(range(per_request)),
                    record_count=[1] * per_request,
                    min_timestamp_ms=zeros,
                    max_timestamp_ms=zeros,
                )
                mq.requester.ask(Produce(topics=[ref], ranges=ranges, metadata_step=step, files=[file]))
        starts = [measure_start(folder) for _ in range(3)]
        yield Figure(f"{segments / 1e6:g} M segments: start of a sequencer", min(s for s, _ in starts), "s", 3, "<=")
        yield Figure(f"{segments / 1e6:g} M segments: its memory", min(m for _, m in starts), "MiB", 400, "<=")
        with lakemq.connect(folder) as mq:
            assert mq.namespace.store.open(SEGMENTS).last_step() > 0
            middle = segments // PARTITIONS // 2

            def look_up() -> None:
                assert mq.fetch("large", start=middle, end=middle + 1000, partitions=[3]).record_count == 1000

            look_up()
            durations_s = [seconds(look_up) for _ in range(20)]
        yield Figure(f"{segments / 1e6:g} M segments: range look-up", median(durations_s) * 1e3, "ms", 50, "<=")


def measure_start(folder: str) -> tuple[float, float]:
    completed = subprocess.run([sys.executable, "-c", _START, folder], capture_output=True, text=True, check=True)
    start_s, memory = completed.stdout.split()
    return float(start_s), float(memory)


def many_steps(steps: int) -> Figure:
    """Return the median of the last 100 acknowledgements over the median around the 100th step."""
    with (
        tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder,
        lakemq.connect(folder, create=True) as mq,
        mq.serving(),
    ):
        mq.topics.create("steps", partitions=PARTITIONS)
        table = pa.table({"key": [b"k"], "value": [b"x" * 92]})
        durations_s = [seconds(lambda: mq.publish("steps", table)) for _ in range(steps)]
    ratio = median(durations_s[-100:]) / median(durations_s[50:150])
    note = f"{median(durations_s[50:150]) * 1e3:.1f} ms, then {median(durations_s[-100:]) * 1e3:.1f} ms"
    return Figure(f"step {steps:,} over step 100", ratio, "ratio", 1.5, "<=", note)


def run(segments: int, steps: int) -> Iterator[Figure]:
    small = ranges_per_second(10_000, 20, 1)
    yield Figure("ranges decided and journaled", small / 1e3, "k/s", 100, ">=")
    large = ranges_per_second(10_000, 20, 100)
    yield Figure("the same with 100 times the messages", small / large, "ratio", 1.1, "<=", "time over time")
    yield from large_namespace(segments)
    yield many_steps(steps)
