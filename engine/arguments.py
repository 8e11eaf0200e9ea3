"""What a caller gives, checked in the call that it was given to: the value as plain Python, or one clear refusal.

A value that passes can be encoded, stored and compared: whole numbers fit 64 bits, texts have no lone surrogates.
Each function raises InvalidRequest (or the `error` named) with the argument's name, what was found and expected.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .protocol.errors import InvalidRequest, LakeMQError
from .protocol.names import shown

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
