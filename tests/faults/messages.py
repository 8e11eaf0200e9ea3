"""Messages as publishers of tests make and note them. It imports nothing that a child process would have to load."""

from __future__ import annotations

from typing import NamedTuple


class Acknowledged(NamedTuple):
    """A message that a publisher was told to be published; offset None where it was not told which one."""

    value: str
    partition: int
    offset: int | None


def value_of(publisher: str, number: int) -> str:
    """A value no other message has; those of a publisher are numbered in the order it sent them."""
    return f"{publisher}/{number:06d}"
