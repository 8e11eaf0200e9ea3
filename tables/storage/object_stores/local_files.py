"""Objects on a local or mounted disk: put-if-absent is a link, durability an fsync of file and folder."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TypeVar

import pyarrow as pa

from .inotify import Watch, watch
from .objects import (
    Data,
    IdentifiedObject,
    MaybeThere,
    Names,
    RootGone,
    check_folder,
    check_name,
    hidden_name,
    too_large,
)

_NO_UNNAMED_FILES = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}


class LocalFiles:
    """Objects on a local or mounted file system with hard links, so that put-if-absent is atomic between processes."""

    def __init__(self, root: str, *, named_temporaries: bool = False) -> None:
        """named_temporaries: write under a hidden name first, as always without O_TMPFILE (NFS).

        A killed process then leaves that file behind.
        """
        self.root = os.path.abspath(root)
        self.had_root = os.path.isdir(self.root)
        self._unnamed = hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd") and not named_temporaries

    def __repr__(self) -> str:
        return f"LocalFiles({self.root!r})"

    def put(self, name: str, data: Data, *, durable: bool = True) -> str:
        with self._create_object(self._path(name), durable) as (file, _):
            view = memoryview(data).cast("B")
            while view:
                view = view[os.write(file, view) :]
            # its times do not change any more: a name for the file changes nothing in it
            return _identity_of(os.fstat(file))

    @contextmanager
    def open_output(self, name: str) -> Iterator[pa.NativeFile]:
        with (
            self._create_object(self._path(name), durable=True) as (_, temporary),
            pa.OSFile(temporary, "w") as sink,
        ):
            yield sink

    def get(self, name: str, limit: int | None = None) -> bytes:
        return self.get_identified(name, limit).body

    def get_identified(self, name: str, limit: int | None = None) -> IdentifiedObject:
        path = self._path(name)
        with _open_regular(path) as (file, status):
            if limit is not None and status.st_size > limit:
                raise too_large(path, limit)
            with open(file, "rb", buffering=0, closefd=False) as opened:
                return IdentifiedObject(opened.readall(), _identity_of(status), _modified_ms_of(status))

    def size(self, name: str) -> int | None:
        status = self._stat(name)
        return None if status is None else status.st_size

    def modified_ms(self, name: str) -> int | None:
        status = self._stat(name)
        return None if status is None else _modified_ms_of(status)

    def identity(self, name: str) -> str | None:
        status = self._stat(name)
        return None if status is None else _identity_of(status)

    def time_ms(self) -> int:
        # the file system's time, which may come from another machine
        file, temporary, named = self._open_temporary(_Folder(self.root, self))
        try:
            os.write(file, b".")
            return _modified_ms_of(os.fstat(file))
        finally:
            os.close(file)
            if named:
                os.unlink(temporary)

    def sync(self, names: Iterable[str]) -> None:
        paths = [self._path(name) for name in names]
        for path in [*paths, *dict.fromkeys(map(os.path.dirname, paths))]:
            _sync(path)

    def sync_folder(self, folder: str) -> None:
        path, below = self._path(folder), ""
        while path != below:
            with suppress(PermissionError):  # folders above the root may belong to another user
                _sync(path)
            path, below = os.path.dirname(path), path

    def list(self, prefix: str, limit: int | None = None) -> Names:
        return self._list_folder(prefix, limit, folders=False)

    def folders(self, prefix: str, limit: int | None = None) -> Names:
        return self._list_folder(prefix, limit, folders=True)

    def _list_folder(self, prefix: str, limit: int | None, folders: bool) -> Names:
        folder = check_folder(prefix)
        lead = f"{folder}/" if folder else ""
        try:
            entries = os.scandir(f"{self.root}/{folder}")
        except FileNotFoundError:
            return []
        with entries:
            # not following links: one may lead to itself
            names = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False) is folders)
            return sorted(islice((lead + name for name in names if name[0] != "."), limit))

    def delete(self, names: Iterable[str]) -> None:
        failed: OSError | None = None
        for path in map(self._path, names):
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def delete_folder(self, prefix: str) -> None:
        folder = self._path(prefix.removesuffix("/"))
        if not os.path.isdir(folder):
            return
        self.delete(self.list(prefix))
        try:
            os.rmdir(folder)
        except OSError as error:
            # not empty: another process is writing into it, or a killed process left a file
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise

    def watch(self, folder: str, *, create: bool = False) -> Watch | None:
        path = self._path(folder)
        if create:
            with suppress(OSError):  # a folder that cannot be made is looked at from time to time
                os.mkdir(path)
        return watch(path)

    def open_input(self, name: str) -> pa.NativeFile:
        # Not mapped: a file that is cut short while it is mapped ends the process with SIGBUS.
        with _open_regular(self._path(name)) as (file, _):
            try:
                return pa.OSFile(f"/dev/fd/{file}")
            except FileNotFoundError:  # there is no /proc
                return pa.PythonFile(open(os.dup(file), "rb", buffering=0), mode="r")

    def uri(self, name: str) -> str:
        return f"file://{self._path(name)}"

    def _path(self, name: str) -> str:
        return f"{self.root}/{check_name(name)}"

    def _stat(self, name: str) -> os.stat_result | None:
        try:
            status = os.lstat(self._path(name))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise
        return status if stat.S_ISREG(status.st_mode) else None

    @contextmanager
    def _create_object(self, path: str, durable: bool) -> Iterator[tuple[int, str]]:
        """Yield a new file (descriptor, and a path to open it), which appears as `path` on a clean exit.

        Raises MaybeThere if the disk fails after other processes could see the file.
        """
        folder = _Folder(os.path.dirname(path), self)
        file, temporary, named = self._open_temporary(folder)
        linked = False
        try:
            try:
                yield file, temporary
                # a mounted file system may report a full disk only now, or on close
                if durable or named:
                    os.fsync(file)
                # With any src_dir_fd (unused, since the path is absolute) Python calls linkat, which follows
                # /proc/self/fd/N to the unnamed file. Plain link would link the symbolic link itself.
                folder.with_folder(lambda: os.link(temporary, path, src_dir_fd=0))
                linked = True
            finally:
                os.close(file)
                if named:
                    os.unlink(temporary)
            if durable:
                folder.sync()
        except OSError as error:
            if linked:
                raise MaybeThere(error.errno, error.strerror, path) from error
            raise

    def _open_temporary(self, folder: _Folder) -> tuple[int, str, bool]:
        """Open a hidden file in `folder`: (descriptor, path to open it, whether that path is its name)."""
        if self._unnamed:
            try:
                file = folder.with_folder(lambda: os.open(folder.path, os.O_TMPFILE | os.O_WRONLY, 0o666))
                return file, f"/proc/self/fd/{file}", False
            except OSError as error:
                if error.errno not in _NO_UNNAMED_FILES:
                    raise
                self._unnamed = False
        temporary = f"{folder.path}/{hidden_name()}"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        return folder.with_folder(lambda: os.open(temporary, flags, 0o666)), temporary, True


@contextmanager
def _open_regular(path: str) -> Iterator[tuple[int, os.stat_result]]:
    """Open a file for reading: (descriptor, status). Any file may lie there: a pipe blocks, a link leads elsewhere."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        yield file, status
    finally:
        os.close(file)


