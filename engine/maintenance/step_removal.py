"""Remove old step objects, one after the other in ascending order.

Invariant: a step is removed only if a later watermark has been durable for KEPT_MS, by this process's steady clock. So
every reader that has begun at an older watermark has noticed by then (see `step_objects`), and the newest step stays.
"""

from __future__ import annotations

from collections import deque

from lakemq.tables.storage.coordination.step_objects import KEPT_MS, list_steps, step_name
from lakemq.tables.storage.object_stores.files import Files

from ..namespace.processes import crash
from ..namespace.processes.clock import Clock

_MOST_MS = 500
"""Time that one call may take, because a pass waits for it. What is left is removed after the next pass."""


class StepRemoval:
    """Removes old step objects during one term. Not thread-safe."""

    def __init__(
        self, files: Files, clock: Clock, watermark_step: int, crash_point: crash.CrashPoint = crash.nowhere
    ) -> None:
        """watermark_step: of the newest watermark. It counts as written now, whenever that was."""
        self._files, self._clock, self._crash_point = files, clock, crash_point
        self._watermarks = deque([(clock.steady_ms(), watermark_step)])
        self._waiting: deque[int] | None = None
        self._end = 0

    def note_watermark(self, step: int) -> None:
        """Note that the watermark of this step has just been written durably."""
        self._watermarks.append((self._clock.steady_ms(), step))

    def remove_old(self) -> None:
        """Remove the steps before the newest watermark that is KEPT_MS old. Raises OSError; go on at the next call."""
        begun_ms = self._clock.steady_ms()
        while len(self._watermarks) > 1 and self._watermarks[1][0] <= begun_ms - KEPT_MS:
            self._watermarks.popleft()
        written_ms, end = self._watermarks[0]
        if written_ms > begun_ms - KEPT_MS:
            return
        if self._waiting is None:  # earlier leaders may have left some
            self._waiting = deque(step for step in list_steps(self._files) if step < end)
        else:
            self._waiting.extend(range(self._end, end))
        self._end = max(end, self._end)
        while self._waiting and self._clock.steady_ms() - begun_ms <= _MOST_MS:
            self._files.delete([step_name(self._waiting[0])])
            self._waiting.popleft()
            self._crash_point("housekeeping.step_removed")
