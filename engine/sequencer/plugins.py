"""Assignors by name: the built-in ones, and those that other packages bring along."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import entry_points

from ..protocol.assignors.assignor import Assignor
from ..protocol.assignors.registry import BUILT_IN
from ..protocol.errors import UnsupportedAssignor

GROUP = "lakemq.assignors"

_MOST_TOLD = 300


def find_assignor(name: str) -> Assignor:
    """The assignor of that name; for a built-in name always the built-in one, without a look at what is installed.

    Another one's module may be imported by this, whatever that takes. Raises UnsupportedAssignor: there is none, or
    several, or it cannot be loaded, or is nothing to call.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    try:
        found = {entry.value: entry for entry in entry_points(group=GROUP, name=name)}
        loaded = [entry.load() for entry in found.values()] if len(found) == 1 else []
        is_callable = all(map(callable, loaded))
    except BaseException as error:  # SystemExit, too: a module that is imported does what it likes
        raise UnsupportedAssignor(f"It cannot be loaded: {told(error)}.", found=name) from None
    if not is_callable:
        raise UnsupportedAssignor("Its entry point is no function.", found=name)
    if not loaded:
        told_of = f"Several packages have one: {', '.join(sorted(found))}." if found else ""
        expected = f"{', '.join(BUILT_IN)}, or the name of an entry point in the group {GROUP}"
        raise UnsupportedAssignor(told_of, found=name, expected=expected)
    assignor: Assignor = loaded[0]
    return assignor


def told(error: BaseException) -> str:
    """An error in one line, whatever its class does when it is asked."""
    text = "an error that cannot be told"
    with suppress(BaseException):
        text = one_line(f"{type(error).__name__}: {error}")
    return text


def one_line(text: str) -> str:
    """What can stand in a row of a table: not too long, and without halves of characters."""
    text = " ".join(text.split()).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _MOST_TOLD else f"{text[:_MOST_TOLD]}..."
