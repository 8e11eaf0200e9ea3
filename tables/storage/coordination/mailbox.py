"""The mailbox: clients put letters with requests, and the sequencer puts answers.

A letter is one object of one client, which numbers its letters from 1. A connection is one client after the other: it
takes a new id when the outcome of a letter is unknown, or when it was idle for long.
The sequencer decides a client's letters in that order, each once. It relies on the numbers and not on a listing:
a listing names a letter again until it is discarded, and may name one that is already gone.

Letters are `mailbox/<coarse time>-<client id>-<number>`, answers are `replies/<client id>/<number>`.
Rows of docs/architecture.md: publish 6.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from ..object_stores.files import Files
from ..object_stores.inotify import Watch

LETTERS = "mailbox"
REPLIES = "replies"

MAX_LETTER_BYTES = 64 << 20
"""A larger object is not read, since a step holds its letters in memory."""

_COARSE_MS = 1_000
_COUNT_EVERY_S = 1.0
# at most this share of a client's time goes into counting letters, however slowly the store lists them
_MAX_COUNTING_SHARE = 0.05

_LETTER = re.compile(r"([0-9]{13})-([A-Za-z0-9][A-Za-z0-9._-]{0,127})-([0-9]{10})")
_CLIENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
PROOF_NAME = re.compile(r"proof-[0-9a-f]{32}")
"""Names in the folder of letters that belong to greetings on lines (see `sockets`)."""


class MailboxFull(Exception):
    """The mailbox holds as many letters as it may, so nothing was put. Try again later."""


class LetterExists(Exception):
    """A letter with this number waits already: it was put before, or two processes share a client id."""


@dataclass(frozen=True, order=True)
class LetterName:
    """The parsed name of a letter. Names order letters by coarse time, and a client's letters by number.

    name: `<coarse time: 13 digits of epoch ms, whole seconds>-<client id>-<number: 10 digits>`
    """

    name: str
    client_id: str
    number: int

    @classmethod
    def of(cls, client_id: str, number: int, now_ms: int) -> LetterName:
        """Return the name of a letter put at `now_ms`. Raises ValueError for a bad client id, number or time."""
        if now_ms < 0:
            raise ValueError(f"now_ms: found {now_ms}, expected epoch milliseconds")
        coarse_ms = now_ms // _COARSE_MS * _COARSE_MS
        letter = cls.parse(f"{coarse_ms:013d}-{_checked_client(client_id)}-{_ten_digits(number)}")
        if letter is None:
            raise ValueError(f"now_ms: found {now_ms}, expected 13 digits of epoch milliseconds")
        return letter

    @classmethod
    def parse(cls, name: str) -> LetterName | None:
        """Parse the name of a letter; None if it is not one."""
        match = _LETTER.fullmatch(name)
        return cls(name, match[2], int(match[3])) if match and int(match[3]) else None


class Mailbox:
    """The letters and answers under the root of `files`, for clients and for the sequencer.

    Client threads may share a mailbox. The sequencer's methods are for one thread, since they remember a listing.
    """

    def __init__(
        self, files: Files, *, limit: int = 100_000, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        """limit: the most letters that may wait. monotonic_s: a monotonic clock in seconds."""
        self._files = files
        self._limit = limit
        self._monotonic_s = monotonic_s
        self._waiting_count = 0
        self._count_at_s: float | None = None
        self._listed: deque[str] = deque()

    # -- the client's side --------------------------------------------------------------------------------

    def put(self, client_id: str, number: int, body: bytes, now_ms: int) -> str:
        """Put a letter and return its name. The letter is not durable: nothing is acknowledged yet.

        Raises:
            MailboxFull: Too many letters wait, by a count that is at most a second old. It is older where counting is
                slow, so that counting takes at most a twentieth of the time.
            LetterExists: A letter with this number waits already.
            ValueError: A bad client id, number, time or size.
            MaybeThere: The store failed; the letter may wait or not.
            OSError: The store refused, for example for a full disk; no letter waits.
        """
        letter = LetterName.of(client_id, number, now_ms)
        if len(body) > MAX_LETTER_BYTES:
            raise ValueError(f"size of a letter: found {len(body)} bytes, expected at most {MAX_LETTER_BYTES}")
        self._count_waiting()
        if self._waiting_count >= self._limit:
            raise MailboxFull(f"found {self._waiting_count} letters waiting, expected fewer than {self._limit}")
        try:
            self._files.put(f"{LETTERS}/{letter.name}", body, durable=False)
        except FileExistsError:
            raise LetterExists(
                f"found the letter {letter.name!r} waiting, expected a client id and number never used before"
            ) from None
        return letter.name

    def withdraw(self, name: str) -> bool:
        """Delete an own letter, and return whether it was still waiting.

        Even if it was, a sequencer may have read it already, and may still decide it and answer.
        """
        path = f"{LETTERS}/{name}"
        waited = self._files.size(path) is not None
        self._files.delete([path])
        return waited

    def poll_answer(self, client_id: str, number: int) -> bytes | None:
        """Return the answer to a letter; None if there is none yet."""
        return self._get(_answer_name(client_id, number))

    def watch_answers(self, client_id: str) -> Watch | None:
        """Watch for answers to this client; None if there was no answer yet, or folders cannot be watched."""
        return self._files.watch(f"{REPLIES}/{_checked_client(client_id)}")

    def forget_answer(self, client_id: str, number: int) -> None:
        """Delete an answer after it was read; a missing one is fine."""
        self._files.delete([_answer_name(client_id, number)])

    # -- the sequencer's side -----------------------------------------------------------------------------

    def list_waiting(self, most: int) -> list[LetterName]:
        """Return up to `most` waiting letters in the order of their names: oldest coarse time first."""
        return list(islice(filter(None, map(LetterName.parse, self._names())), most))

    def iterate_letters(self) -> Iterator[LetterName]:
        """Yield the waiting letters, each once: the rest of the last listing, then the others of a new one.

        A caller that has enough letters stops, and the next call continues there. So a backlog is not listed for every
        call, and letters that are never taken do not hide the ones after them. A caller that reaches the end has seen
        all letters that waited when this call made its listing. A listing is in the order of names: oldest first.
        """
        yielded = set()
        for letter in self._next():
            yielded.add(letter.name)
            yield letter
        self._listed = deque(name for name in self._names() if name not in yielded)
        yield from self._next()

    def watch_letters(self) -> Watch | None:
        """Watch for letters; None if folders cannot be watched."""
        # create the folder: clients on lines may never put a letter, and a folder that is missing cannot be watched
        return self._files.watch(LETTERS, create=True)

    def read(self, letter: LetterName) -> bytes | None:
        """Return the body of a letter, which keeps waiting until it is discarded; None if it is gone.

        Raises OSError if it cannot be read, or is larger than MAX_LETTER_BYTES.
        """
        return self._get(f"{LETTERS}/{letter.name}", MAX_LETTER_BYTES)

    def discard(self, letters: Iterable[LetterName]) -> list[tuple[LetterName, OSError]]:
        """Delete these letters. Returns those that cannot be deleted, with the reason; missing ones are fine.

        After a loss of power some may be back.
        """
        discarded = list(letters)
        try:
            self._files.delete(f"{LETTERS}/{letter.name}" for letter in discarded)
        except OSError:
            return [(letter, error) for letter in discarded if (error := self._undeletable(letter))]
        return []

    def _undeletable(self, letter: LetterName) -> OSError | None:
        try:
            self._files.delete([f"{LETTERS}/{letter.name}"])
        except OSError as error:
            return error
        return None

    def find_unreadable(self, most: int) -> list[tuple[str, str]]:
        """Return name and reason of letters that this process cannot read, among the first `most`."""
        failures = []
        for letter in self.list_waiting(most):
            try:
                self.read(letter)
            except OSError as error:
                failures.append((letter.name, error.strerror or str(error)))
        return failures

    def put_answer(self, client_id: str, number: int, body: bytes) -> None:
        """Write the answer to a letter, in place of an earlier one. It is not durable: the step has the result."""
        name = _answer_name(client_id, number)
        try:
            self._files.put(name, body, durable=False)
        except FileExistsError:
            # after a loss of power the earlier answer may be empty, so replace it
            self._files.delete([name])
            self._files.put(name, body, durable=False)

    def forget_client(self, client_id: str) -> None:
        """Delete all answers to this client, but not its letters."""
        self._files.delete_folder(f"{REPLIES}/{_checked_client(client_id)}")

    def list_answered_clients(self) -> list[str]:
        """Return the clients that have, or had, answers."""
        ids = (path.rpartition("/")[2] for path in self._files.folders(REPLIES))
        return [client_id for client_id in ids if _CLIENT_ID.fullmatch(client_id)]

    def last_answer_ms(self, client_id: str) -> int | None:
        """Return when the newest answer to this client was written, by the store's time; None if there is none."""
        names = self._files.list(f"{REPLIES}/{_checked_client(client_id)}")
        return max(filter(None, map(self._files.modified_ms, names)), default=None)

    def store_time_ms(self) -> int:
        """Return the store's time, the clock of `last_answer_ms`."""
        return self._files.time_ms()

    def list_unknown_names(self, limit: int) -> list[str]:
        """Return up to `limit` names in the mailbox folder that are neither letters nor proofs. They are ignored."""
        unknown = (name for name in self._names() if LetterName.parse(name) is None and not PROOF_NAME.fullmatch(name))
        return list(islice(unknown, limit))

    # -- both ---------------------------------------------------------------------------------------------

    def _count_waiting(self) -> None:
        """Count the waiting letters, unless the last count is recent."""
        begun_s = self._monotonic_s()
        if self._count_at_s is None or begun_s >= self._count_at_s:
            self._count_at_s = begun_s + _COUNT_EVERY_S  # so that other threads do not count at the same time
            self._waiting_count = len(self._files.list(LETTERS, self._limit))
            ended_s = self._monotonic_s()
            self._count_at_s = max(self._count_at_s, ended_s + (ended_s - begun_s) / _MAX_COUNTING_SHARE)

    def _names(self) -> list[str]:
        """Return the names of all objects in the mailbox folder, sorted."""
        return [path[len(LETTERS) + 1 :] for path in self._files.list(LETTERS)]

    def _next(self) -> Iterator[LetterName]:
        """Yield the letters of the last listing that were not reached yet."""
        while self._listed:
            letter = LetterName.parse(self._listed.popleft())
            if letter is not None:
                yield letter

    def _get(self, name: str, limit: int | None = None) -> bytes | None:
        try:
            return self._files.get(name, limit)
        except FileNotFoundError:
            return None


def _answer_name(client_id: str, number: int) -> str:
    return f"{REPLIES}/{_checked_client(client_id)}/{_ten_digits(number)}"


def _ten_digits(number: int) -> str:
    if not 1 <= number < 10**10:
        raise ValueError(f"number of a letter: found {number}, expected 1 to 9999999999")
    return f"{number:010d}"


def _checked_client(client_id: str) -> str:
    if not _CLIENT_ID.fullmatch(client_id):
        raise ValueError(f"client id: found {client_id!r}, expected 1 to 128 of [A-Za-z0-9._-]; no leading [._-]")
    return client_id
