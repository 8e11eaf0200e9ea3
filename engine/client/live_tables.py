"""Build the live tables of SQL from the same facts as `mq.groups`, the command, the console and the metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import pyarrow as pa

from lakemq.tables.specs.groups import (
    CUT_KEYS,
    GROUP_STATE,
    GROUP_WAITS,
    LIVE_TABLES,
    MEMBER_STATE,
    SEQUENCERS,
    CutKeysRow,
    GroupStateRow,
    GroupWaitRow,
    MemberStateRow,
    SequencerRow,
)
from lakemq.tables.storage.delta.catalog import columns_ddl, live_function_name

from ..namespace.namespace import Namespace
from ..protocol.errors import OffsetOutOfRange, UnknownTopicOrPartition
from ..protocol.values.base import copy_fields, find_shared_fields
from ..protocol.values.deliveries import Spans
from .groups.group_info import GroupInfo, MemberInfo
from .groups.lag import PartitionLag
from .groups.stalls import write_advice
from .log_access import LogAccess
from .operator_tools import Observation, Observer
from .sequencers import find_store_now_ms, read_leadership
from .sql.query import LiveReaders, connect_duckdb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Handoffs of a group's partitions, and the keys that they cut: both owners acknowledged messages with them.


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


def make_live_readers(
    namespace: Namespace, make_observer: Callable[[], Observer], log: LogAccess | None = None
) -> LiveReaders:
    """Return the readers of all live tables. log: reads messages; without it `cut_keys` is left out."""

    def read(build: Callable[[Namespace, Observation], pa.Table]) -> pa.Table:
        with make_observer().look() as observation:
            return build(namespace, observation)

    readers = {
        GROUP_STATE.name: lambda: read(_build_group_state),
        GROUP_WAITS.name: lambda: read(_build_group_waits),
        MEMBER_STATE.name: lambda: read(_build_member_state),
        SEQUENCERS.name: lambda: read(_build_sequencers),
    }
    if log is not None:
        readers[CUT_KEYS.name] = lambda: CUT_KEYS.table(_read_cut_keys(namespace, make_observer(), log))
    return readers


class _LiveTableFunction:
    """A table function of Spark. Its subclasses name a table of a namespace; a task reads it with each query."""

    connect: ClassVar[Callable[[], Any]]
    table: ClassVar[str]

    def eval(self) -> Iterator[tuple[Any, ...]]:
        with type(self).connect() as mq:
            rows = make_live_readers(mq.namespace, mq.observer, mq)[self.table]()
        yield from zip(*(column.to_pylist() for column in rows.columns), strict=True)


def register_live_tables(spark: SparkSession, path: str, connect: Callable[[], Any]) -> None:
    """Register a table function with a session for each live table: the database's views call them.

    path: of the namespace. connect: connects to it from a task.
    """
    from pyspark.sql.functions import udtf  # pyspark is heavy, and not every client has it

    for spec in LIVE_TABLES:
        handler = type("LiveTable", (_LiveTableFunction,), {"connect": staticmethod(connect), "table": spec.name})
        function = udtf(handler, returnType=columns_ddl(spec.stored_schema))
        spark.udtf.register(live_function_name(path, spec), function)  # type: ignore[arg-type]


def _read_cut_keys(namespace: Namespace, observer: Observer, log: LogAccess) -> Iterator[CutKeysRow]:
    with observer.look() as observation:
        lags = {name: observation.groups.lag(name) for name in observation.groups.list()}
    for name in lags:
        handoffs = read_handoffs(namespace, name)
        for handoff, count in zip(handoffs, count_cut_keys(log, lags[name], handoffs), strict=True):
            yield CutKeysRow(cut_keys=count, **copy_fields(handoff, find_shared_fields(CutKeysRow, Handoff)))


def _build_group_state(namespace: Namespace, observation: Observation) -> pa.Table:
    return GROUP_STATE.table(
        GroupStateRow(**copy_fields(info, find_shared_fields(GroupStateRow, GroupInfo)))
        for info in observation.groups.all()
    )


def _build_group_waits(namespace: Namespace, observation: Observation) -> pa.Table:
    now_ms = find_store_now_ms(namespace.files)
    return GROUP_WAITS.table(
        GroupWaitRow(
            group=info.group,
            cause=stall.kind,
            member_id=stall.member_id or None,
            topic=stall.topic,
            partition=stall.partition,
            offset=stall.offset,
            since=_to_time(stall.since_ms),
            overdue=stall.is_overdue(now_ms),
            found=stall.found,
            advice=write_advice(stall.advice, stall.commands),
        )
        for info in observation.groups.all()
        for stall in info.stalls
    )


def _build_member_state(namespace: Namespace, observation: Observation) -> pa.Table:
    return MEMBER_STATE.table(
        MemberStateRow(
            **copy_fields(member, find_shared_fields(MemberStateRow, MemberInfo)),
            last_heartbeat=None if member.late_heartbeat_at_ms is None else _to_time(member.late_heartbeat_at_ms),
            last_poll=None if member.late_poll_at_ms is None else _to_time(member.late_poll_at_ms),
        )
        for name in sorted(observation.state.groups)
        for member in observation.groups.members(name)
    )


def _build_sequencers(namespace: Namespace, observation: Observation) -> pa.Table:
    leadership = read_leadership(namespace.files, observation.state)
    rows = [SequencerRow(sequencer=name, role="standby") for name in leadership.standbys]
    if leadership.leader:
        role = "dead" if leadership.has_died else "leader"
        rows.insert(0, SequencerRow(sequencer=leadership.leader, role=role, epoch=leadership.epoch))
    return SEQUENCERS.table(rows)


def _to_time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
