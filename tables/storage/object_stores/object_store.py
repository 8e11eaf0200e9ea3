"""Objects in an object store, through obstore: S3 and compatible stores, Google Cloud Storage, Azure.

A put is conditional. A store may have written an object although its answer was lost; then obstore puts again and hears
that the name is taken. So every put carries a mark of its own, and an existing object with this mark is its own.
"""

from __future__ import annotations

import errno
import io
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..native_calls import Workers
from .inotify import Watch
from .objects import Data, Files, IdentifiedObject, MaybeThere, Names, check_folder, check_name, too_large
from .store_options import hide_secrets

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult, WritableFile
    from obstore.store import ObjectStore


# The objects `time-<32 hexadecimal digits>`, which are put to learn the time of a store and deleted at once.
#
# A process that is killed in between leaves its object behind.


ABANDONED_AFTER_MS = 3_600_000
"""Age by the store's time after which an object is left over. Its process needs it for less than a minute."""

_NAME = re.compile("time-[0-9a-f]{32}")


def make_time_name() -> str:
    """Return a name that no other process uses."""
    return f"time-{uuid.uuid4().hex}"


def remove_abandoned_times(files: Files, now_ms: int) -> None:
    """Delete the objects of killed processes. now_ms: the store's time. Raises OSError."""
    names = [name for name in files.list("") if _NAME.fullmatch(name)]
    ages_ms = {name: now_ms - (files.modified_ms(name) or now_ms) for name in names}
    files.delete(name for name, age_ms in ages_ms.items() if age_ms > ABANDONED_AFTER_MS)


# The objects of a namespace in a store.


_REQUESTS_AT_ONCE = 16
_WHOLE_BYTES = 1 << 20
"""Size up to which an object is read in one request, and the least that a larger one is read by."""

_PIECE_BYTES = 8 << 20
"""Size of a part that is read or written by one request; parts of an object go in parallel."""

_PARTS_AT_ONCE = 4
_REPEATED = re.compile(r", after \d+ retries,")
"""Part of an error of obstore whose request was sent more than once. obstore shows the count in no other way."""

_MARK = "lakemqput"
"""User metadata of an object: the mark of the put that wrote it. Azure allows letters and digits only."""


