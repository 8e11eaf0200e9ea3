"""Distinguish a store that denies access from one that fails.

Spark executors import this, so it loads neither deltalake nor `pyarrow.dataset`, which imports pandas.
"""

from __future__ import annotations

import re

from ..protocol.errors import StorageAccessDenied, StorageError

_DENIED = re.compile(r"Permission denied|Operation not permitted|Access ?Denied|PermissionDenied", re.IGNORECASE)
"""How a file system, an object store and delta-rs, which has no errno, report denied access."""


_UNREACHABLE = re.compile(r"timed out|error sending request|connection (?:refused|reset|closed)", re.IGNORECASE)
"""How obstore and delta-rs report a store that gave no answer."""


def flatten_error(error: Exception) -> str:
    """Return the text of an error in one line: delta-rs draws a tree of causes over several."""
    return " ".join(re.sub(r"\x1b\[\d*m|↳", " ", str(error)).split())


def is_unreachable(error: Exception) -> bool:
    """Return whether the store gave no answer, so that nothing is known about what it holds."""
    return _UNREACHABLE.search(str(error)) is not None


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
