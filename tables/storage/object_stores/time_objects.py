"""The objects `time-<32 hexadecimal digits>`, which are put to learn the time of a store and deleted at once.

A process that is killed in between leaves its object behind.
"""

from __future__ import annotations

import re
import uuid

from .objects import Files

ABANDONED_AFTER_MS = 3_600_000
"""Age by the store's time after which an object is left over. Its process needs it for less than a minute."""

_NAME = re.compile("time-[0-9a-f]{32}")


def make_time_name() -> str:
    """Return a name that no other process uses."""
    return f"time-{uuid.uuid4().hex}"


def remove_abandoned_times(files: Files, now_ms: int) -> None:
    """Delete the objects of killed processes. now_ms: the store's time. Raises OSError."""
    names = [name for name in files.list("") if _NAME.fullmatch(name)]
    ages_ms = {name: now_ms - (files.modified_ms(name) or now_ms) for name in names}
    files.delete(name for name, age_ms in ages_ms.items() if age_ms > ABANDONED_AFTER_MS)
