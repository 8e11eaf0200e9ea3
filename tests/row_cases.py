"""Rows that users publish, and what becomes of each: one table of cases for every form of rows.

`tests/unit/test_row_forms.py` plays it with lists and in Arrow, `tests/spark/test_row_forms.py` with a DataFrame.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from lakemq.engine.client.rows.body import COLUMN_TYPES
from lakemq.engine.client.rows.delay_rule import DelayRule
from lakemq.engine.client.rows.placing import (
    BAD_HEADER,
    BAD_TIME,
    BAD_TTL,
    NO_KEY,
    REJECTIONS,
    TIME_IN_SECONDS,
    TOO_LARGE,
    UNKNOWN,
    Copy,
)
from lakemq.engine.protocol.hashing import xxhash64_partition
from lakemq.tables.specs.messages import LIKE_SECONDS_US, MAX_TIMESTAMP_US, MAX_TTL_MS, NOT_DELAYED

NOW_MS = 1_700_000_000_123
DESTINATION = "t"

PLAIN = Copy(4, "xxhash64", 40, (0,), DelayRule(1_000))
KEYED = PLAIN._replace(needs_key=True)
LEVELS = Copy(3, "xxhash64", 1_000, (0,), DelayRule(1, (1_000, 5_000)))

_DUE_OUT_OF_RANGE, _NEGATIVE_DELAY, _TOO_LONG, _BOTH, _UNREADABLE, _DUE_IN_SECONDS = range(-8, -8 - 6, -1)


class RowCase(NamedTuple):
    """A row, and what becomes of it.

    row: values by column. partition: negative: the rejection. stored: the columns whose stored value is not the one
    that the row has. due_ms: NOT_DELAYED: it is delivered at once.
    """

    name: str
    row: dict[str, Any]
    partition: int
    stored: Mapping[str, Any] = MappingProxyType({})
    due_ms: int = NOT_DELAYED
    copy: Copy = PLAIN


def _hashed(key: bytes, copy: Copy = PLAIN) -> int:
    return xxhash64_partition(key, copy.partition_count)


def _headers(*pairs: tuple[str | None, bytes | None]) -> list[tuple[str | None, bytes | None]]:
    return list(pairs)


_K = {"key": b"k", "value": b"v"}
_SECOND_MS = NOW_MS + 877
"""The next whole second after NOW_MS."""

CASES = (
    RowCase("hashed by its key", _K, _hashed(b"k"), {"timestamp": NOW_MS * 1000}),
    RowCase("an empty key is a key", {"key": b"", "value": None}, _hashed(b"")),
    RowCase("an explicit partition wins", _K | {"partition": 3}, 3),
    RowCase("there is no such partition", _K | {"partition": 4}, UNKNOWN),
    RowCase("a negative partition", _K | {"partition": -1_000}, UNKNOWN),
    RowCase("as large as allowed", {"key": b"k", "value": b"v" * 39}, _hashed(b"k")),
    RowCase("too large", {"key": b"k", "value": b"v" * 40}, TOO_LARGE),
    RowCase("headers count", _K | {"headers": _headers(("h" * 30, b"v" * 9))}, TOO_LARGE),
    RowCase("the last moment", _K | {"timestamp": MAX_TIMESTAMP_US}, _hashed(b"k")),
    RowCase("after year 9999", _K | {"timestamp": MAX_TIMESTAMP_US + 1}, BAD_TIME),
    RowCase("before 1970", _K | {"timestamp": -1}, BAD_TIME),
    RowCase("a time in seconds", _K | {"timestamp": NOW_MS}, TIME_IN_SECONDS),
    RowCase("just before times in seconds", _K | {"timestamp": LIKE_SECONDS_US.start - 1}, _hashed(b"k")),
    RowCase("the first time in seconds", _K | {"timestamp": LIKE_SECONDS_US.start}, TIME_IN_SECONDS),
    RowCase("just after times in seconds", _K | {"timestamp": LIKE_SECONDS_US.stop}, _hashed(b"k")),
    RowCase("too large counts more", {"key": b"k", "value": b"v" * 40, "timestamp": -1}, TOO_LARGE),
    RowCase("a header without a key", _K | {"headers": _headers(("a", b"1"), (None, b"2"))}, BAD_HEADER),
    RowCase("no headers at all", _K | {"headers": []}, _hashed(b"k"), {"headers": None}),
    RowCase("the longest time to live", _K | {"ttl_ms": MAX_TTL_MS}, _hashed(b"k")),
    RowCase("too long a time to live", _K | {"ttl_ms": MAX_TTL_MS + 1}, BAD_TTL),
    RowCase("a negative time to live", _K | {"ttl_ms": -1}, BAD_TTL),
    RowCase("no key in a compacted topic", {"key": None, "value": b"v"}, NO_KEY, copy=KEYED),
    RowCase("a key in a compacted topic", _K, _hashed(b"k"), copy=KEYED),
    RowCase(
        "a header supplies the key",
        {"value": b"v", "headers": _headers(("JMSXGroupID", b"late"), ("QUEUE_PARTITION_KEY", b"first"))},
        TOO_LARGE,
        {"key": b"first"},
    ),
    RowCase("a header without a value supplies none", _K | {"headers": _headers(("JMSXGroupID", None))}, _hashed(b"k")),
    RowCase("the key wins over a header", _K | {"headers": _headers(("JMSXGroupID", b"x"))}, _hashed(b"k")),
    RowCase("due times are rounded up", _K | {"delay_ms": 1}, _hashed(b"k"), due_ms=_SECOND_MS),
    RowCase("due at a time", _K | {"deliver_at": _SECOND_MS * 1000 - 1}, _hashed(b"k"), due_ms=_SECOND_MS),
    RowCase("due after year 9999", _K | {"deliver_at": MAX_TIMESTAMP_US + 1}, _DUE_OUT_OF_RANGE),
    RowCase("due at a time in seconds", _K | {"deliver_at": NOW_MS}, _DUE_IN_SECONDS),
    RowCase(
        "a header with a time in seconds",
        _K | {"headers": _headers(("DELIVER_AT", str(NOW_MS // 1000).encode()))},
        _DUE_IN_SECONDS,
        {"headers": None},
    ),
    RowCase("a delay beyond all years", _K | {"delay_ms": 2**63 - 1}, _DUE_OUT_OF_RANGE),
    RowCase("a negative delay", _K | {"delay_ms": -(2**63)}, _NEGATIVE_DELAY),
    RowCase("a time and a delay", _K | {"delay_ms": 1, "deliver_at": 1}, _BOTH),
    RowCase(
        "a header says when, and is removed",
        _K | {"headers": _headers(("DELAY_MS", b"1"), ("a", None))},
        _hashed(b"k"),
        {"headers": _headers(("a", None))},
        _SECOND_MS,
    ),
    RowCase(
        "the call wins over a header",
        _K | {"headers": _headers(("DELAY_MS", b"9999")), "delay_ms": 1},
        _hashed(b"k"),
        {"headers": None},
        _SECOND_MS,
    ),
    RowCase(
        "a header that is no number", _K | {"headers": _headers(("DELAY_MS", b"1.5"))}, _UNREADABLE, {"headers": None}
    ),
    RowCase("a bad row is not delayed", _K | {"timestamp": -1, "delay_ms": 1}, BAD_TIME),
    RowCase(
        "a delay is raised to a level",
        _K | {"delay_ms": 1_001},
        _hashed(b"k", LEVELS),
        due_ms=NOW_MS + 5_000,
        copy=LEVELS,
    ),
    RowCase("a delay above all levels", _K | {"delay_ms": 5_001}, _TOO_LONG, copy=LEVELS),
    RowCase("a delay counts from the call", _K | {"timestamp": 0, "delay_ms": 7}, _hashed(b"k"), due_ms=_SECOND_MS),
    RowCase(
        "a level counts from the call",
        _K | {"timestamp": 0, "deliver_at": (NOW_MS + 7) * 1000},
        _hashed(b"k", LEVELS),
        due_ms=NOW_MS + 1_000,
        copy=LEVELS,
    ),
)

assert {case.partition for case in CASES if case.partition < 0} == {*range(-len(REJECTIONS), 0)}


def to_columns(rows: list[dict[str, Any]]) -> dict[str, pa.ChunkedArray]:
    """Return rows as columns of COLUMN_TYPES, those that some row has."""
    names = [name for name in COLUMN_TYPES if any(name in row for row in rows)]
    return {
        name: pa.chunked_array([pa.array([row.get(name) for row in rows], COLUMN_TYPES[name])])
        for name in ["value", *(name for name in names if name != "value")]
    }


def stored_row(case: RowCase) -> dict[str, Any]:
    """Return what the body must hold of a case's row, times in microseconds."""
    due_us = None if case.due_ms == NOT_DELAYED else case.due_ms * 1000
    expected = {"key": None, "value": None, "headers": None, "timestamp": NOW_MS * 1000, "ttl_ms": None}
    expected |= {name: value for name, value in case.row.items() if name in expected}
    return {**expected, **case.stored, "partition": case.partition, "deliver_at": due_us}


def read_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a body in the form of `stored_row`."""
    times = {name: table.column(name).cast(pa.int64()).to_pylist() for name in ("timestamp", "deliver_at")}
    rows = table.select(["key", "value", "headers", "ttl_ms", "partition"]).to_pylist()
    for row, timestamp_us, deliver_at_us in zip(rows, times["timestamp"], times["deliver_at"], strict=True):
        headers = row["headers"]
        row["headers"] = headers and [(header["key"], header["value"]) for header in headers]
        row |= {"timestamp": timestamp_us, "deliver_at": deliver_at_us}
    return rows
