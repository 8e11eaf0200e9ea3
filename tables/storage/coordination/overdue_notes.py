"""Notes of a leader about members of groups that are overdue, for people who ask which member is stuck.

Nothing is decided by them. A leader puts `overdue/<epoch>-<number>`, then deletes all others. As with beats, an object
is never replaced, since a store has no such call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..object_stores.files import Files

FOLDER = "overdue"
MAX_NOTE_BYTES = 4 << 20

_NOTE = re.compile(r"([0-9]{10})-([0-9]{10})")


class OverdueNotes:
    """The note of a namespace: usually none, at most one that counts."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def put(self, epoch: int, number: int, body: bytes) -> None:
        """Write the note of this leader epoch and number, and delete the others. Raises OSError."""
        name = f"{FOLDER}/{epoch:010d}-{number:010d}"
        self._files.put(name, body, durable=False)
        self._files.delete([other for other, _ in self._list() if other != name])

    def clear(self) -> None:
        """Delete all notes. Raises OSError."""
        self._files.delete([name for name, _ in self._list()])

    def read(self, epoch: int) -> bytes | None:
        """Return the newest note of this leader epoch; None if it has none, or it was replaced just now.

        Raises OSError.
        """
        names = [name for name, found_epoch in self._list() if found_epoch == epoch]
        if not names:
            return None
        try:
            return self._files.get(max(names), MAX_NOTE_BYTES)
        except FileNotFoundError:
            return None

    def _list(self) -> Iterator[tuple[str, int]]:
        for name in self._files.list(FOLDER):
            match = _NOTE.fullmatch(name.rpartition("/")[2])
            if match:
                yield name, int(match[1])
