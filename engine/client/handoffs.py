"""Handoffs of a group's partitions, and the keys that they cut: both owners acknowledged messages with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
import pyarrow as pa

from ..namespace.namespace import Namespace
from ..protocol.errors import OffsetOutOfRange, UnknownTopicOrPartition
from .groups.partition_lag import PartitionLag
from .log_access import LogAccess
from .spans import Spans
from .sql.query import connect_duckdb

_QUERY = """\
SELECT "group", topic, partition, from_member, to_member, began_at, ended_at, took_ms, reason, redelivered,
       from_offset, from_acknowledged_ahead, to_offset, to_acknowledged_ahead
FROM handoffs
WHERE "group" = $group
ORDER BY began_at, topic, partition"""

_decoder = msgspec.json.Decoder(list[tuple[int, int]])


@dataclass(frozen=True)
class Handoff:
    """The move of a partition from one member to the next. to_member: None while the partition has no owner.

    from_offset, to_offset: the offset at which each member started. from_acknowledged_ahead, to_acknowledged_ahead:
    ranges past these offsets that were already acknowledged, as JSON.
    """

    group: str
    topic: str
    partition: int
    from_member: str
    to_member: str | None
    began_at: datetime
    ended_at: datetime | None
    took_ms: int | None
    reason: str
    redelivered: int
    from_offset: int | None
    from_acknowledged_ahead: str | None
    to_offset: int | None
    to_acknowledged_ahead: str | None


def read_handoffs(namespace: Namespace, group: str) -> list[Handoff]:
    """Read the handoffs of a group from the tables, oldest first."""
    with connect_duckdb(namespace) as tables:
        return [Handoff(*row) for row in tables.execute(_QUERY, {"group": group}).fetchall()]


def count_cut_keys(log: LogAccess, lags: Sequence[PartitionLag], handoffs: Sequence[Handoff]) -> list[int | None]:
    """Count the keys that each handoff cut: both owners acknowledged messages with them.

    lags, handoffs: all of one group; handoffs by time. A count is None if the partition has no owner, or if messages of
    an owner are deleted.
    """
    # Where the next owner started, or how far the last owner has come. What that acknowledged ahead is not known.
    ends: dict[tuple[str, int], tuple[int, str | None]] = {
        (lag.topic, lag.partition): (lag.committed_offset or 0, None) for lag in lags
    }
    counts: list[int | None] = []
    for handoff in reversed(handoffs):
        tp = handoff.topic, handoff.partition
        end_offset, acknowledged_ahead = ends.get(tp, (0, None))
        counts.append(_count(log, handoff, end_offset, acknowledged_ahead))
        if handoff.to_offset is not None:
            ends[tp] = handoff.to_offset, handoff.to_acknowledged_ahead
    return counts[::-1]


def _count(log: LogAccess, handoff: Handoff, end_offset: int, acknowledged_ahead: str | None) -> int | None:
    """Count the keys that a handoff has cut. end_offset, acknowledged_ahead: of the new owner, at its own end."""
    if handoff.to_member is None or handoff.from_offset is None or handoff.to_offset is None:
        return None
    before = _find_acknowledged_spans(
        handoff.from_offset, handoff.from_acknowledged_ahead, handoff.to_offset, handoff.to_acknowledged_ahead
    )
    after = _find_acknowledged_spans(handoff.to_offset, handoff.to_acknowledged_ahead, end_offset, acknowledged_ahead)
    try:
        return len(_read_keys(log, handoff, before) & _read_keys(log, handoff, after))
    except (OffsetOutOfRange, UnknownTopicOrPartition):
        return None


def _find_acknowledged_spans(first: int, ahead_before: str | None, end: int, ahead_after: str | None) -> Spans:
    """Return the offsets that an owner acknowledged: from its start to the next owner's, and those out of order."""
    spans = Spans([(first, end)] if first < end else [])
    for start, count in _decoder.decode(ahead_after or "[]"):
        spans.add(start, start + count)
    for start, count in _decoder.decode(ahead_before or "[]"):
        spans.remove(start, start + count)
    return spans


def _read_keys(log: LogAccess, handoff: Handoff, spans: Spans) -> set[bytes]:
    keys: set[bytes] = set()
    partition = handoff.partition
    for first, end in spans:
        fetched = log.fetch(
            handoff.topic, start={partition: first}, end={partition: end}, partitions=[partition], include_expired=True
        )
        for piece in fetched.pieces():
            column: pa.ChunkedArray = piece["key"]
            keys.update(key for key in column.unique().to_pylist() if key is not None)
    return keys
