"""Streams that are closed, full or left: the command ends as the page says, and counts as printed what was."""

import os
import subprocess
import sys
from contextlib import suppress

import pytest
from unit.served import new_name

import lakemq
from lakemq.errors import GroupIdNotFound

pytestmark = [pytest.mark.slow, pytest.mark.extended]

# as in a shell, where what is printed waits in a buffer
_CLOSED = "OUTPUT_ERROR: Standard output is closed.\n"
_FULL = "OUTPUT_ERROR: Standard output cannot be written: No space left on device.\n"
_SHELL = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def shell(line: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`line`: of a shell, in which "$@" is the command."""
    command = ["bash", "-c", line, "bash", sys.executable, "-m", "lakemq.jobs.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=_SHELL, timeout=60)


@pytest.mark.parametrize(
    ("line", "arguments", "code", "told"),
    [
        ('"$@" >&-', ["topics", "list"], 1, _CLOSED),
        ('"$@" >&-', ["--version"], 1, _CLOSED),
        ('"$@" >/dev/full', ["topics", "list"], 1, _FULL),
        ('"$@" | true; exit ${PIPESTATUS[0]}', ["topics", "list"], 141, ""),
    ],
)
def test_output_that_cannot_be_written_is_one_line_on_stderr(
    leaderless: str, arguments: list[str], line: str, code: int, told: str
) -> None:
    done = shell(line, "--path", leaderless, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", told)


def test_consume_does_not_commit_messages_it_could_not_print(leaderless: str) -> None:
    group = new_name("g")
    done = shell('"$@" >&-', "--path", leaderless, "consume", "t", "--group", group)
    assert (done.returncode, done.stderr) == (1, _CLOSED)
    with lakemq.connect(leaderless) as mq, suppress(GroupIdNotFound):
        assert sum(row.committed_offset or 0 for row in mq.groups.lag(group)) == 0


@pytest.mark.parametrize("arguments", [["sql", "-"], ["publish", "--topic", "t"]], ids=" ".join)
def test_closed_stdin_is_an_error_and_not_an_empty_input(leaderless: str, arguments: list[str]) -> None:
    done = shell('"$@" <&-', "--path", leaderless, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "INPUT_ERROR: Standard input is closed.\n")


@pytest.mark.parametrize(
    ("arguments", "reader"),
    [
        (["tail", "t", "-f", "--output", "json"], "head -1"),
        (["consume", "t", "-f", "--group", "readers", "--output", "json"], "head -1"),
        (["delayed", "release", "--watch"], "true"),
    ],
    ids=["tail", "consume", "release"],
)
def test_command_that_waits_ends_with_its_reader(leaderless: str, arguments: list[str], reader: str) -> None:
    done = shell(f'"$@" | {reader}; exit ${{PIPESTATUS[0]}}', "--path", leaderless, *arguments)
    assert (done.returncode, done.stderr) == (141, "")
    assert done.stdout.count("\n") == (reader == "head -1")
