"""A client's end of a line that carries no letters: it waits for new steps, or sends heartbeats.

Such a line only saves time and requests. Without one, a waiting consumer polls the store, and heartbeats are objects.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable

from ...namespace.clock import Clock
from ...namespace.line_frames import (
    MAX_LINE_BEAT_BYTES,
    FollowFrameKind,
    FrameReader,
    LineBeat,
    decode_number,
    encode_beat_frame,
    encode_number_frame,
)
from .direct_line import PATIENCE_MS, DirectLine, close_in_forked_child

log = logging.getLogger(__name__)

BEAT_SEEN_MS = 1_000
"""Time in which the leader must answer a heartbeat. A leader that is stopped longer may be replaced soon."""
REDIAL_MS = 1_000
"""Time between two tries to reach a leader."""
SHORTEST_DIAL_MS = 500
"""Least time for a leader to answer, also if a wait is shorter. Over TCP, a line takes five requests to a store."""

_SEND_S = 1.0
_RECEIVED_BYTES = 64 << 10


class FollowLine:
    """A line to the leader, opened when it is needed. For one thread, and for one of its two uses."""

    def __init__(self, dialer: DirectLine, new_id: Callable[[], str], clock: Clock) -> None:
        """dialer: opens connections, and is used for nothing else."""
        self._dialer, self._new_id, self._clock = dialer, new_id, clock
        self._connection: socket.socket | None = None
        self._reader = FrameReader(0)
        self._dial_at_ms = clock.steady_ms()
        self._awaited_step: int | None = None
        """The leader was asked to tell of a step after this one, and has not done so."""
        close_in_forked_child(self)

    def open(self, timeout_ms: float = PATIENCE_MS) -> bool:
        """Open the line if it is not open. Return whether it is. timeout_ms: for the leader to answer."""
        if self._connection is not None:
            return True
        now_ms = self._clock.steady_ms()
        if now_ms < self._dial_at_ms:
            return False
        self._dial_at_ms = now_ms + REDIAL_MS
        dialled = self._dialer.dial(self._new_id(), timeout_ms)
        if dialled is None:
            return False
        self._connection, self._reader = dialled
        return True

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._awaited_step = None
        if connection is not None:
            connection.close()

    def await_step(self, step: int, most_ms: float | None = None) -> bool:
        """Ask the leader for a hint when there is a step after this one. Return False if there is no line.

        most_ms: how long the caller waits at most. Opening the line takes no longer, except for SHORTEST_DIAL_MS.
        """
        if not self.open(PATIENCE_MS if most_ms is None else min(PATIENCE_MS, max(most_ms, SHORTEST_DIAL_MS))):
            return False
        if self._awaited_step != step:
            self._awaited_step = step
            return self._send(encode_number_frame(FollowFrameKind.AWAIT_STEP, step))
        return True

    def wait_for_hint(self, timeout_ms: float) -> bool:
        """Wait for the leader's hint. Return True if it has come or the line is lost, False if the time is over."""
        number = self._receive(FollowFrameKind.STEP, timeout_ms)
        if number is not None:
            self._awaited_step = None
        return number is not None or self._connection is None

    def owes_hint(self) -> bool:
        """Return whether the leader was asked for a hint that has not come. This neither waits nor opens the line."""
        return self._awaited_step is not None and not self.wait_for_hint(0)

    def send_beat(self, beat: LineBeat) -> bool:
        """Send a heartbeat, and wait until the leader counts it. Return False if it must be written as an object."""
        if len(beat.body) > MAX_LINE_BEAT_BYTES // 2 or not self.open():
            return False
        if not self._send(encode_beat_frame(beat)):
            return False
        if self._receive(FollowFrameKind.BEAT_SEEN, BEAT_SEEN_MS) != beat.number:
            self.close()  # the leader may be stopped: what it reads later must not be taken for an answer to the next
            return False
        return True

    def is_open(self) -> bool:
        """Return whether the line is still open after the last heartbeat. It neither waits nor opens the line."""
        self._receive(FollowFrameKind.BEAT_SEEN, 0)
        return self._connection is not None

    def _send(self, frame: bytes) -> bool:
        assert self._connection is not None
        try:
            self._connection.settimeout(_SEND_S)
            self._connection.sendall(frame)
        except OSError as error:
            self._lose(error)
            return False
        return True

    def _receive(self, kind: FollowFrameKind, timeout_ms: float) -> int | None:
        """Return the number in the next frame, which must be of this kind; None: none came, or the line is lost."""
        deadline_ms = self._clock.steady_ms() + timeout_ms
        try:
            while self._connection is not None:
                for frame in self._reader.frames():
                    if frame.kind != kind:
                        raise ValueError(f"frame {frame.kind}, expected {kind}")
                    return decode_number(frame.content)
                self._connection.settimeout(max(0.0, deadline_ms - self._clock.steady_ms()) / 1000)
                data = self._connection.recv(_RECEIVED_BYTES)
                if not data:
                    raise ConnectionError("the sequencer has closed the line")
                self._reader.add(data)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            pass
        except (OSError, ValueError) as error:
            self._lose(error)
        return None

    def _lose(self, error: Exception) -> None:
        log.debug("A line for steps or heartbeats has ended: %s", error)
        self.close()
