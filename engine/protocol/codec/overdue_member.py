"""The members of groups that are overdue, as the leader writes them down for people."""

from __future__ import annotations

import msgspec


class OverdueMember(msgspec.Struct, frozen=True, array_like=True):
    """A member that has not sent a heartbeat, or has not polled, for longer than is usual.

    heard_ms: when its last heartbeat came, by the leader's clock; None: heartbeats come. polled_ms: when it polled
    last, as its heartbeats say; None: that is not long ago.
    """

    group: str
    member_id: str
    heard_ms: int | None
    polled_ms: int | None


_decoder = msgspec.msgpack.Decoder(list[OverdueMember])


def encode_overdue_members(members: list[OverdueMember]) -> bytes:
    return msgspec.msgpack.encode(members)


def decode_overdue_members(body: bytes) -> list[OverdueMember]:
    """Return the members of a note. Raises ValueError for other bytes."""
    return _decoder.decode(body)
