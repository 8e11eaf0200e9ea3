"""The current span's context in the headers of a DataFrame's rows. It is that of the driver, for all rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ..tracing.headers import TRACEPARENT, find_trace_headers
from .message_rows import HEADERS_DDL


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
