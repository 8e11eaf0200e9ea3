"""The times in docs/groups-reference.md: how long partitions wait for a killed consumer, with all defaults."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from faults.processes import until

import lakemq
from lakemq.engine.client.consume.group_consumer import MemberConsumer
from lakemq.engine.client.consume.options import CONSUMER
from lakemq.engine.protocol.parameters import GROUP
from lakemq.engine.sequencer import attendance

PAGE = Path(__file__).parents[2] / "docs/groups-reference.md"
CHILD = """
import sys, time, lakemq
path, protocol = sys.argv[1:]
with lakemq.connect(path) as mq, mq.consumer("g", topics=["t"], protocol=protocol) as consumer:
    while True:
        consumer.poll(timeout_ms=100)
        print(len(consumer.assignment()), flush=True)
"""
LATE_S = 30.0
"""How much later than documented the partitions may come on a busy machine: less than a session, which is 45 s."""


def read_table() -> dict[str, list[str]]:
    """Return the table of the page: where the consumer was killed -> the cells beside it."""
    text = PAGE.read_text(encoding="utf-8").partition("### When a consumer is killed")[2]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows[2:6]}


def find_seconds(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"(\d+) s\b", text)]


@contextmanager
def start_consumer(path: str, protocol: str, partition_counts: set[int]) -> Iterator[subprocess.Popen[str]]:
    """Start a process that consumes, and wait until it has one of these numbers of partitions."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, path, protocol], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) in partition_counts:
                break
        yield child
    finally:
        child.kill()
        child.wait()


def measure_s(consumer: MemberConsumer, partition_count: int) -> float:
    """Poll until the consumer has this many partitions; return how long that takes."""

    def has_all() -> bool:
        consumer.poll()
        return len(consumer.assignment()) == partition_count

    began_s = time.monotonic()
    until(has_all, "partitions")
    return time.monotonic() - began_s


@pytest.mark.nightly
@pytest.mark.parametrize("protocol", ["cooperative", "classic", "queue"])
def test_partitions_of_a_killed_consumer_wait_as_long_as_the_page_says(tmp_path: Path, protocol: str) -> None:
    here = read_table()["on the sequencer's machine, with the namespace on its disk"]
    if protocol == "queue":
        alone_s, beside_s = find_seconds(here[1])
    else:
        beside_s, empty_s = find_seconds(here[0])
        alone_s = beside_s + (empty_s if protocol == "classic" else 0)
    path = str(tmp_path / "namespace")
    with lakemq.connect(path, create=True) as mq, mq.serving():
        mq.topics.create("t", partitions=2)
        with start_consumer(path, protocol, {2}) as only:
            only.kill()
            only.wait()
            began_s = time.monotonic()
            until(lambda: not mq.groups.members("g"), "the loss of the only member")
            lost_after_s = time.monotonic() - began_s
            with mq.consumer("g", topics=["t"], protocol=protocol) as survivor:
                assert lost_after_s + measure_s(survivor, 2) < alone_s + LATE_S
                with start_consumer(path, protocol, {0, 1}) as other:
                    until(lambda: bool(survivor.poll()) or len(survivor.assignment()) == 1, "a handoff")
                    other.kill()
                    other.wait()
                    waited_s = measure_s(survivor, 2)
                    assert waited_s < beside_s + LATE_S
                    if protocol == "queue":
                        assert waited_s > beside_s - alone_s - 0.5


def test_waits_of_the_page_follow_from_the_defaults() -> None:
    table, session_s = read_table(), CONSUMER["session_timeout_ms"].default // 1000
    delay_s = GROUP["rebalance.delay.ms"].default // 1000
    watch_s = (attendance.MAX_READ_GAP_MS + 2 * CONSUMER["heartbeat_interval_ms"].default) // 1000
    assert GROUP["scheduled.rebalance.max.delay.ms"].default == 0
    initial_s = GROUP["group.initial.rebalance.delay.ms"].default // 1000
    here, elsewhere, stopped, static = (table[row] for row in list(table))
    assert [find_seconds(cell) for cell in here] == [[1, initial_s], [1, 1 + delay_s]]
    assert [find_seconds(cell) for cell in elsewhere] == [[session_s], [session_s + delay_s]]
    assert [find_seconds(cell) for cell in stopped] == [[session_s, watch_s], [delay_s]]
    assert [find_seconds(cell) for cell in static] == [[0, session_s], [0, session_s + delay_s]]
