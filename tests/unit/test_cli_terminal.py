"""The command at a terminal: it asks before it deletes, shows how far it is, and completes what is typed."""

import os
import pty
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.jobs.cli import app

pytestmark = [pytest.mark.slow, pytest.mark.extended]

TIMEOUT_S = 120
CHECKOUT = Path(__file__).parents[2]
LAKEMQ = [sys.executable, "-m", "lakemq.jobs.cli"]


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with lakemq.connect(str(tmp_path_factory.mktemp("terminal") / "mq"), create=True) as mq, mq.serving():
        mq.topics.create("kept")
        mq.publish("kept", pa.table({"value": ["1", "2"]}))
        mq.delayed.schedule("kept", "later", delay_ms=10**9)
        yield mq


def at_a_terminal(mq: Connection, *arguments: str, answer: str = "") -> tuple[int, bytes, str]:
    """Run the command with stdin and stderr at a terminal: the exit code, stdout, and what the terminal shows."""
    return run_at_a_terminal([*LAKEMQ, "--path", mq.namespace.path, *arguments], answer)


def run_at_a_terminal(command: list[str], answer: str = "") -> tuple[int, bytes, str]:
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        while True:
            try:
                shown.append(os.read(ours, 65536))
            except OSError:  # the other side is closed
                return

    process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, cwd=CHECKOUT)
    os.close(theirs)
    reader = threading.Thread(target=read)
    reader.start()
    os.write(ours, answer.encode())
    stdout, _ = process.communicate(timeout=TIMEOUT_S)
    reader.join(TIMEOUT_S)
    os.close(ours)
    return process.returncode, stdout, b"".join(shown).decode()


DESTRUCTIVE = [
    ["topics", "delete", "kept"],
    ["topics", "delete-records", "kept", "--before", "0=latest"],
    ["delayed", "purge", "kept"],
    ["delayed", "cancel", "--topic", "kept"],
    ["dead-letters", "purge", "kept"],
    ["groups", "delete", "g"],
    ["groups", "delete-offsets", "g", "--topic", "kept"],
]


def test_destructive_commands_of_scripts_need_yes(mq: Connection) -> None:
    step = mq.state().step
    for command in DESTRUCTIVE:
        done = CliRunner().invoke(app, ["--path", mq.namespace.path, *command])
        assert (done.exit_code, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith("CONFIRMATION_REQUIRED: ")
        assert line.endswith("Nothing was changed. Give --yes to do it.")
    assert mq.state().step == step


@pytest.mark.extended
def test_empty_answer_deletes_nothing(mq: Connection) -> None:
    code, stdout, shown = at_a_terminal(mq, "topics", "delete", "kept", answer="\n")
    assert (code, stdout) == (1, b"")
    assert "Delete topic 'kept' with 2 offsets in 1 partition? This cannot be undone. [y/N]: " in shown
    assert "Nothing was changed." in shown
    assert "kept" in [topic.topic for topic in mq.topics.list()]


def test_answer_yes_deletes(mq: Connection) -> None:
    mq.topics.create("doomed")
    code, stdout, _ = at_a_terminal(mq, "topics", "delete", "doomed", "--output", "json", answer="y\n")
    assert (code, stdout) == (0, b'{"topic":"doomed","deleted":true}\n')
    assert "doomed" not in [topic.topic for topic in mq.topics.list()]


@pytest.mark.extended
def test_progress_is_shown_at_a_terminal_alone(mq: Connection, tmp_path: Path) -> None:
    mq.topics.create("counted")
    lines = tmp_path / "lines.txt"
    lines.write_text("x\n" * 20_000)
    publish = ["publish", str(lines), "--topic", "counted", "--format", "lines", "--output", "json"]
    code, stdout, shown = at_a_terminal(mq, *publish)
    assert (code, stdout.count(b"\n")) == (0, 1)
    assert "20,000 messages published" in shown
    code, stdout, shown = at_a_terminal(mq, "fetch", "counted", "--output", "json")
    assert (code, stdout.count(b"\n")) == (0, 20_000)
    assert "20,000 messages fetched" in shown
    for command in (publish, ["fetch", "counted"]):
        done = CliRunner().invoke(app, ["--path", mq.namespace.path, *command])
        assert (done.exit_code, done.stderr) == (0, "")


def test_negative_from_returns_the_last_messages_of_each_partition(mq: Connection) -> None:
    mq.topics.create("numbered", partitions=2)
    for partition in (0, 1):
        values = pa.table({"value": [str(n) for n in range(30)], "partition": pa.array([partition] * 30, pa.int32())})
        mq.publish("numbered", values)

    def offsets(*arguments: str) -> list[tuple[str, str]]:
        done = CliRunner().invoke(app, ["--path", mq.namespace.path, *arguments, "--output", "csv"])
        assert done.exit_code == 0, done.stderr
        return [(line.split(",")[1], line.split(",")[2]) for line in done.stdout.splitlines()[1:]]

    last = [(str(partition), str(offset)) for partition in (0, 1) for offset in range(20, 30)]
    assert offsets("fetch", "numbered", "--from", "-10") == last
    assert offsets("tail", "numbered", "--from", "-10") == last
    assert offsets("fetch", "numbered", "--from", "-2", "--to", "7", "--partition", "1") == [("1", "5"), ("1", "6")]
    assert len(offsets("fetch", "numbered", "--from", "-1000")) == 60
    for wrong in ("-0", "-x", "--10"):
        arguments = ["--path", mq.namespace.path, "fetch", "numbered", "--from", wrong]
        refused = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
        assert refused.exit_code == 2
        assert "or -N: the last N messages" in refused.stderr


def command_on_path(folder: Path) -> dict[str, str]:
    """Write a `lakemq` into the folder, and return an environment that finds it. The folder is the home folder, too."""
    command = folder / "lakemq"
    command.write_text(f'#!/bin/sh\nexec {shlex.join(LAKEMQ)} "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "HOME": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}


def run_bash(environment: dict[str, str], script: str) -> str:
    return subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    ).stdout


def completed(environment: dict[str, str], load: str, lines: list[str]) -> list[list[str]]:
    """Complete lines in a bash that has loaded the script of the command."""
    script = load + "\n"
    for words in (line.split(" ") for line in lines):
        script += f"COMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}\n"
        script += '_lakemq_completion lakemq; echo "${COMPREPLY[@]}"\n'
    return [line.split() for line in run_bash(environment, script).splitlines()]


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    expected = {
        "lakemq to": ["topics"],
        "lakemq --path x topics de": ["describe", "delete", "delete-records"],
        "lakemq topics delete --y": ["--yes"],
        "lakemq --output ": ["table", "json", "csv"],
    }
    as_the_page_says = 'eval "$(_LAKEMQ_COMPLETE=source_bash lakemq)"'
    assert completed(command_on_path(tmp_path), as_the_page_says, [*expected]) == [*expected.values()]