def _identity_of(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_mtime_ns}"


def _modified_ms_of(status: os.stat_result) -> int:
    return status.st_mtime_ns // 1_000_000


_T = TypeVar("_T")
_TRIES = 20
# ext4 returns EPERM if a folder is removed while an unnamed file is created in it
_NO_FOLDER = {errno.ENOENT, errno.EPERM}


class _Folder:
    """A folder to write into. It is created when it turns out to be missing, and synced with its new parents.

    A root that was there is never created again: it was deleted, or its disk is not mounted.
    """

    def __init__(self, path: str, files: LocalFiles) -> None:
        self.path, self._files = path, files
        self._changed = [path]

    def with_folder(self, act: Callable[[], _T]) -> _T:
        """Return what `act` returns. If the folder is missing, create it and call `act` again."""
        # several tries, because `delete_folder` of another process may remove the empty folder again
        for _ in range(_TRIES):
            try:
                result = act()
                self._files.had_root = True
                return result
            except OSError as error:
                if error.errno not in _NO_FOLDER:
                    raise
                self._make(self.path)
        return act()

    def sync(self) -> None:
        """Make the folder's entries durable, and the folder itself if it was created."""
        for path in self._changed:
            _sync_folder(path)

    def _make(self, path: str) -> None:
        if path == self._files.root and self._files.had_root:
            if os.path.isdir(path):  # another thread has made it meanwhile
                return
            raise RootGone(errno.ENOENT, "The folder is gone", path)
        parent = os.path.dirname(path)
        with suppress(FileExistsError):
            try:
                os.mkdir(path)
            except FileNotFoundError:
                if parent == path:
                    raise
                self._make(parent)
                os.mkdir(path)
        if parent not in self._changed:
            self._changed.append(parent)


def _sync_folder(path: str) -> None:
    _sync(path, os.O_DIRECTORY)


def _sync(path: str, flags: int = 0) -> None:
    opened = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


# Share a namespace with a group of users: each can read and replace the files of the others, whatever the umask.
#
# The kernel enforces this, so that it also holds for delta-rs and Spark. Folders pass on their group (setgid) and a
# default access list, which replaces the umask. Source: acl(5), inode(7).


_DEFAULT_LIST = "system.posix_acl_default"
_VERSION = struct.pack("<I", 2)
_ENTRY = struct.Struct("<HHI")
_OWNER, _GROUP, _OTHERS, _NOBODY_IN_PARTICULAR = 0x01, 0x04, 0x20, 0xFFFFFFFF


def share_with_group(root: str) -> None:
    """Give the folder's group access to the folder and everything in it, now and later. Others keep their access.

    Creates the folder if it does not exist.

    Raises OSError: EOPNOTSUPP if the file system has no access lists, or another refusal.
    """
    os.makedirs(root, exist_ok=True)
    status = os.stat(root)
    group, others_mode = status.st_gid, stat.S_IMODE(status.st_mode) & 0o007
    _share_folder(root, group, others_mode)
    for folder, folders, files in os.walk(root):
        for path in (os.path.join(folder, name) for name in folders + files):
            if os.path.islink(path):
                continue
            if os.path.isdir(path):
                _share_folder(path, group, others_mode)
            else:
                os.chown(path, -1, group)
                os.chmod(path, 0o660 | others_mode & 0o006)


def _share_folder(path: str, group: int, others_mode: int) -> None:
    rights = [(_OWNER, 0o7), (_GROUP, 0o7), (_OTHERS, others_mode)]
    entries = [_ENTRY.pack(tag, may, _NOBODY_IN_PARTICULAR) for tag, may in rights]
    os.chown(path, -1, group)
    os.setxattr(path, _DEFAULT_LIST, _VERSION + b"".join(entries))
    os.chmod(path, 0o2770 | others_mode)
    if stat.S_IMODE(os.stat(path).st_mode) != 0o2770 | others_mode:  # chmod drops setgid for a user outside the group
        raise OSError(errno.EPERM, "the folder's group cannot be passed on to new files", path)
