"""What a caller gives to be published: rows of whatever library, and which of their columns are a message's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lakemq.tables.specs.spec import TIME

from ...protocol.errors import InvalidRecord
from ..arguments import listed, refused, text
from .record import checked_delay, checked_ttl


def arrow_table(data: Any) -> pa.Table | None:
    """The rows as an Arrow table, where they are at hand: whatever speaks Arrow's C stream, as pandas and Polars do.

    None: a DataFrame of Spark, whose rows its executors write; or nothing that has rows. Raises InvalidRecord.
    """
    if isinstance(data, pa.Table):
        return data
    if _is_sparks(data) or isinstance(data, type) or not _speaks_arrow(data):
        return None
    try:
        return pa.table(data)
    except Exception as error:  # it is another library's code that gives them
        raise InvalidRecord(f"The rows are none that Arrow can hold: {error}", found=type(data).__name__) from None


def check_dataframe(name: str, data: Any, expected: str) -> None:
    """Raises InvalidRequest unless it is a DataFrame of Spark."""
    if isinstance(data, type) or not _is_sparks(data):
        raise refused(name, data, expected)


def _is_sparks(data: Any) -> bool:
    # pyspark is heavy, and not every client has it; Spark's DataFrames speak Arrow, too, and would be collected
    kinds = type(data).__mro__
    return any(k.__module__.startswith("pyspark.sql.") and k.__name__ == "DataFrame" for k in kinds)


def _speaks_arrow(data: Any) -> bool:
    return isinstance(data, pa.RecordBatch) or hasattr(data, "__arrow_c_stream__")


def ordered(table: pa.Table, order_by: Any) -> pa.Table:
    """The rows by these columns, ascending. Raises InvalidRequest, InvalidRecord."""
    if order_by is None:
        return table
    names = [order_by] if isinstance(order_by, str) else listed("order_by", order_by)
    _check_columns(table, [text("order_by", name) for name in names])
    try:
        return table.sort_by([(name, "ascending") for name in names]) if names else table
    except pa.ArrowException as error:
        raise InvalidRecord(f"The rows cannot be ordered so: {error}", found=names) from None


def selected(table: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """The table with the columns named as a message's; those not named are taken by their own name."""
    alike, there = alike_in(columns), table.column_names
    chosen = {
        name: name if given is None else text(name, given)
        for name, given in columns.items()
        if name not in alike and (given is not None or name in there)
    }
    if any(columns.get(name) is not None for name in DELAYS):  # what is said in the call is so for all rows
        chosen = {name: given for name, given in chosen.items() if name not in DELAYS or columns[name] is not None}
    _check_columns(table, list(chosen.values()))
    if not alike and list(chosen) == list(chosen.values()) and set(chosen) == set(there):
        return table
    picked = {name: table.column(given) for name, given in chosen.items()}
    return pa.table({**picked, **{name: pa.repeat(one, table.num_rows) for name, one in alike.items()}})


DELAYS = ("deliver_at", "delay_ms")


def delays_alike(columns: Mapping[str, Any]) -> dict[str, pa.Scalar]:
    """What is said of the delay of all rows, and is no column. Raises InvalidRecord, InvalidTimestamp."""
    at, delay = (None if isinstance(columns.get(name), str) else columns.get(name) for name in DELAYS)
    if sum(columns.get(name) is not None for name in DELAYS) > 1:
        raise InvalidRecord("A message has a time of delivery, or a delay.", found="both", expected="one of them")
    at_us, delay_ms = checked_delay(at, delay)
    if at_us is not None:
        return {"deliver_at": pa.scalar(at_us, TIME)}
    return {} if delay_ms is None else {"delay_ms": pa.scalar(delay_ms, pa.int64())}


def alike_in(columns: Mapping[str, Any]) -> dict[str, pa.Scalar]:
    """What is said of all rows, and is no column: of their delay, and of their time to live. Raises as those two."""
    ttl = columns.get("ttl_ms")
    ttl_ms = None if isinstance(ttl, str) else checked_ttl(ttl)
    alike = delays_alike(columns)
    return alike if ttl_ms is None else alike | {"ttl_ms": pa.scalar(ttl_ms, pa.int64())}


def _check_columns(table: pa.Table, names: list[str]) -> None:
    there = table.column_names
    if missing := [name for name in names if name not in there]:
        raise InvalidRecord("The table lacks columns.", found=there, expected=", ".join(missing))
    if twice := [name for name in names if there.count(name) > 1]:
        raise InvalidRecord("The table has a column twice.", found=twice[0])
