"""Serve a console from a thread of this process."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakemq.engine.namespace.processes.extras import needs
from lakemq.errors import InvalidConfig

with needs("console"):
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

from lakemq.jobs.console.app import build_app
from lakemq.jobs.console.console import Console
from lakemq.jobs.console.settings import ConsoleSettings
from lakemq.jobs.metrics.server import open_registry
from lakemq.jobs.process.http_listener import HttpLimits, HttpListener

if TYPE_CHECKING:
    from lakemq.engine.client.connection import Connection
    from lakemq.engine.sequencer.serving import Serving
    from lakemq.jobs.doctor.finding import Finding

log = logging.getLogger("lakemq.console")

LIMITS = HttpLimits(connections=64)
"""A browser opens six connections, and keeps them for five seconds."""
_END_S = 5
"""How long requests may go on when the console ends."""

_START_S = 30.0


@contextmanager
def serve_console(
    mq: Connection,
    settings: ConsoleSettings,
    examine: Callable[[], Sequence[Finding]],
    serving: Serving | None = None,
    limits: HttpLimits = LIMITS,
) -> Iterator[str]:
    """Answer browsers inside the block, and yield the console's address.

    Args:
        mq: the connection to read with.
        settings: where to listen, and what to allow.
        examine: runs the doctor's checks.
        serving: the sequencer of this process, if it runs one.
        limits: what clients may take.

    Raises:
        InvalidConfig: the address cannot be listened on.
        MissingExtra: the extra `console` is not installed.
    """
    listener = _listen(settings, limits)
    with listener, open_console(mq, settings, examine, serving) as app:
        server = _make_server(app, limits)
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


def _listen(settings: ConsoleSettings, limits: HttpLimits) -> HttpListener:
    try:
        return HttpListener(settings.host, settings.port, limits.connections)
    except OSError as error:
        raise InvalidConfig(
            f"The console cannot listen: {error.strerror or error}.",
            found=f"{settings.host}:{settings.port}",
            expected="an address of this machine and a port that is free",
        ) from None


def _make_server(app: Callable[..., object], limits: HttpLimits) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=_make_protocol(limits.request_s),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_END_S,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return uvicorn.Server(config)


def _make_protocol(request_s: float) -> type[H11Protocol]:
    """Return the class of connections that are closed if a request does not arrive in time."""

    class TimedProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._await_request()

        def handle_events(self) -> None:
            super().handle_events()
            self._await_request()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._await_request()

        def _await_request(self) -> None:
            cycle = self.cycle
            if cycle is not None and not cycle.more_body and not cycle.response_complete:
                if self._deadline is not None:  # the whole request is here, and is being answered
                    self._deadline.cancel()
                    self._deadline = None
            elif self._deadline is None and not self.transport.is_closing():
                self._deadline = self.loop.call_later(request_s, self.transport.abort)

    return TimedProtocol


def _wait_until_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    deadline_s = time.monotonic() + _START_S
    while not server.started and thread.is_alive() and time.monotonic() < deadline_s:
        time.sleep(0.01)
