"""The real command in real processes: stopped, interrupted, killed; and what its callers see of it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lakemq.jobs.cli import app

LAKEMQ = [sys.executable, "-m", "lakemq.jobs.cli"]
JOBS = Path(__file__).parents[2] / "jobs"
LEASE_MS = 1000
PATIENCE_S = 30


def _hear_interrupts() -> None:
    # a shell makes what it starts in the background deaf to them, and the tests may have been started so
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Process:
    """A command that runs, with the lines it has said so far."""

    def __init__(self, *arguments: str) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            arguments, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1, preexec_fn=_hear_interrupts
        )
        assert self._process.stdin
        self.stdin = self._process.stdin
        self.out: list[str] = []
        self.err: list[str] = []
        streams = ((self._process.stdout, self.out), (self._process.stderr, self.err))
        self._readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in streams]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        for line in stream:
            lines.append(line.rstrip("\n"))

    def says(self, pattern: str, where: str = "err") -> str:
        """The first line, of stderr unless said otherwise, in which the pattern is found; waits for it."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            found = next((line for line in getattr(self, where) if re.search(pattern, line)), None)
            if found is not None:
                return found
            time.sleep(0.01)
        raise AssertionError(f"{pattern!r} was not said: {self.out[-5:]} {self.err[-5:]}")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def ended(self) -> int:
        """The exit code, once the process has ended and all it said is read."""
        code = self._process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join()
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def start(path: Path) -> Iterator[Callable[..., Process]]:
    """Starts a command on the namespace; whatever still runs in the end is killed."""
    started: list[Process] = []

    def start(*arguments: str, command: list[str] = LAKEMQ) -> Process:
        started.append(Process(*command, *_where(path), *arguments))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty namespace, with short leases."""
    (tmp_path / "lakemq.yaml").write_text(f"lease.ms: {LEASE_MS}\n")
    lakemq(tmp_path / "mq", "init")
    return tmp_path / "mq"


def _where(path: Path) -> list[str]:
    return ["--path", str(path), "--conf", str(path.with_name("lakemq.yaml"))]


def lakemq(path: Path, *arguments: str, stdin: str = "") -> list[dict[str, Any]]:
    """What a command prints that must succeed; run in this process, which is quicker."""
    done = CliRunner().invoke(app, [*_where(path), *arguments, "--output", "json"], input=stdin)
    assert (done.exit_code, done.stderr) == (0, ""), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def values(path: Path, topic: str = "t") -> list[str]:
    return [message["value"] for message in lakemq(path, "fetch", topic)]


def _until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def leader(path: Path) -> str:
    """What the doctor says of the sequencer."""
    done = CliRunner().invoke(app, [*_where(path), "doctor", "--no-spark", "--output", "json"])
    findings = map(json.loads, done.stdout.splitlines())
    return next(str(f["found"]) for f in findings if f["check"] == "sequencer")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_answers_until_a_signal_and_hands_the_lease_over(
    path: Path, start: Callable[..., Process], number: int
) -> None:
    serving = start("serve")
    name = serving.says(r"leads with epoch 1").split()[2]
    lakemq(path, "topics", "create", "t")
    publish = start("publish", "--topic", "t", "--output", "csv")
    publish.stdin.write("1\n2\n")
    publish.stdin.close()
    assert (publish.ended(), publish.err) == (0, [])
    assert publish.out[1:] == ["t,0,0,1,2"]
    fetch = start("fetch", "t", "--output", "csv", "--from", "1")
    assert (fetch.ended(), fetch.err) == (0, [])
    assert [line.split(",")[:3] for line in fetch.out[1:]] == [["t", "0", "1"]]
    assert leader(path).startswith(f"{name} leads with epoch 1")
    serving.signal(number)
    assert serving.ended() == 0
    serving.says(f"{name} has stopped; the lease is handed over")
    assert serving.out == []
    assert leader(path).startswith("nobody leads")
    # all of it was projected
    assert lakemq(path, "sql", "SELECT count(*) AS n FROM log_committed") == [{"n": 2}]


def test_a_standby_takes_over_from_a_killed_leader_after_the_lease(path: Path, start: Callable[..., Process]) -> None:
    first = start("serve")
    name = first.says("leads with epoch 1").split()[2]
    lakemq(path, "topics", "create", "t")
    lakemq(path, "publish", "--topic", "t", stdin='"before"\n')
    second = start("serve")
    second.says(f"stands by: {name} leads with epoch 1")
    first.signal(signal.SIGKILL)
    killed_s = time.monotonic()
    second.says("leads with epoch 2")
    assert time.monotonic() - killed_s < LEASE_MS / 1000 + 5
    lakemq(path, "publish", "--topic", "t", stdin='"after"\n')
    assert values(path) == ['"before"', '"after"']


def test_a_standby_takes_over_at_once_from_one_that_stops(path: Path, start: Callable[..., Process]) -> None:
    path.with_name("lakemq.yaml").write_text("lease.ms: 300000\n")
    first = start("serve")
    first.says("leads with epoch 1")
    second = start("serve")
    second.says("stands by")
    first.signal(signal.SIGTERM)
    assert first.ended() == 0
    second.says("leads with epoch 2")


def test_a_stopped_leader_that_wakes_up_stands_by(path: Path, start: Callable[..., Process]) -> None:
    first = start("serve")
    first.says("leads with epoch 1")
    second = start("serve")
    second.says("stands by")
    first.signal(signal.SIGSTOP)
    second.says("leads with epoch 2")
    first.signal(signal.SIGCONT)
    name = second.says("leads with epoch 2").split()[2]
    first.says(f"stands by: {name} leads with epoch 2|stands by: NOT_LEADER")
    lakemq(path, "topics", "create", "t")
    assert leader(path).startswith(f"{name} leads with epoch 2")


@pytest.mark.parametrize("wait_s", [0, 2 * LEASE_MS / 1000])
def test_a_command_gets_its_answer_though_the_leader_was_killed(
    path: Path, start: Callable[..., Process], wait_s: float
) -> None:
    serving = start("serve")
    serving.says("leads with epoch 1")
    lakemq(path, "topics", "create", "t")
    serving.signal(signal.SIGKILL)
    serving.ended()
    time.sleep(wait_s)
    lakemq(path, "publish", "--topic", "t", stdin="1\n")
    assert values(path) == ["1"]
    assert leader(path).startswith("nobody leads")


def test_tail_follows_until_interrupted(path: Path, start: Callable[..., Process]) -> None:
    start("serve").says("leads with")
    lakemq(path, "topics", "create", "t")
    lakemq(path, "publish", "--topic", "t", stdin="0\n1\n2\n")
    tail = start("tail", "t", "--follow", "-n", "2", "--output", "json")
    tail.says('"value":"2"', "out")
    lakemq(path, "publish", "--topic", "t", stdin="3\n")
    tail.says('"value":"3"', "out")
    tail.signal(signal.SIGINT)
    assert tail.ended() == 0
    assert [json.loads(line)["value"] for line in tail.out] == ["1", "2", "3"]
    assert tail.err == []


def test_lines_of_a_pipe_are_published_as_they_come(path: Path, start: Callable[..., Process]) -> None:
    start("serve").says("leads with")
    lakemq(path, "topics", "create", "t")
    publish = start("publish", "--topic", "t", "--output", "json")
    for lines in (["1"], ["1", "2"]):
        publish.stdin.write(f"{lines[-1]}\n")
        publish.stdin.flush()
        _until(lambda lines=lines: values(path) == lines)
    publish.stdin.close()
    assert publish.ended() == 0
    assert json.loads(publish.out[0])["messages"] == 2


def test_a_command_goes_on_when_the_sequencer_stops(path: Path, start: Callable[..., Process]) -> None:
    serving = start("serve")
    serving.says("leads with")
    lakemq(path, "topics", "create", "t")
    publish = start("publish", "--topic", "t", "--output", "json")
    publish.stdin.write("1\n")
    publish.stdin.flush()
    _until(lambda: values(path) == ["1"])
    serving.signal(signal.SIGTERM)
    assert serving.ended() == 0
    publish.stdin.write("2\n")
    publish.stdin.close()
    assert (publish.ended(), publish.err) == (0, [])
    assert values(path) == ["1", "2"]
    assert leader(path).startswith("nobody leads")


def test_a_command_that_is_terminated_hands_its_lease_over(path: Path, start: Callable[..., Process]) -> None:
    path.with_name("lakemq.yaml").write_text("lease.ms: 300000\n")
    lakemq(path, "topics", "create", "t")
    publish = start("publish", "--topic", "t")
    publish.stdin.write("1\n")
    publish.stdin.flush()
    _until(lambda: values(path) == ["1"])
    publish.signal(signal.SIGTERM)
    assert publish.ended() == 128 + signal.SIGTERM
    assert publish.err == ["messages published before it ended: 1"]
    assert leader(path).startswith("nobody leads")


def test_a_reader_that_has_enough_is_no_error(path: Path) -> None:
    lakemq(path, "topics", "create", "t")
    lakemq(path, "publish", "--topic", "t", stdin="".join(f"{i}\n" for i in range(50_000)))
    fetch = subprocess.Popen(
        [*LAKEMQ, *_where(path), "fetch", "t"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert fetch.stdout
    assert fetch.stderr
    with fetch.stdout, fetch.stderr:
        assert fetch.stdout.readline().startswith("partition")
        fetch.stdout.close()
        assert fetch.stderr.read() == ""
    assert fetch.wait(PATIENCE_S) == 128 + signal.SIGPIPE


def test_the_scripts_for_spark_submit_do_the_same(path: Path, start: Callable[..., Process], tmp_path: Path) -> None:
    serving = start(command=[sys.executable, str(JOBS / "serve.py")])
    serving.says("leads with epoch 1")
    lakemq(path, "topics", "create", "t")
    serving.signal(signal.SIGTERM)
    assert serving.ended() == 0
    step = start("--until-idle", "--output", "json", command=[sys.executable, str(JOBS / "step.py")])
    assert step.ended() == 0
    assert step.out == ['{"letters":0}']


def test_serve_ends_when_the_spark_submit_that_started_it_is_killed(path: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    script = f"""
import os, subprocess, sys, time
environ = dict(os.environ, PYSPARK_GATEWAY_PORT="1")
command = [sys.executable, {str(JOBS / "serve.py")!r}, *{_where(path)!r}]
subprocess.Popen(command, env=environ, stderr=open({str(told)!r}, "w"))
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script])
    try:
        _until(lambda: told.exists() and "leads with epoch 1" in told.read_text())
    finally:
        parent.kill()
        parent.wait()
    _until(lambda: "has stopped; the lease is handed over" in told.read_text())


def test_a_second_signal_ends_it_at_once(path: Path, start: Callable[..., Process]) -> None:
    serving = start("serve")
    serving.says("leads with epoch 1")
    # both wait when it goes on, so that it has no time to end in good order in between
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        serving.signal(number)
    assert serving.ended() in (-signal.SIGTERM, -signal.SIGINT)
    assert len(serving.err) == 2
    assert leader(path).split()[1] == "leads"
