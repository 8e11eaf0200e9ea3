"""A few rows on their way into a letter, without Arrow: checked, placed and sorted as `request` and `placing` do it.

Both ways give the same message, partition and refusal for the same row. Arrow takes about a millisecond to begin; here
a row takes a few microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

import pyarrow as pa

from lakemq.tables.specs.messages import HEADERS, MAX_TIMESTAMP_US, MIN_TIMESTAMP_US
from lakemq.tables.specs.spec import TIME

from ...protocol.codec.few_rows import FewRows, Header, headers_bytes, table_of
from ...protocol.hashing import partitions_of_few
from .placing import BAD_HEADER, BAD_TIME, TOO_LARGE, UNKNOWN, Copy, Run
from .request import COLUMNS, KEY_HEADERS

FEW_ROWS = 256
FEW_BYTES = 64 << 10
"""Up to both, rows are few."""

_BYTES = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
_WHOLE = (pa.int32(), pa.int64())

T = TypeVar("T")


@dataclass(frozen=True)
class FewBody:
    """Message bodies of one destination, not placed yet: columns of equal length. headers: None where none has any."""

    destination: str
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_us: Sequence[int]
    headers: Sequence[list[Header] | None] | None = None

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
        )

    def table(self) -> pa.Table:
        """The same in Arrow."""
        return table_of([self._unplaced()])

    def _unplaced(self) -> FewRows:
        return self.taken(range(self.num_rows), [0] * self.num_rows)


def few_of(
    destination: str,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[list[Header] | None] | None,
    timestamps_us: Sequence[int | None] | None,
    now_ms: int,
) -> FewBody:
    """A body of columns that were checked; where they say nothing, the time is now, and the key a header's."""
    now_us = now_ms * 1000
    times = [now_us] * len(values) if timestamps_us is None else [now_us if t is None else t for t in timestamps_us]
    if headers is not None:
        keys = [_key_of(one) if key is None and one else key for key, one in zip(keys, headers, strict=True)]
    return FewBody(destination, keys, values, times, headers)


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
    keys = columns.get("key") or [None] * table.num_rows
    body = few_of(destination, keys, columns["value"], columns.get("headers"), columns.get("timestamp"), now_ms)
    asked = columns.get("partition")
    return body, None if asked is None else [-1 if one is None else one for one in asked]


def _plain(name: str, column: pa.ChunkedArray) -> list[Any] | None:
    """A column as Python values, where its type is one of the common ones."""
    if name in ("key", "value"):
        if column.type not in _BYTES:
            return None
        column = column if column.type == pa.binary() else column.cast(pa.binary())
        return column.to_pylist()
    if name == "partition":
        return column.to_pylist() if column.type in _WHOLE else None
    if name == "timestamp":
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


def arrange_few(copies: Sequence[Copy], body: FewBody, asked: Sequence[int] | None, start: int) -> ArrangedFew:
    """As `arrange`."""
    order: list[int] = []
    placed: list[int] = []
    runs = []
    for number, copy in enumerate(copies):
        mine = _partitions(copy, body, asked, start)
        mine_ordered = sorted(range(body.num_rows), key=mine.__getitem__)
        runs.append((copy, _runs(mine, mine_ordered, body.timestamps_us, number * body.num_rows)))
        # of copy n, row i is number n * rows + i
        order += [number * body.num_rows + row for row in mine_ordered]
        placed += mine
    return ArrangedFew(_copied(body, len(copies)).taken(order, placed), tuple(runs), placed[: body.num_rows])


def _copied(body: FewBody, times: int) -> FewBody:
    if times == 1:
        return body
    return FewBody(
        body.destination,
        [*body.keys] * times,
        [*body.values] * times,
        [*body.timestamps_us] * times,
        None if body.headers is None else [*body.headers] * times,
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
    return partition


def _runs(
    partition: Sequence[int], order: Sequence[int], timestamps_us: Sequence[int], first_row: int
) -> tuple[Run, ...]:
    """The runs of the rows in this order; first_row: the number of the first of them."""
    runs = []
    for number, members in groupby(order, key=partition.__getitem__):
        times_us = [timestamps_us[row] for row in members]
        runs.append(Run(number, first_row, len(times_us), min(times_us) // 1000, max(times_us) // 1000))
        first_row += len(times_us)
    return tuple(runs)
