"""Quarantine: letters that met an unexpected error are refused, logged, and copied for an examination."""

from __future__ import annotations

import logging
from contextlib import suppress

from lakemq.tables.storage.coordination.mailbox import LetterName, Mailbox
from lakemq.tables.storage.object_stores.files import Files

from ...protocol.errors import LakeMQError, UnknownServerError

log = logging.getLogger("lakemq.serve")

FOLDER = "aside"
"""The folder of copies."""
MAX_FILES = 100


class Quarantine:
    """The quarantine of one sequencer. It never raises: one bad letter must not stop the others."""

    def __init__(self, files: Files, mailbox: Mailbox) -> None:
        self._files, self._mailbox = files, mailbox
        self._refused_unread: set[tuple[str, int]] = set()
        """Client and number of each. They stay: a step that refuses one may fail, and the letter comes again then."""

    def store_copy(self, letter: LetterName, error: Exception, body: bytes | None = None) -> None:
        """Log the error and store a copy of the letter, up to MAX_FILES copies. body: if it is not in the mailbox."""
        text = "Letter %s met an unexpected error. A copy of it is in %s/: %s"
        log.error(text, letter.name, FOLDER, error, exc_info=error)
        with suppress(OSError):
            body = self._mailbox.read(letter) if body is None else body
            if body is not None and len(self._files.list(FOLDER, MAX_FILES)) < MAX_FILES:
                self._files.put(f"{FOLDER}/{letter.name}", body)

    def refuse_next_time(self, client_id: str, number: int) -> None:
        """Refuse this letter unread when it comes again.

        The state may be half changed by it, so the caller throws the state away.
        """
        self._refused_unread.add((client_id, number))

    def find_refusal(self, letter: LetterName) -> LakeMQError | None:
        """Return why a letter is refused unread. None for all but a few."""
        if (letter.client_id, letter.number) not in self._refused_unread:
            return None
        return UnknownServerError(
            "The sequencer met an unexpected error with this request. A copy of it is in aside/.", found=letter.name
        )
