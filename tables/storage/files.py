"""Open the objects under a root, a path or a URI. All file I/O except Delta's goes through them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from .local_files import LocalFiles
from .object_store import AZURE, STORES, ArrowFiles
from .objects import Files

__all__ = ["ArrowFiles", "Files", "LocalFiles", "open_files"]

# delta-rs would read a URI with one of these as another folder (it decodes %20 and cuts at # and ?) or fail; Spark
# would take it for a pattern.
_ODD_IN_A_ROOT = re.compile(r"[%#?*|^\\{}\[\]\x00-\x1f]")


def open_files(root: str, storage_options: Mapping[str, str] | None = None) -> Files:
    """Open the objects under `root`, a path or a URI: file, s3, gs, abfs and their usual spellings.

    storage_options: credentials, region and endpoint, named as in delta-rs; options for Delta alone are ignored.

    Raises ValueError if the root or an option cannot be used.
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
