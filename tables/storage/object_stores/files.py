"""Open the objects under a root, a path or a URI, for us and for Arrow. All I/O except Delta's goes through them."""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSystem, FileType, FSSpecHandler, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from .local_files import LocalFiles
from .object_store import ObjectFiles
from .objects import Files
from .store_options import STORES, connect, has_user, hide_secrets

__all__ = ["Files", "LocalFiles", "ObjectFiles", "arrow_filesystem", "open_files"]


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
    if root != root.strip():  # obstore would drop a space at an end, and delta-rs would not
        raise ValueError(f"root: found a space at an end of {hide_secrets(repr(root), {})}, expected none")
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
