"""What a caller gives, checked in the call that it was given to: the value as plain Python, or one clear refusal.

A value that passes can be encoded, stored and compared: whole numbers fit 64 bits, texts have no lone surrogates.
Each function raises InvalidRequest (or the `error` named) with the argument's name, what was found and expected.
"""

from __future__ import annotations

import difflib
import operator
import os
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from ..protocol.errors import InvalidConfig, InvalidGroupId, InvalidRequest, InvalidTopic, LakeMQError
from ..protocol.names import check_group, shown

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


def whole_number(
    name: str,
    value: Any,
    low: int | None = None,
    high: int | None = None,
    error: type[LakeMQError] = InvalidRequest,
) -> int:
    """An int from `low` to `high`, both included; numpy's integers are taken, bools are not."""
    number: int | None = None
    if not isinstance(value, bool):
        try:
            number = operator.index(value)
        except TypeError:
            number = None
    least, most = _LOWEST if low is None else low, _HIGHEST if high is None else high
    if number is None or not least <= number <= most:
        raise refused(name, value, f"a whole number{_bounds(low, high)}", error)
    return number


def _bounds(low: int | None, high: int | None) -> str:
    if high is None:
        return "" if low is None else f" of at least {low}"
    return f" of at most {high}" if low is None else f" from {low} to {high}"


def text(name: str, value: Any, error: type[LakeMQError] = InvalidRequest) -> str:
    """A str that UTF-8 can bear."""
    if not isinstance(value, str):
        raise refused(name, value, "text", error)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise refused(name, value, "text without lone surrogates, which no encoding has", error) from None
    return str.__str__(value)  # of a subclass (an Enum, numpy's) the text alone


def topic_name(name: str, value: Any) -> str:
    """A text; whether a topic has this name is not known here. Raises InvalidTopic."""
    return text(name, value, InvalidTopic)


def group_name(value: Any) -> str:
    """The name of a group. Raises InvalidGroupId."""
    group = text("group", value, InvalidGroupId)
    check_group(group)
    return group


def file_path(name: str, value: Any, error: type[LakeMQError] = InvalidRequest) -> str:
    """A path or URI: text, or what stands for a path, such as pathlib's."""
    return text(name, os.fspath(value) if isinstance(value, os.PathLike) else value, error)


def one_of(name: str, value: Any, choices: Collection[str], error: type[LakeMQError] = InvalidRequest) -> str:
    """One of these words."""
    for choice in choices:
        if isinstance(value, str) and value == choice:
            return choice
    raise refused(name, value, " or ".join(choices), error)


def flag(name: str, value: Any, error: type[LakeMQError] = InvalidRequest) -> bool:
    """True or False, also numpy's."""
    if isinstance(value, bool):
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise refused(name, value, "True or False", error)


def listed(name: str, value: Any, error: type[LakeMQError] = InvalidRequest) -> list[Any]:
    """The elements of any iterable but a text, bytes or a mapping."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or not isinstance(value, Iterable):
        raise refused(name, value, "a list", error)
    return list(value)


def mapped(name: str, value: Any, error: type[LakeMQError] = InvalidRequest) -> dict[Any, Any]:
    """The pairs of a mapping."""
    if not isinstance(value, Mapping):
        raise refused(name, value, "a mapping, such as a dict", error)
    return dict(value)


def texts(name: str, value: Any, error: type[LakeMQError] = InvalidRequest) -> list[str]:
    """The elements of an iterable of texts."""
    return [text(name, one, error) for one in listed(name, value, error)]


def topic_names(name: str, value: Any) -> list[str]:
    """The elements of an iterable of topics. Raises also InvalidTopic."""
    return [topic_name(name, one) for one in listed(name, value)]


def whole_numbers(name: str, value: Any, low: int | None = None, high: int | None = None) -> list[int]:
    """The elements of an iterable of whole numbers."""
    return [whole_number(name, one, low, high) for one in listed(name, value)]


def partition_number(value: Any) -> int:
    """A number that a partition could have; whether there is one is not known here."""
    return whole_number("partition", value, -(2**31), 2**31 - 1)


def topic_partitions(name: str, value: Any) -> list[tuple[str, int]]:
    """The elements of an iterable of (topic, partition). Raises also InvalidTopic."""
    pairs = listed(name, value)
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise refused(name, pair, "(topic, partition)")
    return [(topic_name(name, topic), partition_number(number)) for topic, number in pairs]


def topics_and_partitions(name: str, value: Any) -> list[tuple[str, int | None]]:
    """A topic, or topics and (topic, partition) pairs; None is all of the topic. Raises also InvalidTopic."""
    chosen: list[tuple[str, int | None]] = []
    for one in [value] if isinstance(value, str) else listed(name, value):
        if isinstance(one, tuple | list):
            chosen += topic_partitions(name, [one])
        else:
            chosen.append((topic_name(name, one), None))
    return chosen


def place_offsets(name: str, value: Any) -> dict[tuple[str, int], int]:
    """(topic, partition) -> offset. Raises also InvalidTopic."""
    given = mapped(name, value)
    return dict(zip(topic_partitions(name, given.keys()), whole_numbers(name, given.values()), strict=True))


def offsets(name: str, value: Any) -> dict[int, int]:
    """Partition -> offset."""
    return {partition_number(number): whole_number(name, offset) for number, offset in mapped(name, value).items()}


def moment(name: str, value: Any, error: type[LakeMQError] = InvalidRequest) -> int | datetime:
    """A time: epoch milliseconds, or a datetime. None lies so far back that its microseconds exceed 64 bits."""
    if isinstance(value, datetime):
        if value != value:  # pandas has a datetime that is none
            raise refused(name, value, "a time", error)
        return value
    return whole_number(name, value, -(2**53), error=error)


def microseconds(time: int | datetime) -> int:
    """Of a time, or of milliseconds, since 1970. A time without a zone is UTC's."""
    if isinstance(time, int):
        return time * 1000
    aware = time if time.tzinfo else time.replace(tzinfo=timezone.utc)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def known_options(given: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises InvalidConfig for one that is not known."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else "one of " + ", ".join(sorted(known))
            raise InvalidConfig("Unknown option.", found=name, expected=hint)


def fetch_position(name: str, value: Any) -> str | int | datetime | dict[int, int]:
    """Where to begin or end: `earliest`, `latest`, an offset, partition -> offset, or a time."""
    if isinstance(value, str):
        return one_of(name, value, ("earliest", "latest"))
    if isinstance(value, Mapping):
        return offsets(name, value)
    if isinstance(value, datetime):
        return moment(name, value)
    return whole_number(name, value)


def refused(name: str, value: Any, expected: str, error: type[LakeMQError] = InvalidRequest) -> LakeMQError:
    """The refusal of an argument. Of what may be large or a payload only the type is repeated."""
    return error(f"{name} is not valid.", found=repeated(value), expected=expected)


def repeated(value: Any) -> Any:
    """A value as an error repeats it: numbers and short texts themselves, of all else what kind it is."""
    if value is None:
        return "None"
    if isinstance(value, str):
        return shown(str.__str__(value))
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 10**30 else f"a number of {value.bit_length()} bits"
    return f"an object of type {type(value).__name__}"
