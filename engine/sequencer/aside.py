"""Letters that the sequencer could not deal with for a reason nobody foresaw: refused, told of, and kept for a look."""

from __future__ import annotations

import logging
from contextlib import suppress

from lakemq.tables.storage.files import Files
from lakemq.tables.storage.mailbox import LetterName, Mailbox

from ..protocol.errors import LakeMQError, UnknownServerError

log = logging.getLogger("lakemq.serve")

FOLDER = "aside"
MOST_KEPT = 100


class Aside:
    """Of one sequencer. Never raises: what went wrong once must not stop what goes on."""

    def __init__(self, files: Files, mailbox: Mailbox) -> None:
        self._files, self._mailbox = files, mailbox
        self._poisonous: set[tuple[str, int]] = set()

    def keep(self, letter: LetterName, error: Exception) -> None:
        """Log the error and keep a copy of the letter, of the first ones at least."""
        text = "Letter %s met an error nobody foresaw; %s/ has a copy of it: %s"
        log.error(text, letter.name, FOLDER, error, exc_info=error)
        with suppress(OSError):
            body = self._mailbox.take(letter)
            if body is not None and len(self._files.list(FOLDER, MOST_KEPT)) < MOST_KEPT:
                self._files.put(f"{FOLDER}/{letter.name}", body)

    def poison(self, client_id: str, number: int) -> None:
        """This letter is refused unread when it comes again. The state may be half changed by it: it is thrown away."""
        self._poisonous.add((client_id, number))

    def refusal(self, letter: LetterName) -> LakeMQError | None:
        """Why a letter is refused unread, None for all but a few."""
        if (letter.client_id, letter.number) not in self._poisonous:
            return None
        self._poisonous.remove((letter.client_id, letter.number))
        return UnknownServerError(
            "The sequencer could not deal with this request and has kept it aside.", found=letter.name
        )
