"""Distinguish a store that denies access from one that fails.

Spark executors import this, so it loads neither deltalake nor `pyarrow.dataset`, which imports pandas.
"""

from __future__ import annotations

import re

from ..protocol.errors import StorageAccessDenied, StorageError

_DENIED = re.compile(r"Permission denied|Operation not permitted|Access ?Denied|PermissionDenied", re.IGNORECASE)
"""How a file system, an object store and delta-rs, which has no errno, report denied access."""


def storage_error(detail: str, error: Exception, found: str | None = None) -> StorageError:
    """Return the error for a store that failed. Retrying helps unless the store denies access.

    Args:
        found: the part of the error to show. By default all of its text.
    """
    denied = isinstance(error, PermissionError) or _DENIED.search(str(error)) is not None
    text = " ".join(str(error).split()) if found is None else found
    if not denied:
        return StorageError(detail, found=text)
    return StorageAccessDenied(detail, found=text, expected="a user who may read and write the namespace")
