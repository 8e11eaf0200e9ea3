"""The lines of one term, and the letters that have come on them: what the two threads that use lines share.

The reading thread (`lines`) adds lines and letters. The sequencer's thread takes letters and answers them. Neither
waits for the other: sending never blocks, and what a slow client does not take is sent by the reading thread.

A letter may also come through the mailbox, with the same number and bytes, because its client gave its line up. It must
still be decided once, even if the leader has forgotten the client by the time it reads the line. Three rules see to it:

1. A client has at most one line. A new one closes the one before.
2. Before a letter from the mailbox is decided, its client's line is closed, and what it sent is dropped
   (`drop_client`).
3. A client sends letters only after the welcome. So no letter arrives on a line that the leader does not know yet.

Rows of docs/architecture.md: publish 11.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from lakemq.tables.storage.coordination import sockets
from lakemq.tables.storage.coordination.mailbox import LetterName

from ...namespace.clock import Clock
from ...namespace.line_frames import MAX_FRAME_BYTES, MAX_GREETING_BYTES, BadFrame, FrameKind, FrameReader, encode_frame

# Sockets of lines as a leader uses them: without waiting, with TLS or without.
#
# TLS is computed in memory, between the socket and the line. So a handshake is a few reads among those of other lines,
# and a slow one holds up no other client.
# OpenSSL on the socket itself would read on for as long as a client sends what holds nothing for the line, such as
# changes of its keys.


MAX_HANDSHAKE_BYTES = 64 << 10
"""Bytes that a client may send before the handshake has ended. A usual one takes two thousand."""
_CHUNK_BYTES = 64 << 10
_MAX_UNSENT_BYTES = 256 << 10
"""Bytes that wait in TLS for the client: a chunk of an answer, and what TLS itself has to say."""


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
                sockets.configure(connection)
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


LineConnection: TypeAlias = socket.socket | TlsConnection
"""A socket that does not wait: a method raises BlockingIOError where it would."""


# The lines of one term, and the letters that have come on them.


MAX_OUTPUT_BYTES = 256 << 20
"""Bytes of all answers that clients have not taken yet. A line whose answer would exceed this is closed."""


@dataclass(eq=False)
class Line:
    """A connection of a client. Only the reading thread reads from it and closes its descriptor.

    Attributes:
        client_id: empty before the welcome.
        host: address of the client's machine; empty on a Unix socket.
        is_tcp: the client must prove that it may write to the namespace.
        is_checked: the hello has come, and its proof is being read.
        transfer_began_ms: when the connection, the letter that is arriving, or the answer that waits to be sent began.
        is_busy: a letter of it is not answered yet. A client sends one at a time.
        arriving_bytes: size of the frame that is still arriving, as last counted.
        output: bytes that the client has not taken yet.
        is_closed: nothing that it sends counts any more.
        is_watched: the reading thread waits for its events.
    """

    connection: LineConnection
    transfer_began_ms: int
    reader: FrameReader = field(default_factory=lambda: FrameReader(MAX_GREETING_BYTES))
    client_id: str = ""
    is_busy: bool = False
    arriving_bytes: int = 0
    output: bytearray = field(default_factory=bytearray)
    is_closed: bool = False
    is_watched: bool = False
    host: str = ""
    is_tcp: bool = False
    is_checked: bool = False


@dataclass(frozen=True)
class LineLetter:
    """A letter that came on a line. name: as it would have in the mailbox."""

    name: LetterName
    body: bytes
    line: Line


class LineTable:
    """All lines, by client, with the letters that wait to be decided. Thread-safe."""

    def __init__(self, clock: Clock, wake_reader: Callable[[], None]) -> None:
        """wake_reader: called when the reading thread has an answer to send."""
        self._clock, self._wake_reader = clock, wake_reader
        self._lock = threading.Lock()
        self._all: set[Line] = set()
        self._by_client: dict[str, Line] = {}
        self._inbox: OrderedDict[Line, LineLetter] = OrderedDict()
        self._inbox_bytes = self._arriving_bytes = 0

    def __len__(self) -> int:
        return len(self._all)

    @property
    def client_count(self) -> int:
        """How many clients have lines."""
        return len(self._by_client)

    # -- the sequencer's thread -------------------------------------------------------------------------

    def take_letter(self) -> LineLetter | None:
        """Return the letter that has waited longest; None if none waits."""
        with self._lock:
            if not self._inbox:
                return None
            _, letter = self._inbox.popitem(last=False)
            self._inbox_bytes -= len(letter.body)
            return letter

    def answer(self, letter: LineLetter, body: bytes) -> None:
        """Send an answer, without waiting. If the line has closed, the client asks again in another way."""
        line, frame = letter.line, encode_frame(FrameKind.ANSWER, body)
        with self._lock:
            line.is_busy = False
            if line.is_closed:
                return
            self._add_output(line, frame)

    def refuse(self, letter: LineLetter) -> None:
        """Close the line of a letter that this step does not decide, so that it comes through the mailbox."""
        with self._lock:
            self._drop(letter.line)

    def drop_client(self, client_id: str) -> None:
        """Close the client's line, if it has one, and forget everything it sent that was not taken yet."""
        with self._lock:
            line = self._by_client.get(client_id)
            if line is not None:
                self._drop(line)

    def drop_all(self) -> None:
        """Close all lines, and forget everything that came on them and was not taken yet."""
        with self._lock:
            for line in list(self._all):
                self._drop(line)

    # -- the reading thread -----------------------------------------------------------------------------

    def add(self, line: Line) -> None:
        """Add a connection that has not said hello yet."""
        with self._lock:
            self._all.add(line)

    def welcome(self, line: Line, client_id: str) -> None:
        """Let the line carry this client's letters from now on, and no other line."""
        with self._lock:
            previous_line = self._by_client.get(client_id)
            if previous_line is not None:
                self._drop(previous_line)
            if line.is_closed:
                return
            line.client_id, line.reader.max_bytes = client_id, MAX_FRAME_BYTES
            self._by_client[client_id] = line
            line.output += encode_frame(FrameKind.WELCOME, b"")
            self._send(line)

    def add_letter(self, letter: LineLetter) -> None:
        """Let a letter wait to be decided, unless its line is closed.

        Raises BadFrame if the client has not taken the answer before: its answers would pile up.
        """
        with self._lock:
            if letter.line.is_closed:
                return
            if letter.line.output:
                raise BadFrame("a letter from a client that has not taken the answer before")
            letter.line.is_busy = True
            self._inbox[letter.line] = letter
            self._inbox_bytes += len(letter.body)

    def send(self, line: Line, frame: bytes) -> None:
        """Send a frame that answers no letter, without waiting."""
        with self._lock:
            if not line.is_closed:
                self._add_output(line, frame)

    def send_output(self, line: Line) -> bool:
        """Send what the client takes at once. Return whether nothing is left."""
        with self._lock:
            self._send(line)
            return not line.output

    def lines(self) -> list[Line]:
        """Return all lines, also closed ones whose descriptors are open still."""
        with self._lock:
            return list(self._all)

    def lines_unlocked(self) -> list[Line]:
        """Return all lines in a forked child. A thread that does not exist there may hold the lock."""
        return list(self._all)

    def update_buffered_bytes(self, line: Line) -> int:
        """Note what has come on this line, and return the bytes of all letters that are arriving or wait."""
        with self._lock:
            self._arriving_bytes += line.reader.size_bytes - line.arriving_bytes
            line.arriving_bytes = line.reader.size_bytes
            return self._inbox_bytes + self._arriving_bytes

    def remove(self, line: Line) -> None:
        """Close the line and its descriptor."""
        with self._lock:
            self._drop(line)
            self._all.discard(line)
            self._arriving_bytes -= line.arriving_bytes
            line.arriving_bytes = 0
        line.connection.close()

    # -- both, with the lock held -----------------------------------------------------------------------

    def _add_output(self, line: Line, frame: bytes) -> None:
        line.output += frame
        self._send(line)
        if not line.output or line.is_closed:
            return
        if sum(len(line.output) for line in self._all) > MAX_OUTPUT_BYTES:
            self._drop(line)
        line.transfer_began_ms = self._clock.steady_ms()
        self._wake_reader()

    def _send(self, line: Line) -> None:
        try:
            while line.output and not line.is_closed:
                del line.output[: line.connection.send(line.output)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(line)

    def _drop(self, line: Line) -> None:
        """Ignore everything that the line sends from now on. The reading thread then closes its descriptor."""
        if line.is_closed:
            return
        line.is_closed = True
        if self._by_client.get(line.client_id) is line:
            del self._by_client[line.client_id]
        if (letter := self._inbox.pop(line, None)) is not None:
            self._inbox_bytes -= len(letter.body)
        # Closing it here could close a descriptor that the reading thread is about to read, or one with its number.
        with suppress(OSError):
            line.connection.shutdown(socket.SHUT_RDWR)
