"""Programs that tests run: fetched once into the user's cache folder, and started on a free port."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_STARTS_WITHIN_S = 60


def fetch_once(name: str, tool: str, made: str, fetch: Callable[[Path], None]) -> Path:
    """Return the program `made` in the cached folder `name`, after fetching that folder if it is missing.

    Args:
        tool: the program that `fetch` needs on the path.
        fetch: puts everything into the folder that it gets.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakemq"
    cache.mkdir(parents=True, exist_ok=True)
    program = cache / name / made
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists():
            return program
        if shutil.which(tool) is None:
            sys.exit(f"Tests fetch {name} with `{tool}`, which is not on the path. Install it.")
        print(f"fetching {name}, which takes some minutes once", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=cache) as fetched:
            folder = Path(fetched) / "program"
            folder.mkdir()
            fetch(folder)
            shutil.rmtree(cache / name, ignore_errors=True)
            folder.rename(cache / name)
    return program


def find_free_port() -> int:
    """Return a port of this machine that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def run_server(
    command: Sequence[str], port: int, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in a folder until the block ends, which begins when the port accepts connections.

    It is killed: asked to end, it might wait for connections that clients keep.
    """
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    def accepts_connections() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 10).close()
        except OSError:
            return False
        return True

    try:
        deadline_s = time.monotonic() + _STARTS_WITHIN_S
        while not accepts_connections():
            assert process.poll() is None, "the server has ended"
            assert time.monotonic() < deadline_s, "the server does not answer"
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait(30)
