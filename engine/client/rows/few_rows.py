"""Message bodies as lists: the form for a few rows on their way into a letter.

It makes the same message, partition and refusal of the same row as `body` and `placing` do in Arrow.
Rows of docs/architecture.md: publish 2, 4.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from lakemq.tables.specs.messages import LIKE_SECONDS_US, NOT_DELAYED

from ...namespace.data_file import repeat_name
from ...protocol.codec.few_rows import FewRows, Header, Rows, count_header_bytes, rows_to_table
from ...protocol.hashing import partition_few_keys
from .body import COLUMN_TYPES, KEY_HEADERS, ArrowBody, build_arrow_body
from .delay_rule import DELAY_HEADERS, NO_DUE, RequestedDelays, delay_from_headers, request_delays
from .input_rows import list_columns, read_columns
from .placing import (
    FIRST_FAILED,
    NO_SUCH_PARTITION,
    UNKNOWN,
    Arranged,
    Copy,
    RequestedPartitions,
    RowPlacement,
    RowRun,
    build_row_limits,
    name_reasons,
    reject_bad_delays,
    reject_misfits,
)
from .record import Extras

T = TypeVar("T")


@dataclass(frozen=True)
class FewBody:
    """Message bodies of one destination, not placed yet: columns of equal length.

    headers, delays, ttls_ms: None if no row has any.
    """

    destination: str
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_us: Sequence[int]
    headers: Sequence[list[Header] | None] | None = None
    delays: RequestedDelays | None = None
    ttls_ms: Sequence[int | None] | None = None

    @property
    def num_rows(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Number of bytes, about as in Arrow."""
        return self._to_few_rows().nbytes

    @property
    def has_ttl(self) -> bool:
        """Whether some of the rows have a time to live."""
        return self.ttls_ms is not None

    def arrange(self, copies: Sequence[Copy], requested: RequestedPartitions, start: int) -> Arranged[Rows]:
        """Return the rows as a letter takes them, as `ArrowBody.arrange` does."""
        # a letter takes numbers of Python only, and those of a gate are numpy's
        plain = None if requested is None else [int(partition) for partition in requested]
        return arrange_few(copies, self, plain, start)

    def take_rows(self, order: Sequence[int], partition: list[int]) -> FewRows:
        """Return the rows in this order. partition: per row of the result."""

        def column(values: Sequence[T]) -> list[T]:
            return [values[at] for at in order]

        return FewRows(
            [self.destination] * len(order),
            partition,
            column(self.keys),
            column(self.values),
            column(self.timestamps_us),
            None if self.headers is None else column(self.headers),
            ttl_ms=None if self.ttls_ms is None else column(self.ttls_ms),
        )

    def to_arrow(self) -> ArrowBody:
        """Return the same body in Arrow, as `build_arrow_body` makes it."""
        table = rows_to_table([self._to_few_rows()])
        topics = repeat_name(self.destination, self.num_rows)
        table = table.set_column(table.column_names.index("topic"), "topic", topics)
        return ArrowBody(self.destination, table, self.delays)

    def _to_few_rows(self) -> FewRows:
        count = self.num_rows
        return FewRows(
            [self.destination] * count,
            [0] * count,
            list(self.keys),
            list(self.values),
            list(self.timestamps_us),
            None if self.headers is None else list(self.headers),
            ttl_ms=None if self.ttls_ms is None else list(self.ttls_ms),
        )


Body: TypeAlias = ArrowBody | FewBody
"""Message bodies of one destination, without partitions yet."""


def build_few_body(columns: Mapping[str, list[Any]], destination: str, now_ms: int) -> tuple[FewBody, list[int] | None]:
    """Build a body, and the partitions that rows ask for, as `build_arrow_body` does.

    Args:
        columns: value, and optionally the other columns of COLUMN_TYPES; times in microseconds.
        destination: its name.
        now_ms: time of the call.
    """
    now_us, values = now_ms * 1000, columns["value"]
    nothing: list[Any] = [None] * len(values)
    times = [now_us if time_us is None else time_us for time_us in columns.get("timestamp", nothing)]
    keys, headers = columns.get("key", nothing), columns.get("headers")
    at_us, delays_ms = columns.get("deliver_at"), columns.get("delay_ms")
    if headers is not None:
        keys = [
            _find_key_header(row_headers) if key is None and row_headers else key
            for key, row_headers in zip(keys, headers, strict=True)
        ]
        if any(name in DELAY_HEADERS for row_headers in headers for name, _ in row_headers or ()):
            headers, at_us, delays_ms = _move_delay_headers(headers, at_us or nothing, delays_ms or nothing)
        # an empty list of headers counts as no headers
        headers = [row_headers or None for row_headers in headers]
    delays = None
    if at_us is not None or delays_ms is not None:
        shortest = [None if delay_ms is None else max(delay_ms, -1) for delay_ms in delays_ms or nothing]
        delays = request_delays(_to_numbers(at_us or nothing), _to_numbers(shortest), now_us)
    ttls_ms = columns.get("ttl_ms")
    if ttls_ms is not None and all(ttl_ms is None for ttl_ms in ttls_ms):
        ttls_ms = None
    body = FewBody(destination, keys, values, times, headers, delays, ttls_ms)
    requested = columns.get("partition")
    if requested is None:
        return body, None
    return body, [-1 if partition is None else max(partition, NO_SUCH_PARTITION) for partition in requested]


