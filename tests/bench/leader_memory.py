"""Memory of a leader after many small steps: 100 topics, 20 groups that read and commit, one send per step.

A leader runs for months, so the question is whether its memory still grows after the first minutes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from figures import Figure
from serving import run_sequencer

import lakemq
from lakemq.engine.client.connection import Connection

TOPICS = 100
GROUPS = 20
LOOKS = 12
STEPS_PER_POLL = 50
FULL_RUN = 60_000
"""Shorter runs say nothing about growth: until about 30,000 steps the heaps of the threads still fill."""


def run(steps: int) -> Iterator[Figure]:
    with (
        tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder,
        run_sequencer(folder) as sequencer,
        lakemq.connect(folder) as mq,
    ):
        samples_mib = _sample(mq, sequencer.pid, steps)
    samples_text = ", ".join(f"{mib:.0f}" for mib in samples_mib)
    name = f"a leader, {TOPICS} topics, {GROUPS} groups, {steps:,} small steps"
    yield Figure(f"{name}: memory at most", max(samples_mib), "MiB", 300, "<=", samples_text)
    # the first third fills the heaps; of the rest, both halves have peaks of passes and merges
    early_mib, late_mib = samples_mib[LOOKS // 3 : 2 * LOOKS // 3], samples_mib[2 * LOOKS // 3 :]
    growth_mib = max(late_mib) - max(early_mib)
    yield Figure(f"{name}: growth in the last third", growth_mib, "MiB", 15, "<=", f"counts from {FULL_RUN:,} steps on")


def _sample(mq: Connection, pid: int, steps: int) -> list[float]:
    """Take the steps, and return the resident memory of the leader at LOOKS points of them."""
    topics = [f"topic-{number}" for number in range(TOPICS)]
    for topic in topics:
        mq.topics.create(topic, partitions=2)
    samples_mib = []
    with ExitStack() as stack:
        producer = stack.enter_context(mq.producer(linger_ms=0))
        consumers = [
            stack.enter_context(mq.consumer(f"group-{number}", topics=topics[number::GROUPS]))
            for number in range(GROUPS)
        ]
        for step in range(1, steps + 1):
            producer.send(topics[step % TOPICS], b"x" * 100).result()
            if step % STEPS_PER_POLL == 0:
                consumer = consumers[step // STEPS_PER_POLL % GROUPS]
                consumer.poll(timeout_ms=0)
                consumer.commit()
            if step % (steps // LOOKS) == 0 and len(samples_mib) < LOOKS:
                samples_mib.append(_resident_mib(pid))
    return samples_mib


def _resident_mib(pid: int) -> float:
    """Return all memory of the process, files of libraries included."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
