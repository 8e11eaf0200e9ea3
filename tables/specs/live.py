"""Live tables: facts of now, which no table holds. SQL reads them as of the newest step, again with each query."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from .spec import BOOL, INT32, INT64, TEXT, TIME, TableSpec, column

_RATE = pa.float64()


@dataclass(frozen=True, kw_only=True)
class GroupStateRow:
    group: str = column(TEXT, "Consumer group.")
    protocol: str | None = column(TEXT, "Rebalance protocol; null: it never had members.", nullable=True)
    state: str = column(TEXT, "Empty, PreparingRebalance, CompletingRebalance or Stable.")
    members: int = column(INT64, "Members.")
    partitions: int = column(INT64, "Partitions that it shares, or has committed offsets for.")
    lag: int = column(INT64, "Offsets that it has not consumed, over all partitions.")
    unacknowledged: int = column(INT64, "Messages of a queue group that members have and have not acknowledged.")
    delay_left_ms: int = column(INT64, "How much longer it waits for lost or new members; 0: it does not wait.")
    consumption_rate: float | None = column(
        _RATE, "Offsets per second that it got done with in the last minute; null: not known.", nullable=True
    )
    waits_for: list[str] = column(pa.list_(TEXT), "What holds it up, as sentences: those of group_waits.")


@dataclass(frozen=True, kw_only=True)
class GroupWaitRow:
    group: str = column(TEXT, "Consumer group.")
    cause: str = column(TEXT, "The kind of the wait, such as open transaction or no heartbeat.")
    member_id: str | None = column(TEXT, "The member that is in the way; null for a transaction.", nullable=True)
    topic: str | None = column(TEXT, "Topic of the message that is in the way.", nullable=True)
    partition: int | None = column(INT32, "Its partition.", nullable=True)
    offset: int | None = column(INT64, "Its offset.", nullable=True)
    since: datetime = column(
        TIME, "The last heartbeat, poll or acknowledgement of the member, or when the transaction began."
    )
    overdue: bool = column(BOOL, "Whether it lasts longer than is usual.")
    found: str = column(TEXT, "The trouble, in a sentence.")
    advice: str = column(TEXT, "The cure, in a sentence.")


@dataclass(frozen=True, kw_only=True)
class MemberStateRow:
    group: str = column(TEXT, "Consumer group.")
    member_id: str = column(TEXT, "Id of the member.")
    instance_id: str | None = column(TEXT, "group.instance.id of a static member.", nullable=True)
    host: str | None = column(TEXT, "Name of its machine.", nullable=True)
    process_id: int | None = column(INT64, "Its process id.", nullable=True)
    partitions: list[str] = column(pa.list_(TEXT), "What it has, as topic-partition.")
    last_heartbeat: datetime | None = column(
        TIME, "Its last heartbeat if that is overdue; null: in time.", nullable=True
    )
    last_poll: datetime | None = column(TIME, "Its last poll if that is long ago; null: it is not.", nullable=True)


@dataclass(frozen=True, kw_only=True)
class SequencerRow:
    sequencer: str = column(TEXT, "Name of the sequencer.")
    role: str = column(TEXT, "leader, dead (a leader that has ended without handing over) or standby.")
    epoch: int | None = column(INT64, "Epoch of the leader's lease; null for a standby.", nullable=True)


@dataclass(frozen=True, kw_only=True)
class CutKeysRow:
    group: str = column(TEXT, "Consumer group.")
    topic: str = column(TEXT, "Topic.")
    partition: int = column(INT32, "Partition.")
    from_member: str = column(TEXT, "The former owner.")
    to_member: str | None = column(TEXT, "The next owner; null: none yet.", nullable=True)
    began_at: datetime = column(TIME, "When the partition left the former owner.")
    cut_keys: int | None = column(
        INT64, "Keys with messages that both acknowledged; null: no next owner, or messages are deleted.", nullable=True
    )


def _specify(name: str, row: type[Any], keys: tuple[str, ...], comment: str) -> TableSpec:
    return TableSpec(name=name, row=row, shape="live", keys=keys, comment=comment)


GROUP_STATE = _specify("group_state", GroupStateRow, ("group",), "The groups: state, lag, delay, rate.")
GROUP_WAITS = _specify("group_waits", GroupWaitRow, (), "What holds groups up, since when, and what to do.")
MEMBER_STATE = _specify("member_state", MemberStateRow, ("group", "member_id"), "The members, and which are overdue.")
SEQUENCERS = _specify("sequencers", SequencerRow, ("sequencer",), "Who leads, and who stands by.")
CUT_KEYS = _specify(
    "cut_keys", CutKeysRow, (), "Handoffs and the keys that they cut. A query reads the keys of all their messages."
)

LIVE_TABLES: tuple[TableSpec, ...] = (GROUP_STATE, GROUP_WAITS, MEMBER_STATE, SEQUENCERS, CUT_KEYS)
