"""Checks of arguments: each returns the value as plain Python, or raises an error that names the argument.

They run in the call that gets the argument. A value that passes can be encoded, stored and compared: whole numbers fit
64 bits, texts have no lone surrogates. All raise InvalidRequest, or the `error` that is passed.
"""

import operator
import os
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from lakemq.tables.specs.messages import LIKE_SECONDS_US

from ..protocol.errors import InvalidGroupId, InvalidRequest, InvalidTopic, LakeMQError
from ..protocol.names import check_group, shorten
from ..protocol.unsupported_settings import unknown_name_error

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


def parse_whole_number(
    name: str,
    value: Any,
    low: int | None = None,
    high: int | None = None,
    error: type[LakeMQError] = InvalidRequest,
    expected: str = "",
) -> int:
    """Return an int from `low` to `high`, both included. Accept numpy's integers, but no bools.

    expected: what the error says, if a whole number is not all that the argument may be.
    """
    number: int | None = None
    if not isinstance(value, bool):
        try:
            number = operator.index(value)
        except TypeError:
            number = None
    least, most = _LOWEST if low is None else low, _HIGHEST if high is None else high
    if number is None or not least <= number <= most:
        raise invalid_argument(name, value, expected or f"a whole number{_bounds(low, high)}", error)
    return number


def _bounds(low: int | None, high: int | None) -> str:
    if high is None:
        return "" if low is None else f" of at least {low}"
    return f" of at most {high}" if low is None else f" from {low} to {high}"


def parse_text(name: str, value: Any, error: type[LakeMQError] = InvalidRequest) -> str:
    """Return a str that can be encoded as UTF-8."""
    if not isinstance(value, str):
        raise invalid_argument(name, value, "text", error)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid_argument(name, value, "text without lone surrogates, which no encoding has", error) from None
    return str.__str__(value)  # of a subclass (an Enum, numpy's) the text alone


def parse_topic_name(name: str, value: Any) -> str:
    """Return a text; the topic need not exist. Raises InvalidTopic."""
    return parse_text(name, value, InvalidTopic)


def parse_group_name(value: Any) -> str:
    """Return the name of a group. Raises InvalidGroupId."""
    group = parse_text("group", value, InvalidGroupId)
    check_group(group)
    return group


def parse_path(name: str, value: Any, error: type[LakeMQError] = InvalidRequest) -> str:
    """Return a path or URI as text. Accept os.PathLike, such as pathlib's paths."""
    return parse_text(name, os.fspath(value) if isinstance(value, os.PathLike) else value, error)


def parse_choice(name: str, value: Any, choices: Collection[str], error: type[LakeMQError] = InvalidRequest) -> str:
    """Return the value if it is one of the choices."""
    for choice in choices:
        if isinstance(value, str) and value == choice:
            return choice
    raise invalid_argument(name, value, " or ".join(choices), error)


def parse_flag(name: str, value: Any) -> bool:
    """Return a bool. Accept numpy's bools."""
    if isinstance(value, bool):
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise invalid_argument(name, value, "True or False")


