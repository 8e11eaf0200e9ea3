"""Messages without a flush when the interpreter ends: they are sent, or named on stderr."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.served import CONFIG, served, until, values

import lakemq
from lakemq.engine.client.connection import Connection

pytestmark = [pytest.mark.slow, pytest.mark.extended]


@pytest.fixture(scope="module")
def mq_without_sequencer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A namespace with the topics `t` and `u` and no sequencer."""
    folder = tmp_path_factory.mktemp("deserted")
    with served(folder) as first:
        first.topics.create("t")
        first.topics.create("u")
    with lakemq.connect(str(folder / "mq"), config={**CONFIG, "request.timeout.ms": 200}) as mq:
        yield mq


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120)


PROGRAM_WITHOUT_FLUSH = """
import sys, lakemq
producer = lakemq.connect(sys.argv[1]).producer(linger_ms=60_000)
for number in range(1000):
    producer.send("t", f"{number}")
if "rejected" in sys.argv:
    producer.send("t", "x", partition=7)
"""

PROGRAM_THAT_SERVED = """
import os, sys, lakemq
mq = lakemq.connect(sys.argv[1], create=True)
with mq.serving():
    mq.topics.create("t")
    producer = mq.producer(linger_ms=60_000)
    for number in range(1000):
        producer.send("t", f"{number}")
    if os.fork() == 0:
        sys.exit(0)  # what the parent has to send is not this one's
    os.wait()
"""


def test_program_that_ends_without_a_flush_loses_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as mq:
        mq.topics.create("t")
        ended = run(PROGRAM_WITHOUT_FLUSH, str(tmp_path / "mq"))
        assert (ended.returncode, ended.stderr) == (0, "")
        assert values(mq, "t") == [f"{number}" for number in range(1000)]
        ended = run(PROGRAM_WITHOUT_FLUSH, str(tmp_path / "mq"), "rejected")
        assert ended.returncode == 0
        assert ended.stderr.startswith("1 row is rejected: UNKNOWN_TOPIC_OR_PARTITION")


def test_closed_sequencer_serves_again_for_messages_left_at_exit(tmp_path: Path) -> None:
    ended = run(PROGRAM_THAT_SERVED, str(tmp_path / "mq"))
    assert (ended.returncode, ended.stderr) == (0, "")
    with lakemq.connect(str(tmp_path / "mq")) as mq:
        assert values(mq, "t") == [f"{number}" for number in range(1000)]
        assert mq.state().leader == ""


UNDELIVERED = """
import sys, lakemq, threading
mq = lakemq.connect(sys.argv[1], config={"request.timeout.ms": 50})
producer = mq.producer(delivery_timeout_ms=100)
for topic in ("t", "t", "u"):
    producer.send(topic, "x")
"""


def test_undelivered_messages_are_named_on_stderr(mq_without_sequencer: Connection) -> None:
    ended = run(UNDELIVERED, mq_without_sequencer.namespace.path)
    assert "lakemq: Messages were not delivered" in ended.stderr
    assert "2 of 't', 1 of 'u'. REQUEST_TIMED_OUT" in ended.stderr
    assert "Traceback" not in ended.stderr


# -- the same within this process -----------------------------------------------------------------------


def test_only_unreported_failures_are_named_at_exit(mq: Connection, capsys: pytest.CaptureFixture[str]) -> None:
    producer = mq.producer(linger_ms=0)
    assert producer.send("missing-1", "x").exception() is not None
    until(producer.send("missing-2", "x").done)
    mq._producers.finish_at_exit()
    stderr = capsys.readouterr().err
    assert "not acknowledged: 1 of 'missing-2'. UNKNOWN_TOPIC_OR_PARTITION" in stderr
    mq._producers.discard(producer)


def test_open_transaction_is_aborted_and_named_at_exit(
    mq: Connection, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    producer = mq.producer("left-open")
    producer.begin_transaction()
    producer.send(topic, "never seen")
    producer.flush()
    producer.send(topic, "never sent")
    mq._producers.finish_at_exit()
    assert "The transaction of 'left-open' was open. It is aborted" in capsys.readouterr().err
    assert mq.transactions.describe("left-open").state == "CompleteAbort"
    assert len(mq._producers) == 0
