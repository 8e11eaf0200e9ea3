"""A listening socket for HTTP that cannot take the descriptors that the rest of the process needs.

Anybody who reaches the address may open connections. So only a few are accepted at a time, and the rest wait in the
kernel, where they cost this process nothing. A server closes connections that send no request within `request_s`.
"""

from __future__ import annotations

import resource
import select
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lakemq.tables.storage.coordination import tcp_sockets

_SHARE_OF_DESCRIPTORS = 16
"""A server has at most one in so many of the process's descriptors. Lines have half of them, and steps need some."""


@dataclass(frozen=True)
class HttpLimits:
    """What the clients of a server may take.

    Attributes:
        connections: how many are accepted at a time; fewer if the process may have few descriptors.
        request_s: time in which a connection must send a whole request.
    """

    connections: int
    request_s: float = 10.0


class HttpListener(socket.socket):
    """A listening socket that seems quiet while all its connections are in use.

    Its descriptor, which servers poll, is that of an epoll, which watches the socket only while there is room.
    """

    def __init__(self, host: str, port: int, most_connections: int) -> None:
        """Listen at an address. Raises OSError. port: 0 takes a free one."""
        super().__init__(fileno=tcp_sockets.listen(host.strip("[]"), port).detach())
        self.setblocking(False)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        share = most_connections if soft == resource.RLIM_INFINITY else soft // _SHARE_OF_DESCRIPTORS
        self._room = max(1, min(most_connections, share))
        self._lock = threading.Lock()
        self._poll = select.epoll()
        self._poll.register(super().fileno(), select.EPOLLIN)

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
            tcp_sockets.configure(connection)
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
