"""Idle connections, which anybody may open: they end soon, and take no descriptor that the sequencer needs."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from unit.served import served

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.jobs.console.server import serve_console
from lakemq.jobs.console.settings import ConsoleSettings
from lakemq.jobs.metrics.server import serve_metrics
from lakemq.jobs.process.http_listener import HttpLimits, HttpListener

pytestmark = pytest.mark.slow

PATIENCE_S = 60
IDLE = 150
"""Connections to each server; more than its process may have descriptors."""


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with served(tmp_path_factory.mktemp("idle")) as mq:
        yield mq


@contextmanager
def open_console(mq: Connection, limits: HttpLimits, token: str | None = None) -> Iterator[int]:
    with serve_console(mq, ConsoleSettings(port=0, token=token), list, limits=limits) as address:
        yield int(address.rstrip("/").rpartition(":")[2])


@contextmanager
def open_metrics(mq: Connection, limits: HttpLimits) -> Iterator[int]:
    with serve_metrics(mq, "127.0.0.1", 0, limits=limits) as port:
        yield port


OpenServer = Callable[[Connection, HttpLimits], AbstractContextManager[int]]
each_server = pytest.mark.parametrize("open_server", [open_console, open_metrics], ids=["console", "metrics"])


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def read_status(port: int) -> int:
    """Ask for a page that needs no token, and return its status when the answer is there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/metrics")
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
FORM = (
    b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\n"
)
BEGINNINGS = {"nothing": b"", "half a request": GET, "a request, and half of one": GET + b"\r\n" + GET}


@each_server
@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
def test_connection_without_whole_request_is_closed(mq: Connection, open_server: OpenServer, beginning: bytes) -> None:
    with open_server(mq, HttpLimits(connections=2, request_s=0.2)) as port, connect(port) as idle:
        idle.sendall(beginning)
        with suppress(ConnectionResetError):
            while idle.recv(1 << 16):
                pass


def test_console_closes_connection_whose_form_does_not_come(mq: Connection) -> None:
    limits = HttpLimits(connections=2, request_s=0.2)
    with open_console(mq, limits, token="0123456789abcdef") as port, connect(port) as idle:
        idle.sendall(FORM)
        with suppress(ConnectionResetError):
            assert idle.recv(1 << 16) == b"", "there is no answer"


@each_server
def test_connections_beyond_the_bound_wait_until_one_ends(mq: Connection, open_server: OpenServer) -> None:
    with open_server(mq, HttpLimits(connections=2, request_s=PATIENCE_S)) as port, ExitStack() as stack:
        idle = [stack.enter_context(connect(port)) for _ in range(2)]
        waiting = stack.enter_context(connect(port))
        waiting.sendall(GET + b"Connection: close\r\n\r\n")
        waiting.settimeout(0.3)
        with pytest.raises(TimeoutError):
            waiting.recv(1)
        idle[0].close()
        waiting.settimeout(PATIENCE_S)
        assert b" 200 OK" in waiting.recv(1 << 16)


def test_full_listener_is_not_ready_to_read() -> None:
    """Else a server would ask it in a loop."""
    listener = HttpListener("127.0.0.1", 0, 1)
    with listener, connect(listener.getsockname()[1]), connect(listener.getsockname()[1]):
        wait_for_room(listener)
        accepted, _ = listener.accept()
        assert not listener._poll.poll(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
        accepted.close()
        wait_for_room(listener)
        listener.accept()[0].close()


def wait_for_room(listener: HttpListener) -> None:
    assert listener._poll.poll(PATIENCE_S)


SERVE = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.jobs.console.server import serve_console
from lakemq.jobs.console.settings import ConsoleSettings
from lakemq.jobs.metrics.server import serve_metrics
from lakemq.jobs.process.http_listener import HttpLimits
from lakemq.tables.storage.coordination.line_objects import line_name

limits = HttpLimits(connections=64, request_s=0.2)
with (
    lakemq.connect(sys.argv[1], create=True, config={"line.listen": "127.0.0.1:0"}) as mq,
    mq.serving() as serving,
    serve_metrics(mq, "127.0.0.1", 0, serving, limits) as metrics,
    serve_console(mq, ConsoleSettings(port=0), list, serving, limits) as console,
):
    mq.topics.create("orders")
    line = json.loads(mq.namespace.files.get(line_name(1)))["port"]
    print(json.dumps([line, metrics, int(console.rstrip("/").rpartition(":")[2])]), flush=True)
    sys.stdin.read()
"""


def test_idle_connections_to_all_servers_keep_no_descriptor_from_the_sequencer(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVE, str(tmp_path / "mq")]
    with (tmp_path / "log").open("wb") as log, ExitStack() as stack:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        stack.enter_context(child)
        stack.callback(child.kill)
        assert child.stdout is not None
        line, metrics, console = json.loads(child.stdout.readline())
        for port in itertools.chain.from_iterable([(line, metrics, console)] * IDLE):
            stack.enter_context(connect(port))
        with lakemq.connect(str(tmp_path / "mq")) as mq, mq.producer() as producer:
            sent = [producer.send("orders", value=str(number)).result(PATIENCE_S).offset for number in range(50)]
            assert sent == list(range(50))
            assert len(mq.fetch("orders")) == 50
        assert (read_status(metrics), read_status(console)) == (200, 200)
        child.communicate(timeout=PATIENCE_S)
        assert child.returncode == 0
    assert (tmp_path / "log").stat().st_size < 20_000, "the log must not grow with the connections"
