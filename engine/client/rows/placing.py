"""Arranging messages: checked, given a partition, sorted by it, so that each partition is one run of rows.

Runs on Spark executors too: pyarrow, numpy and xxhash only, unless a topic has a schema. Data moves as columns.
Rows of docs/architecture.md: publish 3, 4.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.messages import LIKE_SECONDS_US, MAX_TIMESTAMP_US, MAX_TTL_MS, MIN_TIMESTAMP_US, NOT_DELAYED
from lakemq.tables.specs.spec import TIME

from ...protocol.hashing import Partitioner, partition_keys
from ..schemas import SchemaRule
from .delay_rule import BAD, EXACT, TWO_TIMES, DelayRule, DueTimes, RequestedDelays, compute_due_ms

# Rows whose values do not fit the schema of a topic: marked like other rejected rows, each kind with its reason.


FIRST_UNFIT = -100
"""Partition of rows that do not fit for reason 0; for reason n they have this minus n."""

MAX_REASONS = 200
"""Most reasons of one body that are told apart, so that no code reaches those of failed expectations."""

_OTHER = "for another reason than the rows before"

Partitions = npt.NDArray[np.int32]


def reject_misfits(
    values: pa.ChunkedArray | Sequence[bytes | None], schema: SchemaRule | None, partition: Partitions
) -> tuple[Partitions, tuple[str, ...]]:
    """Return `partition` with a mark for each row that does not fit the schema, and the reasons that marks name.

    Rows that are rejected already keep their first reason.
    """
    if schema is None or not len(partition):
        return partition, ()
    from ..schemas.topic_schema import compile_schema  # executors without schemas have not all that it needs

    plain = values.to_pylist() if isinstance(values, pa.ChunkedArray) else values
    misfits = compile_schema(schema).find_misfits(plain)
    misfits = {row: reason for row, reason in misfits.items() if partition[row] >= 0}
    if not misfits:
        return partition, ()
    codes: dict[str, int] = {}
    marked = partition.copy()
    for row, reason in misfits.items():
        if reason not in codes and len(codes) >= MAX_REASONS - 1:
            reason = _OTHER
        marked[row] = FIRST_UNFIT - codes.setdefault(reason, len(codes))
    return marked, tuple(map(_to_sentence, codes))


def _to_sentence(reason: str) -> str:
    return f"The value does not fit the topic's schema{' ' if reason.startswith('at ') else ': '}{reason}."


def find_reason(partition: int, reasons: Sequence[str]) -> str:
    """Return the reason that a mark names; empty for other partitions."""
    index = FIRST_UNFIT - partition
    return reasons[index] if 0 <= index < len(reasons) else ""


def merge_marks(parts: Iterable[tuple[Partitions, tuple[str, ...]]]) -> tuple[Partitions, tuple[str, ...]]:
    """Return the marks of several bodies, one after the other, with one list of reasons."""
    merged: dict[str, int] = {}
    columns = []
    for partition, reasons in parts:
        renamed = partition.copy() if reasons else partition
        for index, reason in enumerate(reasons):
            renamed[partition == FIRST_UNFIT - index] = FIRST_UNFIT - merged.setdefault(reason, len(merged))
        columns.append(renamed)
    return np.concatenate(columns), tuple(merged)


REJECTIONS: tuple[tuple[str, str], ...] = (
    ("UNKNOWN_TOPIC_OR_PARTITION", "The topic has no such partition. Expected 0 to {last_partition}."),
    (
        "MESSAGE_TOO_LARGE",
        "The message is larger than the topic's max.message.bytes. Expected at most {most_bytes} bytes.",
    ),
    ("INVALID_TIMESTAMP", "The timestamp is before 1970 or after 9999."),
    ("INVALID_TIMESTAMP", "The timestamp looks like seconds. Expected epoch milliseconds, or a time after March 1973."),
    ("INVALID_RECORD", "A header has no key."),
    ("INVALID_RECORD", "The time to live is negative, or more than a hundred years."),
    ("INVALID_RECORD", "The message has no key. Expected one, because the topic's cleanup.policy has compact."),
    ("INVALID_TIMESTAMP", "The time of delivery is before 1970 or after 9999."),
    ("INVALID_TIMESTAMP", "The delay is negative."),
    ("DELAY_TOO_LONG", "The delay is longer than the last of the topic's delay.levels."),
    ("INVALID_RECORD", TWO_TIMES),
    ("INVALID_TIMESTAMP", "The header DELIVER_AT or DELAY_MS is not a number of milliseconds."),
    ("INVALID_TIMESTAMP", "The time of delivery looks like seconds. Expected epoch milliseconds."),
)
"""Error and reason of rejected rows. A row that is rejected for number n has the partition -1 - n.

