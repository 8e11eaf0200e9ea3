"""Open the objects under a root, a path or a URI, for us and for Arrow. All I/O except Delta's goes through them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow.fs import (
    FileInfo,
    FileSystem,
    FileSystemHandler,
    FileType,
    LocalFileSystem,
    PyFileSystem,
    SubTreeFileSystem,
)

from .local_files import LocalFiles
from .object_store import ObjectFiles
from .objects import Files
from .store_options import STORES, connect, has_user, hide_secrets

__all__ = ["Files", "LocalFiles", "ObjectFiles", "open_files"]


# delta-rs would read a URI with one of these as another folder (it decodes %20 and cuts at # and ?) or fail; Spark
# would take it for a pattern.
_ODD_IN_A_ROOT = re.compile(r"[%#?*|^\\{}\[\]\x00-\x1f]")

# "s3:/bucket" and "dbfs:/folder" would be folders of these names in the working directory.
_ONE_SLASH = re.compile(r"file:|[A-Za-z][A-Za-z0-9+.-]*:/")


def open_files(root: str, storage_options: Mapping[str, str] | None = None) -> Files:
    """Open the objects under `root`, a path or a URI: file, s3, gs, abfs and their usual spellings.

    storage_options: credentials, region and endpoint, named as in delta-rs; options for Delta alone are ignored.

    Raises ValueError if the root or an option cannot be used.
    """
    if odd := _ODD_IN_A_ROOT.search(root):
        shown = hide_secrets(repr(root), {})
        raise ValueError(f"root: found {odd[0]!r} in {shown}, expected none of {_ODD_IN_A_ROOT.pattern}")
    path = re.sub("^file:(//)?(?=/(?!/))", "", root)
    if not path:
        raise ValueError(f"root: found {root!r}, expected a path or a URI")
    if "://" not in path and not _ONE_SLASH.match(path):
        return LocalFiles(path)
    url = urlsplit(root)
    if has_user(root) or (url.username is not None and not url.scheme.startswith("abfs")):
        raise ValueError(
            f"root: found a user in {hide_secrets(repr(root), {})}, expected credentials in the environment or in"
            " storage options"
        )
    if url.scheme not in STORES or not url.netloc:
        raise ValueError(f"root: found {root!r}, expected a path or a URI of {', '.join(['file', *STORES])}")
    options = dict(storage_options or {})
    small, bulk = connect(root.rstrip("/"), options)
    return ObjectFiles(small, root.rstrip("/"), options, bulk)


# pyarrow's view of a namespace's objects, for datasets.


def arrow_filesystem(files: Files) -> FileSystem:
    """Return pyarrow's file system for a namespace; its paths start at the root."""
    if isinstance(files, LocalFiles):
        return SubTreeFileSystem(files.root, LocalFileSystem())
    return PyFileSystem(_ReadOnlyHandler(files))


class _ReadOnlyHandler(FileSystemHandler):  # type: ignore[misc]
    """Opens objects for a dataset. Datasets of LakeMQ name their files, so nothing is listed."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ReadOnlyHandler) and other._files.root == self._files.root

    def __hash__(self) -> int:
        return hash(self._files.root)

    def get_type_name(self) -> str:
        return "lakemq"

    def normalize_path(self, path: str) -> str:
        return path

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self._files.open_input(path)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self._files.open_input(path)

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        infos = []
        for path in paths:
            size = self._files.size(path)
            kind = FileType.NotFound if size is None else FileType.File
            infos.append(FileInfo(path, kind, size=size))
        return infos

    def get_file_info_selector(self, selector: Any) -> list[FileInfo]:
        raise NotImplementedError

    def create_dir(self, path: str, recursive: bool) -> None:
        raise NotImplementedError

    def delete_dir(self, path: str) -> None:
        raise NotImplementedError

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        raise NotImplementedError

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise NotImplementedError

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise NotImplementedError
