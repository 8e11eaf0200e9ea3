"""Crash points: named places between two writes, where tests kill the process.

`LAKEMQ_CRASH_AT=<point>:<n>` kills the process with SIGKILL at its n-th arrival at the point. So a test can prove that
the point was reached and that no work is left half done. Without the variable, an arrival costs one comparison.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable

VARIABLE = "LAKEMQ_CRASH_AT"

CrashPoint = Callable[[str], None]
"""Called with the name of a point when it is reached."""

POINTS: tuple[str, ...] = (
    "sequencer.elected",
    "sequencer.letters_taken",
    "sequencer.rows_written",
    "sequencer.step_put",
    "sequencer.step_landed",
    "sequencer.answered",
    "sequencer.letters_discarded",
    "sequencer.resigned",
    "projector.rows_written",
    "projector.messages_registered",
    "projector.table_rows_written",
    "projector.table_appended",
    "projector.tables_appended",
    "projector.watermark_written",
    "projector.final_messages_synced",
    "finalizing.announced",
    "finalizing.file_written",
    "finalizing.files_rewritten",
    "finalizing.segments_swapped",
    "finalizing.segments_switched",
    "housekeeping.merged_file_written",
    "housekeeping.files_swapped",
    "housekeeping.checkpointed",
    "housekeeping.step_removed",
    "housekeeping.merged_data_written",
    "housekeeping.merged_registered",
    "housekeeping.segments_swapped",
    "housekeeping.old_removed",
    "housekeeping.old_deleted",
    "publish.file_written",
    "publish.letter_put",
    "inbox.published",
    "inbox.drained",
    "stream.published",
)


def nowhere(point: str) -> None:
    """Do nothing: no crash point is active."""


def from_environment(environ: dict[str, str] | None = None) -> CrashPoint:
    """Return the function to call at crash points, as the environment says."""
    setting = (os.environ if environ is None else environ).get(VARIABLE)
    if not setting:
        return nowhere
    name, _, count = setting.partition(":")
    if name not in POINTS:
        raise ValueError(f"{VARIABLE} names no crash point: found {name!r}, expected one of {', '.join(POINTS)}")
    arrivals: Counter[str] = Counter()

    def crash_point(point: str) -> None:
        arrivals[point] += 1
        if point == name and arrivals[point] >= int(count or 1):
            os.kill(os.getpid(), signal.SIGKILL)

    return crash_point
