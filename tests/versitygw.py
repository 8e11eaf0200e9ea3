"""A real S3 server for tests: versitygw, built by Go once and kept in the user's cache folder.

python tests/versitygw.py    build it if it is missing, and print where it is
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fetched_programs import fetch_once, find_free_port, run_server
from s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

VERSION = "1.8.0"
MODULE = f"github.com/versity/versitygw/cmd/versitygw@v{VERSION}"
VARIABLE = "LAKEMQ_TEST_S3"
"""Environment variable with the path of the program. If it is set, tests of S3 use it instead of moto."""


def build() -> Path:
    """Return the program. Go checks the sources against its public checksums."""

    def install(folder: Path) -> None:
        command = ["go", "install", "-ldflags=-s -w", MODULE]
        subprocess.run(command, env={**os.environ, "GOBIN": str(folder)}, cwd=folder, check=True)

    return fetch_once(f"versitygw-{VERSION}", "go", "versitygw", install)


@contextmanager
def serve_versitygw(program: str, folder: Path) -> Iterator[S3Server]:
    """Run the server until the block ends. It keeps objects as files in the folder, and their metadata beside them."""
    (folder / "objects" / BUCKET).mkdir(parents=True)
    (folder / "metadata").mkdir()
    port = find_free_port()
    command = [program, "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive", "posix"]
    command += ["--sidecar", str(folder / "metadata"), str(folder / "objects")]
    environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    with run_server(command, port, folder, environment):
        yield S3Server(f"http://127.0.0.1:{port}")


if __name__ == "__main__":
    print(build())
