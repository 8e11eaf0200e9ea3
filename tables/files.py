"""Plain objects under a root: the only file I/O beside Delta's.

An object appears whole or not at all, under a name that was free, and is never changed: it can only be
deleted. A durable object survives a loss of power once `put` has returned; one that is not durable may
afterwards be gone, or be there with less than was written.

Only the standard library and pyarrow are needed here, so that it works on Spark's executors.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar
from urllib.parse import SplitResult, urlsplit

import pyarrow as pa

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

Names: TypeAlias = list[str]
Data: TypeAlias = bytes | pa.Buffer | memoryview


class Files(Protocol):
    """Objects under `root`. A name is a path below it, `folder/name`, no part of which begins with a dot.

    Every method raises ValueError for anything else: `..`, an absolute path, an empty or hidden part.
    What the store reports (no space left, read-only, not allowed) comes out as the OSError it is.
    """

    root: str

    def put(self, name: str, data: Data, *, durable: bool = True) -> None:
        """The object is there, whole. FileExistsError: there is one of that name, and it stays as it is."""

    def get(self, name: str) -> bytes:
        """All of an object. FileNotFoundError: not there."""

    def size(self, name: str) -> int | None:
        """Bytes of an object, None: not there."""

    def modified_ms(self, name: str) -> int | None:
        """When the object was written, by the store's time, in epoch milliseconds. None: not there."""

    def list(self, prefix: str, limit: int | None = None) -> Names:
        """Names (from the root, as `get` takes them) of the objects directly in folder `prefix`, sorted.

        At most `limit`: then whichever the store names first. A folder that is not there holds nothing.
        """

    def delete(self, names: Iterable[str]) -> None:
        """None of these objects is there; that some were not is fine. A loss of power may bring some back."""

    def delete_folder(self, prefix: str) -> None:
        """The objects directly in folder `prefix` are gone, and so is the folder if nothing is left in it."""

    def open_output(self, name: str) -> AbstractContextManager[pa.NativeFile]:
        """A sink for pyarrow's writers: a durable object on a clean exit, nothing at all after an exception.

        FileExistsError, on the exit: there is one of that name, and it stays as it is.
        """

    def open_input(self, name: str) -> pa.NativeFile:
        """An object for random access. FileNotFoundError: not there."""

    def uri(self, name: str) -> str:
        """How Spark and delta-rs call the object (a path on a local disk is not percent-encoded)."""


def open_files(root: str, storage_options: Mapping[str, str] | None = None) -> Files:
    """The objects under `root`, a path or a URI: file, s3, gs, abfs and their usual spellings.

    storage_options: credentials, region, endpoint in delta-rs's spelling; what only Delta knows is ignored.
    ValueError: a root or an option that cannot be used.
    """
    if odd := _ODD_IN_A_ROOT.search(root):
        raise ValueError(f"root: found {odd[0]!r} in {root!r}, expected none of {_ODD_IN_A_ROOT.pattern}")
    path = re.sub("^file:(//)?(?=/(?!/))", "", root)
    if "://" not in path and not path.startswith("file:"):
        return LocalFiles(path)
    url = urlsplit(root)
    connect = _STORES.get(url.scheme)
    if connect is None or not url.netloc:
        raise ValueError(f"root: found {root!r}, expected a path or a URI of {', '.join(['file', *_STORES])}")
    filesystem = connect(url, {key.upper(): value for key, value in (storage_options or {}).items()})
    container = url.netloc.partition("@")[0] if url.scheme in _AZURE else url.netloc
    return ArrowFiles(filesystem, f"{container}{url.path}".rstrip("/"), root=root.rstrip("/"))


# In a URI made of a path with one of these, delta-rs sees another folder (it decodes %20, cuts at # and ?) or
# fails, and Spark sees a pattern.
_ODD_IN_A_ROOT = re.compile(r"[%#?*|^\\{}\[\]\x00-\x1f]")
_NAME = re.compile(r"(?!\.)[^/\0]+(?:/(?!\.)[^/\0]+)*")


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"name of an object: found {name!r}, expected parts joined by '/', none empty or begun with '.'"
        )
    return name


def _checked_folder(prefix: str) -> str:
    """`prefix` without the slash it may end in; empty: the root."""
    return _checked(prefix.removesuffix("/")) if prefix else prefix


def _hidden_name() -> str:
    """A name for what is still being written, which no listing shows."""
    return f".{uuid.uuid4().hex}.tmp"


# -- a local disk ---------------------------------------------------------------------------------------

_NO_UNNAMED_FILES = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}