def parse_list(name: str, value: Any, error: type[LakeMQError] = InvalidRequest) -> list[Any]:
    """Return the elements of an iterable other than a text, bytes or a mapping."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or not isinstance(value, Iterable):
        raise invalid_argument(name, value, "a list", error)
    return list(value)


def parse_mapping(name: str, value: Any, error: type[LakeMQError] = InvalidRequest) -> dict[Any, Any]:
    """Return a mapping as a dict."""
    if not isinstance(value, Mapping):
        raise invalid_argument(name, value, "a mapping, such as a dict", error)
    return dict(value)


def parse_texts(name: str, value: Any, error: type[LakeMQError] = InvalidRequest) -> list[str]:
    """Return the elements of an iterable of texts."""
    return [parse_text(name, element, error) for element in parse_list(name, value, error)]


def parse_topic_names(name: str, value: Any) -> list[str]:
    """Return the elements of an iterable of topics. Raises InvalidTopic, too."""
    return [parse_topic_name(name, element) for element in parse_list(name, value)]


def parse_whole_numbers(name: str, value: Any) -> list[int]:
    """Return the elements of an iterable of whole numbers."""
    return [parse_whole_number(name, element) for element in parse_list(name, value)]


def parse_partition(value: Any) -> int:
    """Return a partition number; the partition need not exist."""
    return parse_whole_number("partition", value, -(2**31), 2**31 - 1)


def parse_topic_partitions(name: str, value: Any) -> list[tuple[str, int]]:
    """Return the elements of an iterable of (topic, partition). Raises InvalidTopic, too."""
    pairs = parse_list(name, value)
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise invalid_argument(name, pair, "(topic, partition)")
    return [(parse_topic_name(name, topic), parse_partition(number)) for topic, number in pairs]


def parse_topics_and_partitions(name: str, value: Any) -> list[tuple[str, int | None]]:
    """Return (topic, partition) pairs of a topic, or of topics and pairs; partition None stands for all of the topic.

    Raises InvalidTopic, too.
    """
    chosen: list[tuple[str, int | None]] = []
    for element in [value] if isinstance(value, str) else parse_list(name, value):
        if isinstance(element, tuple | list):
            chosen += parse_topic_partitions(name, [element])
        else:
            chosen.append((parse_topic_name(name, element), None))
    return chosen


def parse_partition_offsets(name: str, value: Any) -> dict[tuple[str, int], int]:
    """Return a dict (topic, partition) -> offset. Raises InvalidTopic, too."""
    mapping = parse_mapping(name, value)
    return dict(
        zip(parse_topic_partitions(name, mapping.keys()), parse_whole_numbers(name, mapping.values()), strict=True)
    )


def parse_offsets(name: str, value: Any) -> dict[int, int]:
    """Return a dict partition -> offset."""
    return {
        parse_partition(number): parse_whole_number(name, offset)
        for number, offset in parse_mapping(name, value).items()
    }


def parse_timestamp(name: str, value: Any, error: type[LakeMQError] = InvalidRequest) -> int | datetime:
    """Return a time: epoch milliseconds or a datetime, whose microseconds since 1970 fit 64 bits."""
    if isinstance(value, datetime):
        if value != value:  # pandas.NaT
            raise invalid_argument(name, value, "a time", error)
        return value
    expected = "epoch milliseconds as a whole number, or a datetime"
    return parse_whole_number(name, value, -(2**53), error=error, expected=expected)


def parse_as_of(name: str, value: Any) -> int | datetime:
    """Return a step, or a time as a datetime in UTC."""
    if isinstance(value, datetime):
        time = parse_timestamp(name, value)
        assert isinstance(time, datetime)
        return time if time.tzinfo else time.replace(tzinfo=UTC)
    return parse_whole_number(name, value, 0, expected="the number of a step, or a datetime")


def to_microseconds(time: int | datetime) -> int:
    """Return a time as microseconds since 1970. An int is milliseconds; a datetime without a zone is in UTC."""
    if isinstance(time, int):
        return time * 1000
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def check_unit(
    name: str, time: int | datetime, error: type[LakeMQError] = InvalidRequest, like_seconds: range = LIKE_SECONDS_US
) -> None:
    """Refuse a time that looks like seconds. name: what the error calls the time. like_seconds: such times, in us."""
    time_us = to_microseconds(time)
    if time_us in like_seconds:  # seconds in milliseconds are the same number as milliseconds in microseconds
        raise error(
            f"{name} looks like seconds.",
            found=time if isinstance(time, int) else str(time),
            expected="epoch milliseconds" + (f", such as {time_us}" if time_us in LIKE_SECONDS_US else ""),
        )


def check_option_names(options: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Raise InvalidConfig for an unknown option."""
    for name in options:
        if name not in allowed:
            raise unknown_name_error(name, allowed, "option")


def parse_fetch_position(name: str, value: Any) -> str | int | datetime | dict[int, int]:
    """Return a position to begin or end at: `earliest`, `latest`, an offset, partition -> offset, or a time."""
    if isinstance(value, str):
        return parse_choice(name, value, ("earliest", "latest"))
    if isinstance(value, Mapping):
        return parse_offsets(name, value)
    if isinstance(value, datetime):
        return parse_timestamp(name, value)
    return parse_whole_number(name, value)


def invalid_argument(name: str, value: Any, expected: str, error: type[LakeMQError] = InvalidRequest) -> LakeMQError:
    """Build the error for an argument. It names only the type of values that may be large or secret."""
    return error(f"{name} is not valid.", found=describe_value(value), expected=expected)


def describe_value(value: Any) -> Any:
    """Return a value as an error shows it: numbers and short texts as they are, of all else only the type."""
    if value is None:
        return "None"
    if isinstance(value, str):
        return shorten(str.__str__(value))
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 10**30 else f"a number of {value.bit_length()} bits"
    return f"an object of type {type(value).__name__}"


def format_time(ms: int) -> str:
    """Return a time in ISO 8601, in whole seconds of UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
