"""Guards for objects that belong to one process: threads, locks and counters do not survive a fork."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NoReturn, SupportsIndex, TypeAlias

from ...protocol.errors import IllegalState, UnknownServerError

_ADVICE = "multiprocessing's start method spawn or forkserver, or a connection made after the fork only"

INTERRUPT_GRACE_S = 0.25
"""How long each open object may take to end after Ctrl-C. A program usually has up to three in one another."""

_first_with_tables: int | None = None

Lock: TypeAlias = AbstractContextManager[Any]


current_id = os.getpid()
"""The id of this process. `os.getpid()` makes a system call, which takes as long as ten calls in Python."""


_pauses_collection = False


def _reset_in_child() -> None:
    global current_id, _pauses_collection
    current_id = os.getpid()
    if _pauses_collection:  # the thread that would turn it on again does not exist in the child
        _pauses_collection = False
        gc.enable()


os.register_at_fork(after_in_child=_reset_in_child)


def check_same_process(pid: int, what: str) -> None:
    """Raise IllegalState in a process that was forked from the process `pid`."""
    if current_id != pid:
        raise IllegalState(f"{what} was made in another process (fork): make one there.", expected=_ADVICE)


def claim_tables() -> None:
    """Claim tables for this process: from the first call on, processes forked from it get IllegalState.

    The threads of delta-rs do not survive a fork, and it panics when it is used there.
    """
    global _first_with_tables
    if _first_with_tables is None:
        _first_with_tables = os.getpid()
    if _first_with_tables != os.getpid():
        raise IllegalState("The process this one was forked from has used tables already.", expected=_ADVICE)


def start_thread(run: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread.

    Raises:
        UnknownServerError: the system gives no thread, and nothing has begun.
    """
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


def end_block(kind: type[BaseException] | None, close: Callable[[], object]) -> bool:
    """Close what a `with` block has opened. After Ctrl-C wait for it only for a moment; it goes on in a daemon thread.

    Args:
        kind: class of the exception that ended the block; None: there was none.
        close: its errors are dropped after Ctrl-C, because the interrupt is what the caller must see.

    Returns:
        Whether the object is closed.
    """
    if kind is None or not issubclass(kind, KeyboardInterrupt):
        close()
        return True

    def close_quietly() -> None:
        with suppress(Exception):
            close()

    thread = start_thread(close_quietly, "lakemq-interrupted")
    thread.join(INTERRUPT_GRACE_S)
    return not thread.is_alive()


@contextmanager
def close_after(close: Callable[[], object]) -> Iterator[None]:
    """Close something when the block ends, as `end_block` does."""
    kind = None
    try:
        yield
    except BaseException as error:
        kind = type(error)
        raise
    finally:
        end_block(kind, close)


class ProcessBound:
    """A base of objects with threads, locks or sockets, which cannot be sent to another process."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise IllegalState(
            f"This {type(self).__name__} cannot be pickled, so it cannot be sent to another process (spawn, Spark).",
            expected="lakemq.connect(path) in the process that uses it; messages and Arrow tables can be sent",
        )


class OwnLock:
    """A lock of one process. A forked process is refused; it would wait for a holder that does not exist there."""

    def __init__(self, what: str, lock: Lock | None = None) -> None:
        """lock: the lock to take, such as an RLock that is shared. By default a new Lock."""
        self._pid, self._what, self._lock = os.getpid(), what, lock or threading.Lock()

    @property
    def own(self) -> Lock:
        """The lock itself, for `with`. Raises IllegalState in another process.

        `with` on the lock itself leaves no gap between taking it and the block, in which a signal handler could raise.
        """
        check_same_process(self._pid, self._what)
        return self._lock


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Collect no garbage in this block, because it makes many objects that all stay."""
    global _pauses_collection
    if not gc.isenabled():
        yield
        return
    _pauses_collection = True
    gc.disable()
    try:
        yield
    finally:
        _pauses_collection = False
        gc.enable()
