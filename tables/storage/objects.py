"""What an object is, whatever store holds it.

An object appears whole or not at all, under a name that was free, and is never changed: it can only be
deleted. A durable object survives a loss of power once `put` has returned; one that is not durable may
afterwards be gone, or be there with less than was written.

Only the standard library and pyarrow are needed here, so that it works on Spark's executors.
"""

from __future__ import annotations

import errno
import re
import uuid
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

import pyarrow as pa

from .inotify import Watch

Names: TypeAlias = list[str]
Data: TypeAlias = bytes | pa.Buffer | memoryview


class MaybeThere(OSError):
    """The store failed after the object could be seen: it may be there, and may have been read; or it is not."""


class Files(Protocol):
    """Objects under `root`. A name is a path below it, `folder/name`, no part of which begins with a dot.

    Every method raises ValueError for anything else: `..`, an absolute path, an empty or hidden part.
    What the store reports (no space left, read-only, not allowed) comes out as the OSError it is. What could be seen
    for a moment is never taken back, as somebody may act on it already: then putting raises MaybeThere.
    """

    root: str

    puts_if_absent: bool
    """Whether of two that put one name at the same moment only one can succeed; else names must be one client's."""

    def put(self, name: str, data: Data, *, durable: bool = True) -> None:
        """The object is there, whole. FileExistsError: there is one of that name, and it stays as it is."""

    def get(self, name: str, limit: int | None = None) -> bytes:
        """All of an object. FileNotFoundError: not there; OSError: it is none, or has more than `limit` bytes.

        It never waits for somebody else, nor reads what it refuses.
        """

    def size(self, name: str) -> int | None:
        """Bytes of an object, None: not there."""

    def modified_ms(self, name: str) -> int | None:
        """When the object was written, by the store's time, in epoch milliseconds. None: not there."""

    def identity(self, name: str) -> str | None:
        """Which object this is: another text once one of the same name was put anew. None: not there."""

    def time_ms(self) -> int:
        """The store's own time, in epoch milliseconds: what `modified_ms` says of an object that is put now."""

    def sync(self, names: Iterable[str]) -> None:
        """These objects, which somebody else wrote, and the folders they lie in survive a loss of power."""

    def sync_folder(self, folder: str) -> None:
        """The folder itself survives a loss of power, with all above it."""

    def list(self, prefix: str, limit: int | None = None) -> Names:
        """Names (from the root, as `get` takes them) of the objects directly in folder `prefix`, sorted.

        At most `limit`: then whichever the store names first. A folder that is not there holds nothing.
        """

    def folders(self, prefix: str, limit: int | None = None) -> Names:
        """Names of the folders directly in folder `prefix`, sorted; at most `limit`, as in `list`."""

    def delete(self, names: Iterable[str]) -> None:
        """None of these objects is there; that some were not is fine. A loss of power may bring some back.

        One that cannot be deleted does not keep the others; then what the store said of the first is raised.
        """

    def delete_folder(self, prefix: str) -> None:
        """The objects directly in folder `prefix` are gone, and so is the folder if nothing is left in it."""

    def watch(self, folder: str) -> Watch | None:
        """Tells of what is put into the folder from now on; None: there is no such folder yet, or it is not told of."""

    def open_output(self, name: str) -> AbstractContextManager[pa.NativeFile]:
        """A sink for pyarrow's writers: a durable object on a clean exit, nothing at all after an exception.

        FileExistsError, on the exit: there is one of that name, and it stays as it is.
        """

    def open_input(self, name: str) -> pa.NativeFile:
        """An object for random access. FileNotFoundError: not there."""

    def uri(self, name: str) -> str:
        """How Spark and delta-rs call the object (a path on a local disk is not percent-encoded)."""


def too_large(name: str, limit: int) -> OSError:
    return OSError(errno.EFBIG, f"more than {limit} bytes", name)


_NAME = re.compile(r"(?!\.)[^/\0]+(?:/(?!\.)[^/\0]+)*")


def checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"name of an object: found {name!r}, expected parts joined by '/', none empty or begun with '.'"
        )
    return name


def checked_folder(prefix: str) -> str:
    """`prefix` without the slash it may end in; empty: the root."""
    return checked(prefix.removesuffix("/")) if prefix else prefix


def hidden_name() -> str:
    """A name for what is still being written, which no listing shows."""
    return f".{uuid.uuid4().hex}.tmp"
