"""Redrives of many dead letters, in bulk and scattered. No JVM.

The sequencer is a process of its own. Messages are back when the end of the log says so.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from figures import Figure
from serving import run_sequencer

import lakemq
from lakemq.engine.client.connection import Connection


def run(bulk: int, scattered: int) -> Iterator[Figure]:
    for kind, count, choose in (
        ("in bulk", bulk, lambda batch: batch),
        ("scattered", 2 * scattered, lambda batch: [message for message in batch if message.offset % 2]),
    ):
        with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, run_sequencer(folder):
            yield from _measure_redrive(folder, kind, count, choose)


def _measure_redrive(folder: str, kind: str, count: int, choose: Callable[[Any], Any]) -> Iterator[Figure]:
    with lakemq.connect(folder) as mq:
        mq.topics.create("t", partitions=8)
        mq.publish("t", pa.table({"value": [f"{n:0100}" for n in range(count)]}))
        mq.groups.create("g", {"max.delivered.unacked.msgs.per.flow": 50_000})
        start_s = time.perf_counter()
        with mq.consumer("g", topics=["t"], auto_offset_reset="earliest") as consumer:
            while not consumer.assignment() or any(consumer.lag().values()):
                batch = consumer.poll(10_000, timeout_ms=50)
                consumer.reject(choose(batch), error="on purpose")
                consumer.ack_through(batch)
        dead = _ends(mq, "t.dlq")
        note = f"they were rejected, and dead letters, in {time.perf_counter() - start_s:.1f} s"
        start_s = time.perf_counter()
        redriven = mq.dead_letters.redrive("t.dlq")
        took_s = time.perf_counter() - start_s
        assert (redriven.messages, redriven.waiting) == (dead, 0)
        assert _ends(mq, "t") == count + dead
        yield Figure(
            f"{dead:,} dead letters, {kind}, are back after", took_s, "s", 2 if kind == "in bulk" else 3, "<=", note
        )


def _ends(mq: Connection, topic: str) -> int:
    return sum(mq.end_offsets(topic).values())
