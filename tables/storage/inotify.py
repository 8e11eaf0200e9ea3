"""Linux tells of what comes into a folder, so that who waits for it need not look again and again.

It tells only of what this machine's programs put there, and may tell late, twice or never: it shortens waits, and
replaces no look. A process has one instance, as a user may have few of them, and a thread that reads it. Where there is
none to be had (another system, EMFILE, ENOSPC), nothing is watched. A forked process has none of its parent's.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from contextlib import suppress

# of linux/inotify.h
_CREATE, _MOVED_TO, _DELETE_SELF, _MOVE_SELF = 0x100, 0x80, 0x400, 0x800
_ONLYDIR, _OVERFLOW, _IGNORED = 0x01000000, 0x4000, 0x8000
_EVENT = struct.Struct("iIII")


class Watch:
    """`event` is set when something may have come into the folder; who waits clears it, and then looks.

    is_over: nothing will be told any more, as the folder is gone.
    """

    def __init__(self, descriptor: int) -> None:
        self.event, self.is_over = threading.Event(), False
        self._descriptor = descriptor

    def close(self) -> None:
        self.is_over = True
        if _instance is not None:
            _instance.forget(self, self._descriptor)


class _Instance:
    """Watches by their descriptors, which the kernel gives by folder: those of one folder share one."""

    def __init__(self) -> None:
        """Raises OSError, RuntimeError: there is no instance, or no thread to read it, to be had."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError("no inotify on this system")
        self._lock = threading.Lock()
        self._watches: dict[int, list[Watch]] = {}
        self.file = self._checked(self._libc.inotify_init1(os.O_CLOEXEC))
        try:
            threading.Thread(target=self._read, name="lakemq-inotify", daemon=True).start()
        except BaseException:
            os.close(self.file)
            raise

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        return result

    def watch(self, folder: str) -> Watch:
        """Raises OSError: it is no folder, or too many are watched."""
        mask = _CREATE | _MOVED_TO | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
        with self._lock:  # else it might be told of and forgotten before it is known here
            descriptor = self._checked(self._libc.inotify_add_watch(self.file, os.fsencode(folder), mask))
            watch = Watch(descriptor)
            self._watches.setdefault(descriptor, []).append(watch)
        return watch

    def forget(self, watch: Watch, descriptor: int) -> None:
        with self._lock:
            watches = self._watches.get(descriptor, [])
            if watch not in watches:
                return
            watches.remove(watch)
            if not watches:
                del self._watches[descriptor]
                self._libc.inotify_rm_watch(self.file, descriptor)

    def _read(self) -> None:
        while True:
            told, at = os.read(self.file, 1 << 16), 0
            with self._lock:
                while at < len(told):
                    descriptor, mask, _, name_bytes = _EVENT.unpack_from(told, at)
                    at += _EVENT.size + name_bytes
                    self._tell(descriptor, mask)

    def _tell(self, descriptor: int, mask: int) -> None:
        if mask & _OVERFLOW:  # whatever it was
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
    """Tells of what is put into the folder from now on; None: it is not there, or this machine does not tell."""
    global _instance, _has_failed
    try:
        with _starting:
            if _instance is None and not _has_failed:
                _has_failed = True  # unless it works: to try again for each wait would cost more than it gains
                _instance = _Instance()
                _has_failed = False
            instance = _instance
        return None if instance is None else instance.watch(folder)
    except (OSError, RuntimeError, AttributeError):
        return None


def _forked() -> None:
    """In the child: the thread that reads is not here, and what it would read is the parent's."""
    global _instance, _starting, _has_failed
    if _instance is not None:
        with suppress(OSError):
            os.close(_instance.file)
    _instance, _starting, _has_failed = None, threading.Lock(), False


os.register_at_fork(after_in_child=_forked)
