"""How long nothing is acknowledged when the leader is killed and a standby waits on the same machine."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack

from figures import Figure, median
from serving import run_sequencer

import lakemq

TOPIC = "taken-over"


def run(kills: int, messages: int) -> Iterator[Figure]:
    """messages: how many are in the namespace, so that the next leader has something to load."""
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder:
        leads, acknowledged = _measure(folder, kills, messages)
    yield Figure("kill -9 -> the standby leads, median", median(leads), "s", 1, "<=", f"worst {max(leads):.2f} s")
    note = f"worst {max(acknowledged):.2f} s"
    yield Figure("kill -9 -> the next send is acknowledged, median", median(acknowledged), "s", 1, "<=", note)


def _measure(folder: str, kills: int, messages: int) -> tuple[list[float], list[float]]:
    leads, acknowledged = [], []
    with ExitStack() as stack:
        leader = stack.enter_context(run_sequencer(folder))
        mq = stack.enter_context(lakemq.connect(folder))
        mq.topics.create(TOPIC, partitions=8)
        producer = stack.enter_context(mq.producer(linger_ms=0))
        for number in range(messages):
            producer.send(TOPIC, str(number))
        producer.flush()
        for _ in range(kills):
            standby = stack.enter_context(run_sequencer(folder))
            time.sleep(1)  # it follows the steps by now
            epoch = mq.state().leader_epoch
            leader.kill()
            killed_s = time.perf_counter()
            future = producer.send(TOPIC, "next")
            while mq.state().leader_epoch == epoch:
                time.sleep(0.005)
            leads.append(time.perf_counter() - killed_s)
            future.result()
            acknowledged.append(time.perf_counter() - killed_s)
            leader = standby
    return leads, acknowledged
