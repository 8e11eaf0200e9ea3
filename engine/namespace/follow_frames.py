"""Frames of lines that follow: a process hears on them of new steps, and its heartbeats travel on them.

They have kinds of their own, beside letters and answers (`line_frames`).

- A client says once up to which step it has read (AWAIT_STEP). The leader answers once (STEP), as soon as a later step
  is decided. So a slow client has at most one such frame waiting for it, however many steps pass meanwhile.
- A client sends a heartbeat (BEAT). The leader answers with its number (BEAT_SEEN) if it counts.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec

from .line_frames import BadFrame, encode_frame

_STEP = struct.Struct(">Q")

MAX_LINE_BEAT_BYTES = 1 << 20
"""Size of a heartbeat on a line. A process with more members than fit writes the object instead."""


class FollowFrameKind(IntEnum):
    """The kinds of frames of followers. The numbers are apart from those of `FrameKind`."""

    AWAIT_STEP = 16
    STEP = 17
    BEAT = 18
    BEAT_SEEN = 19


class LineBeat(msgspec.Struct, frozen=True, array_like=True):
    """A heartbeat on a line.

    beats_id, number: as in the object that the process would write else; body: the content of that object.
    """

    beats_id: str
    number: int
    body: bytes


_beats = msgspec.msgpack.Decoder(LineBeat)


def encode_number_frame(kind: FollowFrameKind, number: int) -> bytes:
    """Encode a frame whose content is the number of a step or of a heartbeat."""
    return encode_frame(kind, _STEP.pack(number))


def decode_number(content: bytes) -> int:
    """Return the number in a frame's content. Raises BadFrame."""
    if len(content) != _STEP.size:
        raise BadFrame(f"a number of {len(content)} bytes, expected {_STEP.size}")
    (number,) = _STEP.unpack(content)
    return int(number)


def encode_beat_frame(beat: LineBeat) -> bytes:
    return encode_frame(FollowFrameKind.BEAT, msgspec.msgpack.encode(beat))


def decode_beat_frame(content: bytes) -> LineBeat:
    """Decode a heartbeat. Raises BadFrame."""
    if len(content) > MAX_LINE_BEAT_BYTES:
        raise BadFrame(f"a heartbeat of {len(content)} bytes, expected at most {MAX_LINE_BEAT_BYTES}")
    try:
        return _beats.decode(content)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"not a heartbeat: {error}") from error