class ObjectFiles:
    """Objects in an object store. An object appears when it is complete, and is then durable.

    Larger outputs are uploaded in parts, and no store can put these conditionally through obstore. So `open_output`
    looks first, and names of outputs must be unique to one client, as LakeMQ's are.
    """

    def __init__(
        self, store: ObjectStore, root: str, options: Mapping[str, str] | None = None, bulk: ObjectStore | None = None
    ) -> None:
        """Use a store of obstore whose paths are the names.

        Args:
            store: for small requests.
            root: its URI.
            options: the storage options. Errors do not show the secrets among them.
            bulk: the same store for parts of large objects, which take longer.
        """
        from obstore.store import LocalStore

        self.root, self._store, self._bulk = root, store, bulk or store
        self._options = dict(options or {})
        # folders on a disk, in tests, hold no metadata
        self._has_marks = not isinstance(store, LocalStore)

    def __repr__(self) -> str:
        return f"ObjectFiles({self.root!r})"

    def put(self, name: str, data: Data, *, durable: bool = True) -> str:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        path, mark, body = check_name(name), uuid.uuid4().hex, memoryview(data).cast("B")
        attributes: Any = {_MARK: mark} if self._has_marks else None
        with self.translate_put_errors(name):
            try:
                written = obstore.put(
                    self._bulk if len(body) > _WHOLE_BYTES else self._store,
                    path,
                    body,
                    attributes=attributes,
                    mode="create",
                    use_multipart=False,
                )
            except (AlreadyExistsError, PreconditionError):
                stored_mark, identity = self._read_mark(path) if self._has_marks else (None, "")
                if stored_mark != mark:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.uri(name)) from None
                return identity
            return _identity_of(written)

    def _read_mark(self, path: str) -> tuple[str | None, str]:
        """Return the mark of an object that is in the way of a put, and the object's identity.

        Raises MaybeThere if it cannot be read, for whatever reason: it may be the object of this put.
        """
        import obstore
        from obstore.exceptions import BaseError

        try:
            head = obstore.get(self._store, path, options={"head": True})
        except FileNotFoundError:
            raise MaybeThere(errno.EIO, "the object was removed while it was put", self.uri(path)) from None
        except BaseError as error:
            raise _to_maybe_there(self._to_os_error(error, path)) from None
        return head.attributes.get(_MARK), _identity_of(head.meta)

    @contextmanager
    def open_output(self, name: str) -> Iterator[pa.NativeFile]:
        from obstore.exceptions import BaseError

        output = _ObjectOutput(self, check_name(name))
        try:
            # pyarrow closes what it writes to, also after an error. An upload that is closed would make an object.
            with pa.PythonFile(output, mode="w") as sink:
                yield sink
        except BaseException as error:
            if output.upload is not None:
                with suppress(BaseError):  # the error of the block is raised, and the object is not there anyway
                    output.upload.__exit__(type(error), error, None)
            raise
        if output.upload is None:
            self.put(name, output.take())
        else:
            with self.translate_put_errors(name):
                output.upload.close()

    def begin_upload(self, name: str) -> WritableFile:
        """Begin to upload a large object in parts, several at once. It appears when the upload is closed.

        An upload that ends with an exception makes no object, and its parts are removed.
        """
        import obstore

        if self.size(name) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.uri(name))
        with self.translate_put_errors(name):
            return obstore.open_writer(self._bulk, name, buffer_size=_PIECE_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def get(self, name: str, limit: int | None = None) -> bytes:
        return self.get_identified(name, limit).body

    def get_identified(self, name: str, limit: int | None = None) -> IdentifiedObject:
        import obstore

        path = check_name(name)
        with self._translate_errors(name):
            answer = obstore.get(self._store, path)
            if limit is not None and answer.meta["size"] > limit:
                raise too_large(self.uri(name), limit)
            if answer.meta["size"] > _WHOLE_BYTES:
                # ask again with more time: the size is known only now
                answer = obstore.get(self._bulk, path)
            return IdentifiedObject(bytes(answer.bytes()), _identity_of(answer.meta), _to_ms(answer.meta))

    def size(self, name: str) -> int | None:
        meta = self._head(name)
        return None if meta is None else meta["size"]

    def modified_ms(self, name: str) -> int | None:
        meta = self._head(name)
        return None if meta is None else _to_ms(meta)

    def identity(self, name: str) -> str | None:
        meta = self._head(name)
        return None if meta is None else _identity_of(meta)

    def time_ms(self) -> int:
        name = make_time_name()
        self.put(name, b".")
        try:
            modified_ms = self.modified_ms(name)
            if modified_ms is None:
                raise OSError(errno.EIO, "an object that was just put is not there", self.uri(name))
            return modified_ms
        finally:
            self.delete([name])

    def sync(self, names: Iterable[str]) -> None:
        """Do nothing: an object store acknowledges only durable objects."""

    def sync_folder(self, folder: str) -> None:
        """Do nothing, as `sync`."""

    def list(self, prefix: str, limit: int | None = None) -> Names:
        folder, paths = self._list_folder(prefix)
        return _sort_names(folder, (meta["path"] for meta in paths["objects"]), limit)

    def folders(self, prefix: str, limit: int | None = None) -> Names:
        folder, paths = self._list_folder(prefix)
        return _sort_names(folder, paths["common_prefixes"], limit)

    def _list_folder(self, prefix: str) -> tuple[str, Any]:
        import obstore

        folder = check_folder(prefix)
        with self._translate_errors(folder):
            return folder, obstore.list_with_delimiter(self._store, folder or None)

    def delete(self, names: Iterable[str]) -> None:
        import obstore
        from obstore.exceptions import BaseError

        paths = [check_name(name) for name in names]
        if len(paths) > 1:
            # one request for a thousand names, where the store has it; the others say at once which name is missing
            with suppress(FileNotFoundError, BaseError):
                obstore.delete(self._store, paths)
                return
        with Workers(_REQUESTS_AT_ONCE, "lakemq-delete") as pool:
            deletions = [pool.submit(self._delete_one, path) for path in paths]
        for deletion in deletions:
            deletion.result()

    def _delete_one(self, path: str) -> None:
        import obstore

        with suppress(FileNotFoundError), self._translate_errors(path):
            obstore.delete(self._store, path)

    def delete_folder(self, prefix: str) -> None:
        check_name(prefix.removesuffix("/"))
        self.delete(self.list(prefix))

    def watch(self, folder: str, *, create: bool = False) -> Watch | None:
        check_name(folder)
        return None

    def open_input(self, name: str) -> pa.NativeFile:
        import obstore

        path = check_name(name)
        with self._translate_errors(name):
            answer = obstore.get(self._store, path)
            if answer.meta["size"] <= _WHOLE_BYTES:
                return pa.BufferReader(bytes(answer.bytes()))
        # the rest of the answer is never read, and its connection is closed
        return pa.PythonFile(_RangedReader(self, path, answer.meta["size"]), mode="r")

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Read the bytes from `start` up to `end`, in parallel requests if they are many."""
        starts = range(start, end, _PIECE_BYTES)
        if len(starts) <= 1:
            return self._read_piece(path, start, end)
        with Workers(min(_PARTS_AT_ONCE, len(starts)), "lakemq-read") as pool:
            pieces: list[Future[bytes]] = [
                pool.submit(self._read_piece, path, first, min(first + _PIECE_BYTES, end)) for first in starts
            ]
        return b"".join(piece.result() for piece in pieces)

    def _read_piece(self, path: str, start: int, end: int) -> bytes:
        import obstore

        with self._translate_errors(path):
            return bytes(obstore.get_range(self._bulk, path, start=start, end=end))

    def uri(self, name: str) -> str:
        return f"{self.root}/{check_name(name)}"

    def _head(self, name: str) -> ObjectMeta | None:
        import obstore

        path = check_name(name)
        with suppress(FileNotFoundError), self._translate_errors(name):
            return obstore.head(self._store, path)
        return None

    @contextmanager
    def _translate_errors(self, name: str) -> Iterator[None]:
        """Raise errors of obstore as OSErrors that show no secrets."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            raise self._to_os_error(error, name) from None

    @contextmanager
    def translate_put_errors(self, name: str) -> Iterator[None]:
        """Raise errors of a put as OSError; MaybeThere unless the store refused it.

        A refusal says only that its own attempt wrote nothing. Credentials may expire between an attempt whose answer
        was lost and the next one, which the store then refuses. So a refusal is certain for a single attempt only.
        """
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            failure = self._to_os_error(error, name)
            if failure.errno == errno.EIO or _REPEATED.search(str(error)):
                raise _to_maybe_there(failure) from None
            raise failure from None

    def _to_os_error(self, error: Exception, name: str) -> OSError:
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        # obstore appends its own data structures to the message
        text = hide_secrets(" ".join(str(error).partition("Debug source:")[0].split()), self._options)
        uri = self.uri(name) if name else self.root
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), uri)
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
            return PermissionError(errno.EACCES, text, uri)
        return OSError(errno.EIO, text, uri)


