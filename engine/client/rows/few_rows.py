"""A few rows on their way into a letter, as lists: checked, placed and sorted as `request` and `placing` do in Arrow.

Both ways give the same message, partition and refusal for the same row. Arrow needs about a millisecond to begin; here
a row takes a few microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from lakemq.tables.specs.delayed import NOT_DELAYED
from lakemq.tables.specs.messages import HEADERS, MAX_TIMESTAMP_US, MAX_TTL_MS, MIN_TIMESTAMP_US
from lakemq.tables.specs.spec import TIME

from ...protocol.codec.few_rows import FewRows, Header, count_header_bytes, rows_to_table
from ...protocol.hashing import partition_few_keys
from .delay_rule import (
    BOTH,
    DELAY_HEADERS,
    DUE_BY_CALL,
    FAR_MS,
    FAR_US,
    MOST_DELAY_MS,
    NEGATIVE,
    NO_DUE,
    RequestedDelays,
    delay_from_headers,
)
from .misfits import name_reasons, reject_misfits
from .placing import BAD_HEADER, BAD_TIME, BAD_TTL, TOO_LARGE, UNKNOWN, Copy, RowPlacement, RowRun, reject_bad_delays
from .request import COLUMNS, KEY_HEADERS

FEW_ROWS = 256
FEW_BYTES = 64 << 10
"""Limits of rows and bytes up to which lists are used."""

_BYTES = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
_WHOLE = (pa.int32(), pa.int64())

T = TypeVar("T")


@dataclass(frozen=True)
class FewBody:
    """Message bodies of one destination, not placed yet: columns of equal length. headers: None where none has any.

    due_us, due_by_call_us: requested due times, as in `RequestedDelays`; None if no row is delayed. ttls_ms: None if
    no row has a time to live.
    """

    destination: str
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_us: Sequence[int]
    headers: Sequence[list[Header] | None] | None = None
    due_us: Sequence[int] | None = None
    due_by_call_us: Sequence[int] | None = None
    ttls_ms: Sequence[int | None] | None = None

    @property
    def num_rows(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Number of bytes, about as in Arrow."""
        return self._to_few_rows().nbytes

    def take_rows(self, order: Sequence[int], partition: Sequence[int]) -> FewRows:
        """Return the rows in this order. partition: per row of the result."""

        def column(values: Sequence[T]) -> list[T]:
            return [values[at] for at in order]

        return FewRows(
            [self.destination] * len(order),
            column(partition),
            column(self.keys),
            column(self.values),
            column(self.timestamps_us),
            None if self.headers is None else column(self.headers),
            ttl_ms=None if self.ttls_ms is None else column(self.ttls_ms),
        )

    def to_arrow(self) -> pa.Table:
        """Return the same body in Arrow, as `build_body` makes it."""
        table = rows_to_table([self._to_few_rows()])
        if self.due_us is not None:
            table = table.set_column(table.column_names.index("deliver_at"), "deliver_at", _times(self.due_us))
        if self.due_by_call_us is not None:
            table = table.append_column(DUE_BY_CALL, _times(self.due_by_call_us))
        return table

    def _to_few_rows(self) -> FewRows:
        return self.take_rows(range(self.num_rows), [0] * self.num_rows)


def _times(due_us: Sequence[int]) -> pa.Array:
    return pa.array([None if due == NO_DUE else due for due in due_us], TIME)


def build_few_body(
    destination: str,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[list[Header] | None] | None,
    timestamps_us: Sequence[int | None] | None,
    now_ms: int,
    deliver_at_us: Sequence[int | None] | None = None,
    delays_ms: Sequence[int | None] | None = None,
    ttls_ms: Sequence[int | None] | None = None,
) -> FewBody:
    """Build a body of checked columns. Missing timestamps are now; missing keys come from KEY_HEADERS."""
    now_us = now_ms * 1000
    times = [now_us] * len(values) if timestamps_us is None else [now_us if t is None else t for t in timestamps_us]
    if headers is not None:
        keys = [
            _find_key_header(row_headers) if key is None and row_headers else key
            for key, row_headers in zip(keys, headers, strict=True)
        ]
        if any(name in DELAY_HEADERS for row_headers in headers for name, _ in row_headers or ()):
            headers, deliver_at_us, delays_ms = _move_delay_headers(headers, deliver_at_us, delays_ms)
    if ttls_ms is not None and all(ttl_ms is None for ttl_ms in ttls_ms):
        ttls_ms = None
    body = FewBody(destination, keys, values, times, headers, ttls_ms=ttls_ms)
    if deliver_at_us is None and delays_ms is None:
        return body
    nothing = [None] * len(values)
    requested_delays = list(zip(deliver_at_us or nothing, delays_ms or nothing, strict=True))
    has_delay = any(delay_ms is not None for _, delay_ms in requested_delays)
    if not has_delay and all(at_us is None for at_us, _ in requested_delays):
        return body
    due_us = [_compute_due_us(*delay, time_us) for delay, time_us in zip(requested_delays, times, strict=True)]
    return replace(
        body,
        due_us=due_us,
        due_by_call_us=[_compute_due_us(*delay, now_us) for delay in requested_delays] if has_delay else None,
    )


