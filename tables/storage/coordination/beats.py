"""Heartbeats of the processes that have members of groups; and the notes of members that were fenced or are overdue.

A beat is the object `beats/<id>-<number>`. A process writes the next number, then deletes the one before it. Beats are
not requests and are not synced: if one is lost, the leader sees the process a beat later.

A note about a member that was fenced lies among the beats, with a longer id. The leader takes it for the beat of a
process that has gone, and deletes it with those.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from ..object_stores.files import Files, LocalFiles

BEATS = "beats"
MAX_BEAT_BYTES = 4 << 20
MAX_READ_BYTES = 8 << 20
"""Bytes of all beats of a reading: those of a hundred thousand members. Anybody who may write may put more, and a byte
may take twenty in memory."""

_BEAT = re.compile(r"([0-9a-f]{1,64})-([0-9]{10})")
_NOTE_DIGITS = 64
"""Of the id of a note. Ids of processes are shorter."""


class Beats:
    """The beats of a namespace: the objects in one folder."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def put(self, beats_id: str, number: int, body: bytes) -> None:
        """Write the beat of this number and delete the one before it. After an OSError the beat may exist or not."""
        self._files.put(_name(beats_id, number), body, durable=False)
        self._files.delete([_name(beats_id, number - 1)])

    def forget(self, beats_ids: Iterable[str]) -> None:
        """Delete all beats of these ids."""
        gone = set(beats_ids)
        self._files.delete([name for name, beats_id, _ in self._names() if beats_id in gone])

    def put_note(self, subject: str, number: int, body: bytes) -> None:
        """Write the note about a subject, in place of the one before it, whose number is lower. Raises OSError."""
        note_id = hashlib.sha256(subject.encode()).hexdigest()
        self.forget([note_id])
        self._files.put(_name(note_id, number), body, durable=False)

    def read_notes(self) -> list[bytes]:
        """Return the newest note of each subject. Raises OSError."""
        note_ids = {beats_id for _, beats_id, _ in self._names() if len(beats_id) == _NOTE_DIGITS}
        notes = self.read_newest(note_ids) if note_ids else {}
        return [body for _, body in notes.values() if body is not None]

    def read_newest(
        self, only: Collection[str] | None = None, first: Collection[str] = ()
    ) -> dict[str, tuple[int, bytes | None]]:
        """Return number and body of the newest beat per id.

        The body is None if it is unreadable, was just replaced, or would exceed MAX_READ_BYTES with those before it.

        Args:
            only: ids. None: all.
            first: ids that are read before all others.
        """
        newest: dict[str, int] = {}
        for _, beats_id, number in self._names():
            if only is None or beats_id in only:
                newest[beats_id] = max(number, newest.get(beats_id, 0))
        beats: dict[str, tuple[int, bytes | None]] = {}
        left_bytes = MAX_READ_BYTES
        for beats_id, number in sorted(newest.items(), key=lambda item: item[0] not in first):
            body = None
            with suppress(OSError):
                body = self._files.get(_name(beats_id, number), min(left_bytes, MAX_BEAT_BYTES))
                left_bytes -= len(body)
            beats[beats_id] = number, body
        return beats

    @property
    def is_on_local_disk(self) -> bool:
        """True if the store is a folder of this machine, or mounted like one."""
        return isinstance(self._files, LocalFiles)

    def time_ms(self) -> int:
        """Return the store's own time in epoch milliseconds. Raises OSError."""
        return self._files.time_ms()

    def modified_ms(self, beats_id: str, number: int) -> int | None:
        """Return when this beat was written, by the store's time; None if a newer one has replaced it."""
        return self._files.modified_ms(_name(beats_id, number))

    def _names(self) -> list[tuple[str, str, int]]:
        matches = [(name, _BEAT.fullmatch(name.rpartition("/")[2])) for name in self._files.list(BEATS)]
        return [(name, match[1], int(match[2])) for name, match in matches if match]


def _name(beats_id: str, number: int) -> str:
    return f"{BEATS}/{beats_id}-{number:010d}"


# Notes of a leader about members of groups that are overdue, for people who ask which member is stuck.
#
# Nothing is decided by them. A leader puts `overdue/<epoch>-<number>`, then deletes all others. As with beats, an
# object is never replaced, since a store has no such call.


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
