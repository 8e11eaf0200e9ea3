"""Serve HTTP from a thread of this process, with a bound of connections that leaves descriptors to the rest of it.

Anybody who reaches the address may open connections. So only a few stay open: a new one takes the place of the oldest
one that has not sent its request. Connections that send no request in time are closed.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lakemq.errors import InvalidConfig
from lakemq.tables.storage.coordination import sockets

_END_S = 5
"""How long requests may go on when a server ends."""
_SHARE_OF_DESCRIPTORS = 16
"""A server has at most one in so many of the process's descriptors. Lines have half of them, and steps need some."""


@dataclass(frozen=True)
class HttpLimits:
    """What the clients of a server may take.

    Attributes:
        connections: how many stay open at a time; fewer if the process may have few descriptors.
        request_s: time in which a connection must send a whole request.
    """

    connections: int
    request_s: float = 10.0

    def count_connections(self) -> int:
        """Return how many connections this process may have."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        share = self.connections if soft == resource.RLIM_INFINITY else soft // _SHARE_OF_DESCRIPTORS
        return max(1, min(self.connections, share))


@contextmanager
def serve_http(
    app: Callable[..., object], name: str, host: str, port: int, limits: HttpLimits, options: str
) -> Iterator[tuple[str, int]]:
    """Answer requests inside the block, and yield the address and the port.

    Args:
        app: the ASGI application.
        name: of the server: `console` or `metrics`.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        limits: what clients may take.
        options: of the command, that name the address.

    Raises:
        InvalidConfig: the address cannot be listened on.
    """
    try:
        listener = sockets.listen_tcp(host.strip("[]"), port)
    except OSError as error:
        raise InvalidConfig(
            f"The {name} server cannot listen: {error.strerror or error}.",
            found=f"{host}:{port}",
            expected=f"an address of this machine and a port that is free: {options}",
        ) from None
    with listener:
        server = _make_server(app, limits)
        thread = threading.Thread(target=server.run, args=([listener],), name=f"lakemq-{name}", daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[:2]
        finally:
            server.should_exit = True
            thread.join()


def _make_server(app: Callable[..., object], limits: HttpLimits) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=_make_protocol(limits),
        backlog=limits.count_connections(),  # so many are accepted before a protocol sees the first of them
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


def _make_protocol(limits: HttpLimits) -> type[H11Protocol]:
    """Return the class of connections that are closed if their request does not come in time, or others need room."""
    most = limits.count_connections()
    waiting: dict[BoundedProtocol, asyncio.TimerHandle] = {}
    """Connections whose request is not here, the oldest first, each with its deadline."""

    class BoundedProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            with suppress(OSError):  # the client has ended already, which its reader notices
                sockets.configure(transport.get_extra_info("socket"))
            if len(self.connections) > most:
                oldest = next(iter(waiting), self)
                oldest.stop_waiting()
                oldest.transport.abort()
            self._await_request()

        def connection_lost(self, exc: Exception | None) -> None:
            self.stop_waiting()
            super().connection_lost(exc)

        def handle_events(self) -> None:
            super().handle_events()
            self._await_request()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._await_request()

        def _await_request(self) -> None:
            cycle = self.cycle
            if cycle is not None and not cycle.more_body and not cycle.response_complete:
                self.stop_waiting()  # the whole request is here, and is being answered
            elif self not in waiting and not self.transport.is_closing():
                waiting[self] = self.loop.call_later(limits.request_s, self.transport.abort)

        def stop_waiting(self) -> None:
            if deadline := waiting.pop(self, None):
                deadline.cancel()

    return BoundedProtocol
