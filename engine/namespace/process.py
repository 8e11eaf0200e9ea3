"""What belongs to one process: its threads, locks and numbers do not come along when it forks."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

from ..protocol.errors import IllegalState, UnknownServerError

_ADVICE = "multiprocessing's start method spawn or forkserver, or a connection made after the fork only"

_first_with_tables: int | None = None

Lock: TypeAlias = AbstractContextManager[Any]


current_id = os.getpid()
"""Of this process: `os.getpid()` asks the system, which takes as long as ten calls of Python's."""


_collects_later = False


def _forked() -> None:
    global current_id, _collects_later
    current_id = os.getpid()
    if _collects_later:  # who is to turn it on again has not come along
        _collects_later = False
        gc.enable()


os.register_at_fork(after_in_child=_forked)


def same_process(pid: int, what: str) -> None:
    """Nothing, in the process `pid`. Raises IllegalState in one forked from it."""
    if current_id != pid:
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


def started_thread(run: Callable[[], object], name: str) -> threading.Thread:
    """A daemon thread that runs it. Raises UnknownServerError: the system gives no thread, and nothing has begun."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise UnknownServerError(
            f"The thread {name} could not be started; nothing was sent. Try again later.",
            found=str(error) or type(error).__name__,
            expected="room for a thread (ulimit -u, the pids limit of a container, memory)",
        ) from error
    return thread


class OwnLock:
    """A lock of one process. Who got it by a fork is refused, and does not wait for a holder who is not there."""

    def __init__(self, what: str, lock: Lock | None = None) -> None:
        """lock: the one that is taken, such as an RLock that others share; else a Lock of its own."""
        self._pid, self._what, self._lock = os.getpid(), what, lock or threading.Lock()

    @property
    def own(self) -> Lock:
        """The lock itself, for `with`: between taking it and the block no signal comes, as one may in Python code.

        Raises IllegalState in another process.
        """
        same_process(self._pid, self._what)
        return self._lock


@contextmanager
def no_collecting() -> Iterator[None]:
    """No garbage is looked for in this block: it makes many objects, and all of them stay."""
    global _collects_later
    if not gc.isenabled():
        yield
        return
    _collects_later = True
    gc.disable()
    try:
        yield
    finally:
        _collects_later = False
        gc.enable()
