"""A heartbeat: the members of groups in a process, and how often each has polled."""

from __future__ import annotations

import msgspec


class MemberBeat(msgspec.Struct, frozen=True, array_like=True):
    """The heartbeat of a member.

    polls: how often it has polled so far. interval_ms: the time between heartbeats; 0: not known.
    """

    group: str
    member_id: str
    polls: int
    interval_ms: int = 0


_decoder = msgspec.msgpack.Decoder(list[MemberBeat])


def encode_beat(members: list[MemberBeat]) -> bytes:
    return msgspec.msgpack.encode(members)


def decode_beat(body: bytes) -> list[MemberBeat]:
    """Return the members of a heartbeat. Raises ValueError for other bytes."""
    return _decoder.decode(body)
