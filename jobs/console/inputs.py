"""Read what a visitor has entered: every input has a longest length or a range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lakemq.jobs.commands.shared.times import parse_position

LONGEST_NAME = 255
LONGEST_TEXT = 10_000
HIGHEST_NUMBER = 2**63 - 1


class BadInput(ValueError):
    """An input of a visitor is not acceptable. The message says which one, and what is expected."""


OF_EVERY_PAGE = ("refresh", "done")
"""Inputs that every page takes."""


def check_names(inputs: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise BadInput if there is another input: a misspelled one must not look as if it had been used."""
    unknown = [name for name in inputs if name not in (*names, *OF_EVERY_PAGE)]
    if unknown:
        raise BadInput(f"There is no input {unknown[0][:LONGEST_NAME]!r} here. Expected: {', '.join(names) or 'none'}.")


def read_text(inputs: Mapping[str, Any], name: str, longest: int = LONGEST_NAME, default: str | None = None) -> str:
    """Return a text. Raises BadInput if it is missing and has no default, or is too long."""
    text = inputs.get(name)
    if not isinstance(text, str) or not text:
        if default is None:
            raise BadInput(f"The input {name} is missing.")
        return default
    if len(text) > longest:
        raise BadInput(f"The input {name} has {len(text)} characters. At most {longest} are allowed.")
    return text


def read_number(
    inputs: Mapping[str, Any], name: str, default: int | None = None, low: int = 0, high: int = HIGHEST_NUMBER
) -> int:
    """Return a whole number within a range. Raises BadInput."""
    text = read_text(inputs, name, longest=20, default="" if default is None else str(default))
    if not (text.isascii() and text.removeprefix("-").isdecimal()) or not low <= int(text) <= high:
        raise BadInput(f"The input {name} is {text!r}. Expected a whole number from {low} to {high}.")
    return int(text)


def read_choice(inputs: Mapping[str, Any], name: str, choices: Sequence[str]) -> str:
    """Return one of the choices; the first one by default. Raises BadInput."""
    text = read_text(inputs, name, default=choices[0])
    if text not in choices:
        raise BadInput(f"The input {name} is {text!r}. Expected one of: {', '.join(choices)}.")
    return text


def read_position(inputs: Mapping[str, Any], name: str, default: str) -> Any:
    """Return a position in a log: earliest, latest, an offset, or a time. Raises BadInput."""
    text = read_text(inputs, name, longest=40, default=default)
    try:
        position = parse_position(text)
    except ValueError as error:
        raise BadInput(f"The input {name} is not a position: {error}.") from None
    if isinstance(position, int) and position > HIGHEST_NUMBER:
        raise BadInput(f"The input {name} is {text!r}. Expected an offset up to {HIGHEST_NUMBER}.")
    return position
