"""The real command: in processes that can be stopped and killed, and in this one, which is quicker."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from faults.processes import PATIENCE_S
from typer.testing import CliRunner

from lakemq.jobs.cli import app

LAKEMQ = [sys.executable, "-m", "lakemq.jobs.cli"]
LEASE_MS = 1000


def _restore_interrupts() -> None:
    # a shell makes background processes ignore interrupts, and the tests may run in the background
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Process:
    """A running command, with the lines of its output so far."""

    def __init__(self, *arguments: str) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            arguments, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1, preexec_fn=_restore_interrupts
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

    def wait_for_line(self, pattern: str, where: str = "err") -> str:
        """Wait for a line in which the pattern is found, and return it. where: `err` or `out`."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            match = next((line for line in getattr(self, where) if re.search(pattern, line)), None)
            if match is not None:
                return match
            time.sleep(0.01)
        raise AssertionError(f"{pattern!r} was not said: {self.out[-5:]} {self.err[-5:]}")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait_for_exit(self) -> int:
        """Wait until the process has ended and its output is read, and return the exit code."""
        code = self._process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join()
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def processor_s(self) -> float:
        """Return the processor time that the process has used so far, in seconds."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def where(path: Path) -> list[str]:
    return ["--path", str(path), "--conf", str(path.with_name("lakemq.yaml"))]


def lakemq(path: Path, *arguments: str, stdin: str = "") -> list[dict[str, Any]]:
    """Run a command that must succeed in this process, and return what it prints."""
    result = CliRunner().invoke(app, [*where(path), *arguments, "--output", "json"], input=stdin)
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def values(path: Path, topic: str = "t") -> list[str]:
    return [message["value"] for message in lakemq(path, "fetch", topic)]


def leader(path: Path) -> str:
    """Return the doctor's finding about the sequencer."""
    result = CliRunner().invoke(app, [*where(path), "doctor", "--no-spark", "--output", "json"])
    findings = map(json.loads, result.stdout.splitlines())
    return next(str(f["found"]) for f in findings if f["check"] == "sequencer")
