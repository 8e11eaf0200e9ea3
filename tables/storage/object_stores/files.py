"""Open the objects under a root, a path or a URI, for us and for Arrow. All I/O except Delta's goes through them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

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
