"""Message rows of a user's DataFrame: columns are chosen, checked by type, completed and cast."""

from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, IntegralType, NullType, StringType, TimestampNTZType, TimestampType

from lakemq.tables.storage.delta.catalog import ddl_type

from ...protocol.errors import InvalidRecord
from ..arguments import parse_text
from ..quality.spark_gate import SparkGate
from ..rows.body import COLUMN_TYPES, KEY_HEADERS
from ..rows.delay_rule import FAR_MS, TWO_TIMES
from ..rows.input_rows import DELAY_COLUMNS, constant_delay, warn_of_misspelt_columns
from ..rows.record import parse_ttl
from ..tracing import TRACEPARENT, find_trace_headers
from .executor import FAILED, TOPIC

HEADERS_DDL = "array<struct<key:string,value:binary>>"

_ALLOWED: dict[str, tuple[type, ...]] = {
    "topic": (StringType,),
    "key": (BinaryType, StringType, NullType),
    "value": (BinaryType, StringType, NullType),
    "headers": (ArrayType, NullType),
    "timestamp": (TimestampType, TimestampNTZType, NullType),
    "partition": (IntegralType, NullType),
    "deliver_at": (TimestampType, TimestampNTZType, IntegralType, NullType),
    "delay_ms": (IntegralType, NullType),
    "ttl_ms": (IntegralType, NullType),
}


def select_message_rows(
    df: DataFrame, columns: Mapping[str, Any], order_by: Any, gate: SparkGate | None = None
) -> DataFrame:
    """Return the rows in the columns that `WriteMessages` takes, those that the DataFrame or the call has.

    columns: name of a message's column -> a column of `df` or an expression, None: the column of this name if there is
    one. order_by: the rows of a key stay in this order. gate: marks rows that fail. Raises InvalidRecord.
    """
    existing = {column.lower() for column in df.columns}  # Spark's names are alike in any case
    chosen = {
        name: column if column is not None else name
        for name, column in columns.items()
        if column is not None or name in existing
    }
    chosen = _choose_delay_column(chosen, columns)
    if chosen.get("ttl_ms") is not None and not isinstance(chosen["ttl_ms"], Column | str):
        chosen["ttl_ms"] = F.lit(parse_ttl(chosen["ttl_ms"]))
    if "value" not in chosen:
        raise InvalidRecord("The DataFrame has no column for the value.", found=df.columns, expected="value, or value=")
    named = [column for column in chosen.values() if isinstance(column, str) and column.isidentifier()]
    if missing := [name for name in named if name.lower() not in existing]:
        raise InvalidRecord("The DataFrame lacks columns.", found=df.columns, expected=", ".join(missing))
    used = {column for column in df.columns if column.lower() in {str(name).lower() for name in chosen.values()}}
    warn_of_misspelt_columns(df.columns, used, [name for name in columns if name not in chosen])
    try:
        picked = [_to_column(name, column).alias(name) for name, column in chosen.items()]
        ordering = [] if order_by is None else order_by if isinstance(order_by, list | tuple) else [order_by]
        order_columns = [_to_column("order_by", column).alias(f"__order_{i}") for i, column in enumerate(ordering)]
        mark = [] if gate is None else [gate.mark.alias(_MARK)]
        message = df.select(*picked, *order_columns, *mark)
    except PySparkException as error:
        raise InvalidRecord(_first_line(error), found=df.columns) from None
    _check_types(message.drop(_MARK))
    typed = message.select(
        *(_typed_column(message, name).alias(name) for name in COLUMN_TYPES if name in chosen),
        *([F.col(_MARK).cast("bigint").alias(FAILED)] if mark else []),
        *([TOPIC] if TOPIC in chosen else []),
        *(f"__order_{i}" for i in range(len(ordering))),
    )
    if not ordering:
        return typed
    return (
        typed.repartition(_key_column(chosen))
        .sortWithinPartitions(*(f"__order_{i}" for i in range(len(ordering))))
        .drop(*(f"__order_{i}" for i in range(len(ordering))))
    )


_MARK = "__failed"


