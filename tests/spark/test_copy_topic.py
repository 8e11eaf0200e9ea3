"""Consume, transform, produce: killed anywhere, what is copied is there once and in order, whoever reads meanwhile."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.jobs import copy_topic

MESSAGES, KEYS, BATCH = 600, 20, 100
RANDOM_KILLS = int(os.environ.get("LAKEMQ_KILLS", "2"))
"""How often the job is killed at random, each time in the middle of six batches. What lies between two writes has crash
points of its own, here and in the tests of transactions."""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Connection]:
    """A namespace of this test's own, served, with numbered messages of some keys in `a`, and an empty `b`."""
    with lakemq.connect(str(tmp_path / "mq"), create=True) as mq, mq.serving():
        mq.topics.create("a", partitions=3)
        mq.topics.create("b", partitions=2)
        publish(mq, range(MESSAGES))
        yield mq


def publish(mq: Connection, numbers: range) -> None:
    keys = [f"k{n % KEYS}" for n in numbers]
    mq.publish("a", pa.table({"key": keys, "value": [str(n) for n in numbers]}))


def job(mq: Connection, *more: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lakemq.jobs.copy_topic", "--path", mq.namespace.path, "--master", "local[1]"]
    command += ["--from", "a", "--to", "b", "--max-records", str(BATCH), *more]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=inherited | environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def run(mq: Connection, *more: str) -> int:
    """The job in this process, whose Spark session it takes: quicker where it is not killed."""
    batches = ["--max-records", str(BATCH)]
    return copy_topic.main(["--path", mq.namespace.path, "--from", "a", "--to", "b", *batches, *more])


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    said, wrong = process.communicate(timeout=240)
    return process.returncode, said, wrong


def copied(mq: Connection) -> list[tuple[str, int]]:
    """Key and number of each message of `b`, by partition and offset."""
    return [((m.key or b"").decode(), int(m.value or b"")) for m in mq.fetch("b")]


def check(found: list[tuple[str, int]], numbers: range) -> None:
    """All there, once; each key in its order."""
    assert sorted(n for _, n in found) == list(numbers)
    for key in {key for key, _ in found}:
        mine = [n for k, n in found if k == key]
        assert mine == sorted(mine)


class Watcher(threading.Thread):
    """Reads `b` all the time: what it has seen never changes, is never doubled, and is in order."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path, self._done, self.reads, self.wrong = path, threading.Event(), 0, ""

    def run(self) -> None:
        with lakemq.connect(self._path) as mq:
            seen: dict[int, list[bytes | None]] = {}
            while not self._done.is_set():
                now: dict[int, list[bytes | None]] = {}
                for message in mq.fetch("b"):
                    now.setdefault(message.partition, []).append(message.value)
                if any(now.get(p, [])[: len(values)] != values for p, values in seen.items()):
                    self.wrong = "what was seen has changed"
                if any(len(set(values)) < len(values) for values in now.values()):
                    self.wrong = "a message is there twice"
                seen, self.reads = now, self.reads + 1
                self._done.wait(0.05)  # the job needs the machine too

    def __enter__(self) -> Watcher:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()
        assert not self.wrong
        assert self.reads > 0


@pytest.mark.extended
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "points",
    [
        pytest.param(["publish.letter_put:4"], id="a commit was sent"),
        pytest.param(["publish.file_written", "publish.letter_put:4"], id="files before", marks=pytest.mark.long),
    ],
)
def test_killed_at_each_crash_point_it_goes_on_where_it_was(own: Connection, points: list[str]) -> None:
    """With a commit sent that nobody hears the answer of; before it, too, with files that nobody was told of."""
    with Watcher(own.namespace.path):
        for point in points:
            code, _, wrong = finished(job(own, LAKEMQ_CRASH_AT=point))
            assert code == -signal.SIGKILL, wrong
        assert run(own) == 0
    check(copied(own), range(MESSAGES))
    lag = own.consumer("copy-a-b", assign=["a"]).lag()
    assert set(lag.values()) == {0}


@pytest.mark.long  # a minute of it
@pytest.mark.usefixtures("spark")
def test_killed_at_random_nothing_is_lost_or_doubled(own: Connection) -> None:
    """While it copies: after some of its six commits, and somewhere in the next one."""
    chance, total = random.Random(7), MESSAGES
    with Watcher(own.namespace.path):
        for _ in range(RANDOM_KILLS):
            process = job(own, "--follow")
            assert process.stderr is not None
            for _ in range(chance.randint(1, 4)):
                while '"batch":' not in process.stderr.readline():
                    assert process.poll() is None
            time.sleep(chance.uniform(0, 0.2))
            os.killpg(process.pid, signal.SIGKILL)
            finished(process)
            publish(own, range(total, total + MESSAGES))
            total += MESSAGES
        assert run(own) == 0
    check(copied(own), range(total))


@pytest.mark.long  # a JVM of its own
@pytest.mark.usefixtures("spark")
def test_of_two_copies_the_older_one_is_fenced(own: Connection) -> None:
    """A job that hangs and wakes after its successor has started commits nothing more."""
    zombie = job(own, "--follow")
    deadline_s = time.monotonic() + 60
    while not copied(own):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    os.killpg(zombie.pid, signal.SIGSTOP)
    assert run(own) == 0
    publish(own, range(MESSAGES, MESSAGES + 50))
    os.killpg(zombie.pid, signal.SIGCONT)
    code, _, wrong = finished(zombie)
    assert code == 1
    assert "INVALID_PRODUCER_EPOCH" in wrong or "PRODUCER_FENCED" in wrong
    assert run(own) == 0
    check(copied(own), range(MESSAGES + 50))


@pytest.mark.extended
@pytest.mark.usefixtures("spark")
def test_copies_of_a_group_share_the_work(own: Connection) -> None:
    """One after the other here; that two at a time share it is tested without Spark."""
    assert run(own, "--group", "copies") == 0
    publish(own, range(MESSAGES, MESSAGES + 50))
    assert run(own, "--group", "copies") == 0
    assert run(own, "--group", "copies") == 0
    check(copied(own), range(MESSAGES + 50))
    assert (own.groups.describe("copies").protocol, own.groups.describe("copies").lag) == ("cooperative", 0)


@pytest.mark.extended
@pytest.mark.usefixtures("spark")
def test_what_is_copied_is_what_the_expressions_say(own: Connection) -> None:
    assert run(own, "--where", "cast(cast(value AS string) AS int) % 2 = 0", "--key", "upper(cast(key AS string))") == 0
    found = copied(own)
    assert sorted(n for _, n in found) == list(range(0, MESSAGES, 2))
    assert {key for key, _ in found} == {f"K{n % KEYS}" for n in range(0, MESSAGES, 2)}


@pytest.mark.extended
@pytest.mark.usefixtures("spark")
def test_a_bad_expression_is_said_in_a_line_and_changes_nothing(
    own: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(own, "--value", "no_such_column") == 5
    out, err = capsys.readouterr()
    end = json.loads(out.splitlines()[-1])
    assert end["error"] == "INVALID_RECORD"
    assert "no_such_column" in end["message"]
    assert "Traceback" not in err
    assert copied(own) == []
    assert own.consumer("copy-a-b", assign=["a"]).committed() == {}


@pytest.mark.long  # a JVM of its own
def test_a_copy_that_follows_ends_after_its_batch_when_it_is_told_to(own: Connection) -> None:
    process = job(own, "--follow")
    until_copied(own, MESSAGES)
    process.send_signal(signal.SIGTERM)
    code, said, wrong = finished(process)
    assert code == 0, wrong
    end = json.loads(said.splitlines()[-1])
    assert (end["job"], end["records"]) == ("copy_topic", MESSAGES)
    check(copied(own), range(MESSAGES))


def until_copied(mq: Connection, count: int) -> None:
    deadline_s = time.monotonic() + 120
    while len(copied(mq)) < count:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
