"""Fixtures of the tests that kill processes."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.commands import LAKEMQ, LEASE_MS, Process, lakemq, where
from faults.processes import QUICK, Processes, make_template, processes
from faults.shims import ShiftedClock, compile_library


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A namespace with the empty topic `t` of two partitions."""
    return make_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def family(tmp_path: Path, template: Path) -> Iterator[Processes]:
    """Processes on a namespace of their own, with quick settings."""
    with processes(tmp_path, template, QUICK) as children:
        yield children
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture
def start(path: Path) -> Iterator[Callable[..., Process]]:
    """A function that starts a command on the namespace. Commands that still run in the end are killed."""
    commands: list[Process] = []

    def start(*arguments: str, command: list[str] = LAKEMQ) -> Process:
        commands.append(Process(*command, *where(path), *arguments))
        return commands[-1]

    yield start
    for process in commands:
        process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty namespace, with short leases."""
    (tmp_path / "lakemq.yaml").write_text(f"lease.ms: {LEASE_MS}\n")
    lakemq(tmp_path / "mq", "init")
    return tmp_path / "mq"


@pytest.fixture
def clock(tmp_path: Path) -> ShiftedClock:
    """The clock of children that get its `environ`. It is right until it is shifted."""
    clock = ShiftedClock(compile_library("clock_shim", tmp_path), tmp_path)
    clock.shift(7_200_000)
    command = [sys.executable, "-c", "import time; print(time.time())"]
    completed = subprocess.run(command, env={**os.environ, **clock.environ}, capture_output=True, check=True)
    assert float(completed.stdout) == pytest.approx(time.time() + 7200, abs=20)
    clock.shift(0)
    return clock
