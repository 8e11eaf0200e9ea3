"""What callers give, looked at in the call: numbers that are whole, text that can be written down."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np


def whole_number(given: Any) -> int | None:
    """The number, be it Python's or numpy's; None for anything else, also for true and false."""
    if isinstance(given, bool | np.bool_):
        return None
    try:
        return operator.index(given)
    except TypeError:
        return None


def is_text(given: object) -> bool:
    """Text with a UTF-8 form: without lone surrogates."""
    if not isinstance(given, str):
        return False
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown_number(number: int) -> int | str:
    """The number as an error can say it: Python refuses to print very long ones."""
    return number if number.bit_length() < 64 else f"a number of {number.bit_length()} bits"