class LocalFiles:
    """Objects on a local or mounted file system that can link: put-if-absent is atomic between processes."""

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

    def get(self, name: str) -> bytes:
        with open(self._path(name), "rb", buffering=0) as file:
            return file.readall()

    def size(self, name: str) -> int | None:
        found = self._stat(name)
        return None if found is None else found.st_size

    def modified_ms(self, name: str) -> int | None:
        found = self._stat(name)
        return None if found is None else found.st_mtime_ns // 1_000_000

    def list(self, prefix: str, limit: int | None = None) -> Names:
        folder = _checked_folder(prefix)
        lead = f"{folder}/" if folder else ""
        try:
            entries = os.scandir(f"{self.root}/{folder}")
        except FileNotFoundError:
            return []
        with entries:
            names = (lead + entry.name for entry in entries if entry.name[0] != "." and not entry.is_dir())
            return sorted(islice(names, limit))

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(self._path(name))

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

    def open_input(self, name: str) -> pa.NativeFile:
        return pa.memory_map(self._path(name), "r")

    def uri(self, name: str) -> str:
        return f"file://{self._path(name)}"

    def _path(self, name: str) -> str:
        return f"{self.root}/{_checked(name)}"

    def _stat(self, name: str) -> os.stat_result | None:
        try:
            found = os.stat(self._path(name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found if stat.S_ISREG(found.st_mode) else None

    @contextmanager
    def _appearing(self, path: str, durable: bool) -> Iterator[tuple[int, str]]:
        """A new file to fill (its descriptor, a path to open it by): `path` on a clean exit, else nothing."""
        folder = _Folder(os.path.dirname(path))
        file, temporary, named = self._temporary(folder)
        try:
            yield file, temporary
            # A mounted file system may tell only now, or on closing, that there was no space.
            if durable or named:
                os.fsync(file)
            # With any src_dir_fd (not used, as the path is absolute) Python calls linkat, which follows
            # /proc/self/fd/N to the file that has no name; plain link would link the symbolic link.
            folder.on_hand(lambda: os.link(temporary, path, src_dir_fd=0))
        finally:
            os.close(file)
            if named:
                os.unlink(temporary)
        if durable:
            try:
                folder.sync()
            except OSError:
                with suppress(OSError):
                    os.unlink(path)
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
        temporary = f"{folder.path}/{_hidden_name()}"
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
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


# -- object stores --------------------------------------------------------------------------------------

_REQUESTS_AT_ONCE = 16


class ArrowFiles:
    """Objects in an object store that pyarrow knows: one appears when it is complete, and is then durable.

    Put-if-absent looks and then writes, as pyarrow has no conditional put: of two that put the same name at
    the same moment both may succeed. Names are to be unique to one client, as LakeMQ's are. In another file
    system of pyarrow's (its local one, in tests) objects are moved into place, and durable is what its close
    makes of it. `filesystem` is pyarrow's, its paths are the names.
    """

    def __init__(self, filesystem: FileSystem, base: str, root: str) -> None:
        """base: the root as a path of `filesystem` (bucket/folder); root: the same as a URI."""
        from pyarrow.fs import SubTreeFileSystem

        self.root = root
        self.filesystem = SubTreeFileSystem(base, filesystem)
        while filesystem.type_name == "subtree":
            filesystem = filesystem.base_fs
        self._complete_on_close = filesystem.type_name in ("s3", "gcs", "abfs")

    def __repr__(self) -> str:
        return f"ArrowFiles({self.root!r})"

    def put(self, name: str, data: Data, *, durable: bool = True) -> None:
        if self._info(name) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.uri(name))
        folder = name.rpartition("/")[0]
        target = name if self._complete_on_close else f"{folder}/{_hidden_name()}"
        try:
            with self._open_stream(target, folder) as stream:
                stream.write(data)
            if target != name:
                self.filesystem.move(target, name)
        except BaseException:
            # A stream can only be closed, not given up: part of the object might stand there.
            with suppress(OSError):
                self.filesystem.delete_file(target)
            raise

    @contextmanager
    def open_output(self, name: str) -> Iterator[pa.NativeFile]:
        _checked(name)
        # Kept on the local disk until it is complete, because a stream to the store cannot be given up.
        with tempfile.NamedTemporaryFile(prefix="lakemq-") as spool:
            with pa.OSFile(spool.name, "w") as sink:
                yield sink
            with pa.memory_map(spool.name, "r") as written:
                self.put(name, written.read_buffer())

    def get(self, name: str) -> bytes:
        with self.filesystem.open_input_stream(_checked(name)) as stream:
            data: bytes = stream.read()
        return data

    def size(self, name: str) -> int | None:
        found = self._info(name)
        return None if found is None else found.size

    def modified_ms(self, name: str) -> int | None:
        found = self._info(name)
        return None if found is None else found.mtime_ns // 1_000_000

    def list(self, prefix: str, limit: int | None = None) -> Names:
        from pyarrow.fs import FileSelector

        folder = _checked_folder(prefix)
        lead = f"{folder}/" if folder else ""
        found = self.filesystem.get_file_info(FileSelector(folder, allow_not_found=True))
        names = (lead + info.base_name for info in found if info.is_file and info.base_name[0] != ".")
        return sorted(islice(names, limit))

    def delete(self, names: Iterable[str]) -> None:
        # The store answers each request after milliseconds, so many are asked at once.
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            for _ in pool.map(self._delete_one, [_checked(name) for name in names]):
                pass

    def delete_folder(self, prefix: str) -> None:
        with suppress(FileNotFoundError):
            self.filesystem.delete_dir(_checked(prefix.removesuffix("/")))

    def open_input(self, name: str) -> pa.NativeFile:
        return self.filesystem.open_input_file(_checked(name))

    def uri(self, name: str) -> str:
        return f"{self.root}/{_checked(name)}"

    def _info(self, name: str) -> FileInfo | None:
        found = self.filesystem.get_file_info(_checked(name))
        return found if found.is_file else None

    def _open_stream(self, path: str, folder: str) -> pa.NativeFile:
        try:
            return self.filesystem.open_output_stream(path)
        except FileNotFoundError:
            within, missing = self.filesystem, folder
            if not folder:
                within, missing = self.filesystem.base_fs, self.filesystem.base_path
            within.create_dir(missing, recursive=True)
            return self.filesystem.open_output_stream(path)

    def _delete_one(self, name: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            self.filesystem.delete_file(name)


def _s3(url: SplitResult, options: Mapping[str, str]) -> FileSystem:
    from pyarrow.fs import S3FileSystem

    endpoint = _given(options, "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    scheme, separator, host = (endpoint or "").partition("://")
    return S3FileSystem(
        access_key=_given(options, "AWS_ACCESS_KEY_ID"),
        secret_key=_given(options, "AWS_SECRET_ACCESS_KEY"),
        session_token=_given(options, "AWS_SESSION_TOKEN", "AWS_TOKEN"),
        region=_given(options, "AWS_REGION", "AWS_DEFAULT_REGION"),
        endpoint_override=host if separator else endpoint,
        scheme=scheme if separator else None,
        anonymous=_is_on(options, "AWS_SKIP_SIGNATURE"),
        force_virtual_addressing=_is_on(options, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"),
        allow_delayed_open=True,  # a small object is then one request instead of three
    )


def _gcs(url: SplitResult, options: Mapping[str, str]) -> FileSystem:
    from pyarrow.fs import GcsFileSystem

    key_file = _given(
        options, "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS"
    )
    if key_file not in (None, os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")):
        raise ValueError(
            f"storage option: found a service account in {key_file!r}, expected the same path in the "
            "environment variable GOOGLE_APPLICATION_CREDENTIALS, the only place where pyarrow looks for it"
        )
    return GcsFileSystem(anonymous=_is_on(options, "GOOGLE_SKIP_SIGNATURE"))


def _azure(url: SplitResult, options: Mapping[str, str]) -> FileSystem:
    from pyarrow.fs import AzureFileSystem

    _, named, host = url.netloc.partition("@")
    account = host.partition(".")[0] if named else _given(options, "AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise ValueError("storage option AZURE_STORAGE_ACCOUNT_NAME: found none, expected the name of the account")
    return AzureFileSystem(
        account,
        account_key=_given(options, "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"),
        sas_token=_given(options, "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"),
        client_id=_given(options, "AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID"),
        client_secret=_given(options, "AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET"),
        tenant_id=_given(options, "AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID"),
    )


_AZURE = ("abfs", "abfss", "az")
_STORES: dict[str, Callable[[SplitResult, Mapping[str, str]], FileSystem]] = {
    **dict.fromkeys(("s3", "s3a"), _s3),
    **dict.fromkeys(("gs", "gcs"), _gcs),
    **dict.fromkeys(_AZURE, _azure),
}


def _given(options: Mapping[str, str], *spellings: str) -> str | None:
    return next((options[key] for key in spellings if key in options), None)


def _is_on(options: Mapping[str, str], key: str) -> bool:
    return options.get(key, "").lower() in ("1", "true", "yes", "on")
