"""A real S3 server for tests: versitygw, built by Go once and kept in the user's cache folder.

python tests/versitygw.py    build it if it is missing, and print where it is
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

VERSION = "1.8.0"
MODULE = f"github.com/versity/versitygw/cmd/versitygw@v{VERSION}"
VARIABLE = "LAKEMQ_TEST_S3"
"""Environment variable with the path of the program. If it is set, tests of S3 use it instead of moto."""

_STARTS_WITHIN_S = 60


def build() -> Path:
    """Return the program. Go checks the sources against its public checksums."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "lakemq" / f"versitygw-{VERSION}"
    program = folder / "versitygw"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists():
            return program
        if shutil.which("go") is None:
            sys.exit("make test-stores builds an S3 server with Go 1.25 or newer, and finds no `go`.")
        with tempfile.TemporaryDirectory(dir=folder) as built:
            print("building versitygw, which takes some minutes once", file=sys.stderr)
            subprocess.run(
                ["go", "install", "-ldflags=-s -w", MODULE], env={**os.environ, "GOBIN": built}, cwd=built, check=True
            )
            (Path(built) / "versitygw").rename(program)
    return program


@contextmanager
def serve_versitygw(program: str, folder: Path) -> Iterator[S3Server]:
    """Run the server until the block ends. It keeps objects as files in the folder, and their metadata beside them."""
    (folder / "objects" / BUCKET).mkdir(parents=True)
    (folder / "metadata").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [program, "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive", "posix"]
    command += ["--sidecar", str(folder / "metadata"), str(folder / "objects")]
    environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        server = S3Server(f"http://127.0.0.1:{port}")
        _wait_until_it_answers(server.url, process)
        yield server
    finally:
        # asked to end, it would wait ten seconds for connections that clients keep
        process.kill()
        process.wait(30)


def _wait_until_it_answers(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + _STARTS_WITHIN_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=10).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            assert process.poll() is None, "versitygw has ended"
            assert time.monotonic() < deadline_s, "versitygw does not answer"
            time.sleep(0.05)
        else:
            return


if __name__ == "__main__":
    print(build())