class _ObjectOutput(io.RawIOBase):
    """Keeps a small output until it is complete, and uploads a larger one while it is written.

    Attributes:
        upload: None while the output is small. A write waits while as many parts as may go in parallel are under way.
    """

    def __init__(self, files: ObjectFiles, name: str) -> None:
        self._files, self._name = files, name
        self._kept = bytearray()
        self.upload: WritableFile | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        # obstore keeps what it is given without a copy, until the part is stored. Buffers other than bytes may change.
        piece: Data = data if isinstance(data, bytes) else bytes(data)
        size = len(piece)
        if self.upload is None:
            self._kept += piece
            if len(self._kept) <= _PIECE_BYTES:
                return size
            self.upload, piece = self._files.begin_upload(self._name), self.take()
        with self._files.translate_put_errors(self._name):
            self.upload.write(piece)
        return size

    def take(self) -> bytearray:
        """Return what is kept, and keep it no longer."""
        kept, self._kept = self._kept, bytearray()
        return kept


class _RangedReader(io.RawIOBase):
    """Reads a large object by ranges. Footers and neighbouring columns come with one request."""

    def __init__(self, files: ObjectFiles, path: str, size: int) -> None:
        self._files, self._path, self._size = files, path, size
        self._position = 0
        self._blocks: dict[str, tuple[int, bytes]] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        start = min(self._position, self._size)
        end = self._size if size < 0 else min(start + size, self._size)
        data = self._read(start, end) if start < end else b""
        self._position = end
        return data

    def _read(self, start: int, end: int) -> bytes:
        for first, block in self._blocks.values():
            if first <= start and end <= first + len(block):
                return block[start - first : end - first]
        # keep the end, where the footer is, beside the last block
        tail = max(0, self._size - _WHOLE_BYTES)
        key, first = ("tail", tail) if start >= tail else ("last", start)
        block = self._files.read_range(self._path, first, min(max(end, first + _WHOLE_BYTES), self._size))
        self._blocks[key] = (first, block)
        return block[start - first : end - first]


def _to_maybe_there(failure: OSError) -> MaybeThere:
    return MaybeThere(failure.errno, failure.strerror, failure.filename)


def _identity_of(meta: ObjectMeta | PutResult) -> str:
    """Return the object's ETag and its version. Stores make an ETag from the content, or a new one for each object."""
    return f"{meta['e_tag']}-{meta['version']}"


def _to_ms(meta: ObjectMeta) -> int:
    modified = meta["last_modified"]
    return int(modified.timestamp()) * 1000 + modified.microsecond // 1000


def _sort_names(folder: str, paths: Iterable[str], limit: int | None) -> Names:
    """Return the sorted names directly in the folder, `limit` at most, without hidden ones and the folder's marker."""
    lead = f"{folder}/" if folder else ""
    names = (path for path in paths if path.startswith(lead) and _is_visible(path[len(lead) :]))
    return sorted(names)[:limit]


def _is_visible(base_name: str) -> bool:
    return bool(base_name) and base_name[0] != "." and "/" not in base_name
