"""The interface of objects, for any store.

An object appears as a whole or not at all, under a free name. It never changes and can only be deleted. A durable
object survives a loss of power once `put` has returned. Another object may be gone or truncated afterwards.

This needs only the standard library and pyarrow, so that it works on Spark's executors.
"""

import errno
import re
import uuid
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from .inotify import Watch

Names: TypeAlias = list[str]
Data: TypeAlias = bytes | pa.Buffer | memoryview


class RootGone(FileNotFoundError):
    """The root of the objects was there, and is not any more: it was deleted, or its disk is not mounted."""


class MaybeThere(OSError):
    """The store failed after the object may have appeared: it may exist, and may have been read, or not."""


class IdentifiedObject(NamedTuple):
    """An object as it was read. identity, modified_ms: as `Files` returns them for its name."""

    body: bytes
    identity: str
    modified_ms: int


class Files(Protocol):
    """Objects under `root`. A name is a path below it, `folder/name`, whose parts do not start with a dot.

    Every method raises ValueError for other names: `..`, an absolute path, an empty or hidden part. Errors of the store
    (no space left, read-only, not permitted) are raised as OSError. An object that was visible for a moment is never
    removed again, since another process may act on it already; then putting raises MaybeThere.
    """

    root: str

    def put(self, name: str, data: Data, *, durable: bool = True) -> str:
        """Write an object, and return its identity, as `identity` does.

        If several clients put the same name at once, one of them succeeds.

        Raises FileExistsError if the name is taken; that object stays unchanged.
        """

    def get(self, name: str, limit: int | None = None) -> bytes:
        """Read a whole object. It never blocks, and does not read what it refuses.

        Raises:
            FileNotFoundError: There is no such object.
            OSError: It is not a regular object, or has more than `limit` bytes.
        """

    def get_identified(self, name: str, limit: int | None = None) -> IdentifiedObject:
        """Read a whole object, with its identity and time. Raises what `get` raises."""

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes; None if it does not exist."""

    def modified_ms(self, name: str) -> int | None:
        """Return when the object was written, in epoch milliseconds of the store's clock; None if it does not exist."""

    def identity(self, name: str) -> str | None:
        """Return a text that identifies the object and changes if it is replaced; None if it does not exist."""

    def time_ms(self) -> int:
        """Return the store's time in epoch milliseconds: the `modified_ms` of an object written now."""

    def sync(self, names: Iterable[str]) -> None:
        """Make objects of other writers durable, and their folders."""

    def sync_folder(self, folder: str) -> None:
        """Make the folder itself durable, and all folders above it."""

    def list(self, prefix: str, limit: int | None = None) -> Names:
        """Return the sorted names (from the root, as for `get`) of the objects directly in folder `prefix`.

        With `limit`, the first ones that the store names. A missing folder is empty.
        """

    def folders(self, prefix: str, limit: int | None = None) -> Names:
        """Return the sorted names of the folders directly in folder `prefix`; `limit` as in `list`."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete these objects; missing ones are fine. After a loss of power some may be back.

        If one cannot be deleted, the others are deleted nevertheless, and then the first error is raised.
        """

    def delete_folder(self, prefix: str) -> None:
        """Delete the objects directly in folder `prefix`, and the folder if it is empty then."""

    def watch(self, folder: str, *, create: bool = False) -> Watch | None:
        """Watch a folder for new objects; None if it does not exist yet, or cannot be watched.

        create: make the folder if it does not exist, where objects are files.
        """

    def open_output(self, name: str) -> AbstractContextManager[pa.NativeFile]:
        """Open a sink for pyarrow's writers. A clean exit makes a durable object, an exception makes none.

        The exit raises FileExistsError if the name is taken; that object stays unchanged.
        """

    def open_input(self, name: str) -> pa.NativeFile:
        """Open an object for random access. Raises FileNotFoundError."""

    def uri(self, name: str) -> str:
        """Return the object's URI for Spark and delta-rs (a local path is not percent-encoded)."""


def too_large(name: str, limit: int) -> OSError:
    return OSError(errno.EFBIG, f"more than {limit} bytes", name)


_NAME = re.compile(r"(?!\.)[^/\0]+(?:/(?!\.)[^/\0]+)*")


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"name of an object: found {name!r}, expected parts joined by '/', none empty or starting with '.'"
        )
    return name


def check_folder(prefix: str) -> str:
    """Return `prefix` without a final slash; empty: the root."""
    return check_name(prefix.removesuffix("/")) if prefix else prefix


def hidden_name() -> str:
    """Return a new hidden name for an object that is being written; listings do not show it."""
    return f".{uuid.uuid4().hex}.tmp"
