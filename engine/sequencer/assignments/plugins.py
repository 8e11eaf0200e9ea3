"""Find assignors by name: the built-in ones and those of other packages."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import entry_points

from ...protocol.assignors.assignor import Assignor
from ...protocol.assignors.registry import BUILT_IN
from ...protocol.errors import UnsupportedAssignor

GROUP = "lakemq.assignors"
"""The entry point group of assignors."""

_MAX_LENGTH = 300


def find_assignor(name: str) -> Assignor:
    """Return the assignor of that name. A built-in name always returns the built-in one.

    Loading another one may import its module, whatever that does.

    Raises:
        UnsupportedAssignor: there is none, or several, or it cannot be loaded or called.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    try:
        entries = {entry.value: entry for entry in entry_points(group=GROUP, name=name)}
        loaded = [entry.load() for entry in entries.values()] if len(entries) == 1 else []
        is_callable = all(map(callable, loaded))
    except BaseException as error:  # SystemExit, too: a module that is imported does what it likes
        raise UnsupportedAssignor(f"It cannot be loaded: {describe_error(error)}.", found=name) from None
    if not is_callable:
        raise UnsupportedAssignor("Its entry point is not a function.", found=name)
    if not loaded:
        text = f"Several packages have one: {', '.join(sorted(entries))}." if entries else ""
        expected = f"{', '.join(BUILT_IN)}, or the name of an entry point in the group {GROUP}"
        raise UnsupportedAssignor(text, found=name, expected=expected)
    assignor: Assignor = loaded[0]
    return assignor


def describe_error(error: BaseException) -> str:
    """Describe an error in one line, whatever its class does when it is converted to text."""
    text = "an error that cannot be shown as text"
    with suppress(BaseException):
        text = shorten_to_line(f"{type(error).__name__}: {error}")
    return text


def shorten_to_line(text: str) -> str:
    """Return the text as one short line without lone surrogates, fit for a table's row."""
    text = " ".join(text.split()).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}..."
