"""An S3 server for tests: moto's, in a process of its own. It keeps objects in memory, and refuses a conditional put as
S3 does.

In this process it could not answer delta-rs, which holds the interpreter's lock during some of its requests.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

BUCKET = "bucket"
ACCESS_KEY, SECRET_KEY = "an-access-key", "a-secret-that-stays-hidden"


@dataclass(frozen=True)
class S3Server:
    """A running server with one bucket. options: the storage options of a client."""

    url: str
    secret = SECRET_KEY
    secret_option = "AWS_SECRET_ACCESS_KEY"

    @property
    def options(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            self.secret_option: SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
        }

    def at(self, url: str) -> S3Server:
        """Return the same server as it is reached at another URL, such as a proxy's."""
        return replace(self, url=url)

    def path(self, folder: str) -> str:
        """Return the path of a folder in the bucket."""
        return f"s3://{BUCKET}/{folder}"


@contextmanager
def serve_s3() -> Iterator[S3Server]:
    """Run a server until the block ends, or until this process does."""
    with subprocess.Popen(
        [sys.executable, "-m", "s3_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            server = S3Server(process.stdout.readline().strip())
            make_bucket(server)
            yield server
        finally:
            process.stdin.close()


def make_bucket(server: S3Server) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{server.url}/{BUCKET}", method="PUT"), timeout=120).close()


def main() -> None:
    """Serve until the other end closes stdin. The only line of output is the URL."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        # connections are used again, as a store's clients do
        protocol_version = "HTTP/1.1"

        def log(self, type: str, message: str, *args: Any) -> None:
            """Say nothing about requests."""

    # moto checks a condition and then writes; a store does both at once
    lock, application = threading.Lock(), DomainDispatcherApplication(create_backend_app)

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with lock:
            return list(application(environ, start_response))

    server = make_server("127.0.0.1", 0, answer, threaded=True, request_handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
