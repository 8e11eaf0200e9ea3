"""Crash points: the named places between two writes where a process may die.

`LAKEMQ_CRASH_AT=<point>:<n>` kills the process with SIGKILL at its n-th arrival there, so that a test can prove that
the point was reached and that nothing is half done. Without the variable an arrival costs one comparison.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable

VARIABLE = "LAKEMQ_CRASH_AT"

Reached = Callable[[str], None]

POINTS: tuple[str, ...] = (
    "sequencer.elected",
    "sequencer.letters_taken",
    "sequencer.rows_written",
    "sequencer.step_written",
    "sequencer.journal_appended",
    "sequencer.answered",
    "sequencer.letters_discarded",
    "sequencer.resigned",
    "projector.rows_written",
    "projector.messages_registered",
    "projector.table_appended",
    "projector.tables_appended",
    "projector.watermark_written",
    "housekeeping.merged_file_written",
    "housekeeping.files_swapped",
    "housekeeping.checkpointed",
    "housekeeping.merged_journal_written",
    "housekeeping.journal_swapped",
    "housekeeping.merged_data_written",
    "housekeeping.merged_registered",
    "housekeeping.segments_swapped",
    "housekeeping.old_removed",
    "housekeeping.old_deleted",
    "publish.file_written",
    "publish.letter_put",
    "inbox.published",
    "inbox.drained",
    "stream.progress_saved",
    "stream.published",
)


def nowhere(point: str) -> None:
    """Never dies."""


def from_environment(environ: dict[str, str] | None = None) -> Reached:
    """The function to call on arrival at a point, as the environment asks."""
    wanted = (os.environ if environ is None else environ).get(VARIABLE)
    if not wanted:
        return nowhere
    name, _, count = wanted.partition(":")
    if name not in POINTS:
        raise ValueError(f"{VARIABLE} names no crash point: found {name!r}, expected one of {', '.join(POINTS)}")
    arrivals: Counter[str] = Counter()

    def reached(point: str) -> None:
        arrivals[point] += 1
        if point == name and arrivals[point] >= int(count or 1):
            os.kill(os.getpid(), signal.SIGKILL)

    return reached
