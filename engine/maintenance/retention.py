"""Retention: find the segments that are too old or too many, and the rows of tables that a merge lets go.

Whole segments are deleted from the start of each log, as far as the tables show them.

The rules are Kafka's. A segment is as old as its newest message. The first segment that stays keeps all later ones. By
size, a segment goes only if the partition still holds its bound without it. A marker has no age, and goes with the
segments before it. A compacted segment, without an age too, goes with the messages after it: a consumer whose position
is in it continues with these. Only parts of the tables that may matter are read, file by file; memory does not grow
with messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.groups import ASSIGNMENT_MOVES
from lakemq.tables.specs.journal import ADMIN_LOG, JOURNAL, MOST_ADMIN_CHANGES, SAMPLES
from lakemq.tables.specs.messages import FINAL_MESSAGES, MESSAGES, parse_final_file_id
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.specs.topics import COMPACTED, SEGMENTS
from lakemq.tables.specs.transactions import CONTROL_MARKERS, TRANSACTIONS
from lakemq.tables.storage.delta.commits import StoredFile
from lakemq.tables.storage.delta.store import Store, TableHandle, select_newest

from ..protocol.values.state import State
from ..protocol.values.topics import LogOutgrown, Topic
from .removal import parse_file_id

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NEVER = np.iinfo(np.int64).min
"""A time before that of any message."""

_ROWS_AT_ONCE = 1 << 16
"""Rows of `segments` from which on no further file is read with them. A file may have more."""

_FOUND_BY = ("kind", "topic_id", "partition", "base_offset", "last_offset")

_KINDS = pa.array(["data", COMPACTED, "commit", "abort"])
"""Kinds of rows of `segments` that take offsets. `_SegmentColumns.kind` holds indices of this array."""
_DATA, _COMPACTED = (_KINDS.index(kind).as_py() for kind in ("data", COMPACTED))


@dataclass(frozen=True)
class _Logs:
    """The partitions of some topics, numbered consecutively.

    topic_ids: ascending; firsts: number of their partition 0.
    """

    topics: Sequence[Topic]
    topic_ids: Numbers
    firsts: Numbers
    log_starts: Numbers

    @classmethod
    def of(cls, topics: Sequence[Topic]) -> _Logs:
        """Number the partitions of topics, which are ascending by id."""
        counts = np.array([topic.log_count for topic in topics], np.int64)
        starts = np.concatenate([np.zeros(0, np.int64), *(topic.log_starts for topic in topics)])
        return cls(topics, np.array([t.topic_id for t in topics], np.int64), np.cumsum(counts) - counts, starts)

    def index(self, topic_ids: Numbers) -> tuple[Numbers, Mask]:
        """Return for each id the index of the topic, and whether it is one of the topics."""
        at = np.minimum(np.searchsorted(self.topic_ids, topic_ids), len(self.topic_ids) - 1)
        return at, self.topic_ids[at] == topic_ids


@dataclass(frozen=True)
class _SegmentColumns:
    """Segments as columns: number of the partition, first and last offset, bytes, index of the kind in _KINDS."""

    place: Numbers
    base: Numbers
    last: Numbers
    size: Numbers
    kind: Numbers

    @classmethod
    def of(cls, parts: Sequence[_SegmentColumns]) -> _SegmentColumns:
        """Return all of them, by partition and offset."""
        empty = np.zeros(0, np.int64)
        columns = [np.concatenate([empty, *(getattr(p, n) for p in parts)]) for n in cls.__dataclass_fields__]
        order = np.lexsort((columns[1], columns[0]))
        return cls(*(column[order] for column in columns))


def find_outgrown(store: Store, topics: Mapping[int, Topic], now_ms: int) -> list[LogOutgrown]:
    """Return what retention.ms and retention.bytes of these topics no longer keep, by topic id.

    Args:
        topics: as of a step that the tables do not go beyond, or an earlier one.

    Raises:
        FileNotFoundError: a table was merged meanwhile.
    """
    filled = [
        topics[i]
        for i in sorted(topics)
        if (topics[i].high_watermarks > topics[i].log_starts).any() and "delete" in topics[i].setting("cleanup.policy")
    ]
    aging = [topic for topic in filled if topic.setting("retention.ms") >= 0]
    bounded = [topic for topic in filled if topic.setting("retention.bytes") >= 0]
    if not aging and not bounded:
        return []
    segments = store.open(SEGMENTS)
    files = segments.files()
    by_age = _find_by_age(segments, files, _Logs.of(aging), now_ms) if aging else {}
    by_size = _find_by_size(store, segments, files, _Logs.of(bounded)) if bounded else {}
    return [
        LogOutgrown(
            topic_id,
            topics[topic_id].setting("retention.ms"),
            topics[topic_id].setting("retention.bytes"),
            by_age.get(topic_id, {}),
            by_size.get(topic_id, {}),
        )
        for topic_id in sorted({*by_age, *by_size})
    ]


def _find_by_age(
    segments: TableHandle, files: Sequence[StoredFile], logs: _Logs, now_ms: int
) -> dict[int, dict[int, int]]:
    # a bound of centuries is before all time
    kept_ms = np.array([min(topic.setting("retention.ms"), now_ms) for topic in logs.topics], np.int64)
    horizons = now_ms - kept_ms
    latest = int(horizons.max())
    ages = ("max_timestamp_ms", "decided_at_ms")
    young = pc.field("max_timestamp_ms") >= latest
    where = ~young | pc.field("max_timestamp_ms").is_null() | pc.field("decided_at_ms").is_valid()
    parts = []
    for rows in _read_rows(segments, [file for file in files if _may_be_old(file, latest)], (*_FOUND_BY, *ages), where):
        at, is_known = logs.index(rows.column("topic_id").to_numpy())
        timestamp, decided = (rows.column(name).fill_null(_NEVER).to_numpy() for name in ages)
        is_old = np.where(decided == _NEVER, timestamp, decided) < horizons[at]
        parts.append(_select_segments(rows, logs, at, is_known & is_old))
    every = _SegmentColumns.of(parts)
    return _find_cuts(logs, every, _mask_unbroken(logs, every))


def _may_be_old(file: StoredFile, horizon_ms: int) -> bool:
    """Return whether a file may hold old segments, by its statistics.

    Markers and compacted segments have no age, and may lie between old segments.
    """
    first_kind = file.statistics.get("min.kind")  # of all kinds those without an age come first
    if first_kind is None or first_kind < "data":
        return True
    youngest = file.statistics.get("min.max_timestamp_ms")
    decided = file.statistics.get("min.decided_at_ms")
    return youngest is None or youngest < horizon_ms or (decided is not None and decided < horizon_ms)


def measure_sizes(store: Store, topics: Mapping[int, Topic]) -> dict[int, list[int]]:
    """Return topic_id -> bytes of each partition, as `retention.bytes` counts them: those of data files, shared by row.

    Args:
        topics: as of a step that the tables do not go beyond, or an earlier one.

    Raises:
        FileNotFoundError: a table was merged meanwhile.
    """
    filled = [topics[i] for i in sorted(topics) if (topics[i].high_watermarks > topics[i].log_starts).any()]
    sizes = {topic_id: [0] * topic.log_count for topic_id, topic in topics.items()}
    if not filled:
        return sizes
    logs, segments = _Logs.of(filled), store.open(SEGMENTS)
    files, totals = segments.files(), np.zeros(len(logs.log_starts), np.int64)
    for part in _read_sized_segments(store, segments, files, logs):
        np.add.at(totals, part.place, part.size)
    for topic, first in zip(filled, logs.firsts.tolist(), strict=True):
        sizes[topic.topic_id] = totals[first : first + topic.log_count].tolist()
    return sizes


def _read_sized_segments(
    store: Store, segments: TableHandle, files: Sequence[StoredFile], logs: _Logs
) -> Iterator[_SegmentColumns]:
    """Yield the segments of these logs with their sizes, file by file."""
    # these tables are opened after segments, so that every file that a segment names is there
    stored = sorted(
        (parse(file.path), file.size_bytes, file.record_count)
        for spec, parse in ((MESSAGES, parse_file_id), (FINAL_MESSAGES, parse_final_file_id))
        for file in store.open(spec).files()
        if file.record_count
    )
    ids, sizes, counts = np.array(stored or [(-1, 0, 1)], np.int64).T
    low, high = int(logs.topic_ids[0]), int(logs.topic_ids[-1])
    near = [f for f in files if _may_hold_topics(f, low, high)]
    where = (pc.field("topic_id") >= low) & (pc.field("topic_id") <= high)
    for rows in _read_rows(segments, near, (*_FOUND_BY, "file_id"), where):
        at, is_known = logs.index(rows.column("topic_id").to_numpy())
        file_ids = rows.column("file_id").fill_null(-1).to_numpy()
        place = np.minimum(np.searchsorted(ids, file_ids), len(ids) - 1)
        per_row = np.where(ids[place] == file_ids, sizes[place] / counts[place], 0.0)
        yield _select_segments(rows, logs, at, is_known, per_row)


def _find_by_size(
    store: Store, segments: TableHandle, files: Sequence[StoredFile], logs: _Logs
) -> dict[int, dict[int, int]]:
    parts = list(_read_sized_segments(store, segments, files, logs))
    every = _SegmentColumns.of(parts)
    limits = np.repeat(
        np.array([topic.setting("retention.bytes") for topic in logs.topics], np.int64),
        np.diff(logs.firsts, append=len(logs.log_starts)),
    )
    totals = np.zeros(len(logs.log_starts), np.int64)
    np.add.at(totals, every.place, every.size)
    up_to = np.cumsum(every.size)
    before = np.concatenate([[0], up_to])[np.searchsorted(every.place, every.place)]
    goes = _mask_unbroken(logs, every) & (totals[every.place] - (up_to - before) >= limits[every.place])
    return _find_cuts(logs, every, goes)


def _may_hold_topics(file: StoredFile, low: int, high: int) -> bool:
    least, most = file.statistics.get("min.topic_id"), file.statistics.get("max.topic_id")
    return least is None or most is None or (least <= high and most >= low)


def _read_rows(
    segments: TableHandle, files: Sequence[StoredFile], columns: Sequence[str], where: pc.Expression
) -> Iterator[pa.Table]:
    """Yield the rows of a few files at a time, so that memory does not grow with the table.

    To read small files one by one takes three times as long.
    """
    of_log = pc.field("kind").isin(_KINDS)
    first = row_count = 0
    for end, file in enumerate(files, 1):
        row_count += file.record_count
        if row_count >= _ROWS_AT_ONCE or end == len(files):
            yield segments.read(columns, where & of_log, files=files[first:end])
            first, row_count = end, 0


def _select_segments(
    rows: pa.Table, logs: _Logs, at: Numbers, chosen: Mask, bytes_per_row: npt.NDArray[np.float64] | None = None
) -> _SegmentColumns:
    """Return the chosen segments that reach beyond the log start. at: index of each one's topic."""
    partition, base, last = (rows.column(n).to_numpy() for n in ("partition", "base_offset", "last_offset"))
    place = np.where(chosen, logs.firsts[at] + partition, 0)
    counts = np.diff(logs.firsts, append=len(logs.log_starts))
    chosen = chosen & (partition < counts[at])
    start = logs.log_starts[np.where(chosen, place, 0)]
    chosen &= last >= start
    size = np.zeros(len(base)) if bytes_per_row is None else bytes_per_row * (last + 1 - np.maximum(base, start))
    kind = pc.index_in(rows.column("kind"), _KINDS).to_numpy()
    sizes = np.ceil(size[chosen]).astype(np.int64)
    return _SegmentColumns(place[chosen], base[chosen], last[chosen], sizes, kind[chosen])


