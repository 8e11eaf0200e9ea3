"""Files that look old, for who goes by the times of the store; and waiting until an entry of a log is gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

from faults.processes import until

HOUR_S = 3600
KEPT = 5
"""Of a log these newest entries keep their time: they are being followed and appended to."""


def log_entries(table: Path) -> list[Path]:
    """Of a Delta table, by version."""
    return sorted((table / "_delta_log").glob("*.json"))


def newest_version(table: Path) -> int:
    return int(log_entries(table)[-1].stem)


def age_log(table: Path, seconds: float = 2 * HOUR_S) -> None:
    """Its entries, but for the newest ones, look as if they were written so long ago."""
    for entry in log_entries(table)[:-KEPT]:
        _age(entry, seconds)


def age_data(table: Path, seconds: float = 2 * HOUR_S) -> None:
    """Its data files look as if they were written so long ago."""
    for path in table.glob("*.parquet"):
        _age(path, seconds)


def until_expired(table: Path, version: int, timeout_s: float = 60) -> None:
    """Until the log has no entry of this version any more. Somebody has to commit to the table meanwhile."""
    entry = table / "_delta_log" / f"{version:020d}.json"

    def gone() -> bool:
        age_log(table)
        return not entry.exists()

    until(gone, timeout_s, f"removal of {entry.name}")


def _age(path: Path, seconds: float) -> None:
    then_s = time.time() - seconds
    try:
        if path.stat().st_mtime > then_s + seconds / 2:
            os.utime(path, (then_s, then_s))
    except FileNotFoundError:  # removed meanwhile
        return
