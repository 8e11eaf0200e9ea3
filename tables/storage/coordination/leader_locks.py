"""Signs of life: of the leader, so that standbys on its machine need not wait for its lease to expire; of standbys.

A leader holds a lock on a file of its own as long as its process lives. The kernel releases the lock however the
process ends, so a free lock means a dead leader. This only shortens a wait: the put of the next step still decides who
leads. So the answer is "dead" only where it is certain:

- The file names the kernel's boot id. On another machine, or after a restart, there is no answer.
- Only file systems of a single kernel are used. On NFS, SMB or FUSE other machines may not see the lock.
- A forked child closes its copy of the lock at once, and a started program never gets one. Neither keeps the lock.
- A stopped process keeps its lock. So does a living process that no longer leads: it may lead again.

Containers that share a folder of one kernel share its locks, whatever their process ids look like.
"""

import ctypes
import fcntl
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress

from ..object_stores.local_files import LocalFiles
from ..object_stores.objects import Files, hidden_name

LOCK_FOLDER = "leaders"

_BOOT_ID = "/proc/sys/kernel/random/boot_id"

_ONE_KERNEL = {
    0xEF53: "ext2, ext3, ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x01021994: "tmpfs",
    0x794C7630: "overlayfs",
    0xF2F52010: "f2fs",
    0x2FC12FC1: "zfs",
    0xCA451A4E: "bcachefs",
}
"""File systems that only one kernel mounts, so that all users see the locks (f_type of statfs(2))."""

_held: set[int] = set()
"""Descriptors of the locks that this process holds."""


def _close_in_child() -> None:
    # a lock belongs to the open file, which a fork shares: the child's copy would keep the lock after the parent's
    # death
    for file in list(_held):
        with suppress(OSError):
            os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