def _move_delay_headers(
    headers: Sequence[list[Header] | None], at_us: Sequence[int | None] | None, delays_ms: Sequence[int | None] | None
) -> tuple[list[list[Header] | None], list[int | None], list[int | None]]:
    """Move DELAY_HEADERS into columns, as `move_delay_headers` does."""
    nothing = [None] * len(headers)
    delays = list(zip(at_us or nothing, delays_ms or nothing, strict=True))
    for row, row_headers in enumerate(headers):
        if row_headers and delays[row] == (None, None):
            delays[row] = delay_from_headers(row_headers)
    remaining = [
        row_headers and ([(n, v) for n, v in row_headers if n not in DELAY_HEADERS] or None) for row_headers in headers
    ]
    return remaining, [at for at, _ in delays], [delay_ms for _, delay_ms in delays]


def _compute_due_us(deliver_at_us: int | None, delay_ms: int | None, since_us: int) -> int:
    if delay_ms is None:
        return NO_DUE if deliver_at_us is None else deliver_at_us
    if deliver_at_us is not None:
        return BOTH
    return NEGATIVE if delay_ms < 0 else min(since_us, FAR_US) + 1000 * min(delay_ms, MOST_DELAY_MS)


def _find_key_header(headers: Iterable[Header]) -> bytes | None:
    """Return the value of the first of KEY_HEADERS that has one."""
    for key_header in KEY_HEADERS:
        for name, value in headers:
            if name == key_header and value is not None:
                return value
    return None


def few_body_from_table(table: pa.Table, destination: str, now_ms: int) -> tuple[FewBody, list[int] | None] | None:
    """Build what `build_body` makes of a table, if it has few rows and common types; else None."""
    names = table.column_names
    if not 0 < table.num_rows <= FEW_ROWS or table.nbytes > FEW_BYTES or "value" not in names:
        return None
    if len(set(names)) < len(names) or not set(names) <= set(COLUMNS):
        return None
    columns: dict[str, list[Any]] = {}
    for name, column in zip(names, table.columns, strict=True):
        plain = _column_values(name, column)
        if plain is None:
            return None
        columns[name] = plain
    delays = columns.get("deliver_at"), columns.get("delay_ms")
    plain_columns = (
        columns.get("key") or [None] * table.num_rows,
        columns["value"],
        columns.get("headers"),
        columns.get("timestamp"),
    )
    body = build_few_body(destination, *plain_columns, now_ms, *delays, columns.get("ttl_ms"))
    requested = columns.get("partition")
    return body, None if requested is None else [-1 if partition is None else partition for partition in requested]


def _column_values(name: str, column: pa.ChunkedArray) -> list[Any] | None:
    """Return a column as Python values; None if its type is not one of the common ones."""
    if name in ("key", "value"):
        if column.type not in _BYTES:
            return None
        column = column if column.type == pa.binary() else column.cast(pa.binary())
        return column.to_pylist()
    if name in ("partition", "delay_ms", "ttl_ms"):
        return column.to_pylist() if column.type in _WHOLE else None
    if name == "deliver_at" and column.type in _WHOLE:
        return [None if ms is None else max(-1, min(ms, FAR_MS)) * 1000 for ms in column.to_pylist()]
    if name in ("timestamp", "deliver_at"):
        return column.cast(pa.int64()).to_pylist() if column.type == TIME else None
    if column.type != HEADERS:
        return None
    try:
        listed = column.to_pylist()
    except UnicodeDecodeError:  # not UTF-8: Arrow takes it unchecked
        return None
    return [None if row_headers is None else [(h["key"], h["value"]) for h in row_headers] for row_headers in listed]


@dataclass(frozen=True)
class ArrangedFew:
    """The rows of all copies, one after the other, with the runs of each and the place of each row. See `Arranged`."""

    rows: FewRows
    runs: tuple[tuple[Copy, tuple[RowRun, ...]], ...]
    partition: list[int]
    due_ms: list[int] | None = None
    each: tuple[RowPlacement, ...] = ()
    reasons: tuple[str, ...] = ()


