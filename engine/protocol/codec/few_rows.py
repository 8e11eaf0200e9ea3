"""Few rows of a letter: columns as msgpack, because for few rows just starting Arrow takes longer.

Invariant: columns of equal length, with the types and bounds of a message body. Anybody may have written the bytes, and
one byte of msgpack may become seventy in memory, so their number is limited.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Annotated, Any, TypeAlias

import msgspec
import pyarrow as pa

from lakemq.tables.specs.messages import BODY_SCHEMA

MAX_FEW_BYTES = 1 << 20
"""Bytes of a letter's rows as msgpack. Larger ones travel as Arrow."""

_ROW_BYTES, _HEADER_BYTES, _TIME_BYTES = 40, 16, 9
"""The most bytes that msgpack adds to a row and to a header, and the bytes of a time."""

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Header: TypeAlias = tuple[str | None, bytes | None]


class FewRows(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Message bodies as columns, with times in microseconds. headers, deliver_at_us, ttl_ms: None if no row has any."""

    topic: list[str]
    partition: list[_Int32]
    key: list[bytes | None]
    value: list[bytes | None]
    timestamp_us: list[_Int64]
    headers: list[list[Header] | None] | None = None
    deliver_at_us: list[_Int64 | None] | None = None
    ttl_ms: list[_Int64 | None] | None = None

    @property
    def num_rows(self) -> int:
        return len(self.topic)

    @property
    def nbytes(self) -> int:
        """Estimated bytes in a letter, rarely too low."""
        times = (self.deliver_at_us is not None) + (self.ttl_ms is not None)
        row_bytes = _ROW_BYTES + times * _TIME_BYTES
        plain = (
            row_bytes * len(self.topic) + sum(map(len, self.topic)) + count_bytes(self.key) + count_bytes(self.value)
        )
        if self.headers is None:
            return plain
        return plain + sum(
            count_header_bytes(headers) + _HEADER_BYTES * len(headers) for headers in self.headers if headers
        )


Rows: TypeAlias = pa.Table | FewRows
"""Message bodies that travel in a letter."""

_msgpack = msgspec.msgpack.Encoder()
_few_rows = msgspec.msgpack.Decoder(FewRows)


def count_bytes(column: Iterable[bytes | None]) -> int:
    """Return the bytes of a column."""
    return sum(map(len, filter(None, column)))


def count_header_bytes(headers: Iterable[Header] | None) -> int:
    """Return the bytes of the headers of one row."""
    return sum(len((name or "").encode()) + len(value or b"") for name, value in headers or ())


def encode_few_rows(rows: FewRows) -> bytes:
    return _msgpack.encode(rows)


def decode_few_rows(text: memoryview) -> FewRows:
    """Return the rows. Raises ValueError for bytes that are not a few message bodies."""
    if len(text) > MAX_FEW_BYTES:
        raise ValueError(f"rows as msgpack: found {len(text)} bytes, expected at most {MAX_FEW_BYTES}")
    try:
        rows = _few_rows.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"not message bodies: {error}") from error
    counts = {len(rows.partition), len(rows.key), len(rows.value), len(rows.timestamp_us)}
    counts |= {len(column) for column in (rows.headers, rows.deliver_at_us, rows.ttl_ms) if column is not None}
    if counts != {rows.num_rows}:
        raise ValueError("not message bodies: columns differ in length")
    return rows


def concatenate_rows(parts: Sequence[Rows]) -> Rows | None:
    """Return all rows, one after another, in the form in which they travel in a letter; None without rows."""
    if not parts:
        return None
    few = [part for part in parts if isinstance(part, FewRows)]
    if len(few) == len(parts) and sum(part.nbytes for part in few) <= MAX_FEW_BYTES // 2:
        return few[0] if len(few) == 1 else _concatenate_few(few)
    return rows_to_table(parts)


def _concatenate_few(parts: Sequence[FewRows]) -> FewRows:
    def column(of: Callable[[FewRows], list[Any]]) -> list[Any]:
        return list(chain.from_iterable(map(of, parts)))

    has_headers = any(part.headers is not None for part in parts)
    has_due = any(part.deliver_at_us is not None for part in parts)
    has_ttl = any(part.ttl_ms is not None for part in parts)
    return FewRows(
        column(lambda part: part.topic),
        column(lambda part: part.partition),
        column(lambda part: part.key),
        column(lambda part: part.value),
        column(lambda part: part.timestamp_us),
        column(lambda part: part.headers or [None] * part.num_rows) if has_headers else None,
        column(lambda part: part.deliver_at_us or [None] * part.num_rows) if has_due else None,
        column(lambda part: part.ttl_ms or [None] * part.num_rows) if has_ttl else None,
    )


def rows_to_table(parts: Sequence[Rows]) -> pa.Table:
    """Return all rows, one after another, as BODY_SCHEMA. Neighbouring few rows become one table."""
    tables: list[pa.Table] = []
    few: list[FewRows] = []
    for part in parts:
        if isinstance(part, FewRows):
            few.append(part)
        else:
            tables += [*_few_to_tables(few), part]
            few = []
    tables += _few_to_tables(few)
    return tables[0] if len(tables) == 1 else pa.concat_tables([BODY_SCHEMA.empty_table(), *tables])


def _few_to_tables(parts: Sequence[FewRows]) -> list[pa.Table]:
    """Return a list with one table of all these rows; an empty list without rows."""
    if not parts:
        return []
    rows = parts[0] if len(parts) == 1 else _concatenate_few(parts)
    columns: dict[str, Any] = {
        "topic": rows.topic,
        "partition": rows.partition,
        "key": rows.key,
        "value": rows.value,
        "headers": rows.headers,
        "timestamp": rows.timestamp_us,
        "deliver_at": rows.deliver_at_us,
        "ttl_ms": rows.ttl_ms,
    }
    columns_and_types = [(columns.get(field.name), field.type) for field in BODY_SCHEMA]
    arrays = [
        pa.nulls(rows.num_rows, kind) if column is None else pa.array(column, kind)
        for column, kind in columns_and_types
    ]
    return [pa.Table.from_arrays(arrays, schema=BODY_SCHEMA)]
