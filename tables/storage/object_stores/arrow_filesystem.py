"""pyarrow's view of a namespace's objects, for datasets."""

from __future__ import annotations

from typing import Any

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
from .objects import Files


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
