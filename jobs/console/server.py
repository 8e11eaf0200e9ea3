"""Serve a console from a thread of this process."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakemq.engine.namespace.processes.extras import needs
from lakemq.errors import InvalidConfig

with needs("console"):
    import uvicorn

from lakemq.jobs.console.app import build_app
from lakemq.jobs.console.console import Console
from lakemq.jobs.console.settings import ConsoleSettings
from lakemq.jobs.metrics.server import open_registry

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.sequencer.serving import Serving
    from lakemq.jobs.doctor.finding import Finding

log = logging.getLogger("lakemq.console")

_MOST_CONNECTIONS = 64
_END_S = 5
"""How long requests may go on when the console ends."""

_START_S = 30.0


@contextmanager
def serve_console(
    mq: Connection,
    settings: ConsoleSettings,
    examine: Callable[[], Sequence[Finding]],
    serving: Serving | None = None,
) -> Iterator[str]:
    """Answer browsers inside the block, and yield the console's address.

    Args:
        mq: the connection to read with.
        settings: where to listen, and what to allow.
        examine: runs the doctor's checks.
        serving: the sequencer of this process, if it runs one.

    Raises:
        InvalidConfig: the address cannot be listened on.
        MissingExtra: the extra `console` is not installed.
    """
    listener = _listen(settings)
    with listener, open_console(mq, settings, examine, serving) as app:
        server = _make_server(app)
        thread = threading.Thread(target=server.run, args=([listener],), name="lakemq-console", daemon=True)
        thread.start()
        _wait_until_started(server, thread)
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        log.info("the console is at %s", address)
        try:
            yield address
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def open_console(
    mq: Connection,
    settings: ConsoleSettings,
    examine: Callable[[], Sequence[Finding]],
    serving: Serving | None = None,
) -> Iterator[Callable[..., object]]:
    """Yield the ASGI application of a console; see `serve_console`."""
    with open_registry(mq, serving) as (registry, collector, observer):
        yield build_app(Console(mq, observer, collector, settings, examine), registry)


def _listen(settings: ConsoleSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host.strip("[]"), settings.port), family=family, backlog=128)
    except OSError as error:
        raise InvalidConfig(
            f"The console cannot listen: {error.strerror or error}.",
            found=f"{settings.host}:{settings.port}",
            expected="an address of this machine and a port that is free",
        ) from None


def _make_server(app: Callable[..., object]) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_END_S,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return uvicorn.Server(config)


def _wait_until_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    deadline_s = time.monotonic() + _START_S
    while not server.started and thread.is_alive() and time.monotonic() < deadline_s:
        time.sleep(0.01)
