"""A beat: which members of which groups live in a process, and how often each has polled."""

from __future__ import annotations

import msgspec


class Beating(msgspec.Struct, frozen=True, array_like=True):
    """A member. polls: how often it has polled so far."""

    group: str
    member_id: str
    polls: int


_decoder = msgspec.msgpack.Decoder(list[Beating])


def encode_beat(members: list[Beating]) -> bytes:
    return msgspec.msgpack.encode(members)


def decode_beat(body: bytes) -> list[Beating]:
    """Raises ValueError: it is none."""
    return _decoder.decode(body)