def _mask_unbroken(logs: _Logs, found: _SegmentColumns) -> Mask:
    """Return which segments follow one another from the log start on."""
    opens = np.ones(len(found.place), np.bool_)
    opens[1:] = found.place[1:] != found.place[:-1]
    follows = np.ones(len(opens), np.bool_)
    follows[1:] = found.base[1:] == found.last[:-1] + 1
    mask: Mask = np.where(opens, found.base <= logs.log_starts[found.place], follows)
    return mask


def _mask_leading(found: _SegmentColumns, goes: Mask) -> Mask:
    """Return which segments go together with all before them in their partition."""
    stays = np.concatenate([[0], np.cumsum(~goes)])
    mask: Mask = stays[1:] == stays[np.searchsorted(found.place, found.place)]
    return mask


def _find_cuts(logs: _Logs, found: _SegmentColumns, goes: Mask) -> dict[int, dict[int, int]]:
    """Return topic_id -> partition -> the offset after the last of the leading segments that all go.

    A compacted segment goes if the next one with messages does. That one is the next data segment of `found` only if
    all between go: `found` may lack segments that stay.
    """
    count = len(found.place)
    following = np.minimum.accumulate(np.where(found.kind == _DATA, np.arange(count), count)[::-1])[::-1]
    is_followed = np.append(found.place, -1)[following] == found.place
    follower_goes = is_followed & np.append(_mask_leading(found, goes), False)[following]
    gone = _mask_leading(found, goes & ((found.kind != _COMPACTED) | follower_goes))
    ends = np.full(len(logs.log_starts), _NEVER)
    np.maximum.at(ends, found.place[gone], found.last[gone] + 1)
    cuts: dict[int, dict[int, int]] = {}
    for number in np.flatnonzero(ends > logs.log_starts).tolist():
        at = int(np.searchsorted(logs.firsts, number, side="right")) - 1
        cuts.setdefault(int(logs.topic_ids[at]), {})[number - int(logs.firsts[at])] = int(ends[number])
    return cuts


