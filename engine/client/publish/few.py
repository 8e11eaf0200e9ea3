"""A few rows on their way into a letter, without Arrow: checked, placed and sorted as `request` and `placing` do it.

Both ways give the same message, partition and refusal for the same row. Arrow takes about a millisecond to begin; here
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

from ...protocol.codec.few_rows import FewRows, Header, headers_bytes, table_of
from ...protocol.hashing import partitions_of_few
from .delaying import (
    BOTH,
    DELAY_HEADERS,
    DUE_BY_CALL,
    FAR_MS,
    FAR_US,
    MOST_DELAY_MS,
    NEGATIVE,
    NO_DUE,
    Wanted,
    said_by,
)
from .placing import BAD_HEADER, BAD_TIME, BAD_TTL, TOO_LARGE, UNKNOWN, Copy, Placed, Run, refuse_bad_delays
from .request import COLUMNS, KEY_HEADERS

FEW_ROWS = 256
FEW_BYTES = 64 << 10
"""Up to both, rows are few."""

_BYTES = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
_WHOLE = (pa.int32(), pa.int64())

T = TypeVar("T")


@dataclass(frozen=True)
class FewBody:
    """Message bodies of one destination, not placed yet: columns of equal length. headers: None where none has any.

    due_us, due_by_call_us: when rows are asked to be due, as in `Wanted`; None where none is delayed. ttls_ms: None
    where none has a time to live.
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
        """About as many as in Arrow."""
        return self._unplaced().nbytes

    def taken(self, order: Sequence[int], partition: Sequence[int]) -> FewRows:
        """The rows in this order, each with its partition (by where it stands now)."""

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

    def table(self) -> pa.Table:
        """The same in Arrow, as `body_of` makes it."""
        table = table_of([self._unplaced()])
        if self.due_us is not None:
            table = table.set_column(table.column_names.index("deliver_at"), "deliver_at", _times(self.due_us))
        if self.due_by_call_us is not None:
            table = table.append_column(DUE_BY_CALL, _times(self.due_by_call_us))
        return table

    def _unplaced(self) -> FewRows:
        return self.taken(range(self.num_rows), [0] * self.num_rows)


def _times(due_us: Sequence[int]) -> pa.Array:
    return pa.array([None if one == NO_DUE else one for one in due_us], TIME)


