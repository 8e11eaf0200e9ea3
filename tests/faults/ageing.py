"""Files that look old to the store."""

import os
import time
from pathlib import Path

HOUR_S = 3600


def log_entries(table: Path) -> list[Path]:
    """Return the entries of a Delta table's log, by version."""
    return sorted((table / "_delta_log").glob("*.json"))


def newest_version(table: Path) -> int:
    return int(log_entries(table)[-1].stem)


def age_log(table: Path) -> None:
    """Make all entries and checkpoints before the newest entry look two hours old, while no sequencer runs."""
    last, then_s = newest_version(table), time.time() - 2 * HOUR_S
    for path in (table / "_delta_log").iterdir():
        version = path.name.partition(".")[0]
        if version.isdigit() and int(version) < last:
            os.utime(path, (then_s, then_s))
