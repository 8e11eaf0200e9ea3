"""The lines whose clients wait for a step, and the steps that they are told of.

A hint only says that there is a new step. The client then reads the step from the store, as it would without a hint. So
a hint that is late, lost or from a former leader does no harm.

The sequencer's thread notes steps that are decided. The reading thread sends the hints, one per request of a client:
a client that reads slowly asks rarely, and never has more than one hint in its way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...namespace.follow_frames import FollowFrameKind, encode_number_frame
from .line_table import Line


class Followers:
    """The waiting followers of one term. Thread-safe."""

    def __init__(self, send: Callable[[Line, bytes], None], wake_reader: Callable[[], None]) -> None:
        """Create them for a term.

        Args:
            send: sends a frame on a line without waiting.
            wake_reader: called when the reading thread has hints to send.
        """
        self._send, self._wake_reader = send, wake_reader
        self._lock = threading.Lock()
        self._waiting: dict[Line, int] = {}
        """Line -> the last step that its client has read."""
        self._newest_step = self._announced_step = 0

    # -- the sequencer's thread -------------------------------------------------------------------------

    def note_step(self, step: int) -> None:
        """Note a step that is decided: its put succeeded, and the look afterwards found the step before unchanged."""
        self._newest_step = step

    def announce(self) -> None:
        """Have the followers told of the newest step. Its letters must be answered before."""
        with self._lock:
            is_new = self._announced_step != self._newest_step
            self._announced_step = self._newest_step
            has_hints = is_new and bool(self._waiting)
        if has_hints:
            self._wake_reader()

    # -- the reading thread -----------------------------------------------------------------------------

    def add(self, line: Line, step: int) -> None:
        """Tell the client once of a step after this one: now, or when there is one."""
        with self._lock:
            newest = self._announced_step
            if step >= newest:
                self._waiting[line] = step
                return
            self._waiting.pop(line, None)
        self._send(line, encode_number_frame(FollowFrameKind.STEP, newest))

    def send_hints(self) -> None:
        """Tell the clients that wait for a step that is there now."""
        with self._lock:
            newest = self._announced_step
            behind = [line for line, step in self._waiting.items() if step < newest]
            for line in behind:
                del self._waiting[line]
        if behind:
            frame = encode_number_frame(FollowFrameKind.STEP, newest)
            for line in behind:
                self._send(line, frame)

    def forget(self, line: Line) -> None:
        with self._lock:
            self._waiting.pop(line, None)