def few_of(
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
    """A body of columns that were checked; where they say nothing, the time is now, and the key a header's."""
    now_us = now_ms * 1000
    times = [now_us] * len(values) if timestamps_us is None else [now_us if t is None else t for t in timestamps_us]
    if headers is not None:
        keys = [_key_of(one) if key is None and one else key for key, one in zip(keys, headers, strict=True)]
        if any(name in DELAY_HEADERS for one in headers for name, _ in one or ()):
            headers, deliver_at_us, delays_ms = _taken_from_headers(headers, deliver_at_us, delays_ms)
    if ttls_ms is not None and all(one is None for one in ttls_ms):
        ttls_ms = None
    body = FewBody(destination, keys, values, times, headers, ttls_ms=ttls_ms)
    if deliver_at_us is None and delays_ms is None:
        return body
    nothing = [None] * len(values)
    asked = list(zip(deliver_at_us or nothing, delays_ms or nothing, strict=True))
    has_delay = any(delay_ms is not None for _, delay_ms in asked)
    if not has_delay and all(at_us is None for at_us, _ in asked):
        return body
    due_us = [_due_us(*one, time_us) for one, time_us in zip(asked, times, strict=True)]
    return replace(body, due_us=due_us, due_by_call_us=[_due_us(*one, now_us) for one in asked] if has_delay else None)


def _taken_from_headers(
    headers: Sequence[list[Header] | None], at_us: Sequence[int | None] | None, delays_ms: Sequence[int | None] | None
) -> tuple[list[list[Header] | None], list[int | None], list[int | None]]:
    """As `taken_from_headers`."""
    nothing = [None] * len(headers)
    asked = list(zip(at_us or nothing, delays_ms or nothing, strict=True))
    for row, one in enumerate(headers):
        if one and asked[row] == (None, None):
            asked[row] = said_by(one)
    kept = [one and ([(n, v) for n, v in one if n not in DELAY_HEADERS] or None) for one in headers]
    return kept, [at for at, _ in asked], [delay_ms for _, delay_ms in asked]


def _due_us(deliver_at_us: int | None, delay_ms: int | None, since_us: int) -> int:
    if delay_ms is None:
        return NO_DUE if deliver_at_us is None else deliver_at_us
    if deliver_at_us is not None:
        return BOTH
    return NEGATIVE if delay_ms < 0 else min(since_us, FAR_US) + 1000 * min(delay_ms, MOST_DELAY_MS)


def _key_of(headers: Iterable[Header]) -> bytes | None:
    """The value of the first of KEY_HEADERS that has one."""
    for wanted in KEY_HEADERS:
        for name, value in headers:
            if name == wanted and value is not None:
                return value
    return None


def few_of_table(table: pa.Table, destination: str, now_ms: int) -> tuple[FewBody, list[int] | None] | None:
    """What `body_of` makes of a table, if its rows are few and its types the common ones; else None."""
    names = table.column_names
    if not 0 < table.num_rows <= FEW_ROWS or table.nbytes > FEW_BYTES or "value" not in names:
        return None
    if len(set(names)) < len(names) or not set(names) <= set(COLUMNS):
        return None
    columns: dict[str, list[Any]] = {}
    for name, column in zip(names, table.columns, strict=True):
        plain = _plain(name, column)
        if plain is None:
            return None
        columns[name] = plain
    delays = columns.get("deliver_at"), columns.get("delay_ms")
    given = (
        columns.get("key") or [None] * table.num_rows,
        columns["value"],
        columns.get("headers"),
        columns.get("timestamp"),
    )
    body = few_of(destination, *given, now_ms, *delays, columns.get("ttl_ms"))
    asked = columns.get("partition")
    return body, None if asked is None else [-1 if one is None else one for one in asked]


def _plain(name: str, column: pa.ChunkedArray) -> list[Any] | None:
    """A column as Python values, where its type is one of the common ones."""
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
    except UnicodeDecodeError:  # text that is none: Arrow takes it as it is
        return None
    return [None if one is None else [(h["key"], h["value"]) for h in one] for one in listed]


@dataclass(frozen=True)
class ArrangedFew:
    """As `Arranged`: the rows of all copies, one after the other, the runs of each, and where each row came."""

    rows: FewRows
    runs: tuple[tuple[Copy, tuple[Run, ...]], ...]
    partition: list[int]
    due_ms: list[int] | None = None
    each: tuple[Placed, ...] = ()


def arrange_few(copies: Sequence[Copy], body: FewBody, asked: Sequence[int] | None, start: int) -> ArrangedFew:
    """As `arrange`, by slot."""
    order: list[int] = []
    placed: list[int] = []
    due_ms: list[int] = []
    runs = []
    for number, copy in enumerate(copies):
        mine, mine_due = _partitions(copy, body, asked, start), None
        if body.due_us is not None:
            mine, mine_due = _delayed(copy, body, mine)
            due_ms += mine_due
        key: Callable[[int], Any] = mine.__getitem__
        if mine_due is not None:
            key = list(zip(mine, mine_due, strict=True)).__getitem__
        mine_ordered = sorted(range(body.num_rows), key=key)
        runs.append((copy, _runs(mine, mine_due, mine_ordered, body.timestamps_us, number * body.num_rows)))
        # of copy n, row i is number n * rows + i
        order += [number * body.num_rows + row for row in mine_ordered]
        placed += mine
    rows = _copied(body, len(copies)).taken(order, placed)
    if body.due_us is None:
        return ArrangedFew(rows, tuple(runs), placed[: body.num_rows])
    n = body.num_rows
    each = [
        Placed(np.array(placed[at : at + n], np.int32), np.array(due_ms[at : at + n], np.int64))
        for at in range(0, len(placed), n)
    ]
    deliver_at_us = [None if due_ms[row] == NOT_DELAYED else due_ms[row] * 1000 for row in order]
    rows = msgspec.structs.replace(rows, deliver_at_us=deliver_at_us)
    return ArrangedFew(rows, tuple(runs), placed[:n], due_ms[:n], tuple(each))


def _delayed(copy: Copy, body: FewBody, partition: list[int]) -> tuple[list[int], list[int]]:
    """Partitions, and when rows are due. Worked out in numpy, as nobody shall round otherwise in Arrow."""
    due_us, by_call_us = body.due_us or (), body.due_by_call_us or body.due_us or ()
    wanted = Wanted(*(np.array(column, np.int64) for column in (body.timestamps_us, due_us, by_call_us)))
    placed, due = refuse_bad_delays(wanted, copy.delays, np.array(partition, np.int32), by_slot=True)
    return placed.tolist(), due.ms.tolist()


def _copied(body: FewBody, times: int) -> FewBody:
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


def _partitions(copy: Copy, body: FewBody, asked: Sequence[int] | None, start: int) -> list[int]:
    partition = partitions_of_few(body.keys, copy.partition_count, copy.partitioner, start)
    if asked is not None:
        partition = [
            hashed if wanted == -1 else wanted if 0 <= wanted < copy.partition_count else UNKNOWN
            for wanted, hashed in zip(asked, partition, strict=True)
        ]
    headers = body.headers or [None] * body.num_rows
    for row, (key, value, listed, time_us) in enumerate(
        zip(body.keys, body.values, headers, body.timestamps_us, strict=True)
    ):
        if not MIN_TIMESTAMP_US <= time_us <= MAX_TIMESTAMP_US:
            partition[row] = BAD_TIME
        if len(key or b"") + len(value or b"") + headers_bytes(listed) > copy.max_message_bytes:
            partition[row] = TOO_LARGE
        if listed and any(name is None for name, _ in listed):
            partition[row] = BAD_HEADER
    for row, ttl_ms in enumerate(body.ttls_ms or ()):
        if ttl_ms is not None and not 0 <= ttl_ms <= MAX_TTL_MS:
            partition[row] = BAD_TTL
    return partition


def _runs(
    partition: Sequence[int],
    due_ms: Sequence[int] | None,
    order: Sequence[int],
    timestamps_us: Sequence[int],
    first_row: int,
) -> tuple[Run, ...]:
    """The runs of the rows in this order; first_row: the number of the first of them."""
    key: Callable[[int], Any] = partition.__getitem__
    if due_ms is not None:
        key = list(zip(partition, due_ms, strict=True)).__getitem__
    runs = []
    for _, members in groupby(order, key=key):
        rows = list(members)
        times_us = [timestamps_us[row] for row in rows]
        at_ms = NOT_DELAYED if due_ms is None else due_ms[rows[0]]
        bounds_ms = min(times_us) // 1000, max(times_us) // 1000
        runs.append(Run(partition[rows[0]], first_row, len(rows), *bounds_ms, at_ms, at_ms))
        first_row += len(rows)
    return tuple(runs)
