"""pyarrow's view of a namespace's objects, for datasets."""

from __future__ import annotations

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSystem, FileType, FSSpecHandler, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from .local_files import LocalFiles
from .objects import Files


def arrow_filesystem(files: Files) -> FileSystem:
    """Return pyarrow's file system for a namespace; its paths start at the root."""
    if isinstance(files, LocalFiles):
        return SubTreeFileSystem(files.root, LocalFileSystem())
    return PyFileSystem(_ReadOnlyHandler(files))


class _ReadOnlyHandler(FSSpecHandler):  # type: ignore[misc]
    """Opens objects for a dataset. Datasets of LakeMQ name their files, so nothing is listed.

    The inherited methods that list and write find nothing in `Files` that they could call.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ReadOnlyHandler) and other.fs.root == self.fs.root

    def __hash__(self) -> int:
        return hash(self.fs.root)

    def get_type_name(self) -> str:
        return "lakemq"

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self.fs.open_input(path)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.fs.open_input(path)

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        infos = []
        for path in paths:
            size = self.fs.size(path)
            kind = FileType.NotFound if size is None else FileType.File
            infos.append(FileInfo(path, kind, size=size))
        return infos