def arrange_few(copies: Sequence[Copy], body: FewBody, requested: Sequence[int] | None, start: int) -> ArrangedFew:
    """Place and sort the rows for each copy, as `arrange` does by slot."""
    order: list[int] = []
    placed: list[int] = []
    due_ms: list[int] = []
    runs, reasons = [], []
    for number, copy in enumerate(copies):
        partitions, partition_due = _choose_partitions(copy, body, requested, start), None
        partitions, copy_reasons = _reject_misfits(copy, body, partitions)
        reasons.append(copy_reasons)
        if body.due_us is not None:
            partitions, partition_due = _apply_delays(copy, body, partitions)
            due_ms += partition_due
        key: Callable[[int], Any] = partitions.__getitem__
        if partition_due is not None:
            key = list(zip(partitions, partition_due, strict=True)).__getitem__
        row_order = sorted(range(body.num_rows), key=key)
        copy_runs = _build_runs(partitions, partition_due, row_order, body.timestamps_us, number * body.num_rows)
        runs.append((copy, name_reasons(copy_runs, copy_reasons)))
        # row i of copy n has the number n * rows + i
        order += [number * body.num_rows + row for row in row_order]
        placed += partitions
    rows = _repeat_body(body, len(copies)).take_rows(order, placed)
    if body.due_us is None:
        return ArrangedFew(rows, tuple(runs), placed[: body.num_rows], reasons=reasons[0])
    n = body.num_rows
    each = [
        RowPlacement(np.array(placed[at : at + n], np.int32), np.array(due_ms[at : at + n], np.int64))
        for at in range(0, len(placed), n)
    ]
    deliver_at_us = [None if due_ms[row] == NOT_DELAYED else due_ms[row] * 1000 for row in order]
    rows = msgspec.structs.replace(rows, deliver_at_us=deliver_at_us)
    return ArrangedFew(rows, tuple(runs), placed[:n], due_ms[:n], tuple(each), reasons[0])


def _reject_misfits(copy: Copy, body: FewBody, partition: list[int]) -> tuple[list[int], tuple[str, ...]]:
    if copy.schema is None:
        return partition, ()
    marked, reasons = reject_misfits(body.values, copy.schema, np.array(partition, np.int32))
    return marked.tolist(), reasons


def _apply_delays(copy: Copy, body: FewBody, partition: list[int]) -> tuple[list[int], list[int]]:
    """Return partitions and due times. Computed in numpy, so that both ways round alike."""
    due_us, by_call_us = body.due_us or (), body.due_by_call_us or body.due_us or ()
    wanted = RequestedDelays(*(np.array(column, np.int64) for column in (body.timestamps_us, due_us, by_call_us)))
    placed, due = reject_bad_delays(wanted, copy.delays, np.array(partition, np.int32), by_slot=True)
    return placed.tolist(), due.ms.tolist()


def _repeat_body(body: FewBody, times: int) -> FewBody:
    if times == 1:
        return body
    return FewBody(
        body.destination,
        [*body.keys] * times,
        [*body.values] * times,
        [*body.timestamps_us] * times,
        None if body.headers is None else [*body.headers] * times,
        ttls_ms=None if body.ttls_ms is None else [*body.ttls_ms] * times,
    )


def _choose_partitions(copy: Copy, body: FewBody, requested: Sequence[int] | None, start: int) -> list[int]:
    partition = partition_few_keys(body.keys, copy.partition_count, copy.partitioner, start)
    if requested is not None:
        partition = [
            hashed if explicit == -1 else explicit if 0 <= explicit < copy.partition_count else UNKNOWN
            for explicit, hashed in zip(requested, partition, strict=True)
        ]
    headers = body.headers or [None] * body.num_rows
    for row, (key, value, listed, time_us) in enumerate(
        zip(body.keys, body.values, headers, body.timestamps_us, strict=True)
    ):
        if not MIN_TIMESTAMP_US <= time_us <= MAX_TIMESTAMP_US:
            partition[row] = BAD_TIME
        if len(key or b"") + len(value or b"") + count_header_bytes(listed) > copy.max_message_bytes:
            partition[row] = TOO_LARGE
        if listed and any(name is None for name, _ in listed):
            partition[row] = BAD_HEADER
    for row, ttl_ms in enumerate(body.ttls_ms or ()):
        if ttl_ms is not None and not 0 <= ttl_ms <= MAX_TTL_MS:
            partition[row] = BAD_TTL
    return partition


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
