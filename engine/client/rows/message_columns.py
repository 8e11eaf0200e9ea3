"""The columns of a user's table, checked by type and cast to those of a message."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.spec import TIME

from ...protocol.errors import InvalidRecord
from .arrow_body import COLUMN_TYPES
from .delay_rule import FAR_MS

COLUMNS = tuple(COLUMN_TYPES)
"""Names of the columns of a user's table."""


def read_columns(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return the columns of a table in the types of COLUMN_TYPES.

    Args:
        table: `value` (text or binary), and optionally `key` (text or binary), `headers` (list of key, value),
            `timestamp`, `partition` (whole numbers; null: by the key), `deliver_at` (times, or milliseconds),
            `delay_ms` (null: at once), `ttl_ms`.

    Raises:
        InvalidRecord: a column is missing, unknown or of a wrong type.
    """
    names = table.column_names
    if "value" not in names or len(set(names)) < len(names) or not set(names) <= set(COLUMNS):
        raise InvalidRecord(
            "The columns do not make a message.",
            found=names,
            expected="value, and optionally key, headers, timestamp, partition, deliver_at or delay_ms, ttl_ms",
        )
    return {
        name: _read_times(column) if name == "deliver_at" else _read_column(name, column, COLUMN_TYPES[name])
        for name, column in zip(names, table.columns, strict=True)
    }


def list_columns(columns: dict[str, pa.ChunkedArray]) -> dict[str, list[Any]] | None:
    """Return the columns as lists of Python values, times in microseconds; None if text is not UTF-8.

    Arrow takes such text unchecked.
    """
    lists: dict[str, list[Any]] = {}
    for name, column in columns.items():
        if name == "timestamp":
            column = column.cast(pa.int64())
        try:
            lists[name] = column.to_pylist()
        except UnicodeDecodeError:
            return None
    if "headers" in lists:
        lists["headers"] = [headers and [(h["key"], h["value"]) for h in headers] for headers in lists["headers"]]
    return lists


def _read_times(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times, or whole milliseconds, in microseconds."""
    if not _is_whole(column.type):
        return _read_column("deliver_at", column, TIME).cast(pa.int64())
    ms = _read_column("deliver_at", column, pa.int64())
    bounded = pc.max_element_wise(pc.min_element_wise(ms, FAR_MS, skip_nulls=False), -1, skip_nulls=False)
    return pc.multiply(bounded, 1000)


def _read_column(name: str, column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    if column.type == type_:
        return column
    try:
        if pa.types.is_timestamp(type_) and not _is_time(column.type):
            raise pa.ArrowTypeError("not a timestamp")
        if pa.types.is_binary(type_) and not _is_bytes(column.type):
            raise pa.ArrowTypeError("neither text nor bytes")
        if pa.types.is_integer(type_) and not _is_whole(column.type):
            raise pa.ArrowTypeError("no whole numbers")
        return column.cast(type_)
    except pa.ArrowException as error:
        # Arrow's error about a value that cannot be cast repeats the value, which in headers is the payload's.
        why = (
            str(error)
            if isinstance(error, pa.ArrowTypeError | pa.ArrowNotImplementedError)
            else f"a value cannot be converted to {type_}"
        )
        expected = "string or binary" if pa.types.is_binary(type_) else str(type_)
        raise InvalidRecord(f"Column {name} is not usable: {why}.", found=str(column.type), expected=expected) from None


def _is_time(type: pa.DataType) -> bool:
    return pa.types.is_timestamp(type) or pa.types.is_null(type)


def _is_whole(type: pa.DataType) -> bool:
    return pa.types.is_integer(type) or pa.types.is_null(type)


def _is_bytes(type: pa.DataType) -> bool:
    tests = (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_null,
    )
    return any(test(type) for test in tests) or pa.types.is_fixed_size_binary(type)