class LeaderLocks:
    """The locks of a namespace's leaders, and the lock that this leader holds. For one thread.

    If locks are unreliable here, none is held and no leader counts as dead.
    """

    def __init__(self, files: Files | None) -> None:
        """files: the namespace's files; None: use no locks."""
        self._boot_id, self._folder = b"", ""
        self._held: _HeldLock | None = None
        if isinstance(files, LocalFiles) and _is_of_one_kernel(files.root):
            self._boot_id, self._folder = _boot_id(), os.path.join(files.root, LOCK_FOLDER)

    def hold(self, name: str) -> None:
        """Hold the lock of the leader `name` until `release`, or until the process ends."""
        if self._held is not None or not self._is_of_use(name):
            return
        # lock it under a hidden name, then rename: nobody may see the file with a free lock
        hidden = os.path.join(self._folder, hidden_name())
        with suppress(OSError):  # for example a full or read-only disk: then standbys wait for the lease
            os.makedirs(self._folder, exist_ok=True)
            with open(hidden, "xb") as opened:
                opened.write(self._boot_id)
            # open for reading only: a file open for writing keeps the disk from being remounted read-only
            lock = _HeldLock(os.open(hidden, os.O_RDONLY | os.O_CLOEXEC), hidden)
            try:
                fcntl.flock(lock.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lock.rename(os.path.join(self._folder, name))
            except OSError:
                lock.release()
                raise
            self._held = lock

    def release(self) -> None:
        """Release the lock, if any, and remove its file."""
        lock, self._held = self._held, None
        if lock is not None:
            lock.release()

    def is_dead(self, name: str) -> bool:
        """Return whether the leader's process has certainly ended. False: it lives, or this cannot be known."""
        return self._is_of_use(name) and self._is_free(os.path.join(self._folder, name))

    def remove_dead(self) -> None:
        """Remove the lock files of dead leaders, also from earlier boots."""
        if not self._boot_id:
            return
        with suppress(OSError):
            for name in os.listdir(self._folder):
                path = os.path.join(self._folder, name)
                if self._is_free(path, any_boot=True):
                    with suppress(OSError):
                        os.unlink(path)

    def _is_of_use(self, name: str) -> bool:
        # the name comes from a step, which may be damaged: it must not lead outside the folder
        return bool(self._boot_id and name) and name[0] != "." and "/" not in name and "\0" not in name

    def _is_free(self, path: str, any_boot: bool = False) -> bool:
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            # a shared lock, so that several observers do not take each other for the leader
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return any_boot or os.read(file, 100) == self._boot_id
        except OSError:  # held: its process lives
            return False
        finally:
            os.close(file)


class _HeldLock:
    """An open, locked file. A forked child does not own it."""

    def __init__(self, file: int, path: str) -> None:
        self.file, self._path, self._pid = file, path, os.getpid()
        _held.add(file)

    def rename(self, path: str) -> None:
        os.rename(self._path, path)
        self._path = path

    def release(self) -> None:
        if os.getpid() != self._pid:
            return
        with suppress(OSError):
            os.unlink(self._path)
        _held.discard(self.file)
        os.close(self.file)


def _boot_id() -> bytes:
    """Return the running kernel's boot id, which its containers share; empty if it is unknown."""
    try:
        with open(_BOOT_ID, "rb") as opened:
            return opened.read().strip()
    except OSError:
        return b""


def _is_of_one_kernel(path: str) -> bool:
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        return False
    # statfs(2): its first field, f_type, is a word; the struct has 120 bytes on 64-bit Linux
    buffer = (ctypes.c_long * 64)()
    try:
        failed = ctypes.CDLL(None).statfs(os.fsencode(path), ctypes.byref(buffer))
    except (OSError, AttributeError):
        return False
    return not failed and buffer[0] & 0xFFFFFFFF in _ONE_KERNEL


# Signs of standbys: small objects that show people that another sequencer would take over.
#
# Nothing is decided by them. A standby writes `standbys/<name>-<number>`, then deletes the number before. As with
# beats, an object is never replaced, since a store has no such call.


STANDBY_FOLDER = "standbys"

SIGN_EVERY_MS = 30_000
"""On an object store a sign takes three requests."""

_PRESENT_MS = 3 * SIGN_EVERY_MS
_FORGET_MS = 3_600_000
"""Signs of killed processes go after an hour: until then they may help to find out what happened."""
_CLEAN_EVERY = _FORGET_MS // SIGN_EVERY_MS
"""Signs of one process between two searches for old ones. A search costs a request per sign."""

_SIGN = re.compile(r"([^/]+)-([0-9]{10})")


class StandbySigns:
    """The signs of a namespace's standbys."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def put(self, name: str, number: int) -> None:
        """Write the sign of this number, and delete the one before.

        From time to time, beginning with number 1, also delete signs of processes that were killed long ago.

        Raises:
            OSError: the store cannot be written.
        """
        self._files.put(_object_name(name, number), b"", durable=False)
        self._files.delete([_object_name(name, number - 1)])
        if number % _CLEAN_EVERY == 1:
            now_ms = self._files.time_ms()
            self._files.delete([sign for sign, _, age_ms in self._read(now_ms) if age_ms > _FORGET_MS])

    def forget(self, name: str) -> None:
        """Delete the signs of a sequencer, which leads or ends. Raises OSError."""
        self._files.delete([sign for sign, owner in self._list() if owner == name])

    def list_present(self, now_ms: int) -> list[str]:
        """Return the names of sequencers that stand by, sorted. now_ms: the store's time."""
        return sorted({name for _, name, age_ms in self._read(now_ms) if age_ms <= _PRESENT_MS})

    def _list(self) -> Iterator[tuple[str, str]]:
        for sign in self._files.list(STANDBY_FOLDER):
            match = _SIGN.fullmatch(sign.rpartition("/")[2])
            if match:
                yield sign, match[1]

    def _read(self, now_ms: int) -> Iterator[tuple[str, str, int]]:
        """Yield object, name of the sequencer and age in ms of each sign."""
        for sign, name in self._list():
            put_ms = self._files.modified_ms(sign)
            if put_ms is not None:
                yield sign, name, now_ms - put_ms


def _object_name(name: str, number: int) -> str:
    return f"{STANDBY_FOLDER}/{name}-{number:010d}"
