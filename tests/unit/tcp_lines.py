"""A leader that listens on TCP, and clients that do what a test tells them to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from clocks import AheadClock

from lakemq.engine.client.line_connector import connect_to_leader
from lakemq.engine.namespace.line_frames import (
    MAX_FRAME_BYTES,
    Frame,
    FrameKind,
    FrameReader,
    Hello,
    LineAddress,
    encode_hello,
    encode_letter_frame,
)
from lakemq.engine.sequencer.letters.line_certificate import make_tls_context
from lakemq.engine.sequencer.letters.line_connections import LineListener
from lakemq.engine.sequencer.letters.line_table import LineLetter
from lakemq.engine.sequencer.letters.lines import LineServer
from lakemq.tables.storage.coordination import tcp_sockets
from lakemq.tables.storage.object_stores.files import Files, LocalFiles

LEASE_MS = 60_000
PATIENCE_S = 10


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it does not come"
        time.sleep(0.002)


class TcpClient:
    """A client's end, frame by frame."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._reader = FrameReader(MAX_FRAME_BYTES)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_letter(self, number: int, body: bytes) -> None:
        self.send(encode_letter_frame(number, body))

    def receive(self) -> Frame | None:
        """Return the next frame; None if the line is closed."""
        while True:
            for frame in self._reader.frames():
                return frame
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self._reader.add(data)


class TcpLeader:
    """Lines on a loopback address, with TLS or without. files: of the namespace, for the leader alone."""

    def __init__(self, folder: Path, has_tls: bool, files: Files | None = None, namespace_id: str = "ns") -> None:
        self.folder, self.clock, self.news = folder, AheadClock(), threading.Event()
        context, fingerprint = make_tls_context() if has_tls else (None, "")
        listening = tcp_sockets.listen("127.0.0.1", 0)
        self.port = listening.getsockname()[1]
        self.address = LineAddress(namespace_id, 3, "token", "", "127.0.0.1", self.port, fingerprint)
        self.files = LocalFiles(str(folder))
        self.lines = LineServer(
            [LineListener(listening, is_tcp=True, context=context)],
            files or self.files,
            self.address,
            LEASE_MS,
            self.clock.steady_ms(),
            self.news,
            self.clock,
        )

    def reach(self, client_id: str = "client") -> tuple[TcpClient, Hello]:
        """Connect as a client does, and return the hello that it would send."""
        reached = connect_to_leader(self.files, self.address, client_id, PATIENCE_S, PATIENCE_S)
        assert reached is not None
        return TcpClient(reached[0]), reached[1]

    def connect(self, client_id: str = "client") -> TcpClient:
        """Return a client that has been welcomed."""
        client, hello = self.reach(client_id)
        client.send(encode_hello(hello))
        assert client.receive() == Frame(FrameKind.WELCOME, b"")
        return client

    def connect_without_tls(self) -> TcpClient:
        """Return a connection on which nothing was sent."""
        return TcpClient(socket.create_connection(("127.0.0.1", self.port), PATIENCE_S))

    def take(self) -> LineLetter:
        """Return the next letter, when it comes."""
        until(lambda: len(self.lines.table._inbox) > 0)
        letter = self.lines.table.take_letter()
        assert letter is not None
        return letter

    def serve(self, client: TcpClient, number: int = 1) -> None:
        """Check that the leader takes and answers a letter of this client now."""
        client.send_letter(number, b"a letter")
        letter = self.take()
        assert (letter.name.number, letter.body) == (number, b"a letter")
        self.lines.table.answer(letter, b"an answer")
        assert client.receive() == Frame(FrameKind.ANSWER, b"an answer")

    def drain(self) -> None:
        """Wait until all that had arrived is read."""
        self.lines.request_drain()
        until(lambda: self.lines.take_drain() is not None)
