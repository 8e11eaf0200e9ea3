"""A few rows in a letter: columns as msgpack, since Arrow takes longer to begin than they take as a whole.

Invariant: columns of equal length, of the types and bounds that a message body has. Anybody may have written them, and
a byte of msgpack may become seventy in memory: so there are few bytes, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Annotated, Any, TypeAlias

import msgspec
import pyarrow as pa

from lakemq.tables.specs.messages import BODY_SCHEMA

MAX_FEW_BYTES = 1 << 20
"""Of a letter's rows as msgpack; more of them travel as Arrow."""

_ROW_BYTES, _HEADER_BYTES, _TIME_BYTES = 40, 16, 9
"""What msgpack puts around a row, and around a header, at most; and what a time takes."""

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Header: TypeAlias = tuple[str | None, bytes | None]


class FewRows(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Message bodies as columns; times in microseconds. headers, deliver_at_us, ttl_ms: None where no row has any."""

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
        """No fewer than it has in a letter, but for a few."""
        times = (self.deliver_at_us is not None) + (self.ttl_ms is not None)
        row_bytes = _ROW_BYTES + times * _TIME_BYTES
        plain = row_bytes * len(self.topic) + sum(map(len, self.topic)) + lengths(self.key) + lengths(self.value)
        if self.headers is None:
            return plain
        return plain + sum(headers_bytes(one) + _HEADER_BYTES * len(one) for one in self.headers if one)


Rows: TypeAlias = pa.Table | FewRows
"""Message bodies that ride in a letter."""

_msgpack = msgspec.msgpack.Encoder()
_few_rows = msgspec.msgpack.Decoder(FewRows)


def lengths(column: Iterable[bytes | None]) -> int:
    """Bytes of a column."""
    return sum(len(one) for one in column if one is not None)


def headers_bytes(headers: Iterable[Header] | None) -> int:
    """Bytes of the headers of one row."""
    return sum(len((name or "").encode()) + len(value or b"") for name, value in headers or ())


def encode_few_rows(rows: FewRows) -> bytes:
    return _msgpack.encode(rows)


def decode_few_rows(text: memoryview) -> FewRows:
    """Raises ValueError for anything that is not a few message bodies."""
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


def joined(parts: Sequence[Rows]) -> Rows | None:
    """All rows one after the other, as they ride in a letter; None: there are none."""
    if not parts:
        return None
    few = [part for part in parts if isinstance(part, FewRows)]
    if len(few) == len(parts) and sum(part.nbytes for part in few) <= MAX_FEW_BYTES // 2:
        return few[0] if len(few) == 1 else _joined(few)
    return table_of(parts)


def _joined(parts: Sequence[FewRows]) -> FewRows:
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


def table_of(parts: Sequence[Rows]) -> pa.Table:
    """All rows one after the other, as BODY_SCHEMA: those that come as few become one table where they meet."""
    tables: list[pa.Table] = []
    few: list[FewRows] = []
    for part in parts:
        if isinstance(part, FewRows):
            few.append(part)
        else:
            tables += [*_tables(few), part]
            few = []
    tables += _tables(few)
    return tables[0] if len(tables) == 1 else pa.concat_tables([BODY_SCHEMA.empty_table(), *tables])


def _tables(parts: Sequence[FewRows]) -> list[pa.Table]:
    """One table of them, if there are any."""
    if not parts:
        return []
    rows = parts[0] if len(parts) == 1 else _joined(parts)
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
    given = [(columns.get(field.name), field.type) for field in BODY_SCHEMA]
    arrays = [pa.nulls(rows.num_rows, kind) if column is None else pa.array(column, kind) for column, kind in given]
    return [pa.Table.from_arrays(arrays, schema=BODY_SCHEMA)]
