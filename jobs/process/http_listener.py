"""Serve HTTP from a thread of this process, with a listening socket that leaves descriptors to the rest of it.

Anybody who reaches the address may open connections. So only a few are accepted at a time, and the rest wait in the
kernel, where they cost this process nothing. Connections that send no request in time are closed. While many are open
they have less time, so that silent clients keep nobody waiting for long.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lakemq.errors import InvalidConfig
from lakemq.tables.storage.coordination import sockets

_END_S = 5
"""How long requests may go on when a server ends."""
_START_S = 30.0
_SHARE_OF_DESCRIPTORS = 16
"""A server has at most one in so many of the process's descriptors. Lines have half of them, and steps need some."""


@dataclass(frozen=True)
class HttpLimits:
    """What the clients of a server may take.

    Attributes:
        connections: how many are accepted at a time; fewer if the process may have few descriptors.
        request_s: time in which a connection must send a whole request.
        crowded_s: that time while more than half of the connections are open.
    """

    connections: int
    request_s: float = 10.0
    crowded_s: float = 1.0


class HttpListener(socket.socket):
    """A listening socket that seems quiet while all its connections are in use.

    Its descriptor, which servers poll, is that of an epoll, which watches the socket only while there is room.
    """

    def __init__(self, host: str, port: int, most_connections: int) -> None:
        """Listen at an address. Raises OSError. port: 0 takes a free one."""
        super().__init__(fileno=sockets.listen_tcp(host.strip("[]"), port).detach())
        self.setblocking(False)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        share = most_connections if soft == resource.RLIM_INFINITY else soft // _SHARE_OF_DESCRIPTORS
        self._most = self._room = max(1, min(most_connections, share))
        self._lock = threading.Lock()
        self._poll = select.epoll()
        self._poll.register(super().fileno(), select.EPOLLIN)

    @property
    def is_crowded(self) -> bool:
        """Whether more than half of the connections are open."""
        return 2 * self._room < self._most

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 if the socket is closed."""
        return -1 if self._poll.closed else self._poll.fileno()

    def accept(self) -> tuple[HttpConnection, Any]:
        """Return a new connection and its address. Raises OSError; BlockingIOError if there is none, or no room."""
        with self._lock:
            if not self._room:
                raise BlockingIOError
            accepted, address = super().accept()
            self._room -= 1
            if not self._room:
                self._poll.modify(super().fileno(), 0)
        connection = HttpConnection(self, accepted.detach())
        with suppress(OSError):  # the client has ended already, which its reader notices
            sockets.configure(connection)
        return connection, address

    def make_room(self) -> None:
        """Note that a connection has ended."""
        with self._lock:
            self._room += 1
            if self._room == 1 and not self._poll.closed:
                self._poll.modify(super().fileno(), select.EPOLLIN)

    def close(self) -> None:
        """Accept nothing more."""
        with self._lock:
            self._poll.close()
            super().close()


class HttpConnection(socket.socket):
    """A connection, whose end makes room for the next."""

    def __init__(self, listener: HttpListener, descriptor: int) -> None:
        super().__init__(fileno=descriptor)
        self._listener: HttpListener | None = listener

    def close(self) -> None:
        """Close it, and let the listener accept another one."""
        super().close()
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.make_room()


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
        listener = HttpListener(host, port, limits.connections)
    except OSError as error:
        raise InvalidConfig(
            f"The {name} server cannot listen: {error.strerror or error}.",
            found=f"{host}:{port}",
            expected=f"an address of this machine and a port that is free: {options}",
        ) from None
    with listener:
        server = _make_server(app, listener, limits)
        thread = threading.Thread(target=server.run, args=([listener],), name=f"lakemq-{name}", daemon=True)
        thread.start()
        _wait_until_started(server, thread)
        try:
            yield listener.getsockname()[:2]
        finally:
            server.should_exit = True
            thread.join()


def _make_server(app: Callable[..., object], listener: HttpListener, limits: HttpLimits) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=_make_protocol(listener, limits),
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


def _make_protocol(listener: HttpListener, limits: HttpLimits) -> type[H11Protocol]:
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
                limit_s = limits.crowded_s if listener.is_crowded else limits.request_s
                self._deadline = self.loop.call_later(limit_s, self.transport.abort)

    return TimedProtocol


def _wait_until_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    deadline_s = time.monotonic() + _START_S
    while not server.started and thread.is_alive() and time.monotonic() < deadline_s:
        time.sleep(0.01)
