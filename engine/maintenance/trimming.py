"""Which rows of the log-shaped tables stay when their files are merged: pure, from what the sequencer knows.

Invariant: nothing goes that a message which is still there needs to be seen, or that tells of an open transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.groups import ASSIGNMENT_MOVES
from lakemq.tables.specs.segments import SEGMENTS
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.specs.transactions import CONTROL_MARKERS, TRANSACTIONS
from lakemq.tables.storage.changelog import newest
from lakemq.tables.storage.commits import StoredFile

from ..protocol.values.state import State
from ..protocol.values.topics import Topic

RETENTION = {
    TRANSACTIONS.name: "transaction.log.retention.ms",
    ASSIGNMENT_MOVES.name: "group.history.ms",
}
"""The setting that says how long rows of a table stay, of those whose rows grow old."""

_AGED_BY = {TRANSACTIONS.name: "updated_at_ms", ASSIGNMENT_MOVES.name: "moved_at_ms"}


@dataclass(frozen=True)
class Living:
    """What there is as of a step; all rows up to it are in the tables.

    now_ms: the time of that step; topics: those that are there, to be left as they are; ongoing: transactional ids with
    an open transaction.
    """

    now_ms: int
    topics: Mapping[int, Topic]
    ongoing: frozenset[str]


def living(state: State) -> Living:
    """As of the last step folded in; it stays so while the state goes on."""
    return Living(state.now_ms, state.snapshot().topics, frozenset(state.ongoing))


def trimmed(spec: TableSpec, rows: pa.Table, now: Living, retention_ms: int, whole: bool) -> pa.Table:
    """The rows that stay. retention_ms: of the table's setting in RETENTION; whole: the rows are the whole table.

    transactions: younger than retention_ms, or of an id that has one open. assignment_moves: younger, and of each
    partition what it was before those. control_markers: those that the log still reaches. segments: of topics that are
    there, and that others are deleted, while other files may hold rows of those.
    """
    if spec.name == TRANSACTIONS.name:
        young = pc.greater_equal(rows.column("updated_at_ms"), now.now_ms - retention_ms)
        is_open = pc.is_in(rows.column("transactional_id"), pa.array(sorted(now.ongoing), pa.string()))
        return rows.filter(pc.or_(young, is_open))
    if spec.name == ASSIGNMENT_MOVES.name:
        young = pc.greater_equal(rows.column("moved_at_ms"), now.now_ms - retention_ms)
        before = newest(rows.filter(pc.invert(young)).sort_by(_IN_ORDER), _OF_PARTITION)
        if whole:
            before = before.filter(pc.field("state") != "gone")
        return pa.concat_tables([before, rows.filter(young)])
    if spec.name == CONTROL_MARKERS.name:
        rows = rows.filter(_is_there(rows, now))
        return rows.filter(pa.array(rows.column("offset").to_numpy() >= _log_starts(rows, now)))
    if spec.name == SEGMENTS.name:
        stays = _is_there(rows, now)
        return rows.filter(stays if whole else pc.or_(stays, pc.equal(rows.column("kind"), "topic_deleted")))
    return rows


_OF_PARTITION = ("group", "topic_id", "partition")
_IN_ORDER = [("step", "ascending"), ("position", "ascending")]


def without_deleted(segments: pa.Table, then: Living) -> pa.Table:
    """Segments that reach beyond the log start there was then, and where that was told last."""
    return segments.filter(pa.array(~is_deleted(segments, then)))


def is_deleted(segments: pa.Table, then: Living) -> npt.NDArray[np.bool_]:
    """Which of them lie below the log start there was then. Columns topic_id, partition, last_offset are looked at."""
    rows = pc.and_(_is_there(segments, then), pc.greater_equal(segments.column("partition"), 0)).to_numpy()
    deleted = np.zeros(segments.num_rows, np.bool_)
    mine = segments.filter(pa.array(rows))
    deleted[rows] = mine.column("last_offset").to_numpy() < _log_starts(mine, then)
    return deleted


def is_spent(spec: TableSpec, file: StoredFile, now: Living, retention_ms: int) -> bool:
    """Whether hardly a row of a file stays, by its statistics: then it is merged again, whatever its size."""
    if spec.name in _AGED_BY:
        last_ms = file.statistics.get(f"max.{_AGED_BY[spec.name]}")
        return last_ms is not None and last_ms < now.now_ms - retention_ms
    if spec.name in (CONTROL_MARKERS.name, SEGMENTS.name):
        low, high = file.statistics.get("min.topic_id"), file.statistics.get("max.topic_id")
        return low is not None and high is not None and not any(low <= topic_id <= high for topic_id in now.topics)
    return False


def _is_there(rows: pa.Table, now: Living) -> pa.ChunkedArray:
    return pc.is_in(rows.column("topic_id"), pa.array(sorted(now.topics), pa.int64()))


def _log_starts(rows: pa.Table, now: Living) -> np.ndarray:
    """Per row that of its partition; 0 of one that was added later."""
    topic_ids, partitions = rows.column("topic_id").to_numpy(), rows.column("partition").to_numpy()
    starts = np.zeros(rows.num_rows, np.int64)
    for topic_id in np.unique(topic_ids).tolist():
        mine = topic_ids == topic_id
        known = now.topics[topic_id].log_starts
        mine &= partitions < len(known)
        starts[mine] = known[partitions[mine]]
    return starts
