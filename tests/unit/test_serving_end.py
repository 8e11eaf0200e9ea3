"""The end of an embedded sequencer: its own connection gets its answers, and it hands over the lease, also at exit."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from targets import extended_but
from unit.served import CONFIG, until, values

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.protocol.values.topics import CreateTopic

pytestmark = [pytest.mark.slow, pytest.mark.extended]

SOON_S = 15
"""Far below the delivery timeout (120 s) and request.timeout.ms (30 s) that these tests waited out before."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    place = str(tmp_path / "mq")
    with lakemq.connect(place, create=True, config=CONFIG) as mq, mq.serving():
        mq.topics.create("t")
    return place


def read_leader(path: str) -> str:
    with lakemq.connect(path) as mq:
        return mq.state().leader


def measure_end_s(path: str, use: Callable[[Connection], object]) -> float:
    """Return how many seconds a block with `mq.serving()` takes to end after `use` has left something open."""
    with lakemq.connect(path, config=CONFIG) as mq, mq.serving() as serving:
        until(lambda: serving.sequencer.leads)
        use(mq)
        begun_s = time.monotonic()
    return time.monotonic() - begun_s


def test_a_producer_left_open_is_sent_and_closed_though_serving_ends_first(path: str) -> None:
    assert measure_end_s(path, lambda mq: mq.producer(linger_ms=60_000).send("t", "kept")) < SOON_S
    with lakemq.connect(path) as mq:
        assert values(mq, "t") == ["kept"]
    assert read_leader(path) == ""


def test_a_transaction_left_open_is_aborted_though_serving_ends_first(path: str) -> None:
    def begin(mq: Connection) -> None:
        producer = mq.producer(transactional_id="job")
        producer.begin_transaction()
        producer.send("t", "never seen")

    assert measure_end_s(path, begin) < SOON_S
    with lakemq.connect(path) as mq:
        assert values(mq, "t") == []
        assert mq.transactions.describe("job").state == "CompleteAbort"


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("protocol", extended_but(["queue"], ["cooperative", "queue"]))
def test_a_member_left_open_leaves_its_group_though_serving_ends_first(path: str, protocol: str, is_kept: bool) -> None:
    """A consumer that is not kept is garbage, and its member may be about to leave."""
    kept = []

    def join(mq: Connection) -> None:
        consumer = mq.consumer("g", topics=["t"], protocol=protocol)
        until(lambda: consumer.poll() is not None and bool(consumer.assignment()))
        kept.extend([consumer] if is_kept else [])

    assert measure_end_s(path, join) < SOON_S
    with lakemq.connect(path) as mq:
        assert mq.groups.members("g") == []


def test_requests_of_the_own_connection_are_answered_before_serving_ends(path: str) -> None:
    with lakemq.connect(path, config=CONFIG) as mq:
        for number in range(5):  # by chance a step may be under way at that moment
            serving = mq.serving()
            future = mq.requester.submit(CreateTopic(f"asked-{number}", 1, {}))
            serving.close()
            assert future.done()
    assert read_leader(path) == ""


def test_serving_that_stands_by_ends_at_once_though_a_request_waits(path: str) -> None:
    with lakemq.connect(path, config=CONFIG) as leading:
        leader = leading.sequencer()
        assert leader.try_lead()  # and then takes no step
        with lakemq.connect(path, config={**CONFIG, "request.timeout.ms": 1_000}) as mq:
            serving = mq.serving()
            until(lambda: serving.sequencer.state.leader == leader.name)
            mq.requester.submit(CreateTopic("waits", 1, {}))
            begun_s = time.monotonic()
            serving.close()
            assert time.monotonic() - begun_s < 2
        leader.resign()


PROGRAM_WITHOUT_CLOSE = """
import sys, lakemq
mq = lakemq.connect(sys.argv[1], config={"lease.ms": 60_000})
serving = mq.serving()
mq.topics.create("late")
"""


def test_a_script_that_forgets_to_close_hands_the_lease_over_at_exit(path: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM_WITHOUT_CLOSE, path], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert read_leader(path) == ""


FORKS = """
import os, sys, lakemq
mq = lakemq.connect(sys.argv[1])
serving = mq.serving()
mq.topics.create("late")
child = os.fork()
if child == 0:
    sys.exit(0)  # the hooks of the parent are not this one's
os.waitpid(child, 0)
print(mq.topics.create("later").partitions, mq.state().leader == serving.sequencer.name)
"""


def test_a_forked_child_that_exits_leaves_the_lease_to_its_parent(path: str) -> None:
    ended = subprocess.run([sys.executable, "-c", FORKS, path], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1 True\n", "")
    assert read_leader(path) == ""
