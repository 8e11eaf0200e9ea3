"""Files that look old to the store."""

import os
import time
from pathlib import Path

HOUR_S = 3600
NEWEST_COUNT = 5
"""The newest entries of a log that keep their time, because they are followed and appended to."""


def log_entries(table: Path) -> list[Path]:
    """Return the entries of a Delta table's log, by version."""
    return sorted((table / "_delta_log").glob("*.json"))


def newest_version(table: Path) -> int:
    return int(log_entries(table)[-1].stem)


def age_log(table: Path, seconds: float = 2 * HOUR_S, newest_count: int = NEWEST_COUNT) -> None:
    """Make all but the newest `newest_count` entries and checkpoints look as if they were written so long ago."""
    last = newest_version(table)
    for path in (table / "_delta_log").iterdir():
        version = path.name.partition(".")[0]
        if version.isdigit() and int(version) <= last - newest_count:
            _age(path, seconds)


def _age(path: Path, seconds: float) -> None:
    then_s = time.time() - seconds
    try:
        if path.stat().st_mtime > then_s + seconds / 2:
            os.utime(path, (then_s, then_s))
    except FileNotFoundError:  # removed meanwhile
        return
