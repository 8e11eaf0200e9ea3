"""Beats: by what each process with members of groups shows that it lives. They are no letters, and nothing is synced.

`beats/<id>-<number>`: a process puts the next number, then deletes the one before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

from .files import Files

BEATS = "beats"
MAX_BEAT_BYTES = 4 << 20

_BEAT = re.compile(r"([0-9a-f]{1,64})-([0-9]{10})")


class Beats:
    """Of one namespace; processes, and the leader, share the folder and nothing else."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def put(self, beats_id: str, number: int, body: bytes) -> None:
        """The beat of this number is there, and the one before it is not. OSError: it may be, or not."""
        self._files.put(_name(beats_id, number), body, durable=False)
        self._files.delete([_name(beats_id, number - 1)])

    def forget(self, beats_ids: Iterable[str]) -> None:
        """Nothing of these is left."""
        gone = set(beats_ids)
        self._files.delete([name for name, beats_id, _ in self._names() if beats_id in gone])

    def look(self) -> dict[str, tuple[int, bytes | None]]:
        """The newest beat of each: its number and body; None where it cannot be read, or was followed meanwhile."""
        newest: dict[str, int] = {}
        for _, beats_id, number in self._names():
            newest[beats_id] = max(number, newest.get(beats_id, 0))
        found: dict[str, tuple[int, bytes | None]] = {}
        for beats_id, number in newest.items():
            body = None
            with suppress(OSError):
                body = self._files.get(_name(beats_id, number), MAX_BEAT_BYTES)
            found[beats_id] = number, body
        return found

    def _names(self) -> list[tuple[str, str, int]]:
        matches = [(name, _BEAT.fullmatch(name.rpartition("/")[2])) for name in self._files.list(BEATS)]
        return [(name, match[1], int(match[2])) for name, match in matches if match]


def _name(beats_id: str, number: int) -> str:
    return f"{BEATS}/{beats_id}-{number:010d}"
