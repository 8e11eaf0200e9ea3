"""What travels on a line, the direct connection of a client to the sequencer that leads; and the settings of lines.

A line carries the same letters and answers as the mailbox. A frame is its size, its kind and its content. The client
says hello first. It sends letters only after the leader's welcome, so a leader knows whose each letter is before it can
arrive. This order is what lets a leader drop the lines that a client has left (see `lines`).
"""

import hmac
import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, NamedTuple

import msgspec

from lakemq.tables.storage.coordination.mailbox import MAX_LETTER_BYTES
from lakemq.tables.storage.coordination.sockets import LINES_FOLDER

from ..protocol.errors import InvalidConfig
from .config import EngineConfig

_HEADER = struct.Struct(">IB")
_NUMBER = struct.Struct(">Q")

MAX_FRAME_BYTES = MAX_LETTER_BYTES + _NUMBER.size
MAX_GREETING_BYTES = 4096
"""Bytes of the first frame of a line, before the leader knows who is there."""


class FrameKind(IntEnum):
    """The kinds of frames. A peer closes a line on which another kind arrives.

    A client says once up to which step it has read (AWAIT_STEP). The leader answers once (STEP), as soon as a later
    step is decided. So a slow client has at most one such frame waiting for it, however many steps pass meanwhile.
    """

    HELLO = 1
    WELCOME = 2
    LETTER = 3
    ANSWER = 4
    AWAIT_STEP = 16
    STEP = 17


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
        folder: identity of the folder with the socket. Elsewhere, as in a copy by hard links, the socket leads to the
            leader of another folder.
        missing: why the leader has no socket where it should have one, for people.
    """

    namespace_id: str
    epoch: int
    token: str
    socket: Annotated[str, msgspec.Meta(pattern=rf"^({LINES_FOLDER}/[^/]+)?$")] = ""
    host: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9.:_-]{0,255}$")] = ""
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    fingerprint: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?$")] = ""
    folder: str = ""
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


def encode_number_frame(kind: FrameKind, step: int) -> bytes:
    """Encode a frame whose content is the number of a step."""
    return encode_frame(kind, _NUMBER.pack(step))


def decode_number(content: bytes) -> int:
    """Return the number in a frame's content. Raises BadFrame."""
    if len(content) != _NUMBER.size:
        raise BadFrame(f"a number of {len(content)} bytes, expected {_NUMBER.size}")
    (number,) = _NUMBER.unpack(content)
    return int(number)


# The settings `line.listen` and `line.advertise`: where a leader accepts clients over TCP.


_MAX_PORT = 65_535


@dataclass(frozen=True)
class LineSettings:
    """Where a leader listens, and where clients connect.

    Attributes:
        listen_host, listen_port: the address of the socket. Port 0: any free one.
        connect_host, connect_port: the address for clients. Port 0: the port of the socket.
    """

    listen_host: str
    listen_port: int
    connect_host: str
    connect_port: int


def read_line_settings(config: EngineConfig) -> LineSettings | None:
    """Return where to listen; None if the settings name no address. Raises InvalidConfig."""
    listen, advertise = config.text("line.listen"), config.text("line.advertise")
    if not listen:
        if advertise:
            raise InvalidConfig(
                "line.advertise has no effect without line.listen.", found=f"line.advertise {advertise}"
            )
        return None
    listen_host, listen_port = _split_address("line.listen", listen)
    if advertise:
        return LineSettings(listen_host, listen_port, *_split_address("line.advertise", advertise))
    if _is_wildcard(listen_host):
        raise InvalidConfig(
            "line.listen accepts connections on all addresses of this machine, and none of them is known to clients.",
            found=f"line.listen {listen}",
            expected="line.advertise, with a name or an address of this machine",
        )
    return LineSettings(listen_host, listen_port, listen_host, 0)


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _split_address(key: str, text: str) -> tuple[str, int]:
    """Return host and port of `host:port`, `[host]:port` or a host alone, which has port 0."""
    host, port = text, ""
    if not text.endswith("]") and ":" in text:
        host, _, port = text.rpartition(":")
    number = int(port or 0)
    if number > _MAX_PORT:
        raise InvalidConfig(f"{key} has no valid port.", found=port, expected=f"0 to {_MAX_PORT}")
    return host.strip("[]"), number