`describe_rejection` fills in what the topic expects.
"""

FIRST_FAILED = -1000
"""Partition of rows that fail expectation 0 of the topic's suite; expectation n has this minus n."""
NO_SUCH_PARTITION = -2
"""Stands for all negative explicit partitions, so that -1 keeps its meaning of none."""
RequestedPartitions: TypeAlias = "npt.NDArray[np.int64] | Sequence[int] | None"
"""Explicit partitions per row, -1 for none; FIRST_FAILED and below for failed expectations; None: no row has one."""

UNKNOWN, TOO_LARGE, BAD_TIME, TIME_IN_SECONDS, BAD_HEADER, BAD_TTL, NO_KEY, *_BAD_DELAYS = range(
    -1, -1 - len(REJECTIONS), -1
)


class RowLimit(NamedTuple):
    """Bounds of a measure of a row, both allowed. A row outside has this rejection."""

    rejection: int
    measure: Literal["timestamp_us", "like_seconds", "message_bytes", "keyless_headers", "ttl_ms", "lacks_key"]
    least: int
    most: int


@lru_cache
def build_row_limits(max_message_bytes: int, needs_key: bool) -> tuple[RowLimit, ...]:
    """Return the limits that every form of rows checks. If a row breaks several, the last counts."""
    return (
        RowLimit(BAD_TIME, "timestamp_us", MIN_TIMESTAMP_US, MAX_TIMESTAMP_US),
        RowLimit(TIME_IN_SECONDS, "like_seconds", 0, 0),
        RowLimit(TOO_LARGE, "message_bytes", 0, max_message_bytes),
        RowLimit(BAD_HEADER, "keyless_headers", 0, 0),
        RowLimit(BAD_TTL, "ttl_ms", 0, MAX_TTL_MS),
        RowLimit(NO_KEY, "lacks_key", 0, 0 if needs_key else 1),
    )


class Copy(NamedTuple):
    """A stored copy of the rows, for all topics with the same partitioning, delay rule, limits and schema.

    topics: indexes into the topics of the publish.
    """

    partition_count: int
    partitioner: Partitioner
    max_message_bytes: int
    topics: tuple[int, ...]
    delays: DelayRule = EXACT
    schema: SchemaRule | None = None
    needs_key: bool = False


def describe_rejection(partition: int, copy: Copy) -> tuple[str, str]:
    """Return error and reason of rows with this negative partition in the copy."""
    error, reason = REJECTIONS[-1 - partition]
    return error, reason.format(last_partition=copy.partition_count - 1, most_bytes=copy.max_message_bytes)


class RowRun(NamedTuple):
    """Rows first_row .. first_row + record_count of one partition, or rejected for one reason (partition < 0).

    first_due_ms, last_due_ms: when the first and the last are due, within one hour; NOT_DELAYED: they are at once.
    reason: why they do not fit the topic's schema; empty if they are not rejected for that.
    """

    partition: int
    first_row: int
    record_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    first_due_ms: int = NOT_DELAYED
    last_due_ms: int = NOT_DELAYED
    reason: str = ""


def name_reasons(runs: tuple[RowRun, ...], reasons: Sequence[str]) -> tuple[RowRun, ...]:
    """Return the runs, those of rows that do not fit with the reason."""
    return tuple(run._replace(reason=find_reason(run.partition, reasons)) if run.partition < 0 else run for run in runs)


def measure_rows(
    body: pa.Table, timestamps_us: npt.NDArray[np.int64], max_bytes: int
) -> dict[str, npt.NDArray[np.int64]]:
    """Return the measures of row limits per row. A measure is left out if no row can break its limit.

    Args:
        body: columns key, value, headers, ttl_ms.
        timestamps_us: the timestamp of each row.
        max_bytes: the least max.message.bytes of all topics.
    """
    measures = {"timestamp_us": timestamps_us}
    if timestamps_us.min(initial=MAX_TIMESTAMP_US) < LIKE_SECONDS_US.stop:
        is_like = (timestamps_us >= LIKE_SECONDS_US.start) & (timestamps_us < LIKE_SECONDS_US.stop)
        measures["like_seconds"] = is_like.astype(np.int64)
    if body.nbytes > max_bytes:  # else no row of it can be larger
        measures["message_bytes"] = _count_message_bytes(body)
    if body.column("headers").null_count < body.num_rows:
        measures["keyless_headers"] = _count_keyless_headers(body.column("headers"))
    if body.column("ttl_ms").null_count < body.num_rows:
        measures["ttl_ms"] = _to_numpy(pc.fill_null(body.column("ttl_ms"), 0))
    if body.column("key").null_count:
        measures["lacks_key"] = _to_numpy(pc.is_null(body.column("key")).cast(pa.int64()))
    return measures


