"""TCP sockets for lines: they send small frames at once, and end by themselves when the other machine is gone."""

from __future__ import annotations

import queue
import socket
import threading
import time
from typing import Any

_BACKLOG = 1024
_RECEIVE_BUFFER_BYTES = 256 << 10
"""A fixed size, which the system doubles. Otherwise the buffer of a connection grows, up to several MB, and one read
would no longer take all that had arrived."""

_IDLE_S, _PROBE_S, _PROBES = 15, 5, 3
"""A machine that is gone is noticed after half a minute."""
_UNANSWERED_MS = 10_000
"""Time after which data that the other machine does not confirm ends the connection."""
_LEAST_S = 0.001
"""A timeout of 0 would mean not to wait at all."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at this address of the machine. Port 0: any free one. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # the term before may have had the same port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # connections inherit it; it must be set before they begin
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """Return a socket that is connected to this address. Raises OSError.

    timeout_s: for finding the address and connecting together. The socket's own timeout is the rest of it.
    """
    deadline_s = time.monotonic() + timeout_s
    failure: OSError = TimeoutError(f"no address of {host} was found in {timeout_s:.1f} s")
    for family, kind, protocol, _, address in _resolve(host, port, timeout_s):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(max(_LEAST_S, deadline_s - time.monotonic()))
            connection.connect(address)
            configure(connection)
            connection.settimeout(max(_LEAST_S, deadline_s - time.monotonic()))
            return connection
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
    raise failure


def configure(connection: socket.socket) -> None:
    """Let a connection send small frames at once, and end when the other machine is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)


def _resolve(host: str, port: int, timeout_s: float) -> list[Any]:
    """Return the addresses of a host; none in time: an empty list.

    The system's resolver has no time limit of its own, so a thread asks it.
    """
    answers: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

    def ask_system() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            answers.put(error)
        except UnicodeError as error:  # a label that is too long for a name of the network
            answers.put(OSError(f"{host!r} is no name of a host: {error}"))

    try:
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=numeric)
    except OSError:
        threading.Thread(target=ask_system, name="lakemq-resolver", daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_s)
    except queue.Empty:
        return []
    if isinstance(answer, OSError):
        raise answer
    return answer
