"""Rows that callers publish, from any library, and the choice of their message columns."""

import difflib
import logging
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.spec import TIME

from ...protocol.errors import InvalidRecord
from ..arguments import invalid_argument, parse_list, parse_text
from .body import COLUMN_TYPES
from .delay_rule import FAR_MS, TWO_TIMES
from .record import parse_delay, parse_ttl

log = logging.getLogger("lakemq.publish")


def to_arrow_table(data: Any) -> pa.Table | None:
    """Return rows of this process as an Arrow table, from any object with Arrow's C stream, as in pandas and Polars.

    None: a DataFrame of Spark, whose rows its executors write; or nothing that has rows. Raises InvalidRecord.
    """
    if isinstance(data, pa.Table):
        return data
    if _is_spark_dataframe(data) or isinstance(data, type) or not _has_arrow_stream(data):
        return None
    try:
        return pa.table(data)
    except Exception as error:  # it is another library's code that gives them
        why = ": ".join(map(str, reversed(error.args)))  # pandas adds the column's name as the last one
        raise InvalidRecord(f"The rows cannot be converted to Arrow: {why}", found=type(data).__name__) from None


def check_dataframe(name: str, data: Any, expected: str) -> None:
    """Raises InvalidRequest unless it is a DataFrame of Spark."""
    if isinstance(data, type) or not _is_spark_dataframe(data):
        raise invalid_argument(name, data, expected)


def _is_spark_dataframe(data: Any) -> bool:
    # pyspark is heavy, and not every client has it; Spark's DataFrames speak Arrow, too, and would be collected
    kinds = type(data).__mro__
    return any(k.__module__.startswith("pyspark.sql.") and k.__name__ == "DataFrame" for k in kinds)


def _has_arrow_stream(data: Any) -> bool:
    return isinstance(data, pa.RecordBatch) or hasattr(data, "__arrow_c_stream__")


def sort_rows(table: pa.Table, order_by: Any) -> pa.Table:
    """Sort the rows by these columns, ascending. Raises InvalidRequest, InvalidRecord."""
    if order_by is None:
        return table
    names = [order_by] if isinstance(order_by, str) else parse_list("order_by", order_by)
    _check_columns(table, [parse_text("order_by", name) for name in names])
    try:
        return table.sort_by([(name, "ascending") for name in names]) if names else table
    except pa.ArrowException as error:
        raise InvalidRecord(f"The rows cannot be ordered so: {error}", found=names) from None


def select_message_columns(table: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """Return a table of message columns: those that the call names, else those with the message's column names."""
    constants, existing = constant_columns(columns), table.column_names
    chosen = {
        name: source
        for name, column in columns.items()
        if name not in constants
        for source in [_find_column(existing, name) if column is None else _find_named(existing, name, column)]
        if source is not None
    }
    if any(
        columns.get(name) is not None for name in DELAY_COLUMNS
    ):  # an argument of the call wins over a column of this name
        chosen = {
            name: column for name, column in chosen.items() if name not in DELAY_COLUMNS or columns[name] is not None
        }
    if "value" not in chosen:
        raise InvalidRecord("The table has no column for the value.", found=existing, expected="value, or value=")
    _check_columns(table, list(chosen.values()))
    warn_of_misspelt_columns(existing, chosen.values(), [name for name in columns if name not in {*chosen, *constants}])
    if not constants and list(chosen) == list(chosen.values()) and set(chosen) == set(existing):
        return table
    picked = {name: table.column(column) for name, column in chosen.items()}
    return pa.table({**picked, **{name: pa.repeat(value, table.num_rows) for name, value in constants.items()}})


def _find_column(existing: list[str], name: str) -> str | None:
    """Return the column with this name, in any case as in Spark; None if there is none."""
    if name in existing:
        return name
    alike = [column for column in existing if column.lower() == name.lower()]
    if len(alike) > 1:
        raise InvalidRecord("The table has a column twice, in other cases.", found=alike, expected=name)
    return alike[0] if alike else None


def _find_named(existing: list[str], name: str, column: Any) -> str:
    wanted = parse_text(name, column)
    return _find_column(existing, wanted) or wanted


def warn_of_misspelt_columns(existing: Iterable[str], used: Iterable[str], missing: Iterable[str]) -> None:
    """Log once which columns are not published, although their names are like those of missing message columns."""
    _warn_of_misspelt(tuple(sorted({*existing} - {*used})), tuple(missing))


@lru_cache(maxsize=256)
def _warn_of_misspelt(others: tuple[str, ...], missing: tuple[str, ...]) -> None:
    for name in others:
        for near in difflib.get_close_matches(name.lower(), missing, n=1, cutoff=0.75):
            log.warning(
                "The column %s is not published. If it is the %s of the messages, name it so, or publish with %s=%r.",
                *(name, near, near, name),
            )


DELAY_COLUMNS = ("deliver_at", "delay_ms")


def constant_delay(columns: Mapping[str, Any]) -> dict[str, pa.Scalar]:
    """Return the delay that the call sets for all rows, by column name. Raises InvalidRecord, InvalidTimestamp."""
    at, delay = (None if isinstance(columns.get(name), str) else columns.get(name) for name in DELAY_COLUMNS)
    if sum(columns.get(name) is not None for name in DELAY_COLUMNS) > 1:
        raise InvalidRecord(TWO_TIMES, expected="one of them")
    at_us, delay_ms = parse_delay(at, delay)
    if at_us is not None:
        return {"deliver_at": pa.scalar(at_us, TIME)}
    return {} if delay_ms is None else {"delay_ms": pa.scalar(delay_ms, pa.int64())}


def constant_columns(columns: Mapping[str, Any]) -> dict[str, pa.Scalar]:
    """Return delay and time to live that the call sets for all rows. Raises InvalidRecord, InvalidTimestamp."""
    ttl = columns.get("ttl_ms")
    ttl_ms = None if isinstance(ttl, str) else parse_ttl(ttl)
    alike = constant_delay(columns)
    return alike if ttl_ms is None else alike | {"ttl_ms": pa.scalar(ttl_ms, pa.int64())}


def _check_columns(table: pa.Table, names: list[str]) -> None:
    there = table.column_names
    if missing := [name for name in names if name not in there]:
        raise InvalidRecord("The table lacks columns.", found=there, expected=", ".join(missing))
    if twice := [name for name in names if there.count(name) > 1]:
        raise InvalidRecord("The table has a column twice.", found=twice[0])


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
