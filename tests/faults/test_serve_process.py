"""The real command in real processes that are stopped, interrupted and killed, and what its callers see."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.commands import LAKEMQ, Process, lakemq, leader, values, where
from faults.processes import until

JOBS = Path(__file__).parents[2] / "jobs"


def test_serve_answers_until_a_signal_and_hands_the_lease_over(path: Path, start: Callable[..., Process]) -> None:
    """SIGINT here; the next tests stop it with SIGTERM."""
    serving = start("serve")
    name = serving.wait_for_line(r"leads with epoch 1").split()[2]
    lakemq(path, "topics", "create", "t")
    publish = start("publish", "--topic", "t", "--output", "csv")
    publish.stdin.write("1\n2\n")
    publish.stdin.close()
    assert (publish.wait_for_exit(), publish.err) == (0, [])
    assert publish.out[1:] == ["t,0,0,1,2"]
    fetch = start("fetch", "t", "--output", "csv", "--from", "1")
    assert (fetch.wait_for_exit(), fetch.err) == (0, [])
    assert [line.split(",")[:3] for line in fetch.out[1:]] == [["t", "0", "1"]]
    assert leader(path).startswith(f"{name} leads with epoch 1")
    serving.signal(signal.SIGINT)
    assert serving.wait_for_exit() == 0
    serving.wait_for_line(f"{name} has stopped; the lease is handed over")
    assert serving.out == []
    assert leader(path).startswith("no sequencer leads")
    # everything was projected
    assert lakemq(path, "sql", "SELECT count(*) AS n FROM log_committed") == [{"n": 2}]


@pytest.mark.extended
def test_serve_ends_with_a_sentence_about_a_damaged_step(path: Path, start: Callable[..., Process]) -> None:
    path.with_name("lakemq.yaml").write_text("project.interval.ms: 3600000\n")
    first = start("serve")
    first.wait_for_line("leads with epoch 1")
    for topic in "abc":
        lakemq(path, "topics", "create", topic)
    first.signal(signal.SIGKILL)
    first.wait_for_exit()
    step = sorted((path / "steps").iterdir())[-2]
    step.write_bytes(b"not a step")
    second = start("serve")
    assert second.wait_for_exit() == 1
    assert not any("Traceback" in line or "INTERNAL_ERROR" in line for line in second.err)
    assert re.search(rf"TABLE_DAMAGED: steps/{step.name} cannot be read.*put the object back", second.err[-1])


def test_serve_ends_with_a_sentence_when_its_namespace_is_gone(path: Path, start: Callable[..., Process]) -> None:
    serving = start("serve")
    serving.wait_for_line("leads with epoch 1")
    path.rename(path.with_name("elsewhere"))
    assert serving.wait_for_exit() == 3
    assert re.search(r"NOT_A_NAMESPACE: The namespace .* is gone: .*It was deleted", serving.err[-1])
    assert not any("Traceback" in line for line in serving.err)


@pytest.mark.extended
def test_lines_of_a_pipe_are_published_though_the_sequencer_stops(path: Path, start: Callable[..., Process]) -> None:
    serving = start("serve")
    serving.wait_for_line("leads with")
    lakemq(path, "topics", "create", "t")
    publish = start("publish", "--topic", "t", "--output", "json")
    for lines in (["1"], ["1", "2"]):
        publish.stdin.write(f"{lines[-1]}\n")
        publish.stdin.flush()
        until(lambda lines=lines: values(path) == lines, "the lines so far")
    serving.signal(signal.SIGTERM)
    assert serving.wait_for_exit() == 0
    publish.stdin.write("3\n")
    publish.stdin.close()
    assert (publish.wait_for_exit(), publish.err) == (0, [])
    assert json.loads(publish.out[0])["messages"] == 3
    assert values(path) == ["1", "2", "3"]
    assert leader(path).startswith("no sequencer leads")


@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_terminated_hands_its_lease_over(
    path: Path, start: Callable[..., Process], number: signal.Signals
) -> None:
    path.with_name("lakemq.yaml").write_text("lease.ms: 300000\n")
    lakemq(path, "topics", "create", "t")
    # pytest itself may run under nohup, whose children ignore SIGHUP
    publish = start("publish", "--topic", "t", command=["env", "--default-signal=HUP", *LAKEMQ])
    publish.stdin.write("1\n")
    publish.stdin.flush()
    until(lambda: values(path) == ["1"], "the first line")
    publish.signal(number)
    assert publish.wait_for_exit() == 128 + number
    assert publish.err == ["messages published before the error: 1", f"INTERRUPTED: by {number.name}"]
    assert leader(path).startswith("no sequencer leads")


@pytest.mark.extended
def test_serve_ends_when_the_spark_submit_that_started_it_is_killed(path: Path, tmp_path: Path) -> None:
    log_path = tmp_path / "told"
    script = f"""
import os, subprocess, sys, time
environ = dict(os.environ, PYSPARK_GATEWAY_PORT="1")
command = [sys.executable, {str(JOBS / "serve.py")!r}, *{where(path)!r}]
subprocess.Popen(command, env=environ, stderr=open({str(log_path)!r}, "w"))
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script])
    try:
        until(lambda: log_path.exists() and "leads with epoch 1" in log_path.read_text(), "a leader")
    finally:
        parent.kill()
        parent.wait()
    until(lambda: "has stopped; the lease is handed over" in log_path.read_text(), "the end of serve")


@pytest.mark.extended
def test_second_signal_ends_serve_at_once(path: Path, start: Callable[..., Process]) -> None:
    serving = start("serve")
    serving.wait_for_line("leads with epoch 1")
    # both signals wait when it goes on, so it has no time to end in good order in between
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        serving.signal(number)
    assert serving.wait_for_exit() in (-signal.SIGTERM, -signal.SIGINT)
    assert len(serving.err) == 2
    assert leader(path).startswith("no sequencer leads: ")
    assert "has ended without handing over its lease" in leader(path)
