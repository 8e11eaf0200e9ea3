"""Objects in a store that pyarrow supports: S3, Google Cloud Storage, Azure."""

from __future__ import annotations

import errno
import os
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import SplitResult

import pyarrow as pa

from .inotify import Watch
from .objects import Data, MaybeThere, Names, check_folder, check_name, hidden_name, too_large
from .workers import Workers

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

_REQUESTS_AT_ONCE = 16


class ArrowFiles:
    """Objects in an object store that pyarrow supports. An object appears when it is complete, and is then durable.

    pyarrow has no conditional put, so put-if-absent checks and then writes: two clients that put the same name at the
    same moment may both succeed. So names must be unique to one client, as LakeMQ's are. In other file systems of
    pyarrow (its local one, in tests) objects are moved into place, and are as durable as pyarrow's close makes them.
    `filesystem` is pyarrow's; its paths are the names.
    """

    puts_if_absent = False

    def __init__(self, filesystem: FileSystem, base: str, root: str) -> None:
        """base: the root as a path of `filesystem` (bucket/folder). root: the same as a URI."""
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
        target = name if self._complete_on_close else f"{folder}/{hidden_name()}"
        stream, is_visible = self._open_stream(target, folder), target == name
        try:
            # a stream cannot be discarded: closing it after a failure may leave a part of the object
            with stream as sink:
                sink.write(data)
            if target != name:
                is_visible = True
                self.filesystem.move(target, name)
        except BaseException as error:
            if target != name:
                with suppress(OSError):
                    self.filesystem.delete_file(target)
            if is_visible and isinstance(error, OSError):
                raise MaybeThere(error.errno, error.strerror or str(error), self.uri(name)) from error
            raise

    @contextmanager
    def open_output(self, name: str) -> Iterator[pa.NativeFile]:
        check_name(name)
        # spooled to the local disk until it is complete, because a stream to the store cannot be discarded
        with tempfile.NamedTemporaryFile(prefix="lakemq-") as spool:
            with pa.OSFile(spool.name, "w") as sink:
                yield sink
            with pa.memory_map(spool.name, "r") as written:
                self.put(name, written.read_buffer())

    def get(self, name: str, limit: int | None = None) -> bytes:
        with self.filesystem.open_input_stream(check_name(name)) as stream:
            data: bytes = stream.read(None if limit is None else limit + 1)
        if limit is not None and len(data) > limit:
            raise too_large(self.uri(name), limit)
        return data

    def size(self, name: str) -> int | None:
        info = self._info(name)
        return None if info is None else info.size

    def modified_ms(self, name: str) -> int | None:
        info = self._info(name)
        return None if info is None else info.mtime_ns // 1_000_000

    def identity(self, name: str) -> str | None:
        info = self._info(name)
        return None if info is None else f"{info.mtime_ns}-{info.size}"

    def time_ms(self) -> int:
        name = f"time-{uuid.uuid4().hex}"
        self.put(name, b".")
        try:
            return self.modified_ms(name) or 0
        finally:
            self.delete([name])

    def sync(self, names: Iterable[str]) -> None:
        """Do nothing: an object store acknowledges only durable objects."""

    def sync_folder(self, folder: str) -> None:
        """Do nothing, as `sync`."""

    def list(self, prefix: str, limit: int | None = None) -> Names:
        return self._within(prefix, limit, folders=False)

    def folders(self, prefix: str, limit: int | None = None) -> Names:
        return self._within(prefix, limit, folders=True)

    def _within(self, prefix: str, limit: int | None, folders: bool) -> Names:
        from pyarrow.fs import FileSelector, FileType

        folder, kind = check_folder(prefix), FileType.Directory if folders else FileType.File
        lead = f"{folder}/" if folder else ""
        infos = self.filesystem.get_file_info(FileSelector(folder, allow_not_found=True))
        names = (lead + info.base_name for info in infos if info.type == kind and info.base_name[0] != ".")
        return sorted(islice(names, limit))

    def delete(self, names: Iterable[str]) -> None:
        # each request takes milliseconds, so send many at once
        with Workers(_REQUESTS_AT_ONCE, "lakemq-delete") as pool:
            deletions = [pool.submit(self._delete_one, check_name(name)) for name in names]
        for deletion in deletions:
            deletion.result()

    def delete_folder(self, prefix: str) -> None:
        with suppress(FileNotFoundError):
            self.filesystem.delete_dir(check_name(prefix.removesuffix("/")))

    def watch(self, folder: str) -> Watch | None:
        check_name(folder)
        return None

    def open_input(self, name: str) -> pa.NativeFile:
        return self.filesystem.open_input_file(check_name(name))

    def uri(self, name: str) -> str:
        return f"{self.root}/{check_name(name)}"

    def _info(self, name: str) -> FileInfo | None:
        info = self.filesystem.get_file_info(check_name(name))
        return info if info.is_file else None

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

    endpoint = _first_option(options, "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    scheme, separator, host = (endpoint or "").partition("://")
    return S3FileSystem(
        access_key=_first_option(options, "AWS_ACCESS_KEY_ID"),
        secret_key=_first_option(options, "AWS_SECRET_ACCESS_KEY"),
        session_token=_first_option(options, "AWS_SESSION_TOKEN", "AWS_TOKEN"),
        region=_first_option(options, "AWS_REGION", "AWS_DEFAULT_REGION"),
        endpoint_override=host if separator else endpoint,
        scheme=scheme if separator else None,
        anonymous=_is_on(options, "AWS_SKIP_SIGNATURE"),
        force_virtual_addressing=_is_on(options, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"),
        allow_delayed_open=True,  # a small object then takes one request instead of three
    )


def _gcs(url: SplitResult, options: Mapping[str, str]) -> FileSystem:
    from pyarrow.fs import GcsFileSystem

    key_file = _first_option(
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
    account = host.partition(".")[0] if named else _first_option(options, "AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise ValueError("storage option AZURE_STORAGE_ACCOUNT_NAME: found none, expected the name of the account")
    return AzureFileSystem(
        account,
        account_key=_first_option(options, "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"),
        sas_token=_first_option(options, "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"),
        client_id=_first_option(options, "AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID"),
        client_secret=_first_option(options, "AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET"),
        tenant_id=_first_option(options, "AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID"),
    )


AZURE = ("abfs", "abfss", "az")
STORES: dict[str, Callable[[SplitResult, Mapping[str, str]], FileSystem]] = {
    **dict.fromkeys(("s3", "s3a"), _s3),
    **dict.fromkeys(("gs", "gcs"), _gcs),
    **dict.fromkeys(AZURE, _azure),
}


def _first_option(options: Mapping[str, str], *spellings: str) -> str | None:
    return next((options[key] for key in spellings if key in options), None)


def _is_on(options: Mapping[str, str], key: str) -> bool:
    return options.get(key, "").lower() in ("1", "true", "yes", "on")
