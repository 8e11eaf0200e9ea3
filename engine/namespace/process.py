"""Guards for objects that belong to one process, and a process's identity: whether another one still runs.

Threads, locks and counters do not survive a fork.
"""

from __future__ import annotations

import gc
import getpass
import os
import re
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NoReturn, SupportsIndex, TypeAlias
from weakref import WeakSet

from ..protocol.errors import IllegalState, UnknownServerError

_ADVICE = "multiprocessing's start method spawn or forkserver, or a connection made after the fork only"

INTERRUPT_GRACE_S = 0.25
"""How long each open object may take to end after Ctrl-C. A program usually has up to three in one another."""

_first_with_tables: int | None = None

Lock: TypeAlias = AbstractContextManager[Any]


current_id = os.getpid()
"""The id of this process. `os.getpid()` makes a system call, which takes as long as ten calls in Python."""


_own_locks: WeakSet[OwnLock] = WeakSet()
"""The locks of this process. A forked child must not take its copies."""

_pauses_collection = False


def _reset_in_child() -> None:
    global current_id, _pauses_collection
    current_id = os.getpid()
    for lock in list(_own_locks):
        lock.own = _RefusedLock(lock.what)
    if _pauses_collection:  # the thread that would turn it on again does not exist in the child
        _pauses_collection = False
        gc.enable()


os.register_at_fork(after_in_child=_reset_in_child)


def build_fork_error(what: str) -> IllegalState:
    """Return the error for an object that is used in a process that was forked from its own. what: the object."""
    return IllegalState(f"{what} was made in another process (fork): make one there.", expected=_ADVICE)


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
    """A lock of one process. A forked process is refused; it would wait for a holder that does not exist there.

    Attributes:
        own: the lock itself, for `with`. In a forked process this raises IllegalState. `with` on the lock itself leaves
            no gap between taking it and the block, in which a signal handler could raise.
    """

    def __init__(self, what: str, lock: Lock | None = None) -> None:
        """lock: the lock to take, such as an RLock that is shared. By default a new Lock."""
        self.what, self.own = what, lock or threading.Lock()
        _own_locks.add(self)


class _RefusedLock(AbstractContextManager[Any]):
    """Stands for a lock in a forked process."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> NoReturn:
        raise build_fork_error(self._what)

    def __exit__(self, *_: object) -> None:
        pass


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


# Name a process so that another process of the same machine can tell whether it still runs.
#
# A process id is not enough: ids are reused after a while, exist once per container, and start again after a reboot. So
# the identity also has what changes in these cases:
#
# - the boot id, which is random per boot, so that no other machine and no earlier boot has it;
# - the pid namespace and time namespace, because ids and start times only compare within these;
# - the start time of the process, because a reused id has another one.
#
# A process is gone for certain only if all of these match and the system has no such process, or one with another start
# time, or a zombie. In every other case, callers go by time alone. Only Linux gives these facts; elsewhere the identity
# is empty.


_STATE, _THREADS, _STARTED = 0, 17, 19
"""Places of these fields in `/proc/<pid>/stat`, after the command, which is in brackets and may contain spaces."""

_NO_NAME = re.compile(r"[^A-Za-z0-9.]+")
_MAX_NAME = 40
"""Characters of a user's or host's name in the id of a client, which is part of file names."""


def new_id() -> str:
    """Return 32 random hexadecimal digits."""
    return uuid.uuid4().hex


def new_client_id(names: Sequence[str] = ()) -> str:
    """Return an id of a client that names who asks and the process, and is random after that.

    The journal keeps it with each decision, so it says who asked: these names, by default the user and the host.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        user = f"uid{os.getuid()}"
    names = [_NO_NAME.sub("_", name).strip("_.")[:_MAX_NAME] for name in names or (user, socket.gethostname())]
    return "-".join([*filter(None, names), str(os.getpid()), new_id()[:16]])


def read_own_identity() -> str:
    """Return `boot/pid namespace/time namespace/pid/start time` of this process, or "" where that is unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        pid_namespace = _read_namespace("pid")
        with open("/proc/self/stat", "rb") as file:
            pid = int(file.read().split(b" ", 1)[0])
        stat = _read_stat(pid)
    except (OSError, ValueError):
        return ""
    # /proc may be mounted for another pid namespace than this process's own
    if not boot or not pid_namespace or stat is None or pid != os.getpid():
        return ""
    with suppress(OSError):
        return f"{boot}/{pid_namespace}/{_read_namespace('time')}/{pid}/{stat[_STARTED]}"
    return f"{boot}/{pid_namespace}//{pid}/{stat[_STARTED]}"


def is_process_gone(identity: str, own: str) -> bool:
    """Return whether the process with this identity has certainly ended. False where that cannot be known.

    own: the identity of the calling process.
    """
    machine, pid, started = _parse_identity(identity)
    if not machine or machine != _parse_identity(own)[0]:
        return False
    try:
        # /proc may be mounted so that it hides other users' processes; this call finds them
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's process: it exists
        pass
    try:
        stat = _read_stat(pid)
    except (OSError, ValueError):
        return False
    if stat is None:
        return False
    # a killed process is a zombie until its parent has waited for it
    is_zombie = stat[_STATE] in ("Z", "X") and int(stat[_THREADS]) <= 1
    return is_zombie or stat[_STARTED] != started


def _parse_identity(identity: str) -> tuple[str, int, str]:
    """Return (machine with its namespaces, pid, start time), or ("", 0, "") for an invalid identity."""
    parts = identity.split("/")
    if len(parts) != 5 or not parts[3].isdecimal() or not 0 < int(parts[3]) < 2**31:
        return "", 0, ""
    return "/".join(parts[:3]), int(parts[3]), parts[4]


def _read_namespace(kind: str) -> str:
    return os.readlink(f"/proc/self/ns/{kind}")


def _read_stat(pid: int) -> list[str] | None:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].decode("ascii").split()
    return fields if len(fields) > _STARTED else None
