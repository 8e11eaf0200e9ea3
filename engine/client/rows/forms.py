"""Rows as users give them, and the choice of a form for them: lists for a few, Arrow for more.

Both forms make the same message, partition and refusal of the same row. Arrow needs about a millisecond to begin; in
lists a row takes a few microseconds.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from .arrow_body import COLUMN_TYPES, build_arrow_body
from .body import Body
from .few_rows import build_few_body
from .message_columns import list_columns, read_columns
from .placing import RequestedPartitions
from .record import Extras

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
