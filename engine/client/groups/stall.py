"""A stall: something that holds up a group, since when, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal, NamedTuple

from ...protocol.codec.beat import FencedMember
from ...protocol.codec.overdue_member import OverdueMember

StallKind = Literal[
    "instance id",
    "handover",
    "unbound",
    "last delivery",
    "bound",
    "silent",
    "waiting",
    "ranges",
    "no heartbeat",
    "no poll",
    "open transaction",
]


@dataclass(frozen=True)
class Stall:
    """Something that holds up a group.

    Attributes:
        kind: in a queue group `last delivery`: a message must come alone, and its member has others. `bound`: the
            member has as many messages as it may. `silent`: it polls and acknowledges nothing. `waiting`: a message
            that was given back waits for its time. `ranges`: too many ranges of messages are in different states. In
            every group `instance id`: two consumers that live use that of the member. `handover`: the member is to give
            up partitions. `unbound`: its partitions wait for it, because it is lost and may return. `no heartbeat`, `no
            poll`: none has come from the member for long. `open transaction`: readers of committed messages have read
            all up to it.
        member_id: the member that is in the way; empty for a transaction.
        topic, partition, offset: the message that is in the way; None if it is the member itself.
        found, advice: two sentences: the trouble, and the cure.
        since_ms: in ms since 1970, when the member last acknowledged or got messages of the partition, sent a heartbeat
            or polled, when it was to give up partitions or took over an instance id, or when the transaction began.
        patience_ms: how long such a stall may last before it is overdue; None: it ends by itself.
        transactional_id: of the open transaction.
    """

    kind: StallKind
    member_id: str
    topic: str | None
    partition: int | None
    offset: int | None
    found: str
    advice: str
    since_ms: int
    patience_ms: int | None
    transactional_id: str | None = None

    def __str__(self) -> str:
        return f"{self.found} {self.advice}"

    def is_overdue(self, now_ms: int) -> bool:
        """Return whether the stall has lasted longer than is usual while work goes on."""
        return self.patience_ms is not None and now_ms - self.since_ms > self.patience_ms


def format_time(ms: int) -> str:
    """Return a time in ISO 8601, in whole seconds of UTC."""
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


class MemberNotes(NamedTuple):
    """What processes have noted of members of all groups, beside the steps.

    Attributes:
        overdue: the members that the leader has noted as overdue.
        fenced: the members that lived when another one took over their instance id.
    """

    overdue: Sequence[OverdueMember] = ()
    fenced: Sequence[FencedMember] = ()


NO_NOTES = MemberNotes()
