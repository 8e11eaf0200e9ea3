"""An output that is uploaded while it is written. Small ones are put when they are complete."""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa


@contextmanager
def stream_output(
    put: Callable[[bytes], object], upload: Callable[[Iterator[bytes]], object], most_bytes: int
) -> Iterator[pa.NativeFile]:
    """Yield a sink for pyarrow's writers, and pass on what is written there.

    Args:
        put: takes an output of up to `most_bytes`, when it is complete.
        upload: takes the pieces of a larger output, in another thread. It must make no object if the pieces end with
            an exception, which they do if the block does.
        most_bytes: the writer waits while so many bytes are not taken yet.

    Raises what `put` or `upload` raises: in the block, or when it ends.
    """
    output = _StreamedOutput(upload, most_bytes)
    try:
        with pa.PythonFile(output, mode="w") as sink:
            yield sink
    except BaseException:
        output.abort()
        raise
    output.complete(put)


class _OutputAborted(Exception):
    """The writer has failed, so there is nothing to upload."""


class _StreamedOutput(io.RawIOBase):
    """The file that pyarrow writes. An upload reads its pieces in a thread that starts with a large output."""

    def __init__(self, upload: Callable[[Iterator[bytes]], object], most_bytes: int) -> None:
        self._upload, self._most_bytes = upload, most_bytes
        self._changed = threading.Condition()
        # what is below is guarded by the condition
        self._pieces: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_complete = self._is_aborted = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Add a piece, and wait if the upload is behind. Raises the error of the upload."""
        # pyarrow's writers hand over bytes, which are kept without a copy. Other buffers might change later.
        piece = data if isinstance(data, bytes) else bytes(data)
        with self._changed:
            while self._thread is not None and self._waiting_bytes >= self._most_bytes and self._failure is None:
                self._changed.wait()
            if self._failure is not None:
                raise self._failure
            self._pieces.append(piece)
            self._waiting_bytes += len(piece)
            if self._thread is None and self._waiting_bytes > self._most_bytes:
                self._thread = threading.Thread(target=self._run, name="lakemq-upload", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return len(piece)

    def complete(self, put: Callable[[bytes], object]) -> None:
        """Wait until all is stored. Raises the error of the upload."""
        if self._thread is None:
            put(b"".join(self._pieces))
            return
        with self._changed:
            self._is_complete = True
            self._changed.notify_all()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def abort(self) -> None:
        """End the upload without an object."""
        with self._changed:
            self._is_aborted = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            self._upload(self._take_pieces())
        except BaseException as error:
            failure = error
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def _take_pieces(self) -> Iterator[bytes]:
        while True:
            with self._changed:
                while not (self._pieces or self._is_complete or self._is_aborted):
                    self._changed.wait()
                if self._is_aborted:
                    raise _OutputAborted
                if not self._pieces:
                    return
                piece = self._pieces.popleft()
                self._waiting_bytes -= len(piece)
                self._changed.notify_all()
            yield piece