def _choose_delay_column(chosen: dict[str, Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    """Let a delay in the call, a column or a constant, win over columns with those names."""
    delays = {name: columns[name] for name in DELAY_COLUMNS if columns.get(name) is not None}
    constants = {name: delay for name, delay in delays.items() if not isinstance(delay, Column | str)}
    literals = {name: F.lit(value.as_py()) for name, value in constant_delay(constants).items()}
    if len(delays) > 1:
        raise InvalidRecord(TWO_TIMES, expected="one of them")
    return {
        name: literals.get(name, column)
        for name, column in chosen.items()
        if not delays or name not in DELAY_COLUMNS or name in delays
    }


def _typed_column(message: DataFrame, name: str) -> Column:
    """Return a column in its type of COLUMN_TYPES."""
    if name == "headers":
        return _replace_nulls(name)
    if name == "deliver_at":
        at = F.col(name)
        if not isinstance(message.schema[name].dataType, IntegralType):
            return F.unix_micros(at.cast("timestamp"))
        ms = F.least(F.greatest(at.cast("bigint"), F.lit(-1)), F.lit(FAR_MS))
        return F.when(at.isNotNull(), ms * 1000)
    return F.col(name).cast(ddl_type(COLUMN_TYPES[name]))


def _to_column(name: str, column: Any) -> Column:
    return column if isinstance(column, Column) else F.col(parse_text(name, column))


def _replace_nulls(name: str) -> Column:
    # Spark 4.2's Arrow writer takes time quadratic in the rows of a batch for null arrays: 58 s instead of 1 s for
    # 2 M rows in batches of 50,000; an empty array costs nothing, and becomes null again on the other side
    return F.coalesce(F.col(name).cast(HEADERS_DDL), F.array().cast(HEADERS_DDL))


def _key_column(chosen: Mapping[str, Any]) -> Column:
    """Return the key, or else the value of the first of KEY_HEADERS that the row has, wherever it stands."""
    candidates = [F.col("key")] if "key" in chosen else []
    if "headers" in chosen:
        candidates += [F.try_element_at(_header_values(name), F.lit(1)) for name in KEY_HEADERS]
    return F.coalesce(*candidates) if candidates else F.lit(None).cast("binary")


def _header_values(header: str) -> Column:
    """Return the values of all headers of this name that have one."""
    headers = F.filter(F.col("headers").cast(HEADERS_DDL), lambda h: (h["key"] == header) & h["value"].isNotNull())
    return F.transform(headers, lambda h: h["value"])


def _check_types(message: DataFrame) -> None:
    for field in message.schema.fields:
        allowed = _ALLOWED.get(field.name)
        if allowed and not isinstance(field.dataType, allowed):
            raise InvalidRecord(
                f"Column {field.name} is of the wrong type.",
                found=field.dataType.simpleString(),
                expected=" or ".join(t.__name__.removesuffix("Type").lower() for t in allowed if t is not NullType),
            )
        if field.name == "headers" and isinstance(field.dataType, ArrayType):
            _check_header_type(field.dataType)


def _check_header_type(type: ArrayType) -> None:
    type_name = type.simpleString()
    names = [(f.name, f.dataType.simpleString()) for f in getattr(type.elementType, "fields", [])]
    if [n for n, _ in names] != ["key", "value"] or names[0][1] != "string" or names[1][1] not in ("binary", "string"):
        raise InvalidRecord("Column headers is of the wrong type.", found=type_name, expected=HEADERS_DDL)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


# The current span's context in the headers of a DataFrame's rows. It is that of the driver, for all rows.


def add_trace_to_columns(df: DataFrame, columns: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the columns of a publish, whose headers also have those of the current span, if there is one.

    Rows that have a traceparent keep theirs.
    """
    if not (trace := find_trace_headers()):
        return columns
    added = F.array(*(F.struct(F.lit(name).alias("key"), F.lit(value).alias("value")) for name, value in trace))
    headers = columns.get("headers")
    if headers is None and "headers" not in map(str.lower, df.columns):
        return {**columns, "headers": added.cast(HEADERS_DDL)}
    named = F.col("headers") if headers is None else F.col(headers) if isinstance(headers, str) else headers
    own = F.coalesce(named.cast(HEADERS_DDL), F.array().cast(HEADERS_DDL))
    has_trace = F.exists(own, lambda header: header["key"] == TRACEPARENT)
    return {**columns, "headers": F.when(has_trace, own).otherwise(F.concat(own, added.cast(HEADERS_DDL)))}
