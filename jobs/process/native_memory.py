"""Bound the native memory of a process that serves for months; and let a short command collect less garbage.

Python objects and live Arrow buffers are a small part of it. The rest is freed memory that an allocator keeps. Three
measures bound it:

- Arrow allocates from the system. Its own allocator, mimalloc, kept 107 MB after 4,500 small steps, with 0.4 MB
  in use. A likely reason: it keeps a heap per thread, and a leader frees most buffers in other threads than those
  that made them.
- The system's allocator gives unused memory back at intervals. By itself, glibc returns only the end of a heap.
- glibc has two heaps instead of eight per core, and gives large buffers memory of their own. Many threads of delta-rs
  come and go, and each heap keeps pages that hold one small buffer among freed ones. After 30,000 small steps the heaps
  held 110 MB for 25 MB in use; with two heaps they hold 52 MB, from the beginning on.
"""

import ctypes
import gc
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

ALLOCATOR_VARIABLE = "ARROW_DEFAULT_MEMORY_POOL"
"""Arrow reads it once, when it is loaded. `pyarrow.set_memory_pool` comes too late: readers keep the first pool."""

RELEASE_INTERVAL_S = 2.0
"""After 20,000 steps, about 60 MB of unused memory gather within four seconds. A release takes a few milliseconds."""


_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Parameters of glibc's mallopt, as in malloc.h."""

HEAPS = 2
LARGE_BYTES = 256 << 10
"""From this size on, a buffer has memory of its own. glibc would otherwise raise its limit up to 32 MB."""


def choose_allocator() -> None:
    """Have Arrow allocate from the system, unless the environment names an allocator, and bound the system's heaps.

    Call it before Arrow is loaded, and before threads are started.
    """
    os.environ.setdefault(ALLOCATOR_VARIABLE, "system")
    bound_heaps(os.environ)


def bound_heaps(environment: Mapping[str, str]) -> bool:
    """Bound the heaps of glibc, and return whether that was possible. What the environment sets stays."""
    if platform.libc_ver()[0] != "glibc" or "GLIBC_TUNABLES" in environment:
        return False
    library, is_set = ctypes.CDLL(None), True
    for variable, parameter, value in (
        ("MALLOC_ARENA_MAX", _ARENA_MAX, HEAPS),
        ("MALLOC_MMAP_THRESHOLD_", _MMAP_THRESHOLD, LARGE_BYTES),
    ):
        if variable not in environment:
            is_set &= library.mallopt(parameter, value) == 1
    return is_set


class MemoryRelease:
    """Gives unused memory back to the system at intervals."""

    def __init__(self, interval_s: float = RELEASE_INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._next_s = time.monotonic() + interval_s

    def look(self) -> bool:
        """Release unused memory if the interval has passed, and return whether it has."""
        if time.monotonic() < self._next_s:
            return False
        release_unused_memory()
        # counted from the end, so that a slow release is not followed by another one at once
        self._next_s = time.monotonic() + self._interval_s
        return True


def release_unused_memory() -> None:
    """Give the allocators' unused memory back to the system. For the system's allocator, Arrow calls `malloc_trim`.

    Other threads run meanwhile: Arrow releases the interpreter's lock.
    """
    import pyarrow as pa  # imported late: Arrow is slow to load, and must be loaded after the allocator is chosen

    pa.default_memory_pool().release_unused()


# Let Python search for garbage less often, while a short command starts or a leader works.


_COLLECT_AFTER = (200_000, 10, 10)
"""New objects between two searches. Importing makes about as many, and hardly any garbage."""


@contextmanager
def collect_rarely(*thresholds: int) -> Iterator[None]:
    """Search for garbage rarely in this block. thresholds: as of `gc.set_threshold`; by default, for a short command.

    By default Python searches after every 700 new objects. The imports of a command make so many objects that these
    searches take a sixth of its time.
    """
    before = gc.get_threshold()
    gc.set_threshold(*(thresholds or _COLLECT_AFTER))
    try:
        yield
    finally:
        gc.set_threshold(*before)
