"""What belongs to one process: its threads, locks and numbers do not come along when it forks."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Any

from .protocol.errors import IllegalState

_ADVICE = "multiprocessing's start method spawn or forkserver, or a connection made after the fork only"

_first_with_tables: int | None = None


def same_process(pid: int, what: str) -> None:
    """Nothing, in the process `pid`. Raises IllegalState in one forked from it."""
    if os.getpid() != pid:
        raise IllegalState(f"{what} was made in another process (fork): make one there.", expected=_ADVICE)


def claim_tables() -> None:
    """From the first call on, tables are for this process, and not for those forked from it: they get IllegalState.

    The threads of delta-rs are lost in a fork; it panics when it is used there.
    """
    global _first_with_tables
    if _first_with_tables is None:
        _first_with_tables = os.getpid()
    if _first_with_tables != os.getpid():
        raise IllegalState("The process this one was forked from has used tables already.", expected=_ADVICE)


class OwnLock:
    """A lock of one process. Who got it by a fork is refused, and does not wait for a holder who is not there."""

    def __init__(self, what: str, lock: Any = None) -> None:
        """lock: the one that is taken, such as an RLock that others share; else a Lock of its own."""
        self._pid, self._what, self._lock = os.getpid(), what, lock or threading.Lock()

    def __enter__(self) -> None:
        same_process(self._pid, self._what)
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
