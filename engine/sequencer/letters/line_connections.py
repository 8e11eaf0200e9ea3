"""Sockets of lines as a leader uses them: without waiting, with TLS or without.

TLS is computed in memory, between the socket and the line. So a handshake is a few reads among those of other lines,
and a slow one holds up no other client.
"""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from lakemq.tables.storage.coordination import tcp_sockets

MAX_HANDSHAKE_BYTES = 64 << 10
"""Bytes that a client may send before the handshake has ended. A usual one takes two thousand."""
_CHUNK_BYTES = 64 << 10
_MAX_UNSENT_BYTES = 256 << 10
"""Bytes that wait in TLS for the client: a chunk of an answer, and what TLS itself has to say."""


class LineConnection(Protocol):
    """The methods of a socket that lines use. None of them waits."""

    def recv(self, size: int, /) -> bytes:
        """Return what has arrived; nothing if the client has ended. Raises BlockingIOError: nothing has arrived."""

    def send(self, data: bytes | bytearray, /) -> int:
        """Send a part of the data, and return its size. Raises BlockingIOError: nothing can be sent now."""

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...

    def fileno(self) -> int: ...

    def detach(self) -> int: ...


@dataclass(frozen=True, eq=False)
class LineListener:
    """A socket on which a leader accepts lines.

    Attributes:
        is_tcp: whoever reaches the address may connect, so a client must prove that it may write to the namespace.
        context: for TLS, which each TCP socket uses. None: a Unix socket.
    """

    listening_socket: socket.socket
    is_tcp: bool = False
    context: ssl.SSLContext | None = None

    def fileno(self) -> int:
        return self.listening_socket.fileno()

    def accept(self) -> tuple[LineConnection, str]:
        """Return a new connection, and the host of its other end; empty for this machine's. Raises OSError."""
        connection, address = self.listening_socket.accept()
        try:
            connection.setblocking(False)
            if self.is_tcp:
                tcp_sockets.configure(connection)
        except BaseException:
            connection.close()
            raise
        host = str(address[0]) if self.is_tcp else ""
        return (connection, host) if self.context is None else (TlsConnection(connection, self.context), host)


class TlsConnection:
    """The leader's end of a TLS connection.

    Two threads use it, and OpenSSL allows one at a time. So a lock guards it, which is held only while it computes.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        """connection: a socket that does not block."""
        self._connection, self._lock = connection, threading.Lock()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_open, self._handshake_bytes = False, 0
        self._unsent, self._unsent_for = bytearray(), 0
        """Encrypted bytes, and of how many bytes of the line they are the last ones."""

    def recv(self, size: int, /) -> bytes:
        """Return all that has arrived, decrypted. size: most bytes that are taken from the socket."""
        with self._lock:
            data = self._connection.recv(size)
            if not data:
                return b""
            self._incoming.write(data)
            try:
                if not self._is_open:
                    self._shake_hands(len(data))
                return self._decrypt()
            finally:  # also the alert that says why TLS has failed
                self._collect()
                with suppress(BlockingIOError):
                    self._flush()

    def send(self, data: bytes | bytearray, /) -> int:
        """Send a chunk of the data. A chunk counts as sent when the system has all of its encrypted bytes."""
        with self._lock:
            if not self._unsent_for:
                chunk = bytes(data[:_CHUNK_BYTES])
                self._tls.write(chunk)
                self._unsent_for = len(chunk)
                self._collect()
            self._flush()
            sent, self._unsent_for = self._unsent_for, 0
            return sent

    def shutdown(self, how: int, /) -> None:
        self._connection.shutdown(how)

    def close(self) -> None:
        self._connection.close()

    def fileno(self) -> int:
        return self._connection.fileno()

    def detach(self) -> int:
        return self._connection.detach()

    def _shake_hands(self, size: int) -> None:
        self._handshake_bytes += size
        if self._handshake_bytes > MAX_HANDSHAKE_BYTES:
            raise ConnectionError(f"the handshake has more than {MAX_HANDSHAKE_BYTES} bytes")
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        self._is_open = True

    def _decrypt(self) -> bytes:
        data = bytearray()
        try:
            while chunk := self._tls.read(_CHUNK_BYTES):
                data += chunk
        except ssl.SSLWantReadError:
            if not data:
                raise BlockingIOError from None  # a part of a record, or nothing for the line
        except ssl.SSLZeroReturnError:  # the client has ended TLS
            pass
        return bytes(data)

    def _collect(self) -> None:
        self._unsent += self._outgoing.read()
        if len(self._unsent) > _MAX_UNSENT_BYTES:
            raise ConnectionError(f"more than {_MAX_UNSENT_BYTES} bytes wait for the client")

    def _flush(self) -> None:
        while self._unsent:
            del self._unsent[: self._connection.send(self._unsent)]
