"""The columns of a user's table, checked by type and cast to those of a message."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.spec import TIME

from ...protocol.errors import InvalidRecord
from .body import COLUMN_TYPES
from .delay_rule import FAR_MS

_OTHER_KINDS = {
    pa.binary().id: "neither text nor bytes",
    pa.timestamp("us").id: "not a timestamp",
    pa.int64().id: "no whole numbers",
}

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
    if not (_is_whole(column.type) or pa.types.is_floating(column.type)):
        return _read_column("deliver_at", column, TIME).cast(pa.int64())
    ms = _read_column("deliver_at", column, pa.int64())
    bounded = pc.max_element_wise(pc.min_element_wise(ms, FAR_MS, skip_nulls=False), -1, skip_nulls=False)
    return pc.multiply(bounded, 1000)


def _read_column(name: str, column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Return the column in this type. Whatever loses nothing is converted, for example whole floats to integers."""
    if column.type == type_:
        return column
    expected = "string or binary" if pa.types.is_binary(type_) else str(type_)
    try:
        if not _can_convert(type_, column.type.value_type if pa.types.is_dictionary(column.type) else column.type):
            raise pa.ArrowTypeError(_OTHER_KINDS[type_.id])
        return _decode(column).cast(type_)
    except pa.ArrowInvalid:
        row, value = _find_misfit(column, type_)
        raise InvalidRecord(
            f"Column {name} is not usable: a value cannot be converted to {expected} without a loss, the first in"
            f" row {row}, counted from 0.",
            found=value,
            expected=expected,
        ) from None
    except pa.ArrowException as error:
        raise InvalidRecord(
            f"Column {name} is not usable: {error}.", found=str(column.type), expected=expected
        ) from None


def _decode(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of a dictionary without it. Arrow itself decodes none whose entries are views."""
    if not pa.types.is_dictionary(column.type):
        return column
    type_ = pa.binary() if _is_bytes(column.type.value_type) else column.type.value_type
    chunks = [pa.DictionaryArray.from_arrays(c.indices, c.dictionary.cast(type_)) for c in column.chunks]
    return pa.chunked_array([chunk.dictionary_decode() for chunk in chunks], type_)


def _find_misfit(column: pa.ChunkedArray, type_: pa.DataType) -> tuple[int, str | None]:
    """Return row and value of the first that cannot be cast; there must be one. No text is shown: it is a payload."""
    first, end = 0, len(column)
    while end - first > 1:
        middle = (first + end) // 2
        try:
            _decode(column.slice(first, middle - first)).cast(type_)
            first = middle
        except pa.ArrowInvalid:
            end = middle
    return first, column[first].cast(pa.string()).as_py() if pa.types.is_primitive(column.type) else None


def _can_convert(type_: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether values of this kind may become values of the type."""
    if pa.types.is_null(kind):
        return True
    if pa.types.is_binary(type_):
        return _is_bytes(kind)
    if pa.types.is_timestamp(type_):
        return pa.types.is_timestamp(kind)
    return not pa.types.is_integer(type_) or _is_whole(kind) or pa.types.is_floating(kind)


def _is_whole(type: pa.DataType) -> bool:
    return pa.types.is_integer(type) or pa.types.is_null(type)


def _is_bytes(type: pa.DataType) -> bool:
    text = pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type)
    binary = pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_binary_view(type)
    return text or binary or pa.types.is_fixed_size_binary(type)
