"""A heartbeat: the members of groups in a process, and how often each has polled. Notes of fenced and overdue ones."""

from collections.abc import Sequence

import msgspec


class MemberBeat(msgspec.Struct, frozen=True, array_like=True):
    """The heartbeat of a member.

    polls: how often it has polled so far. interval_ms: the time between heartbeats; 0: not known.
    """

    group: str
    member_id: str
    polls: int
    interval_ms: int = 0


class FencedMember(MemberBeat, frozen=True, array_like=True, kw_only=True):
    """A member that lived when another one took over its instance id, as it says itself.

    fenced_at_ms: when it learned of that, by the time of the steps. successor_id, successor_host, successor_process_id:
    the other member; the id is empty if it had left by then.
    """

    instance_id: str
    fenced_at_ms: int
    host: str
    process_id: int
    successor_id: str = ""
    successor_host: str | None = None
    successor_process_id: int | None = None


_beat_decoder = msgspec.msgpack.Decoder(list[MemberBeat])
_fenced_decoder = msgspec.msgpack.Decoder(list[FencedMember])


def encode_beat(members: Sequence[MemberBeat]) -> bytes:
    return msgspec.msgpack.encode(members)


def decode_beat(body: bytes) -> list[MemberBeat]:
    """Return the members of a heartbeat. Raises ValueError for other bytes."""
    return _beat_decoder.decode(body)


def decode_fenced_members(body: bytes) -> list[FencedMember]:
    """Return the members of a note. Raises ValueError for other bytes."""
    return _fenced_decoder.decode(body)


# The members of groups that are overdue, as the leader writes them down for people.


class OverdueMember(msgspec.Struct, frozen=True, array_like=True):
    """A member that has not sent a heartbeat, or has not polled, for longer than is usual.

    heard_ms: when its last heartbeat came, by the leader's clock; None: heartbeats come. polled_ms: when it polled
    last, as its heartbeats say; None: that is not long ago.
    """

    group: str
    member_id: str
    heard_ms: int | None
    polled_ms: int | None


_overdue_decoder = msgspec.msgpack.Decoder(list[OverdueMember])


def encode_overdue_members(members: list[OverdueMember]) -> bytes:
    return msgspec.msgpack.encode(members)


def decode_overdue_members(body: bytes) -> list[OverdueMember]:
    """Return the members of a note. Raises ValueError for other bytes."""
    return _overdue_decoder.decode(body)