# Choose the rows of log tables that stay when their files are merged. Pure: from what the sequencer knows.
#
# Invariant: a row stays if an existing message needs it to be visible, or if it belongs to an open transaction.


RETENTION = {
    TRANSACTIONS.name: "transaction.log.retention.ms",
    ASSIGNMENT_MOVES.name: "group.history.ms",
    JOURNAL.name: "journal.retention.ms",
    SAMPLES.name: "sample.retention.ms",
    ADMIN_LOG.name: "change.retention.ms",
}
"""Per table whose rows age: the setting that says how long they stay."""

_AGED_BY = {
    TRANSACTIONS.name: "updated_at_ms",
    ASSIGNMENT_MOVES.name: "moved_at_ms",
    JOURNAL.name: "decided_at_ms",
    SAMPLES.name: "minute_ms",
    ADMIN_LOG.name: "decided_at_ms",
}


@dataclass(frozen=True)
class LiveState:
    """The topics and open transactions as of a step. All rows up to that step are in the tables.

    Attributes:
        now_ms: the time of the step.
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
    - assignment_moves, samples: younger rows, and for each partition or subject the last one before these.
    - journal: younger rows.
    - admin_log: younger rows, of these the newest MOST_ADMIN_CHANGES.
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
    if spec.name in _LAST_BEFORE:
        keys, order, exists = _LAST_BEFORE[spec.name]
        young = pc.greater_equal(rows.column(_AGED_BY[spec.name]), now.now_ms - retention_ms)
        before = select_newest(rows.filter(pc.invert(young)).sort_by(order), keys)
        if whole:
            before = before.filter(exists)
        return pa.concat_tables([before, rows.filter(young)])
    if spec.name in (JOURNAL.name, ADMIN_LOG.name):
        rows = rows.filter(pc.field("decided_at_ms") >= now.now_ms - retention_ms)
    if spec.name == ADMIN_LOG.name:
        return rows.sort_by([(key, "ascending") for key in spec.keys])[-MOST_ADMIN_CHANGES:]
    if spec.name == CONTROL_MARKERS.name:
        rows = rows.filter(_is_there(rows, now))
        return rows.filter(pa.array(rows.column("offset").to_numpy() >= find_log_starts(rows, now)))
    if spec.name == SEGMENTS.name:
        stays = _is_there(rows, now)
        return rows.filter(stays if whole else pc.or_(stays, pc.equal(rows.column("kind"), "topic_deleted")))
    return rows


_LAST_BEFORE: dict[str, tuple[tuple[str, ...], list[tuple[str, str]], pc.Expression]] = {
    ASSIGNMENT_MOVES.name: (
        ("group", "topic_id", "partition"),
        [("step", "ascending"), ("position", "ascending")],
        pc.field("state") != "gone",
    ),
    SAMPLES.name: (("topic", "group"), [("step", "ascending")], pc.field("offsets").is_valid()),
}
"""Table -> keys, order of the rows, and which of the last rows before the time are of something that exists."""


def drop_deleted_segments(segments: pa.Table, then: LiveState) -> pa.Table:
    """Return the segments that reach beyond the log start there was then, and the last rows that say where it was."""
    return segments.filter(pa.array(~mask_deleted_segments(segments, then)))


def mask_deleted_segments(segments: pa.Table, then: LiveState) -> npt.NDArray[np.bool_]:
    """Return which segments lie below the log start there was then. Uses topic_id, partition, last_offset."""
    rows = pc.and_(_is_there(segments, then), pc.greater_equal(segments.column("partition"), 0)).to_numpy()
    deleted = np.zeros(segments.num_rows, np.bool_)
    existing = segments.filter(pa.array(rows))
    deleted[rows] = existing.column("last_offset").to_numpy() < find_log_starts(existing, then)
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


def find_log_starts(rows: pa.Table, now: LiveState) -> Numbers:
    """Return the log start of each row's partition, of existing topics. 0: a partition that was added later."""
    topic_ids, partitions = rows.column("topic_id").to_numpy(), rows.column("partition").to_numpy()
    starts = np.zeros(rows.num_rows, np.int64)
    logs = _Logs.of([now.topics[topic_id] for topic_id in np.unique(topic_ids).tolist()])
    if rows.num_rows:
        at, _ = logs.index(topic_ids)
        is_known = partitions < np.diff(logs.firsts, append=len(logs.log_starts))[at]
        starts[is_known] = logs.log_starts[(logs.firsts[at] + partitions)[is_known]]
    return starts
