"""Outputs that are uploaded while they are written: nothing is lost, and failures reach the writer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from lakemq.tables.storage.object_stores.streamed_output import stream_output

MOST_BYTES = 100
WAIT_S = 30


class Store:
    """Takes outputs as a store does: an upload whose pieces fail makes no object."""

    def __init__(self) -> None:
        self.put_bodies: list[bytes] = []
        self.uploaded: list[bytes] = []

    def put(self, body: bytes) -> None:
        self.put_bodies.append(body)

    def upload(self, pieces: Iterator[bytes]) -> None:
        self.uploaded.append(b"".join(pieces))


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.mark.parametrize("sizes", [[], [0], [MOST_BYTES], [1] * MOST_BYTES])
def test_small_output_is_put_whole(store: Store, sizes: list[int]) -> None:
    with stream_output(store.put, store.upload, MOST_BYTES) as sink:
        for size in sizes:
            sink.write(b"x" * size)
        assert store.put_bodies == []
    assert store.put_bodies == [b"x" * sum(sizes)]
    assert store.uploaded == []


@pytest.mark.parametrize("sizes", [[MOST_BYTES + 1], [1] * (MOST_BYTES + 1), [7, 0, 500, 3] * 50])
def test_large_output_is_uploaded_in_order(store: Store, sizes: list[int]) -> None:
    pieces = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    with stream_output(store.put, store.upload, MOST_BYTES) as sink:
        for piece in pieces:
            sink.write(piece)
        assert sink.tell() == sum(sizes)
    assert store.uploaded == [b"".join(pieces)]
    assert store.put_bodies == []


def test_buffer_that_changes_after_write_is_stored_unchanged(store: Store) -> None:
    buffer = bytearray(b"before")
    with stream_output(store.put, store.upload, MOST_BYTES) as sink:
        sink.write(buffer)
        buffer[:] = b"after!"
    assert store.put_bodies == [b"before"]


def test_upload_begins_before_the_output_is_complete(store: Store) -> None:
    first_piece = threading.Event()

    def upload(pieces: Iterator[bytes]) -> None:
        for _ in pieces:
            first_piece.set()

    with stream_output(store.put, upload, MOST_BYTES) as sink:
        sink.write(b"x" * MOST_BYTES)
        sink.write(b"x")
        assert first_piece.wait(WAIT_S)


def test_writer_waits_for_a_slow_upload() -> None:
    """All that is written and not taken is in memory, so it has a bound."""
    may_take, ahead, most_ahead = threading.Semaphore(0), 0, 0

    def upload(pieces: Iterator[bytes]) -> None:
        nonlocal ahead
        for piece in pieces:
            ahead -= len(piece)
            assert may_take.acquire(timeout=WAIT_S)

    def write() -> None:
        nonlocal ahead, most_ahead
        with stream_output(lambda body: None, upload, MOST_BYTES) as sink:
            for _ in range(100):
                sink.write(b"x" * 10)
                ahead += 10
                most_ahead = max(most_ahead, ahead)

    writer = threading.Thread(target=write)
    writer.start()
    writer.join(0.2)
    assert writer.is_alive()
    for _ in range(100):
        may_take.release()
    writer.join(WAIT_S)
    assert not writer.is_alive()
    assert most_ahead <= MOST_BYTES + 20


@pytest.mark.parametrize("taken", [0, 1])
def test_failed_upload_raises_in_the_writer(taken: int) -> None:
    """It fails in the middle, while the writer waits, and not only at the end of the output."""

    def upload(pieces: Iterator[bytes]) -> None:
        for _ in range(taken):
            next(pieces)
        raise FileExistsError("taken")

    def write() -> None:
        with stream_output(lambda body: None, upload, MOST_BYTES) as sink:
            while True:
                sink.write(b"x" * MOST_BYTES)

    with pytest.raises(FileExistsError, match="taken"):
        write()


def test_upload_that_fails_at_the_end_fails_the_block(store: Store) -> None:
    def upload(pieces: Iterator[bytes]) -> None:
        for _ in pieces:
            pass
        raise OSError("the store did not answer")

    with pytest.raises(OSError, match="did not answer"), stream_output(store.put, upload, MOST_BYTES) as sink:
        sink.write(b"x" * (MOST_BYTES + 1))


@pytest.mark.parametrize("size", [1, MOST_BYTES + 1, 10 * MOST_BYTES])
def test_failed_writer_stores_nothing(store: Store, size: int) -> None:
    def write() -> None:
        with stream_output(store.put, store.upload, MOST_BYTES) as sink:
            sink.write(b"x" * size)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert store.put_bodies == store.uploaded == []
    assert not any(thread.name == "lakemq-upload" for thread in threading.enumerate())
