"""Let Python search for garbage less often while a short command starts."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_COLLECT_AFTER = 200_000
"""New objects between two searches. Importing makes about as many, and hardly any garbage."""


@contextmanager
def collect_rarely() -> Iterator[None]:
    """Search for garbage rarely in this block.

    By default Python searches after every 700 new objects. The imports of a command make so many objects that these
    searches take a sixth of its time.
    """
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
