"""The heartbeats that have come on the lines of one term.

A process whose line is open sends its heartbeats on it, and writes no objects. Three rules keep its members safe:

1. A heartbeat counts only while steps land. `lines` closes every line when none has begun for a lease: another
   sequencer may lead then, and would never hear of what comes here.
2. The process is told of each heartbeat that counts. When it is not told in time, or its line closes, it writes the
   object at once.
3. No member counts as silent before everything that had arrived on lines was read (`read_all`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ...namespace.follow_frames import LineBeat
from ...namespace.line_frames import BadFrame
from ...namespace.processes.clock import Clock
from ...protocol.codec.beat import MemberBeat, decode_beat
from .line_table import Line

MAX_BYTES = 64 << 20
"""Bytes of the newest heartbeats of all lines. A line whose heartbeat would exceed this is closed."""
READ_TIMEOUT_S = 5.0
"""How long `read_all` waits for the reading thread, which never takes that long unless the process is stopped."""

_MAX_CLOSED = 4096
"""How many beats of closed lines are kept. Lines that close in a second are fewer, except in an attack.

Together they have at most MAX_BYTES, too: a client may close its line and open another one again and again.
"""


@dataclass(frozen=True)
class ProcessBeat:
    """The newest heartbeat on a line.

    Attributes:
        number: grows with each heartbeat of the process, also with those in objects.
        at_ms: when it was read, by the steady clock.
        size_bytes: of its content.
    """

    beats_id: str
    number: int
    members: list[MemberBeat]
    at_ms: int
    size_bytes: int


class LineBeats:
    """The newest heartbeat of each line. Thread-safe."""

    def __init__(self, clock: Clock, wake_reader: Callable[[], None]) -> None:
        """wake_reader: called to have the reading thread read at once what has arrived."""
        self._clock, self._wake_reader = clock, wake_reader
        self._changed = threading.Condition()
        self._by_line: dict[Line, ProcessBeat] = {}
        self._last: dict[str, ProcessBeat] = {}
        """Id of beats -> the last one of a line that has closed since the last `read_all`."""
        self._size_bytes = self._last_bytes = 0
        self._is_over = self._has_lost = False
        self._rounds_requested = self._rounds_done = 0
        """Numbers of rounds of the reading thread over all lines. Each begins after it was requested."""

    # -- any thread -------------------------------------------------------------------------------------

    @property
    def has_lost(self) -> bool:
        """Whether a line with heartbeats has closed since the last `list_newest`."""
        return self._has_lost

    def list_newest(self) -> list[ProcessBeat]:
        """Return the newest heartbeat of each open line, and reset `has_lost`."""
        with self._changed:
            self._has_lost = False
            return list(self._by_line.values())

    def read_all(self) -> list[ProcessBeat]:
        """Return the newest heartbeats once everything was read that had arrived before this call.

        They are those of the open lines, and the last ones of lines that have closed since the last call.

        Raises TimeoutError: the reading thread does not answer, so nobody may be judged by what it has read.
        """
        with self._changed:
            self._rounds_requested += 1
            number = self._rounds_requested
        self._wake_reader()
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_over or self._rounds_done >= number, READ_TIMEOUT_S):
                raise TimeoutError(f"the lines were not read within {READ_TIMEOUT_S:.0f} s")
            closed, self._last, self._last_bytes = self._last, {}, 0
            return [*closed.values(), *self._by_line.values()]

    # -- the reading thread -----------------------------------------------------------------------------

    def note(self, line: Line, beat: LineBeat) -> None:
        """Note a heartbeat. Raises BadFrame."""
        try:
            members = decode_beat(beat.body)
        except ValueError as error:
            raise BadFrame(f"not a heartbeat: {error}") from error
        newest = ProcessBeat(beat.beats_id, beat.number, members, self._clock.steady_ms(), len(beat.body))
        with self._changed:
            before = self._by_line.get(line)
            size_bytes = self._size_bytes + newest.size_bytes - (before.size_bytes if before else 0)
            if size_bytes > MAX_BYTES:
                raise BadFrame(f"the heartbeats of all lines have more than {MAX_BYTES} bytes")
            self._size_bytes, self._by_line[line] = size_bytes, newest

    def forget(self, line: Line) -> bool:
        """Forget the heartbeats of a line that has closed. Return whether it had any."""
        with self._changed:
            beat = self._by_line.pop(line, None)
            if beat is None:
                return False
            self._size_bytes -= beat.size_bytes
            self._has_lost = True
            self._keep_last(beat)
            return True

    def _keep_last(self, beat: ProcessBeat) -> None:
        before = self._last.get(beat.beats_id)
        size_bytes = self._last_bytes + beat.size_bytes - (before.size_bytes if before else 0)
        is_room = before is not None or len(self._last) < _MAX_CLOSED
        if is_room and size_bytes <= MAX_BYTES:
            self._last_bytes, self._last[beat.beats_id] = size_bytes, beat

    @property
    def is_round_requested(self) -> bool:
        """Whether somebody waits for a round that has not begun yet."""
        return self._rounds_requested != self._rounds_done

    def begin_round(self) -> int:
        """Return the number of the round over all lines that begins now."""
        return self._rounds_requested

    def end_round(self, number: int) -> None:
        """Note that everything was read that had arrived before this round began."""
        if number != self._rounds_done:
            with self._changed:
                self._rounds_done = number
                self._changed.notify_all()

    def end(self) -> None:
        """Note that no heartbeat can come any more."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
