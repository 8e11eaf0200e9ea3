"""Checks of a record's parts, in the call of `send`, so that an invalid record does not affect others."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from lakemq.tables.specs.messages import DUE_LIKE_SECONDS_US, MAX_TIMESTAMP_US, MAX_TTL_MS, MIN_TIMESTAMP_US

from ...protocol.errors import InvalidRecord, InvalidTimestamp, InvalidTopic, MessageTooLarge
from ...protocol.names import check_destination
from ..arguments import check_unit, parse_timestamp, parse_whole_number, to_microseconds
from .delay_rule import TWO_TIMES

Header = tuple[str, bytes | None]
Extras = tuple[list[Header] | None, int | None, int | None, int | None, int | None, int | None]
"""Headers, partition, timestamp (us), time of delivery (us), delay and time to live (ms): most records have none."""

MAX_BYTES = 2**31 - 1
"""Most bytes of a record: the largest possible max.message.bytes."""

_MIN_MS, _MAX_MS = MIN_TIMESTAMP_US // 1000, MAX_TIMESTAMP_US // 1000


def parse_destination(topic: object) -> str:
    """Return the name of a destination. Raises InvalidTopic."""
    if not isinstance(topic, str):
        raise InvalidTopic("The topic is not text.", found=type(topic).__name__, expected="a name, as text")
    check_destination(topic)
    return str(topic)


def parse_bytes(name: str, part: object) -> bytes | None:
    """Return an immutable copy as bytes. Raises InvalidRecord, without the payload."""
    if part is None or type(part) is bytes:
        return part
    if isinstance(part, str):
        return _encode(f"The {name}", part)
    if isinstance(part, pa.Scalar):  # such as what `TopicSchema.encode` returns
        return parse_bytes(name, part.as_py())
    if not isinstance(part, bytes | bytearray | memoryview):
        raise InvalidRecord(
            f"The {name} is neither bytes nor text.", found=type(part).__name__, expected="bytes, str or None"
        )
    try:
        return bytes(part)
    except ValueError:
        raise InvalidRecord(f"The {name} is a memoryview that was released.") from None


def parse_extras(
    headers: object, partition: object, timestamp_ms: object, deliver_at: object, delay_ms: object, ttl_ms: object
) -> tuple[Extras, int]:
    """Check the optional parts of a record; return them and the bytes of the headers."""
    listed, size = _parse_headers(headers)
    due_us, delay = parse_delay(deliver_at, delay_ms)
    ttl = parse_ttl(ttl_ms)
    return (listed, _parse_partition(partition), _parse_timestamp_us(timestamp_ms), due_us, delay, ttl), size


def parse_ttl(ttl_ms: object) -> int | None:
    """Return a time to live. Raises InvalidRecord."""
    return None if ttl_ms is None else parse_whole_number("ttl_ms", ttl_ms, 0, MAX_TTL_MS, InvalidRecord)


def parse_delay(deliver_at: object, delay_ms: object) -> tuple[int | None, int | None]:
    """Check a delay: return the delivery time in microseconds, or the delay in milliseconds.

    Raises InvalidRecord, InvalidTimestamp.
    """
    if deliver_at is None:
        delay = None if delay_ms is None else parse_whole_number("delay_ms", delay_ms, 0, _MAX_MS, InvalidTimestamp)
        return None, delay
    if delay_ms is not None:
        raise InvalidRecord(TWO_TIMES, expected="one of them")
    at = parse_timestamp("deliver_at", deliver_at, InvalidTimestamp)
    if isinstance(at, datetime) and at.utcoffset() is None:
        raise InvalidTimestamp(
            "The time of delivery has no time zone, so that it would mean another moment on another machine.",
            found=str(at)[:40],
            expected="a time with a zone, such as datetime.now(timezone.utc), or epoch milliseconds",
        )
    at_us = to_microseconds(at)
    check_unit("The time of delivery", at, InvalidTimestamp, DUE_LIKE_SECONDS_US)
    if not MIN_TIMESTAMP_US <= at_us <= MAX_TIMESTAMP_US:
        raise InvalidTimestamp(
            "The time of delivery is before 1970 or after 9999.", found=str(deliver_at)[:40], expected="a time"
        )
    return at_us, None


def check_size(size: int) -> None:
    """Refuse a record that no topic can take. Raises MessageTooLarge."""
    if size > MAX_BYTES:
        raise MessageTooLarge(found=f"{size} bytes", expected=f"at most {MAX_BYTES}, and the topic's max.message.bytes")


def check_callback(name: str, callback: object) -> None:
    if not isinstance(callback, Callable):  # type: ignore[arg-type]
        raise InvalidRecord(f"{name} cannot be called.", found=type(callback).__name__, expected="a function")


def _encode(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        # Python's error repeats the text
        raise InvalidRecord(
            f"{what} cannot be written as UTF-8.", found=f"a lone surrogate at character {error.start}"
        ) from None


def _parse_partition(partition: object) -> int | None:
    return None if partition is None else parse_whole_number("partition", partition, 0, 2**31 - 1, InvalidRecord)


def _parse_timestamp_us(timestamp_ms: object) -> int | None:
    if timestamp_ms is None:
        return None
    time_ms = parse_whole_number("timestamp_ms", timestamp_ms, _MIN_MS, _MAX_MS, InvalidTimestamp)
    check_unit("The timestamp", time_ms, InvalidTimestamp)
    return 1000 * time_ms


def _parse_headers(headers: object) -> tuple[list[Header] | None, int]:
    if headers is None:
        return None, 0
    pairs: Any = headers.items() if isinstance(headers, Mapping) else headers
    if not isinstance(headers, Mapping | Sequence) or isinstance(headers, str | bytes | bytearray | memoryview):
        raise InvalidRecord(
            "The headers are not a list of pairs.",
            found=type(headers).__name__,
            expected="[(text, bytes or text)], or a mapping",
        )
    listed = [_parse_header(pair) for pair in pairs]
    return listed or None, sum(len(name.encode()) + len(value or b"") for name, value in listed)


def _parse_header(pair: object) -> Header:
    if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
        raise InvalidRecord(
            "A header is not a pair of a name and a value.",
            found=_describe_pair(pair),
            expected="(text, bytes or text)",
        )
    name, value = pair
    _encode("The name of a header", name)
    return str(name), parse_bytes("value of a header", value)


def _describe_pair(pair: object) -> str:
    """Return the types, and not the values, which are the payload's."""
    if not isinstance(pair, tuple):
        return type(pair).__name__
    return f"({', '.join(type(part).__name__ for part in pair)})"
