"""A local store that fails on command, because root is never refused anything."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from lakemq.tables.storage.object_stores.files import LocalFiles
from lakemq.tables.storage.object_stores.objects import Data, MaybeThere, Names


class FaultyFiles(LocalFiles):
    """A store that cannot read, delete, write or list objects whose names contain given words.

    It calls `after_put` for each put. vague: a put that fails has landed nevertheless.
    """

    def __init__(
        self,
        root: str,
        unreadable: str = "",
        undeletable: str = "",
        unwritable: str = "",
        vague: bool = False,
        code: int = errno.EACCES,
    ) -> None:
        super().__init__(root)
        self.unreadable, self.undeletable, self.unwritable, self.unlistable = unreadable, undeletable, unwritable, ""
        self.vague, self.code = vague, code
        self.reads: list[str] = []
        self.deletes: list[str] = []
        self.puts: list[str] = []
        self.after_put: Callable[[str], None] = lambda name: None

    def get(self, name: str, limit: int | None = None) -> bytes:
        self.reads.append(name)
        if self.unreadable and self.unreadable in name and self.size(name) is not None:
            raise OSError(self.code, os.strerror(self.code), name)
        return super().get(name, limit)

    def delete(self, names: Iterable[str]) -> None:
        failed = None
        for name in names:
            self.deletes.append(name)
            if self.undeletable and self.undeletable in name and self.size(name) is not None:
                failed = OSError(errno.EPERM, os.strerror(errno.EPERM), name)
            else:
                super().delete([name])
        if failed is not None:
            raise failed

    def list(self, prefix: str, limit: int | None = None) -> Names:
        if self.unlistable and self.unlistable in prefix:
            raise OSError(self.code, os.strerror(self.code), prefix)
        return super().list(prefix, limit)

    @contextmanager
    def open_output(self, name: str) -> Iterator[pa.NativeFile]:
        with super().open_output(name) as sink:
            yield sink
            if self.unwritable and self.unwritable in name:
                raise OSError(self.code, os.strerror(self.code), name)

    def put(self, name: str, data: Data, *, durable: bool = True) -> str:
        self.puts.append(name)
        if self.unwritable and self.unwritable in name:
            if self.vague:
                super().put(name, data, durable=durable)
                self.after_put(name)
                raise MaybeThere(errno.EIO, os.strerror(errno.EIO), name)
            raise OSError(self.code, os.strerror(self.code), name)
        identity = super().put(name, data, durable=durable)
        self.after_put(name)
        return identity
