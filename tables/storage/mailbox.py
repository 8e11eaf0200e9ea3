"""The mailbox: the only way in for a request, the only way out for its answer.

A letter is one object of one client process. A client id is new per process and numbers its letters from 1;
the sequencer takes a client's letters in that order, each once, whatever a listing shows: the same letter may
be named again until it is discarded, and a listing may name what is already gone.

`mailbox/<coarse time>-<client id>-<number>` holds the letters, `replies/<client id>/<number>` the answers.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from .files import Files
from .inotify import Watch

LETTERS = "mailbox"
REPLIES = "replies"

MAX_LETTER_BYTES = 64 << 20
"""A larger object is no letter, and is not read: a step holds the letters it takes in memory."""

_COARSE_MS = 1_000
_LOOK_EVERY_S = 1.0
# Counting may take at most this share of a client's time, however slow the store is at listing.
_SHARE_OF_COUNTING = 0.05

_LETTER = re.compile(r"([0-9]{13})-([A-Za-z0-9][A-Za-z0-9._-]{0,127})-([0-9]{10})")
_CLIENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class MailboxFull(Exception):
    """As many letters wait as the mailbox takes: nothing was put. It helps to try again later.

    found: letters that waited at the last look; limit: how many may.
    """

    def __init__(self, found: int, limit: int) -> None:
        super().__init__(found, limit)
        self.found, self.limit = found, limit

    def __str__(self) -> str:
        return f"found {self.found} letters waiting, expected fewer than {self.limit}"


class LetterExists(Exception):
    """A letter with this number waits already: it was put before, or two processes use one client id.

    found: the letter that is there; expected: that its name is free.
    """

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found

    def __str__(self) -> str:
        return f"found the letter {self.found!r} waiting, expected a client id and number never used before"


@dataclass(frozen=True, order=True)
class LetterName:
    """What the name of a letter says: `name` orders letters by coarse time, and those of a client by number.

    name: `<coarse time: 13 digits of epoch ms, whole seconds>-<client id>-<number: 10 digits>`
    """

    name: str
    client_id: str
    number: int

    @classmethod
    def of(cls, client_id: str, number: int, now_ms: int) -> LetterName:
        """The name of a letter put at `now_ms`. ValueError: not a client id, a number or a time."""
        if now_ms < 0:
            raise ValueError(f"now_ms: found {now_ms}, expected epoch milliseconds")
        coarse_ms = now_ms // _COARSE_MS * _COARSE_MS
        found = cls.parse(f"{coarse_ms:013d}-{_checked_client(client_id)}-{_ten_digits(number)}")
        if found is None:
            raise ValueError(f"now_ms: found {now_ms}, expected 13 digits of epoch milliseconds")
        return found

    @classmethod
    def parse(cls, name: str) -> LetterName | None:
        """None: not the name of a letter."""
        match = _LETTER.fullmatch(name)
        return cls(name, match[2], int(match[3])) if match and int(match[3]) else None


class Mailbox:
    """The letters and replies under the root of `files`, as the sequencer or a client process sees them.

    Threads of clients may share one; the sequencer's side is for one thread, as it remembers its listing.
    """

    def __init__(
        self, files: Files, *, limit: int = 100_000, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        """limit: letters that may wait; monotonic_s: seconds that only grow, whatever the clock does."""
        self._files = files
        self._limit = limit
        self._monotonic_s = monotonic_s
        self._found = 0
        self._look_at_s: float | None = None
        self._listed: deque[str] = deque()

    # -- the client's side --------------------------------------------------------------------------------

    def put(self, client_id: str, number: int, body: bytes, now_ms: int) -> str:
        """A letter waits; its name. A loss of power may take it with it: nobody has acknowledged anything yet.

        Errors: MailboxFull, by a count that is at most a second old (older where counting is slow, so that it
        takes at most a twentieth of the time); LetterExists; ValueError (client id, number, time, size). What the
        store reports, such as no space left, comes out as it is, and then no letter waits; MaybeThere: one may.
        """
        letter = LetterName.of(client_id, number, now_ms)
        if len(body) > MAX_LETTER_BYTES:
            raise ValueError(f"size of a letter: found {len(body)} bytes, expected at most {MAX_LETTER_BYTES}")
        self._look()
        if self._found >= self._limit:
            raise MailboxFull(self._found, self._limit)
        try:
            self._files.put(f"{LETTERS}/{letter.name}", body, durable=False)
        except FileExistsError:
            raise LetterExists(letter.name) from None
        return letter.name

    def withdraw(self, name: str) -> bool:
        """An own letter does not wait any more; True if it still did.

        True does not say that it was not read: a sequencer that is at it may still decide it and reply.
        """
        path = f"{LETTERS}/{name}"
        waited = self._files.size(path) is not None
        self._files.delete([path])
        return waited

    def poll_reply(self, client_id: str, number: int) -> bytes | None:
        """The reply to a letter, None: not there yet."""
        return self._get(_reply_name(client_id, number))

    def watch_replies(self, client_id: str) -> Watch | None:
        """Tells of replies to this client; None: there was none yet, or they are not told of."""
        return self._files.watch(f"{REPLIES}/{_checked_client(client_id)}")

    def forget_reply(self, client_id: str, number: int) -> None:
        """A reply that was read is gone; that it was not there is fine."""
        self._files.delete([_reply_name(client_id, number)])

    # -- the sequencer's side -----------------------------------------------------------------------------

    def waiting(self, most: int) -> list[LetterName]:
        """Up to `most` letters that wait now, in the order of their names: oldest coarse time first."""
        return list(islice(filter(None, map(LetterName.parse, self._names())), most))

    def look_through(self) -> Iterator[LetterName]:
        """The letters that wait, each once: what is left of the last listing, then what a new one names besides.

        Who has enough stops, and finds the rest in the next call: so a backlog is not listed for each call, and
        letters that nobody takes do not hide those behind them. Who comes to the end has seen all that waited when
        this call made its listing. Each listing is in the order of names: oldest coarse time first.
        """
        seen = set()
        for letter in self._next():
            seen.add(letter.name)
            yield letter
        self._listed = deque(name for name in self._names() if name not in seen)
        yield from self._next()

    def watch_letters(self) -> Watch | None:
        """Tells of letters; None: there was none yet, or they are not told of."""
        return self._files.watch(LETTERS)

    def take(self, letter: LetterName) -> bytes | None:
        """The body of a letter, which goes on waiting until it is discarded; None: it is gone.

        OSError: it cannot be read, or is no object of at most MAX_LETTER_BYTES.
        """
        return self._get(f"{LETTERS}/{letter.name}", MAX_LETTER_BYTES)

    def discard(self, letters: Iterable[LetterName]) -> list[tuple[LetterName, OSError]]:
        """These letters wait no more, but those returned, with the reason; that some did not is fine.

        A loss of power may bring some back.
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

    def unreadable(self, most: int) -> list[tuple[str, str]]:
        """Name and reason of the letters, among the first `most` that wait, that this process cannot read."""
        found = []
        for letter in self.waiting(most):
            try:
                self.take(letter)
            except OSError as error:
                found.append((letter.name, error.strerror or str(error)))
        return found

    def reply(self, client_id: str, number: int, body: bytes) -> None:
        """The reply to a letter is there, whole, in place of an earlier one.

        It is not durable: the journal has the truth.
        """
        name = _reply_name(client_id, number)
        try:
            self._files.put(name, body, durable=False)
        except FileExistsError:
            # After a loss of power the earlier one may be there and empty, so it is not taken for the answer.
            self._files.delete([name])
            self._files.put(name, body, durable=False)

    def forget_client(self, client_id: str) -> None:
        """No reply to this client is there; its letters are not touched."""
        self._files.delete_folder(f"{REPLIES}/{_checked_client(client_id)}")

    def answered_clients(self) -> list[str]:
        """The clients for whom there are replies, or were."""
        ids = (path.rpartition("/")[2] for path in self._files.folders(REPLIES))
        return [client_id for client_id in ids if _CLIENT_ID.fullmatch(client_id)]

    def replied_at_ms(self, client_id: str) -> int | None:
        """When the newest reply to this client was written, by the store's time; None: there is none."""
        names = self._files.list(f"{REPLIES}/{_checked_client(client_id)}")
        return max(filter(None, map(self._files.modified_ms, names)), default=None)

    def store_now_ms(self) -> int:
        """What time it is by the clock that `replied_at_ms` goes by."""
        return self._files.time_ms()

    def alien(self, limit: int) -> list[str]:
        """Up to `limit` names in the folder of letters that are not letters; all else ignores them."""
        return [name for name in self._names() if LetterName.parse(name) is None][:limit]

    # -- both ---------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Count the waiting letters, unless that was done a moment ago."""
        begun_s = self._monotonic_s()
        if self._look_at_s is None or begun_s >= self._look_at_s:
            self._look_at_s = begun_s + _LOOK_EVERY_S  # other threads need not count as well
            self._found = len(self._files.list(LETTERS, self._limit))
            ended_s = self._monotonic_s()
            self._look_at_s = max(self._look_at_s, ended_s + (ended_s - begun_s) / _SHARE_OF_COUNTING)

    def _names(self) -> list[str]:
        """Of all that lies in the folder of letters, sorted."""
        return [path[len(LETTERS) + 1 :] for path in self._files.list(LETTERS)]

    def _next(self) -> Iterator[LetterName]:
        """The letters of the last listing that nobody has come to."""
        while self._listed:
            letter = LetterName.parse(self._listed.popleft())
            if letter is not None:
                yield letter

    def _get(self, name: str, limit: int | None = None) -> bytes | None:
        try:
            return self._files.get(name, limit)
        except FileNotFoundError:
            return None


def _reply_name(client_id: str, number: int) -> str:
    return f"{REPLIES}/{_checked_client(client_id)}/{_ten_digits(number)}"


def _ten_digits(number: int) -> str:
    if not 1 <= number < 10**10:
        raise ValueError(f"number of a letter: found {number}, expected 1 to 9999999999")
    return f"{number:010d}"


def _checked_client(client_id: str) -> str:
    if not _CLIENT_ID.fullmatch(client_id):
        raise ValueError(f"client id: found {client_id!r}, expected 1 to 128 of [A-Za-z0-9._-]; no leading [._-]")
    return client_id
