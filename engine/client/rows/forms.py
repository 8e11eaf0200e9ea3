"""The choice of a form for rows: lists for a few, Arrow for more.

Both forms make the same message, partition and refusal of the same row. Arrow needs about a millisecond to begin; in
lists a row takes a few microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from .arrow_body import COLUMN_TYPES, build_arrow_body
from .body import Body, RequestedPartitions
from .few_rows import build_few_body
from .message_columns import list_columns, read_columns

FEW_ROWS = 256
FEW_BYTES = 64 << 10
"""Limits of rows and bytes up to which lists are used."""


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


def build_body_of_records(
    columns: Mapping[str, list[Any]], size_bytes: int, destination: str, now_ms: int
) -> tuple[Body, RequestedPartitions]:
    """Build the message bodies of checked records, and the partitions that they ask for.

    Args:
        columns: values by name, times in microseconds; columns that no record has may be missing.
        size_bytes: size of all records.
        destination: its name.
        now_ms: time of the call.
    """
    if _are_few(len(columns["value"]), size_bytes):
        return build_few_body(columns, destination, now_ms)
    arrays = {name: pa.chunked_array([pa.array(column, COLUMN_TYPES[name])]) for name, column in columns.items()}
    return build_arrow_body(arrays, destination, now_ms)


def _are_few(num_rows: int, size_bytes: int) -> bool:
    return 0 < num_rows <= FEW_ROWS and size_bytes <= FEW_BYTES
