"""Messages on a line: the direct connection of a client to the sequencer that leads.

A line carries the same letters and answers as the mailbox. A frame is its size, its kind and its content. The client
says hello first. It sends letters only after the leader's welcome, so a leader knows whose each letter is before it can
arrive. This order is what lets a leader drop the lines that a client has left (see `lines`).
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Annotated, NamedTuple

import msgspec

from lakemq.tables.storage.coordination.line_objects import LINES_FOLDER
from lakemq.tables.storage.coordination.mailbox import MAX_LETTER_BYTES

_HEADER = struct.Struct(">IB")
_NUMBER = struct.Struct(">Q")

MAX_FRAME_BYTES = MAX_LETTER_BYTES + _NUMBER.size
MAX_GREETING_BYTES = 4096
"""Bytes of the first frame of a line, before the leader knows who is there."""


class FrameKind(IntEnum):
    """The kinds of frames. A peer closes a line on which another kind arrives."""

    HELLO = 1
    WELCOME = 2
    LETTER = 3
    ANSWER = 4


class Frame(NamedTuple):
    """A frame as it was received."""

    kind: int
    content: bytes


class BadFrame(ValueError):
    """The bytes on a line are no frame that may come there. The line must be closed."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of a line, from the client. The leader expects namespace_id, epoch and token.

    Attributes:
        proof: name of the object that shows that the client may write to the namespace. A Unix socket needs none.
        secret: of which the proof is the digest.
    """

    namespace_id: str
    epoch: int
    token: str
    client_id: str
    proof: str = ""
    secret: bytes = b""


class LineAddress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a leader listens; the content of its object `line/<epoch>`.

    Attributes:
        namespace_id, epoch, token: what a client's hello must repeat.
        socket: name of a Unix socket beside this object; empty if there is none. A client must not be led to sockets
            of other programs.
        host, port: address of a TCP socket. Port 0: there is none.
        fingerprint: SHA-256 of the certificate for TLS, as hexadecimal digits; empty if there is no TCP socket.
        missing: why the leader has no socket where it should have one, for people.
    """

    namespace_id: str
    epoch: int
    token: str
    socket: Annotated[str, msgspec.Meta(pattern=rf"^({LINES_FOLDER}/[^/]+)?$")] = ""
    host: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9.:_-]{0,255}$")] = ""
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    fingerprint: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?$")] = ""
    missing: tuple[str, ...] = ()


_hellos = msgspec.msgpack.Decoder(Hello)
_addresses = msgspec.json.Decoder(LineAddress)


def encode_frame(kind: int, content: bytes) -> bytes:
    return _HEADER.pack(len(content), kind) + content


def encode_hello(hello: Hello) -> bytes:
    return encode_frame(FrameKind.HELLO, msgspec.msgpack.encode(hello))


def compute_proof(hello: Hello) -> bytes:
    """Return the digest of the hello's secret. It counts for this client at this leader only."""
    bound = "\0".join((hello.namespace_id, str(hello.epoch), hello.token, hello.client_id))
    return hmac.digest(hello.secret, bound.encode(), "sha256").hex().encode()


def decode_hello(content: bytes) -> Hello:
    """Decode a hello. Raises BadFrame."""
    try:
        return _hellos.decode(content)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"not a hello: {error}") from error


def encode_address(address: LineAddress) -> bytes:
    return msgspec.json.encode(address)


def decode_address(body: bytes) -> LineAddress:
    """Decode the object of an address. Raises ValueError."""
    try:
        return _addresses.decode(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not an address: {error}") from error


def encode_letter_frame(number: int, body: bytes) -> bytes:
    """Encode a letter. number: of the letter among its client's."""
    return _HEADER.pack(_NUMBER.size + len(body), FrameKind.LETTER) + _NUMBER.pack(number) + body


def decode_letter_frame(content: bytes) -> tuple[int, bytes]:
    """Return number and body of a letter. Raises BadFrame."""
    if len(content) < _NUMBER.size:
        raise BadFrame(f"a letter of {len(content)} bytes")
    return _NUMBER.unpack_from(content)[0], content[_NUMBER.size :]


class FrameReader:
    """Cuts received bytes into frames. Not thread-safe.

    max_bytes: of a frame's content; may be changed between frames.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._buffer = bytearray()

    @property
    def size_bytes(self) -> int:
        """Bytes of the frame that is not complete yet. 0: none has begun."""
        return len(self._buffer)

    def add(self, data: bytes) -> None:
        """Add bytes that were received."""
        self._buffer += data

    def frames(self) -> Iterator[Frame]:
        """Yield the complete frames. Raises BadFrame if the next one is too large."""
        while len(self._buffer) >= _HEADER.size:
            size, kind = _HEADER.unpack_from(self._buffer)
            if size > self.max_bytes:
                raise BadFrame(f"a frame of {size} bytes, expected at most {self.max_bytes}")
            end = _HEADER.size + size
            if len(self._buffer) < end:
                return
            content = bytes(memoryview(self._buffer)[_HEADER.size : end])
            del self._buffer[:end]
            yield Frame(kind, content)