def _to_numbers(column: Iterable[int | None]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([NO_DUE if number is None else number for number in column], np.int64)


def _move_delay_headers(
    headers: Sequence[list[Header] | None], at_us: Sequence[int | None], delays_ms: Sequence[int | None]
) -> tuple[list[list[Header] | None], list[int | None], list[int | None]]:
    """Move DELAY_HEADERS into columns, as `move_delay_headers` does."""
    delays = list(zip(at_us, delays_ms, strict=True))
    for row, row_headers in enumerate(headers):
        if row_headers and delays[row] == (None, None):
            delays[row] = delay_from_headers(row_headers)
    remaining = [row_headers and [(n, v) for n, v in row_headers if n not in DELAY_HEADERS] for row_headers in headers]
    return remaining, [at for at, _ in delays], [delay_ms for _, delay_ms in delays]


def _find_key_header(headers: Iterable[Header]) -> bytes | None:
    """Return the value of the first of KEY_HEADERS that has one."""
    for key_header in KEY_HEADERS:
        for name, value in headers:
            if name == key_header and value is not None:
                return value
    return None


def arrange_few(copies: Sequence[Copy], body: FewBody, requested: Sequence[int] | None, start: int) -> Arranged[Rows]:
    """Place and sort the rows for each copy, as `arrange` does by slot."""
    order: list[int] = []
    placed: list[int] = []
    due_ms: list[int] = []
    runs, reasons = [], []
    measures = _measure_rows(body)
    for number, copy in enumerate(copies):
        partitions, partition_due = _choose_partitions(copy, body.keys, requested, start), None
        _reject_bad_rows(measures, partitions, copy)
        partitions, copy_reasons = _reject_misfits(copy, body, partitions)
        reasons.append(copy_reasons)
        if body.delays is not None:
            partitions, partition_due = _apply_delays(copy, body.delays, partitions)
            due_ms += partition_due
        key: Callable[[int], Any] = partitions.__getitem__
        if partition_due is not None:
            key = list(zip(partitions, partition_due, strict=True)).__getitem__
        row_order = sorted(range(body.num_rows), key=key)
        copy_runs = _build_runs(partitions, partition_due, row_order, body.timestamps_us, number * body.num_rows)
        runs.append((copy, name_reasons(copy_runs, copy_reasons) if copy_reasons else copy_runs))
        # row i of copy n has the number n * rows + i
        order += [number * body.num_rows + row for row in row_order]
        placed += partitions
    rows = body.take_rows([number % body.num_rows for number in order], [placed[number] for number in order])
    if body.delays is None:
        return Arranged(rows, tuple(runs), placed[: body.num_rows], reasons=reasons[0])
    n = body.num_rows
    per_copy = [
        RowPlacement(np.array(placed[at : at + n], np.int32), np.array(due_ms[at : at + n], np.int64))
        for at in range(0, len(placed), n)
    ]
    deliver_at_us = [None if due_ms[row] == NOT_DELAYED else due_ms[row] * 1000 for row in order]
    rows = msgspec.structs.replace(rows, deliver_at_us=deliver_at_us)
    return Arranged(rows, tuple(runs), placed[:n], due_ms[:n], tuple(per_copy), reasons[0])


def _reject_misfits(copy: Copy, body: FewBody, partition: list[int]) -> tuple[list[int], tuple[str, ...]]:
    if copy.schema is None:
        return partition, ()
    marked, reasons = reject_misfits(body.values, copy.schema, np.array(partition, np.int32))
    return marked.tolist(), reasons


def _apply_delays(copy: Copy, delays: RequestedDelays, partition: list[int]) -> tuple[list[int], list[int]]:
    """Return partitions and due times. Computed in numpy, so that both forms round alike."""
    placed, due = reject_bad_delays(delays, copy.delays, np.array(partition, np.int32), by_slot=True)
    return placed.tolist(), due.ms.tolist()


def _choose_partitions(
    copy: Copy, keys: Sequence[bytes | None], requested: Sequence[int] | None, start: int
) -> list[int]:
    partitions = partition_few_keys(keys, copy.partition_count, copy.partitioner, start)
    if requested is None:
        return partitions
    return [
        hashed if explicit == -1 else _check_requested(explicit, copy.partition_count)
        for explicit, hashed in zip(requested, partitions, strict=True)
    ]


def _check_requested(partition: int, partition_count: int) -> int:
    is_mark = partition <= FIRST_FAILED
    return partition if is_mark or 0 <= partition < partition_count else UNKNOWN


def _measure_rows(body: FewBody) -> dict[str, Sequence[int]]:
    """Return the measures of row limits per row, without those that no row has."""
    sizes = [len(key or b"") + len(value or b"") for key, value in zip(body.keys, body.values, strict=True)]
    measures: dict[str, Sequence[int]] = {"timestamp_us": body.timestamps_us, "message_bytes": sizes}
    if min(body.timestamps_us) < LIKE_SECONDS_US.stop:
        measures["like_seconds"] = [time_us in LIKE_SECONDS_US for time_us in body.timestamps_us]
    if body.headers is not None:
        header_bytes = map(count_header_bytes, body.headers)
        measures["message_bytes"] = [size + more for size, more in zip(sizes, header_bytes, strict=True)]
        measures["keyless_headers"] = [sum(name is None for name, _ in headers or ()) for headers in body.headers]
    if body.ttls_ms is not None:
        measures["ttl_ms"] = [ttl_ms or 0 for ttl_ms in body.ttls_ms]
    if None in body.keys:
        measures["lacks_key"] = [int(key is None) for key in body.keys]
    return measures


def _reject_bad_rows(measures: Mapping[str, Sequence[int]], partition: list[int], copy: Copy) -> None:
    """Set a negative number for every row that breaks a row limit."""
    for rejection, name, least, most in build_row_limits(copy.max_message_bytes, copy.needs_key):
        measure = measures.get(name)
        if not measure or (least <= min(measure) and max(measure) <= most):
            continue
        for row, number in enumerate(measure):
            if not least <= number <= most:
                partition[row] = rejection


def _build_runs(
    partition: Sequence[int],
    due_ms: Sequence[int] | None,
    order: Sequence[int],
    timestamps_us: Sequence[int],
    first_row: int,
) -> tuple[RowRun, ...]:
    """Return the runs of the rows in this order. first_row: number of the first row."""
    key: Callable[[int], Any] = partition.__getitem__
    if due_ms is not None:
        key = list(zip(partition, due_ms, strict=True)).__getitem__
    runs = []
    for _, members in groupby(order, key=key):
        rows = list(members)
        times_us = [timestamps_us[row] for row in rows]
        at_ms = NOT_DELAYED if due_ms is None else due_ms[rows[0]]
        bounds_ms = min(times_us) // 1000, max(times_us) // 1000
        runs.append(RowRun(partition[rows[0]], first_row, len(rows), *bounds_ms, at_ms, at_ms))
        first_row += len(rows)
    return tuple(runs)


# Rows as users give them, and the choice of a form for them: lists for a few, Arrow for more.
#
# Both forms make the same message, partition and refusal of the same row. Arrow needs about a millisecond to begin; in
# lists a row takes a few microseconds.


FEW_ROWS = 256
FEW_BYTES = 64 << 10
"""Limits of rows and bytes up to which lists are used."""

_EXTRA_COLUMNS = ("headers", "partition", "timestamp", "deliver_at", "delay_ms", "ttl_ms")
"""The columns of `Extras`, in their order."""


class Records:
    """Checked records for one destination, as columns: what `send` gathers until a batch is due."""

    __slots__ = ("_extras", "keys", "values")

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self._extras: dict[int, Extras] = {}

    def add(self, key: bytes | None, value: bytes | None, extras: Extras | None) -> int:
        """Add a record, and return its index."""
        index = len(self.values)
        if extras is not None:
            self._extras[index] = extras
        self.keys.append(key)
        self.values.append(value)
        return index

    def build_body(self, destination: str, size_bytes: int, now_ms: int) -> tuple[Body, RequestedPartitions]:
        """Build the message bodies of the records, and the partitions that they ask for.

        Args:
            destination: its name.
            size_bytes: size of all records.
            now_ms: time of the call.
        """
        columns: dict[str, list[Any]] = {"key": self.keys, "value": self.values}
        for place, name in enumerate(_EXTRA_COLUMNS) if self._extras else ():
            if (column := self._list_extra(place)) is not None:
                columns[name] = column
        if _are_few(len(self.values), size_bytes):
            return build_few_body(columns, destination, now_ms)
        arrays = {name: pa.chunked_array([pa.array(column, COLUMN_TYPES[name])]) for name, column in columns.items()}
        return build_arrow_body(arrays, destination, now_ms)

    def _list_extra(self, place: int) -> list[Any] | None:
        """Return a column of optional parts; None if no record has the part."""
        if not any(extras[place] is not None for extras in self._extras.values()):
            return None
        column: list[Any] = [None] * len(self.values)
        for index, extras in self._extras.items():
            column[index] = extras[place]
        return column


def build_body(table: pa.Table, destination: str, now_ms: int) -> tuple[Body, RequestedPartitions]:
    """Build the message bodies of a user's table, and the partitions that rows ask for.

    Args:
        table: columns as in `read_columns`.
        destination: its name.
        now_ms: time of the call.

    Raises:
        InvalidRecord: a column is missing, unknown or of a wrong type.
    """
    columns = read_columns(table)
    if _are_few(table.num_rows, table.nbytes) and (lists := list_columns(columns)) is not None:
        return build_few_body(lists, destination, now_ms)
    return build_arrow_body(columns, destination, now_ms)


def _are_few(num_rows: int, size_bytes: int) -> bool:
    return 0 < num_rows <= FEW_ROWS and size_bytes <= FEW_BYTES
