"""Watch folders with Linux's inotify, so that a waiting process need not list them again and again.

Linux reports only files of this machine's programs, and may report late, twice or never. So a watch shortens waits but
replaces no listing. A process has one inotify instance, since a user may have only few, and one thread that reads it.
If there is no inotify (another system, EMFILE, ENOSPC), nothing is watched. A forked process starts without its
parent's instance.
"""

import ctypes
import os
import struct
import threading
from collections import deque
from contextlib import suppress

# from linux/inotify.h
_CREATE, _MOVED_TO, _DELETE_SELF, _MOVE_SELF = 0x100, 0x80, 0x400, 0x800
_ONLYDIR, _OVERFLOW, _IGNORED = 0x01000000, 0x4000, 0x8000
_EVENT = struct.Struct("iIII")


class Watch:
    """A watch of a folder. It sets `event` when a file may have arrived. The user clears it, then lists the folder.

    event: may be replaced before the first listing, for example by one that is also set for other reasons.
    is_over: no more events will come, because the folder is gone.
    """

    def __init__(self, descriptor: int) -> None:
        self.event, self.is_over = threading.Event(), False
        self._descriptor = descriptor

    def close(self) -> None:
        self.is_over = True
        if _instance is not None:
            _instance.forget(self, self._descriptor)


class _Instance:
    """The inotify instance, with its watches by descriptor. Watches of one folder share a descriptor."""

    def __init__(self) -> None:
        """Raises OSError or RuntimeError if there is no instance, or no thread to read it."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError("no inotify on this system")
        self._lock = threading.Lock()
        self._watches: dict[int, list[Watch]] = {}
        self._closed: deque[tuple[Watch, int]] = deque()
        """Watches that are closed and not removed yet, with their descriptors."""
        self.file = self._check_result(self._libc.inotify_init1(os.O_CLOEXEC))
        try:
            threading.Thread(target=self._read, name="lakemq-inotify", daemon=True).start()
        except BaseException:
            os.close(self.file)
            raise

    @staticmethod
    def _check_result(result: int) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        return result

    def watch(self, folder: str) -> Watch:
        """Watch a folder. Raises OSError if it is not a folder, or if there are too many watches."""
        mask = _CREATE | _MOVED_TO | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
        with self._lock:  # otherwise an event could arrive and be dropped before the watch is registered
            self._remove_closed()
            descriptor = self._check_result(self._libc.inotify_add_watch(self.file, os.fsencode(folder), mask))
            watch = Watch(descriptor)
            self._watches.setdefault(descriptor, []).append(watch)
        return watch

    def forget(self, watch: Watch, descriptor: int) -> None:
        """Let the next event or the next new watch remove this one.

        It takes no lock, because the garbage collector may call it in a thread that has the lock.
        """
        self._closed.append((watch, descriptor))

    def _remove_closed(self) -> None:
        while self._closed:
            self._remove(*self._closed.popleft())

    def _remove(self, watch: Watch, descriptor: int) -> None:
        watches = self._watches.get(descriptor, [])
        if watch not in watches:
            return
        watches.remove(watch)
        if not watches:
            del self._watches[descriptor]
            self._libc.inotify_rm_watch(self.file, descriptor)

    def _read(self) -> None:
        while True:
            events, at = os.read(self.file, 1 << 16), 0
            with self._lock:
                self._remove_closed()
                while at < len(events):
                    descriptor, mask, _, name_bytes = _EVENT.unpack_from(events, at)
                    at += _EVENT.size + name_bytes
                    self._notify(descriptor, mask)

    def _notify(self, descriptor: int, mask: int) -> None:
        if mask & _OVERFLOW:  # events were lost: wake all
            for watches in self._watches.values():
                for watch in watches:
                    watch.event.set()
            return
        is_over = bool(mask & (_IGNORED | _DELETE_SELF | _MOVE_SELF))
        for watch in self._watches.get(descriptor, ()):
            watch.is_over |= is_over
            watch.event.set()
        if mask & _IGNORED:
            self._watches.pop(descriptor, None)


_instance: _Instance | None = None
_starting = threading.Lock()
_has_failed = False


def watch(folder: str) -> Watch | None:
    """Watch a folder from now on; None if it does not exist, or this machine has no inotify."""
    global _instance, _has_failed
    try:
        with _starting:
            if _instance is None and not _has_failed:
                _has_failed = (
                    True  # assume failure until it works: retrying for each wait would cost more than it gains
                )
                _instance = _Instance()
                _has_failed = False
            instance = _instance
        return None if instance is None else instance.watch(folder)
    except (OSError, RuntimeError, AttributeError):
        return None


def _reset_in_child() -> None:
    """Drop the instance in a forked child, which has no reader thread and must not read the parent's events."""
    global _instance, _starting, _has_failed
    if _instance is not None:
        with suppress(OSError):
            os.close(_instance.file)
    _instance, _starting, _has_failed = None, threading.Lock(), False


os.register_at_fork(after_in_child=_reset_in_child)
