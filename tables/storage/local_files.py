"""Objects on a local or mounted disk: put-if-absent is a link, durable is an fsync of file and folder."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TypeVar

import pyarrow as pa

from .inotify import Watch, watch
from .objects import Data, MaybeThere, Names, checked, checked_folder, hidden_name, too_large

_NO_UNNAMED_FILES = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}


class LocalFiles:
    """Objects on a local or mounted file system that can link: put-if-absent is atomic between processes."""

    puts_if_absent = True

    def __init__(self, root: str, *, named_temporaries: bool = False) -> None:
        """named_temporaries: write under a hidden name first, as is done anyhow where there is no O_TMPFILE
        (NFS). A process that is killed then leaves that file behind."""
        self.root = os.path.abspath(root)
        self._unnamed = hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd") and not named_temporaries

    def __repr__(self) -> str:
        return f"LocalFiles({self.root!r})"

    def put(self, name: str, data: Data, *, durable: bool = True) -> None:
        with self._appearing(self._path(name), durable) as (file, _):
            view = memoryview(data).cast("B")
            while view:
                view = view[os.write(file, view) :]

    @contextmanager
    def open_output(self, name: str) -> Iterator[pa.NativeFile]:
        with (
            self._appearing(self._path(name), durable=True) as (_, temporary),
            pa.OSFile(temporary, "w") as sink,
        ):
            yield sink

    def get(self, name: str, limit: int | None = None) -> bytes:
        path = self._path(name)
        # anybody may have put anything there: a pipe would be waited for, a link leads elsewhere
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            if limit is not None and found.st_size > limit:
                raise too_large(path, limit)
            with open(file, "rb", buffering=0, closefd=False) as opened:
                return opened.readall()
        finally:
            os.close(file)

    def size(self, name: str) -> int | None:
        found = self._stat(name)
        return None if found is None else found.st_size

    def modified_ms(self, name: str) -> int | None:
        found = self._stat(name)
        return None if found is None else found.st_mtime_ns // 1_000_000

    def identity(self, name: str) -> str | None:
        found = self._stat(name)
        return None if found is None else f"{found.st_ino}-{found.st_mtime_ns}"

    def time_ms(self) -> int:
        # the time of the file system, which may be another machine's
        file, temporary, named = self._temporary(_Folder(self.root))
        try:
            os.write(file, b".")
            return os.fstat(file).st_mtime_ns // 1_000_000
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
            with suppress(PermissionError):  # what lies above the root may be another's
                _sync(path)
            path, below = os.path.dirname(path), path

    def list(self, prefix: str, limit: int | None = None) -> Names:
        return self._within(prefix, limit, folders=False)

    def folders(self, prefix: str, limit: int | None = None) -> Names:
        return self._within(prefix, limit, folders=True)

    def _within(self, prefix: str, limit: int | None, folders: bool) -> Names:
        folder = checked_folder(prefix)
        lead = f"{folder}/" if folder else ""
        try:
            entries = os.scandir(f"{self.root}/{folder}")
        except FileNotFoundError:
            return []
        with entries:
            # a link that leads to itself cannot be followed
            kept = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False) is folders)
            return sorted(islice((lead + name for name in kept if name[0] != "."), limit))

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
            # Not empty: something is being put into it, or a killed process left something there.
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise

    def watch(self, folder: str) -> Watch | None:
        return watch(self._path(folder))

    def open_input(self, name: str) -> pa.NativeFile:
        return pa.memory_map(self._path(name), "r")

    def uri(self, name: str) -> str:
        return f"file://{self._path(name)}"

    def _path(self, name: str) -> str:
        return f"{self.root}/{checked(name)}"

    def _stat(self, name: str) -> os.stat_result | None:
        try:
            found = os.stat(self._path(name))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise
        return found if stat.S_ISREG(found.st_mode) else None

    @contextmanager
    def _appearing(self, path: str, durable: bool) -> Iterator[tuple[int, str]]:
        """A new file to fill (its descriptor, a path to open it by): `path` on a clean exit, else nothing.

        Raises MaybeThere when the disk fails after others could see the file.
        """
        folder = _Folder(os.path.dirname(path))
        file, temporary, named = self._temporary(folder)
        linked = False
        try:
            try:
                yield file, temporary
                # A mounted file system may tell only now, or on closing, that there was no space.
                if durable or named:
                    os.fsync(file)
                # With any src_dir_fd (not used, as the path is absolute) Python calls linkat, which follows
                # /proc/self/fd/N to the file that has no name; plain link would link the symbolic link.
                folder.on_hand(lambda: os.link(temporary, path, src_dir_fd=0))
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

    def _temporary(self, folder: _Folder) -> tuple[int, str, bool]:
        """A file in `folder` that nobody sees: (descriptor, path to open it by, whether that is its name)."""
        if self._unnamed:
            try:
                file = folder.on_hand(lambda: os.open(folder.path, os.O_TMPFILE | os.O_WRONLY, 0o666))
                return file, f"/proc/self/fd/{file}", False
            except OSError as error:
                if error.errno not in _NO_UNNAMED_FILES:
                    raise
                self._unnamed = False
        temporary = f"{folder.path}/{hidden_name()}"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        return folder.on_hand(lambda: os.open(temporary, flags, 0o666)), temporary, True


_T = TypeVar("_T")
_TRIES = 20
# EPERM is what ext4 says when a folder is removed just as an unnamed file is made in it.
_NO_FOLDER = {errno.ENOENT, errno.EPERM}


class _Folder:
    """A folder that something is put into: made when it turns out to be missing, and synced with all made."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._changed = [path]

    def on_hand(self, act: Callable[[], _T]) -> _T:
        """What `act` returns; where it finds no folder, the folder is made and `act` has another try."""
        # More than one, because `delete_folder` of another process may remove the empty folder again.
        for _ in range(_TRIES):
            try:
                return act()
            except OSError as error:
                if error.errno not in _NO_FOLDER:
                    raise
                self._make(self.path)
        return act()

    def sync(self) -> None:
        """What was put into the folder, and the folder if it was made, survives a loss of power."""
        for path in self._changed:
            _sync_folder(path)

    def _make(self, path: str) -> None:
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
