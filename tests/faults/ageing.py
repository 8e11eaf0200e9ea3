"""Files that look old to the store, and waits for the removal of a log entry or a step."""

import os
import time
from pathlib import Path

from faults.processes import until

from lakemq.tables.storage.coordination.step_objects import list_steps
from lakemq.tables.storage.object_stores.files import LocalFiles

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


def age_data(table: Path, seconds: float = 2 * HOUR_S) -> None:
    """Make the table's data files look as if they were written so long ago."""
    for path in table.glob("*.parquet"):
        _age(path, seconds)


def wait_for_log_removal(table: Path, version: int) -> None:
    """Wait until the log has no entry up to this version. Another process must commit to the table meanwhile."""

    def is_removed() -> bool:
        age_log(table)
        return int(log_entries(table)[0].stem) > version

    until(is_removed, f"removal of the log's entries up to {version}")


def newest_step(path: str) -> int:
    """Return the number of the newest step of a namespace."""
    return max(list_steps(LocalFiles(path)))


def wait_for_step_removal(path: str, step: int) -> None:
    """Wait until the steps up to this one are removed, which takes a minute. A sequencer must lead meanwhile."""
    until(lambda: min(list_steps(LocalFiles(path))) > step, f"removal of the steps up to {step}")


def _age(path: Path, seconds: float) -> None:
    then_s = time.time() - seconds
    try:
        if path.stat().st_mtime > then_s + seconds / 2:
            os.utime(path, (then_s, then_s))
    except FileNotFoundError:  # removed meanwhile
        return
