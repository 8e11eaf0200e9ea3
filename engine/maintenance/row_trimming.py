"""Choose the rows of log tables that stay when their files are merged. Pure: from what the sequencer knows.

Invariant: a row stays if an existing message needs it to be visible, or if it belongs to an open transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.groups import ASSIGNMENT_MOVES
from lakemq.tables.specs.journal import JOURNAL
from lakemq.tables.specs.segments import SEGMENTS
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.specs.transactions import CONTROL_MARKERS, TRANSACTIONS
from lakemq.tables.storage.delta.changelog import select_newest
from lakemq.tables.storage.delta.commits import StoredFile

from ..protocol.values.state import State
from ..protocol.values.topics import Topic

RETENTION = {
    TRANSACTIONS.name: "transaction.log.retention.ms",
    ASSIGNMENT_MOVES.name: "group.history.ms",
    JOURNAL.name: "journal.retention.ms",
}
"""Per table whose rows age: the setting that says how long they stay."""

_AGED_BY = {
    TRANSACTIONS.name: "updated_at_ms",
    ASSIGNMENT_MOVES.name: "moved_at_ms",
    JOURNAL.name: "decided_at_ms",
}


@dataclass(frozen=True)
class LiveState:
    """The topics and open transactions as of a step. All rows up to that step are in the tables.

    Attributes:
        now_ms: the time of that step.
        topics: the existing topics; do not change them.
        ongoing: transactional ids with an open transaction.
    """

    now_ms: int
    topics: Mapping[int, Topic]
    ongoing: frozenset[str]


def read_live_state(state: State) -> LiveState:
    """Copy it from the state. The copy stays valid while the state goes on."""
    return LiveState(state.now_ms, state.snapshot().topics, frozenset(state.ongoing))


def trim_rows(spec: TableSpec, rows: pa.Table, now: LiveState, retention_ms: int, whole: bool) -> pa.Table:
    """Return the rows that stay.

    - transactions: rows younger than retention_ms, or of an id with an open transaction.
    - assignment_moves: younger rows, and for each partition the last one before these.
    - journal: younger rows.
    - control_markers: those that the log still reaches.
    - segments: those of existing topics; and the deletion of others while other files may hold rows of them.

    Args:
        retention_ms: of the table's setting in RETENTION.
        whole: the rows are the whole table.
    """
    if spec.name == TRANSACTIONS.name:
        young = pc.greater_equal(rows.column("updated_at_ms"), now.now_ms - retention_ms)
        is_open = pc.is_in(rows.column("transactional_id"), pa.array(sorted(now.ongoing), pa.string()))
        return rows.filter(pc.or_(young, is_open))
    if spec.name == ASSIGNMENT_MOVES.name:
        young = pc.greater_equal(rows.column("moved_at_ms"), now.now_ms - retention_ms)
        before = select_newest(rows.filter(pc.invert(young)).sort_by(_IN_ORDER), _OF_PARTITION)
        if whole:
            before = before.filter(pc.field("state") != "gone")
        return pa.concat_tables([before, rows.filter(young)])
    if spec.name == JOURNAL.name:
        return rows.filter(pc.field("decided_at_ms") >= now.now_ms - retention_ms)
    if spec.name == CONTROL_MARKERS.name:
        rows = rows.filter(_is_there(rows, now))
        return rows.filter(pa.array(rows.column("offset").to_numpy() >= _log_starts(rows, now)))
    if spec.name == SEGMENTS.name:
        stays = _is_there(rows, now)
        return rows.filter(stays if whole else pc.or_(stays, pc.equal(rows.column("kind"), "topic_deleted")))
    return rows


_OF_PARTITION = ("group", "topic_id", "partition")
_IN_ORDER = [("step", "ascending"), ("position", "ascending")]


def drop_deleted_segments(segments: pa.Table, then: LiveState) -> pa.Table:
    """Return the segments that reach beyond the log start there was then, and the last rows that say where it was."""
    return segments.filter(pa.array(~mask_deleted_segments(segments, then)))


def mask_deleted_segments(segments: pa.Table, then: LiveState) -> npt.NDArray[np.bool_]:
    """Return which segments lie below the log start there was then. Uses topic_id, partition, last_offset."""
    rows = pc.and_(_is_there(segments, then), pc.greater_equal(segments.column("partition"), 0)).to_numpy()
    deleted = np.zeros(segments.num_rows, np.bool_)
    existing = segments.filter(pa.array(rows))
    deleted[rows] = existing.column("last_offset").to_numpy() < _log_starts(existing, then)
    return deleted


def is_mostly_old(spec: TableSpec, file: StoredFile, now: LiveState, retention_ms: int) -> bool:
    """Return whether hardly a row of a file stays, by its statistics.

    Such a file is merged again, whatever its size.
    """
    if spec.name in _AGED_BY:
        last_ms = file.statistics.get(f"max.{_AGED_BY[spec.name]}")
        return last_ms is not None and last_ms < now.now_ms - retention_ms
    if spec.name in (CONTROL_MARKERS.name, SEGMENTS.name):
        low, high = file.statistics.get("min.topic_id"), file.statistics.get("max.topic_id")
        return low is not None and high is not None and not any(low <= topic_id <= high for topic_id in now.topics)
    return False


def _is_there(rows: pa.Table, now: LiveState) -> pa.ChunkedArray:
    return pc.is_in(rows.column("topic_id"), pa.array(sorted(now.topics), pa.int64()))


def _log_starts(rows: pa.Table, now: LiveState) -> np.ndarray:
    """Return the log start of each row's partition. 0: a partition that was added later."""
    topic_ids, partitions = rows.column("topic_id").to_numpy(), rows.column("partition").to_numpy()
    starts = np.zeros(rows.num_rows, np.int64)
    for topic_id in np.unique(topic_ids).tolist():
        of_topic = topic_ids == topic_id
        log_starts = now.topics[topic_id].log_starts
        of_topic &= partitions < len(log_starts)
        starts[of_topic] = log_starts[partitions[of_topic]]
    return starts
