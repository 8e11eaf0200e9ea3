"""Plain objects under a root, wherever it is: the only file I/O beside Delta's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from .local_files import LocalFiles
from .object_store import AZURE, STORES, ArrowFiles
from .objects import Files

__all__ = ["ArrowFiles", "Files", "LocalFiles", "open_files"]

# In a URI made of a path with one of these, delta-rs sees another folder (it decodes %20, cuts at # and ?) or
# fails, and Spark sees a pattern.
_ODD_IN_A_ROOT = re.compile(r"[%#?*|^\\{}\[\]\x00-\x1f]")


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
    connect = STORES.get(url.scheme)
    if connect is None or not url.netloc:
        raise ValueError(f"root: found {root!r}, expected a path or a URI of {', '.join(['file', *STORES])}")
    filesystem = connect(url, {key.upper(): value for key, value in (storage_options or {}).items()})
    container = url.netloc.partition("@")[0] if url.scheme in AZURE else url.netloc
    return ArrowFiles(filesystem, f"{container}{url.path}".rstrip("/"), root=root.rstrip("/"))
