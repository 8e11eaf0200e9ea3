"""Messages of test publishers, and their notes. The module imports nothing, so that child processes start quickly."""

from typing import NamedTuple


class Acknowledged(NamedTuple):
    """A message with an acknowledgement. offset is None if the acknowledgement did not name it."""

    value: str
    partition: int
    offset: int | None


def value_of(publisher: str, number: int) -> str:
    """Return a value that no other message has. A publisher's values are numbered in the order of its sends."""
    return f"{publisher}/{number:06d}"
