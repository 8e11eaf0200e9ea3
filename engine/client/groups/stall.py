"""A stall: something that holds up a group, since when, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    "missing topic",
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
            all up to it. `missing topic`: the member subscribes to a topic that does not exist.
        member_id: the member that is in the way; empty for a transaction.
        topic, partition, offset: the message that is in the way; None if it is the member itself.
        found, advice: two sentences: the trouble, and the cure.
        since_ms: in ms since 1970, when the member last acknowledged or got messages of the partition, sent a heartbeat
            or polled, when it was to give up partitions or took over an instance id, when the transaction began, or
            when the member of a missing topic joined.
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


class MemberNotes(NamedTuple):
    """What is known of members of all groups beside the state.

    Attributes:
        overdue: the members that the leader has noted as overdue.
        fenced: the members that lived when another one took over their instance id.
        deletions: a sentence for each topic that members subscribe to and that was deleted.
    """

    overdue: Sequence[OverdueMember] = ()
    fenced: Sequence[FencedMember] = ()
    deletions: Mapping[str, str] = {}


NO_NOTES = MemberNotes()
