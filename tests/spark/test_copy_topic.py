"""Consume, transform, produce: a copy that is killed is complete, without doubles, and in order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.jobs import copy_topic
from lakemq.testing import wait_until

MESSAGES, KEYS, BATCH = 600, 20, 100


@pytest.fixture
def own_mq(tmp_path: Path) -> Iterator[Connection]:
    """A served namespace of the test's own, with numbered messages of some keys in `a`, and an empty `b`."""
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
    """Run the job in this process, with its Spark session. This is quicker if it is not killed."""
    batches = ["--max-records", str(BATCH)]
    return copy_topic.main(["--path", mq.namespace.path, "--from", "a", "--to", "b", *batches, *more])


def wait_for_job(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=240)
    return process.returncode, output, errors


def read_copies(mq: Connection) -> list[tuple[str, int]]:
    """Return key and number of each message of `b`, by partition and offset."""
    return [((m.key or b"").decode(), int(m.value or b"")) for m in mq.fetch("b")]


def check(copies: list[tuple[str, int]], numbers: range) -> None:
    """Check that all messages are there, once, and in order per key."""
    assert sorted(n for _, n in copies) == list(numbers)
    for key in {key for key, _ in copies}:
        key_numbers = [n for k, n in copies if k == key]
        assert key_numbers == sorted(key_numbers)


@pytest.mark.extended
@pytest.mark.usefixtures("spark")
def test_copy_killed_at_crash_point_goes_on_where_it_was(own_mq: Connection) -> None:
    """A commit is sent, and its answer never read."""
    code, _, wrong = wait_for_job(job(own_mq, LAKEMQ_CRASH_AT="publish.letter_put:5"))
    assert code == -signal.SIGKILL, wrong
    assert run(own_mq) == 0
    check(read_copies(own_mq), range(MESSAGES))
    lag = own_mq.consumer("copy-a-b", assign=["a"]).lag()
    assert set(lag.values()) == {0}


@pytest.mark.extended
@pytest.mark.usefixtures("spark")
def test_copy_has_the_keys_and_rows_of_its_expressions(own_mq: Connection) -> None:
    assert (
        run(own_mq, "--where", "cast(cast(value AS string) AS int) % 2 = 0", "--key", "upper(cast(key AS string))") == 0
    )
    copies = read_copies(own_mq)
    assert sorted(n for _, n in copies) == list(range(0, MESSAGES, 2))
    assert {key for key, _ in copies} == {f"K{n % KEYS}" for n in range(0, MESSAGES, 2)}


@pytest.mark.extended
@pytest.mark.usefixtures("spark")
def test_copy_with_bad_expression_copies_nothing(own_mq: Connection, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(own_mq, "--value", "no_such_column") == 5
    out, err = capsys.readouterr()
    end = json.loads(out.splitlines()[-1])
    assert end["error"] == "INVALID_RECORD"
    assert "no_such_column" in end["message"]
    assert "Traceback" not in err
    assert read_copies(own_mq) == []
    assert own_mq.consumer("copy-a-b", assign=["a"]).committed() == {}


@pytest.mark.nightly
def test_following_copy_ends_after_its_batch_on_sigterm(own_mq: Connection) -> None:
    process = job(own_mq, "--follow")
    wait_until(lambda: len(read_copies(own_mq)) >= MESSAGES, "all copies", 240)
    process.send_signal(signal.SIGTERM)
    code, output, wrong = wait_for_job(process)
    assert code == 0, wrong
    end = json.loads(output.splitlines()[-1])
    assert (end["job"], end["records"]) == ("copy_topic", MESSAGES)
    check(read_copies(own_mq), range(MESSAGES))
