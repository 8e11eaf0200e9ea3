"""Signs of standbys: small objects that show people that another sequencer would take over.

Nothing is decided by them. A standby writes `standbys/<name>-<number>`, then deletes the number before. As with beats,
an object is never replaced, since a store has no such call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..object_stores.files import Files

FOLDER = "standbys"

SIGN_EVERY_MS = 30_000
"""On an object store a sign takes three requests."""

_PRESENT_MS = 3 * SIGN_EVERY_MS
_FORGET_MS = 3_600_000
"""Signs of killed processes go after an hour: until then they may help to find out what happened."""
_CLEAN_EVERY = _FORGET_MS // SIGN_EVERY_MS
"""Signs of one process between two searches for old ones. A search costs a request per sign."""

_SIGN = re.compile(r"([^/]+)-([0-9]{10})")


class StandbySigns:
    """The signs of a namespace's standbys."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def put(self, name: str, number: int) -> None:
        """Write the sign of this number, and delete the one before.

        From time to time, beginning with number 1, also delete signs of processes that were killed long ago.

        Raises:
            OSError: the store cannot be written.
        """
        self._files.put(_object_name(name, number), b"", durable=False)
        self._files.delete([_object_name(name, number - 1)])
        if number % _CLEAN_EVERY == 1:
            now_ms = self._files.time_ms()
            self._files.delete([sign for sign, _, age_ms in self._read(now_ms) if age_ms > _FORGET_MS])

    def forget(self, name: str) -> None:
        """Delete the signs of a sequencer, which leads or ends. Raises OSError."""
        self._files.delete([sign for sign, owner in self._list() if owner == name])

    def list_present(self, now_ms: int) -> list[str]:
        """Return the names of sequencers that stand by, sorted. now_ms: the store's time."""
        return sorted({name for _, name, age_ms in self._read(now_ms) if age_ms <= _PRESENT_MS})

    def _list(self) -> Iterator[tuple[str, str]]:
        for sign in self._files.list(FOLDER):
            match = _SIGN.fullmatch(sign.rpartition("/")[2])
            if match:
                yield sign, match[1]

    def _read(self, now_ms: int) -> Iterator[tuple[str, str, int]]:
        """Yield object, name of the sequencer and age in ms of each sign."""
        for sign, name in self._list():
            put_ms = self._files.modified_ms(sign)
            if put_ms is not None:
                yield sign, name, now_ms - put_ms


def _object_name(name: str, number: int) -> str:
    return f"{FOLDER}/{name}-{number:010d}"
