"""Children that are forked from a process that has imported what they need: each saves half a second of imports.

That process runs no thread of Python. The threads of OpenBLAS and jemalloc, which its imports start, prepare for a
fork themselves.
"""

import multiprocessing
import os
import subprocess
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any


class Fork:
    """A forked child, which a test stops, kills and waits for like a `subprocess.Popen`."""

    def __init__(self, role: str, arguments: dict[str, Any], variables: dict[str, str], log: str) -> None:
        reading, writing = multiprocessing.Pipe(duplex=False)
        self.args = ["fork", "child.py", role]
        self._process = fork_context().Process(
            target=play_role, args=(role, arguments, variables, writing, log), daemon=True
        )
        self._process.start()
        self.pid = self._process.pid or 0
        self.stdout = os.fdopen(os.dup(reading.fileno()))
        reading.close()
        writing.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()


@cache
def fork_context() -> ForkServerContext:
    """Return the context whose first process starts the server. It ends with this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["faults.child", "lakemq.jobs.serve"])
    return context


def play_role(role: str, arguments: dict[str, Any], variables: dict[str, str], output: Connection, log: str) -> None:
    """Play a role of `child.py` in a forked child. output: its stdout. log: the file to which stderr is appended."""
    from faults import child

    os.environ.clear()
    os.environ.update(variables)
    os.dup2(output.fileno(), 1)
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 2)
    child.play(role, arguments)