def reject_bad_rows(
    measures: Mapping[str, npt.NDArray[np.int64]], partition: npt.NDArray[np.int32], copy: Copy
) -> npt.NDArray[np.int32]:
    """Return `partition` with a negative number for every row that breaks a row limit."""
    for rejection, name, least, most in build_row_limits(copy.max_message_bytes, copy.needs_key):
        measure = measures.get(name)
        if measure is None:
            continue
        bad = (measure < least) | (measure > most)
        if bad.any():
            partition = np.where(bad, np.int32(rejection), partition)
    return partition


def _count_message_bytes(body: pa.Table) -> npt.NDArray[np.int64]:
    """Count the bytes of key, value and headers per row."""
    size = _lengths(body.column("key")) + _lengths(body.column("value"))
    headers = body.column("headers")
    if headers.null_count < len(headers):
        row, flat = _flatten_headers(headers)
        keys, values = pc.struct_field(flat, "key"), pc.struct_field(flat, "value")
        np.add.at(size, row, _lengths(keys) + _lengths(values))
    return size


def _count_keyless_headers(headers: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    row, flat = _flatten_headers(headers)
    return np.bincount(row[_to_numpy(pc.is_null(pc.struct_field(flat, "key")))], minlength=len(headers))


def _flatten_headers(headers: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], pa.ChunkedArray]:
    """Return all headers one after the other, and the row of each."""
    return _to_numpy(pc.list_parent_indices(headers)), pc.list_flatten(headers)


