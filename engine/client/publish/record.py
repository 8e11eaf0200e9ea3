"""A record as a caller gives it: checked in the call, so that a bad one never meets its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lakemq.tables.specs.messages import HEADERS, MAX_TIMESTAMP_US, MAX_TTL_MS, MIN_TIMESTAMP_US
from lakemq.tables.specs.spec import TIME

from ...protocol.errors import InvalidRecord, InvalidTimestamp, InvalidTopic, MessageTooLarge
from ...protocol.names import check_destination
from ..arguments import microseconds, moment, whole_number
from .few import FEW_BYTES, FEW_ROWS, FewBody, few_of
from .request import body_of

Header = tuple[str, bytes | None]
Extras = tuple[list[Header] | None, int | None, int | None, int | None, int | None, int | None]
"""Headers, partition, timestamp (us), time of delivery (us), delay and time to live (ms): most records have none."""

MAX_BYTES = 2**31 - 1
"""Of a record: what the largest max.message.bytes can be."""

_MIN_MS, _MAX_MS = MIN_TIMESTAMP_US // 1000, MAX_TIMESTAMP_US // 1000


class Records:
    """Columns of records for one destination."""

    __slots__ = ("_extras", "keys", "values")

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self._extras: dict[int, Extras] = {}

    def add(self, key: bytes | None, value: bytes | None, extras: Extras | None) -> int:
        """Index of the record among these."""
        index = len(self.values)
        if extras is not None:
            self._extras[index] = extras
        self.keys.append(key)
        self.values.append(value)
        return index

    def body(self, destination: str, size_bytes: int, now_ms: int) -> tuple[pa.Table | FewBody, Any]:
        """The body, and the partitions asked for. size_bytes: of all records."""
        if len(self.values) > FEW_ROWS or size_bytes > FEW_BYTES:
            return body_of(self._table(), destination, now_ms)
        headers, asked, times, due, delays, ttls = (self._extra(place) for place in range(6))
        body = few_of(destination, self.keys, self.values, headers, times, now_ms, due, delays, ttls)
        return body, None if asked is None else [-1 if one is None else one for one in asked]

    def _extra(self, place: int) -> list[Any] | None:
        """A column of what most records do without; None where all do."""
        if not any(extras[place] is not None for extras in self._extras.values()):
            return None
        column: list[Any] = [None] * len(self.values)
        for index, extras in self._extras.items():
            column[index] = extras[place]
        return column

    def _table(self) -> pa.Table:
        """The columns that `body_of` takes."""
        columns = {"key": pa.array(self.keys, pa.binary()), "value": pa.array(self.values, pa.binary())}
        extras = [("headers", HEADERS), ("partition", pa.int64()), ("timestamp", TIME), ("deliver_at", TIME)]
        extras += [("delay_ms", pa.int64()), ("ttl_ms", pa.int64())]
        for place, (name, kind) in enumerate(extras):
            if (column := self._extra(place)) is not None:
                columns[name] = pa.array(column, kind)
        return pa.table(columns)


def checked_destination(topic: object) -> str:
    """Raises InvalidTopic."""
    if not isinstance(topic, str):
        raise InvalidTopic("The topic is not text.", found=type(topic).__name__, expected="a name, as text")
    check_destination(topic)
    return str(topic)


def checked_bytes(name: str, given: object) -> bytes | None:
    """Bytes of its own, which nobody changes any more. Raises InvalidRecord, without what was given."""
    if given is None or type(given) is bytes:
        return given
    if isinstance(given, str):
        return _encoded(f"The {name}", given)
    if not isinstance(given, bytes | bytearray | memoryview):
        raise InvalidRecord(
            f"The {name} is neither bytes nor text.", found=type(given).__name__, expected="bytes, str or None"
        )
    try:
        return bytes(given)
    except ValueError:
        raise InvalidRecord(f"The {name} is a memoryview that was released.") from None


def checked_extras(
    headers: object, partition: object, timestamp_ms: object, deliver_at: object, delay_ms: object, ttl_ms: object
) -> tuple[Extras, int]:
    """What may come with a key and a value, and the bytes of the headers. Raises InvalidRecord, InvalidTimestamp."""
    listed, size = _headers(headers)
    due_us, delay = checked_delay(deliver_at, delay_ms)
    ttl = checked_ttl(ttl_ms)
    return (listed, _partition(partition), _timestamp_us(timestamp_ms), due_us, delay, ttl), size


def checked_ttl(ttl_ms: object) -> int | None:
    """Raises InvalidRecord."""
    return None if ttl_ms is None else whole_number("ttl_ms", ttl_ms, 0, MAX_TTL_MS, InvalidRecord)


def checked_delay(deliver_at: object, delay_ms: object) -> tuple[int | None, int | None]:
    """Of a message, or of many alike: when it is to be delivered, in microseconds, or how much later, in milliseconds.

    Raises InvalidRecord, InvalidTimestamp.
    """
    if deliver_at is None:
        delay = None if delay_ms is None else whole_number("delay_ms", delay_ms, 0, _MAX_MS, InvalidTimestamp)
        return None, delay
    if delay_ms is not None:
        raise InvalidRecord("A message has a time of delivery, or a delay.", found="both", expected="one of them")
    at = moment("deliver_at", deliver_at, InvalidTimestamp)
    at_us = microseconds(at)
    if not MIN_TIMESTAMP_US <= at_us <= MAX_TIMESTAMP_US:
        raise InvalidTimestamp(
            "The time of delivery is before 1970 or after 9999.", found=str(deliver_at)[:40], expected="a time"
        )
    return at_us, None


def check_size(size: int) -> None:
    """Raises MessageTooLarge for what no topic can take."""
    if size > MAX_BYTES:
        raise MessageTooLarge(found=f"{size} bytes", expected=f"at most {MAX_BYTES}, and the topic's max.message.bytes")


def check_callback(name: str, given: object) -> None:
    if not isinstance(given, Callable):  # type: ignore[arg-type]
        raise InvalidRecord(f"{name} cannot be called.", found=type(given).__name__, expected="a function")


def _encoded(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        # the error as it is repeats the text
        raise InvalidRecord(
            f"{what} cannot be written as UTF-8.", found=f"a lone surrogate at character {error.start}"
        ) from None


def _partition(given: object) -> int | None:
    return None if given is None else whole_number("partition", given, 0, 2**31 - 1, InvalidRecord)


def _timestamp_us(given: object) -> int | None:
    return None if given is None else 1000 * whole_number("timestamp_ms", given, _MIN_MS, _MAX_MS, InvalidTimestamp)


def _headers(given: object) -> tuple[list[Header] | None, int]:
    if given is None:
        return None, 0
    pairs: Any = given.items() if isinstance(given, Mapping) else given
    if not isinstance(given, Mapping | Sequence) or isinstance(given, str | bytes | bytearray | memoryview):
        raise InvalidRecord(
            "The headers are no list of pairs.", found=type(given).__name__, expected="[(text, bytes)], or a mapping"
        )
    listed = [_header(pair) for pair in pairs]
    return listed or None, sum(len(name.encode()) + len(value or b"") for name, value in listed)


def _header(pair: object) -> Header:
    if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
        raise InvalidRecord("A header is not a pair of text and bytes.", found=type(pair).__name__)
    name, value = pair
    _encoded("The name of a header", name)
    if isinstance(value, str):
        raise InvalidRecord("A header's value is not bytes.", found="str", expected="bytes or None")
    return str(name), checked_bytes("value of a header", value)
