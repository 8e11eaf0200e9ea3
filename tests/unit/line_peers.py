"""The two ends of a line, over any socket: a client that does what a test tells it to, and a leader's lines."""

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lakemq.engine.namespace.line_frames import MAX_FRAME_BYTES, Frame, FrameReader, LineAddress, encode_letter_frame
from lakemq.engine.sequencer.letters.line_table import LineLetter, LineListener
from lakemq.engine.sequencer.letters.lines import LineServer
from lakemq.tables.storage.object_stores.files import Files, LocalFiles
from lakemq.testing import MovableClock

LEASE_MS = 60_000
PATIENCE_S = 60


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, for at most PATIENCE_S."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it does not come"
        time.sleep(0.002)


class LineClient:
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


class LineLeader:
    """The lines of a leader, with their clock. files: of the namespace, for the leader alone."""

    def __init__(self, folder: Path, listener: LineListener, address: LineAddress, files: Files | None = None) -> None:
        self.clock, self.news = MovableClock(), threading.Event()
        self.address, self.files = address, LocalFiles(str(folder))
        now_ms = self.clock.steady_ms()
        self.lines = LineServer([listener], files or self.files, address, LEASE_MS, now_ms, self.news, self.clock)

    def take(self) -> LineLetter:
        """Return the next letter, when it comes."""
        letters: list[LineLetter | None] = []
        until(lambda: letters.append(self.lines.table.take_letter()) or letters[-1] is not None)
        letter = letters[-1]
        assert letter is not None
        return letter

    def drain(self) -> None:
        """Wait until all that had arrived is read."""
        self.lines.request_drain()
        until(lambda: self.lines.take_drain() is not None)
