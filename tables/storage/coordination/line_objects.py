"""The objects `line/<20 digits>`: where the leader of an epoch listens for direct connections.

The leader writes its object after the step of its take-over has landed. The next leader removes it, or the leader
itself at its end. On a disk the folder also has the leader's Unix socket. Reading a namespace does not allow
publishing: a client of the socket needs permission to write to it, and a client of a TCP address puts a proof
(`line_proofs`).
"""

from __future__ import annotations

import re

from ..object_stores.files import Files

LINES_FOLDER = "line"
_DIGITS = 20
_LINE = re.compile(rf"{LINES_FOLDER}/[0-9]{{{_DIGITS}}}")

MAX_LINE_BYTES = 64 << 10
"""A larger object is not a leader's. An address takes half a kilobyte."""


def line_name(epoch: int) -> str:
    """Return the name of the object of this epoch's leader."""
    return f"{LINES_FOLDER}/{epoch:0{_DIGITS}d}"


def list_lines(files: Files) -> list[str]:
    """Return the names of the leaders' objects, the newest leader first. Usually there is one, or none."""
    names = [name for name in files.list(LINES_FOLDER) if _LINE.fullmatch(name)]
    return names[::-1]


def remove_older_lines(files: Files, epoch: int) -> None:
    """Remove the objects and sockets of leaders before this epoch. Call it only when this epoch's take-over landed."""
    newest = line_name(epoch)
    files.delete(name for name in files.list(LINES_FOLDER) if name < newest)
