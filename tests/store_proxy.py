"""A proxy before a store that does what networks and busy stores do: it delays, refuses, and cuts connections.

It forwards whole requests one by one, so it knows when a put has landed and only the answer is lost.
"""

from __future__ import annotations

import argparse
import http.client
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, TextIO, TypeAlias

Fault: TypeAlias = Literal["refuse", "forbid", "hang", "cut before", "cut after"] | None
"""A refusal is `503 SlowDown`, and a store forbids with `403 ExpiredToken`. A cut is before the store has seen the
request, or after it has answered. A request that hangs gets no answer.
"""

_HANG_S = 30

_REFUSALS = {
    "refuse": (503, b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"),
    "forbid": (403, b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"),
}
_OWN_HEADERS = {"connection", "transfer-encoding", "content-length", "keep-alive", "server", "date"}


class StoreProxy:
    """A running proxy. `choose` names the fault of a request from its method and path. `log` gets both, a line each."""

    def __init__(
        self,
        target: str,
        choose: Callable[[str, str], Fault] = lambda *_: None,
        delay_ms: int = 0,
        log: TextIO | None = None,
    ) -> None:
        self.choose, self.delay_ms, self.log = choose, delay_ms, log
        self.target = target.removeprefix("http://")
        self.faults: list[tuple[str, str, str]] = []
        self.request_count = 0
        handler = type("Handler", (_ProxyHandler,), {"proxy": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="store-proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> StoreProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up."""


class _ProxyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # an answer in two packets would wait for the other end's delayed acknowledgement
    disable_nagle_algorithm = True
    proxy: StoreProxy

    def _forward(self) -> None:
        proxy = self.proxy
        proxy.request_count += 1
        if proxy.log is not None:
            proxy.log.write(f"{self.command} {self.path}\n")
            proxy.log.flush()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        time.sleep(proxy.delay_ms / 1000)
        fault = proxy.choose(self.command, self.path)
        if fault is not None:
            proxy.faults.append((fault, self.command, self.path))
        if fault in _REFUSALS:
            status, content = _REFUSALS[fault]
            self._answer(status, [("Content-Type", "application/xml")], content)
            return
        if fault == "hang":
            time.sleep(_HANG_S)
        if fault in ("cut before", "hang"):
            self.close_connection = True
            return
        # the signature covers the host that the client asked
        connection = http.client.HTTPConnection(proxy.target, timeout=60)
        try:
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if fault == "cut after":
            self.close_connection = True
            return
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self._answer(answer.status, answer.getheaders(), content, length)

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, length: str | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _OWN_HEADERS:
                self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing about requests."""


def choose_at_random(seed: int, share: float) -> Callable[[str, str], Fault]:
    """Return a choice that gives each kind of fault to this share of the requests."""
    chance = random.Random(seed)

    def choose(method: str, path: str) -> Fault:
        drawn = chance.random()
        if drawn < share:
            return "refuse"
        if drawn < 2 * share:
            return "cut before"
        return "cut after" if drawn < 3 * share else None

    return choose


@contextmanager
def run_proxy(target: str, *options: str) -> Iterator[str]:
    """Yield the URL of a proxy in another process, which ends with the block. options: of this file's command."""
    command = [sys.executable, __file__, target, *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        try:
            yield proxy.stdout.readline().strip()
        finally:
            proxy.stdin.close()


def main() -> None:
    """Serve until the other end closes stdin. The only line of output is the URL."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--delay-ms", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=argparse.FileType("a"))
    options = parser.parse_args()
    choose = choose_at_random(options.seed, options.share)
    with StoreProxy(options.target, choose, options.delay_ms, options.log) as proxy:
        print(proxy.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
