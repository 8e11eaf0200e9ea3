"""What callers give of transactions, checked in the call: a bad value never gets into a request."""

from __future__ import annotations

from collections.abc import Mapping

from ..checked import is_text, shown_number, whole_number
from ..protocol.errors import InvalidConfig, InvalidGroupId, InvalidRequest, InvalidTransactionTimeout

Offsets = Mapping[tuple[str, int], int]
"""(topic, partition) -> the next offset to consume."""

_MAX = 2**53
"""Numbers beyond it are refused here: no sequencer takes them."""


def checked_transactional_id(given: object) -> str:
    """Raises InvalidRequest; that it is too long or empty the sequencer says."""
    if not isinstance(given, str) or not is_text(given):
        raise InvalidRequest("The transactional id is not text.", found=type(given).__name__, expected="text as UTF-8")
    return given


def checked_timeout_ms(given: object) -> int:
    """Raises InvalidConfig, InvalidTransactionTimeout."""
    number = whole_number(given)
    if number is None:
        raise InvalidConfig(
            "transaction_timeout_ms is not valid.", found=type(given).__name__, expected="a whole number"
        )
    if abs(number) > _MAX:
        raise InvalidTransactionTimeout(found=shown_number(number), expected="at most transaction.max.timeout.ms")
    return number


def checked_batch_id(given: object) -> int | None:
    """Raises InvalidRequest."""
    if given is None:
        return None
    number = whole_number(given)
    if number is None or not 0 <= number <= _MAX:
        found = type(given).__name__ if number is None else shown_number(number)
        raise InvalidRequest("batch_id is not the number of a batch.", found=found, expected=f"0 to {_MAX}, or None")
    return number


def checked_group(given: object) -> str:
    """Raises InvalidGroupId; which names are taken the sequencer says."""
    if not isinstance(given, str) or not is_text(given):
        raise InvalidGroupId("The group is not text.", found=type(given).__name__, expected="text as UTF-8")
    return given


def checked_metadata(given: object) -> str | None:
    """Raises InvalidRequest."""
    if given is not None and (not isinstance(given, str) or not is_text(given)):
        raise InvalidRequest(
            "The metadata of an offset is not text.", found=type(given).__name__, expected="text as UTF-8, or None"
        )
    return given


def checked_offsets(given: object) -> dict[tuple[str, int], int]:
    """Raises InvalidRequest; whether there are such offsets the sequencer says."""
    if not isinstance(given, Mapping):
        raise InvalidRequest("The offsets are no mapping.", found=type(given).__name__, expected=_PLACES)
    return dict(_checked_offset(place, offset) for place, offset in given.items())


_PLACES = "(topic, partition) -> the next offset to consume"


def _checked_offset(place: object, offset: object) -> tuple[tuple[str, int], int]:
    topic, partition = place if isinstance(place, tuple) and len(place) == 2 else (None, None)
    numbers = whole_number(partition), whole_number(offset)
    if not (isinstance(topic, str) and is_text(topic)) or any(n is None or abs(n) > _MAX for n in numbers):
        found = f"{type(topic).__name__}, {type(partition).__name__} -> {type(offset).__name__}"
        raise InvalidRequest("An offset is not one of a partition.", found=found, expected=_PLACES)
    return (topic, int(numbers[0] or 0)), int(numbers[1] or 0)