def _lengths(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    return _to_numpy(pc.fill_null(pc.binary_length(column), 0)).astype(np.int64)


def _to_numpy(column: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = (
        column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy()
    )
    return values


class SortedRows(NamedTuple):
    """Rows in an order, in which they are not in memory until they are needed.

    order: index of each row in the table; None: the table is in order.
    """

    table: pa.Table
    order: pa.Array | None

    def to_table(self) -> pa.Table:
        """Return all rows, in order."""
        return self.table if self.order is None else self.table.take(self.order)

    def cut(self, piece_bytes: int) -> Iterator[pa.Table]:
        """Yield all rows, in order, in tables of about this size."""
        row_count = self.table.num_rows
        piece_rows = max(1, row_count * piece_bytes // max(1, self.table.nbytes))
        if self.order is None:
            yield from (self.table.slice(first, piece_rows) for first in range(0, row_count, piece_rows))
            return
        # pyarrow joins the chunks of a column to take rows of it: once here, and not again for every piece
        table = self.table.combine_chunks()
        yield from (table.take(self.order.slice(first, piece_rows)) for first in range(0, row_count, piece_rows))


def sort_by_partition(
    body: pa.Table,
    timestamps_us: npt.NDArray[np.int64],
    partition: npt.NDArray[np.int32],
    first_row: int,
    due: DueTimes | None = None,
) -> tuple[SortedRows, tuple[RowRun, ...]]:
    """Sort rows by partition, and return them with their runs. Rows of a partition stay in order.

    Args:
        body: the rows.
        timestamps_us: the timestamp of each row.
        partition: the partition of each row.
        first_row: number of the first sorted row.
        due: due times; None if no row is delayed. Delayed rows of a partition come last, in the order of due times.
    """
    n = body.num_rows
    if n == 0:
        return SortedRows(body, None), ()
    order = _find_sort_order(partition, due)
    body = body.set_column(body.column_names.index("partition"), "partition", pa.array(partition))
    rows = SortedRows(body, None if order is None else pa.array(order))
    if order is not None:
        partition, timestamps_us = partition[order], timestamps_us[order]
    begins = partition[1:] != partition[:-1]
    if due is not None:
        due_ms, together = (due.ms, due.together) if order is None else (due.ms[order], due.together[order])
        begins |= together[1:] != together[:-1]
    starts = np.flatnonzero(np.concatenate([[True], begins]))
    counts = np.diff(starts, append=n)
    columns: list[npt.NDArray[Any]] = [
        partition[starts],
        starts + first_row,
        counts,
        np.minimum.reduceat(timestamps_us, starts) // 1000,
        np.maximum.reduceat(timestamps_us, starts) // 1000,
    ]
    if due is not None:
        columns += [due_ms[starts], due_ms[starts + counts - 1]]
    return rows, tuple(map(RowRun, *(column.tolist() for column in columns)))


def _find_sort_order(partition: npt.NDArray[np.int32], due: DueTimes | None) -> npt.NDArray[np.int64] | None:
    """Return the order by partition and due time; None if the rows are in order."""
    if due is not None:
        return np.lexsort((due.ms, partition))
    if (partition[1:] < partition[:-1]).any():
        return np.argsort(_narrow(partition), kind="stable")
    return None


def _narrow(partition: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
    """Return the numbers in 16 bits if they fit: numpy then uses radix sort, in a fifth of the time."""
    narrow = partition.astype(np.int16)
    return narrow if np.array_equal(narrow, partition) else partition


class RowPlacement(NamedTuple):
    """Partition and due time per row in the caller's order, in one copy."""

    partition: npt.NDArray[np.int32]
    due_ms: npt.NDArray[np.int64]


RowsT = TypeVar("RowsT")


@dataclass(frozen=True)
class Arranged(Generic[RowsT]):
    """The rows of all copies, one after the other, and the runs of each copy (rows counted over all of them).

    Attributes:
        rows: the rows of all copies.
        runs: the runs of each copy.
        partition: partition per row in the caller's order, in the first copy; negative for a rejected row.
        due_ms: due time per row in the caller's order, in the first copy; None if no row is delayed.
        per_copy: partitions and due times in each copy; empty if no row is delayed.
        reasons: the reasons that marks of `partition` name.
    """

    rows: RowsT
    runs: tuple[tuple[Copy, tuple[RowRun, ...]], ...]
    partition: npt.NDArray[np.int32] | list[int]
    due_ms: npt.NDArray[np.int64] | list[int] | None = None
    per_copy: tuple[RowPlacement, ...] = ()
    reasons: tuple[str, ...] = ()


def arrange(
    copies: Sequence[Copy],
    body: pa.Table,
    delays: RequestedDelays | None,
    requested: npt.NDArray[np.int64] | None,
    start: int,
    by_slot: bool = False,
) -> Arranged[tuple[SortedRows, ...]]:
    """Return the body once per copy, checked and sorted by partition.

    Args:
        copies: the copies to store.
        body: the rows.
        delays: requested due times; None if no row is delayed.
        requested: explicit partitions, -1 for none, FIRST_FAILED and below for failed expectations.
        start: where the round of rows without a key begins.
        by_slot: whether a run of delayed rows has one due time; otherwise it covers an hour.
    """
    timestamps_us = _to_numpy(body.column("timestamp").cast(pa.int64()))
    measures = measure_rows(body, timestamps_us, min(copy.max_message_bytes for copy in copies))
    all_rows, runs, placed, dues, reasons = [], [], [], [], []
    for number, copy in enumerate(copies):
        partition = _choose_partitions(copy, body, requested, start)
        partition = reject_bad_rows(measures, partition, copy)
        partition, copy_reasons = reject_misfits(body.column("value"), copy.schema, partition)
        due = None
        if delays is not None:
            partition, due = reject_bad_delays(delays, copy.delays, partition, by_slot)
            body = _set_deliver_at(body, due)
        rows, copy_runs = sort_by_partition(body, timestamps_us, partition, number * body.num_rows, due)
        all_rows.append(rows)
        runs.append((copy, name_reasons(copy_runs, copy_reasons) if copy_reasons else copy_runs))
        placed.append(partition)
        reasons.append(copy_reasons)
        dues.append(due)
    per_copy = tuple(RowPlacement(p, due.ms) for p, due in zip(placed, dues, strict=True) if due is not None)
    due_ms = per_copy[0].due_ms if per_copy else None
    return Arranged(tuple(all_rows), tuple(runs), placed[0], due_ms, per_copy, reasons[0])


def reject_bad_delays(
    delays: RequestedDelays, rule: DelayRule, partition: npt.NDArray[np.int32], by_slot: bool
) -> tuple[npt.NDArray[np.int32], DueTimes]:
    """Return `partition` with a negative number for every row whose delay is refused, and the due times of the rows."""
    due_ms = compute_due_ms(rule, delays)
    for bad, rejection in zip(BAD, _BAD_DELAYS, strict=True):
        partition = np.where((due_ms == bad) & (partition >= 0), np.int32(rejection), partition)
    return partition, DueTimes.of(np.where(partition < 0, NOT_DELAYED, due_ms), by_slot)


def _set_deliver_at(body: pa.Table, due: DueTimes) -> pa.Table:
    """Set the column deliver_at to the due times of a copy."""
    times = pa.array(due.ms * 1000, pa.int64(), mask=due.ms == NOT_DELAYED).cast(TIME)
    return body.set_column(body.column_names.index("deliver_at"), "deliver_at", times)


def _choose_partitions(
    copy: Copy, body: pa.Table, requested: npt.NDArray[np.int64] | None, start: int
) -> npt.NDArray[np.int32]:
    partition = partition_keys(body.column("key"), copy.partition_count, copy.partitioner, start)
    if requested is None:
        return partition
    outside = (requested < -1) | (requested >= copy.partition_count)
    rejection = np.where(requested <= FIRST_FAILED, requested, UNKNOWN)
    return np.where(outside, rejection, np.where(requested >= 0, requested, partition)).astype(np.int32)
