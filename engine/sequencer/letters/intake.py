"""The intake: which letters a step takes, which must wait, which are refused unread; and when the mailbox is listed.

Letters come through the mailbox, or on the lines of clients that are connected (`lines`). Those of lines come first,
unless they left no room for the mailbox in the last step.

A client numbers its letters. Its letters are decided in that order, each once. The number therefore tells for each
waiting letter whether to decide it, to repeat its answer, to wait for an earlier letter, or to refuse it (`find_turn`).

The letters also decide which timers a step may run (`Sequencer._find_due`). While letters are unread, or decided ones
are found again, nothing times out, for at most MAX_BACKLOG_MS: a letter that was sent in time may still be waiting. And
no client is forgotten while one of its decided letters is not deleted. A letter that cannot be read or deleted affects
only its own client. Rows of docs/architecture.md: publish 7, 11.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from lakemq.tables.storage.coordination.mailbox import LetterName, Mailbox
from lakemq.tables.storage.object_stores.files import Files

from ...namespace.clock import Clock
from ...namespace.config import EngineConfig
from ...protocol.codec.few_rows import Rows
from ...protocol.codec.letter import decode_letter
from ...protocol.errors import ClientEnded, InconsistentClusterId, InvalidRequest, LakeMQError, UnknownServerError
from ...protocol.rules.clients import Turn, find_turn
from ...protocol.values.clients import Letter
from ...protocol.values.state import State
from .line_table import LineLetter, LineTable

log = logging.getLogger("lakemq.serve")

# Decide when the leader lists the mailbox of an object store.
#
# Listing costs a request. While clients send their letters on lines, few come through the mailbox, so the leader lists
# it every few seconds. It lists at every step if no client has had a line since the mailbox last held a letter. A
# client that is idle gives up its line, and comes back on a line. The leader also lists at every step for a while after
# it found a letter, because that client sends its next letters in the same way.


SHORTEST_MS, LONGEST_MS = 1_000, 5_000
"""Time between two listings while clients have lines. It grows while the mailbox is empty."""
BUSY_MS = 2_000
"""Time after a letter in which each step lists the mailbox."""
_GROWTH = 1.5


class ListingPace:
    """The listings of one sequencer. For its thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._client_count = 0
        self._has_line_clients = False
        self._interval_ms: float = SHORTEST_MS
        self._due_at_ms: float = clock.steady_ms()
        self._busy_until_ms: float = clock.steady_ms()

    def is_due(self, client_count: int) -> bool:
        """Return whether this step should list the mailbox. client_count: how many clients have lines."""
        # a client whose line has ended may have put its letter into the mailbox
        has_lost_client, self._client_count = client_count < self._client_count, client_count
        self._has_line_clients |= bool(client_count)
        now_ms = self._clock.steady_ms()
        if has_lost_client and not client_count:
            self._busy_until_ms = now_ms + BUSY_MS
        is_used = has_lost_client or not self._has_line_clients
        return is_used or now_ms >= self._due_at_ms or now_ms < self._busy_until_ms

    def request(self) -> None:
        """Let the next step list the mailbox."""
        self._due_at_ms = self._clock.steady_ms()

    def note_listing(self, has_letters: bool) -> None:
        """Note that the mailbox was listed, and whether letters were there."""
        now_ms = self._clock.steady_ms()
        if has_letters:
            self._busy_until_ms, self._interval_ms = now_ms + BUSY_MS, SHORTEST_MS
            self._has_line_clients = bool(self._client_count)
        self._due_at_ms = now_ms + self._interval_ms
        self._interval_ms = min(LONGEST_MS, _GROWTH * self._interval_ms)


# The intake, and the letters of a step.


SHORTEST_PAUSE_MS = 1_000
LONGEST_PAUSE_MS = 60_000
"""Pauses between two tries at a letter that cannot be read, answered or deleted. Each is twice the one before."""

MAX_ANSWER_TRIES = 6
"""Tries to write an answer: half a minute in all, longer than a client waits by default."""

_REQUEST_BYTES = 1 << 10
"""About the memory that a request takes with its decision and answer, however short it is."""


@dataclass(frozen=True)
class OpenedLetter:
    """A letter that this step decides, with the rows that came in it, or the reason why it is refused unread.

    on_line: the letter as it came on a line. None: it is in the mailbox.
    """

    name: LetterName
    letter: Letter
    rows: Rows | None = None
    refusal: LakeMQError | None = None
    on_line: LineLetter | None = None


@dataclass
class StepLetters:
    """The letters of one step.

    Attributes:
        taken: letters to decide, those of each client in order.
        repeated: letters of the mailbox that were decided before. Their answers are written again.
        backlog: there may be letters that this step has not looked at.
        undeleted: decided letters are left in the mailbox. Until they are gone no client may be forgotten: its letter
            would be decided again.
        gaps: letters wait for an earlier one.
        is_mailbox_skipped: this step has not listed the mailbox, to save a request.
    """

    taken: list[OpenedLetter] = field(default_factory=list)
    repeated: list[LetterName] = field(default_factory=list)
    backlog: bool = False
    undeleted: bool = False
    gaps: bool = False
    is_mailbox_skipped: bool = False


@dataclass
class _Retry:
    """A letter that stays in the mailbox: it waits for an earlier one, or could not be read, answered or deleted.

    since_ms: since when it has waited. again_at_ms: when to try again, after so many tries. decided: it was decided
    already, and only its answer or its deletion is missing.
    """

    since_ms: int
    again_at_ms: int = 0
    tries: int = 0
    decided: bool = False

    def postpone(self, now_ms: int) -> None:
        self.again_at_ms = now_ms + min(SHORTEST_PAUSE_MS << min(self.tries, 16), LONGEST_PAUSE_MS)
        self.tries += 1


class Intake:
    """Takes letters, each client's in the order of their numbers, bounded in number and bytes."""

    def __init__(self, mailbox: Mailbox, config: EngineConfig, clock: Clock, pace: ListingPace | None = None) -> None:
        """pace: of listings while clients have lines. None: each step lists the mailbox."""
        self._mailbox, self._config, self._clock, self._listing_pace = mailbox, config, clock, pace
        self._is_mailbox_next = False
        """The last step had no room for the mailbox. So the next one reads it before the lines."""
        self._is_listing_unfinished = False
        self._retries: dict[str, _Retry] = {}
        """By name of the letter.

        Complete only for letters that were there when the mailbox was last read completely.
        """

    def take_letters(
        self,
        state: State,
        namespace_id: str,
        give_sign_of_life: Callable[[], None] = lambda: None,
        lines: LineTable | None = None,
    ) -> StepLetters:
        """Return the letters of the next step. Those of the mailbox stay there until they are discarded.

        Args:
            namespace_id: letters for another namespace are refused.
            give_sign_of_life: renews the lease if that is due. It is called between letters.
            lines: on which letters may have come, too.
        """
        selection = _LetterSelection(self._config, self._clock.steady_ms(), namespace_id, lines)
        if lines is not None and not self._is_mailbox_next:
            _take_from_lines(lines, state, selection)
        self._is_mailbox_next = selection.is_enough
        if selection.is_enough:
            selection.letters.backlog = True
            return selection.letters
        if self._is_listing_due(lines):
            self._take_from_mailbox(state, selection, give_sign_of_life)
        else:
            selection.letters.is_mailbox_skipped = True
        if lines is not None:
            _take_from_lines(lines, state, selection)
        selection.letters.backlog |= selection.is_enough
        return selection.letters

    def request_listing(self) -> None:
        """Let the next step list the mailbox."""
        if self._listing_pace is not None:
            self._listing_pace.request()

    def _is_listing_due(self, lines: LineTable | None) -> bool:
        if self._listing_pace is None or lines is None or self._is_listing_unfinished or self._retries:
            return True
        return self._listing_pace.is_due(lines.client_count)

    def _take_from_mailbox(
        self, state: State, selection: _LetterSelection, give_sign_of_life: Callable[[], None]
    ) -> None:
        names: set[str] = set()
        for name in self._mailbox.iterate_letters():
            give_sign_of_life()
            names.add(name.name)
            self._process(name, state, selection)
            if selection.is_enough:
                break
        else:
            self._retries = {name: retry for name, retry in self._retries.items() if name in names}
        self._is_listing_unfinished = selection.is_enough
        if self._listing_pace is not None:
            self._listing_pace.note_listing(bool(names))
        selection.log_unreadable()

    def discard(self, letters: Iterable[LetterName]) -> None:
        """Delete decided letters. A letter that cannot be deleted is tried again later, and never decided again."""
        now_ms = self._clock.steady_ms()
        for name, error in self._mailbox.discard(letters):
            retry = self._retries.setdefault(name.name, _Retry(now_ms))
            if not retry.decided:
                log.warning("The letter %s was decided and cannot be deleted: %s", name.name, error)
            retry.decided = True
            retry.postpone(now_ms)

    def keep_unanswered(self, name: LetterName) -> bool:
        """Keep a decided letter whose answer cannot be written, so that it is found again, and answered again.

        Return False if it was tried often enough: a later repeat of the client is answered.
        """
        now_ms = self._clock.steady_ms()
        retry = self._retries.setdefault(name.name, _Retry(now_ms))
        retry.decided = True
        retry.postpone(now_ms)
        return retry.tries < MAX_ANSWER_TRIES

    def _process(self, name: LetterName, state: State, selection: _LetterSelection) -> None:
        retry, letters = self._retries.get(name.name), selection.letters
        turn = self._find_turn(state, name, selection, retry)
        if turn is Turn.WAIT:
            self._retries.setdefault(name.name, _Retry(selection.now_ms))
            letters.gaps = True
        elif retry is not None and selection.now_ms < retry.again_at_ms:
            letters.undeleted |= retry.decided
        elif turn is Turn.REPEAT:
            letters.repeated.append(name)
            selection.looked_count += 1
        else:
            self._take_letter(name, turn, selection)

    def _find_turn(self, state: State, name: LetterName, selection: _LetterSelection, retry: _Retry | None) -> Turn:
        if retry is not None and retry.decided:
            return Turn.REPEAT  # even if its client is forgotten by now
        planned = selection.planned.get(name.client_id)
        if planned is not None:
            return Turn.DECIDE if name.number == planned + 1 else Turn.WAIT
        waited_ms = 0 if retry is None else selection.now_ms - retry.since_ms
        return find_turn(state, name.client_id, name.number, waited_ms, self._config.ms("request.gap.ms"))

    def _take_letter(self, name: LetterName, turn: Turn, selection: _LetterSelection) -> None:
        selection.looked_count += 1
        try:
            body = self._mailbox.read(name)
        except OSError as error:
            if turn is not Turn.REFUSE:
                retry = self._retries.setdefault(name.name, _Retry(selection.now_ms))
                if not retry.tries:
                    selection.unreadable.append((name, error))
                retry.postpone(selection.now_ms)
                return
            body = b""  # the letter is refused whatever it contains
        if body is None:
            return
        if selection.lines is not None:  # if its client's line still holds a letter, it is this one
            selection.lines.drop_client(name.client_id)
        opened = _open_body(name, body, selection.namespace_id, in_turn=turn is Turn.DECIDE)
        if turn is Turn.DECIDE:
            selection.planned[name.client_id] = name.number
        selection.add(opened, len(body))


def _take_from_lines(lines: LineTable, state: State, selection: _LetterSelection) -> None:
    """Take the letters that have come on lines. One out of turn is left to the mailbox, where gaps are judged."""
    while not selection.is_enough:
        on_line = lines.take_letter()
        if on_line is None:
            return
        name = on_line.name
        planned = selection.planned.get(name.client_id)
        turn = Turn.WAIT if planned is not None else find_turn(state, name.client_id, name.number, 0, 0)
        selection.looked_count += 1
        if turn is Turn.DECIDE:
            opened = _open_body(name, on_line.body, selection.namespace_id, in_turn=True)
            selection.planned[name.client_id] = name.number
            selection.add(replace(opened, on_line=on_line), len(on_line.body))
        else:
            lines.refuse(on_line)


class _LetterSelection:
    """The letters that a step has taken so far. planned: the last number of each client that it decides."""

    def __init__(self, config: EngineConfig, now_ms: int, namespace_id: str, lines: LineTable | None) -> None:
        self.now_ms, self.namespace_id, self.lines = now_ms, namespace_id, lines
        self._most, self.room = config.number("step.max.letters"), config.number("step.max.bytes")
        self.letters, self.planned, self.looked_count = StepLetters(), dict[str, int](), 0
        self.unreadable: list[tuple[LetterName, OSError]] = []

    @property
    def is_enough(self) -> bool:
        return self.looked_count >= self._most or self.room <= 0

    def add(self, opened: OpenedLetter, size_bytes: int) -> None:
        self.letters.taken.append(opened)
        self.room -= _memory_bytes(opened, size_bytes)

    def log_unreadable(self) -> None:
        if self.unreadable:
            name, error = self.unreadable[0]
            text = "Letters that cannot be read: %d, such as %s (%s). They are tried again later; see lakemq doctor"
            log.warning(text, len(self.unreadable), name.name, error.strerror or error)


def _open_body(name: LetterName, body: bytes, namespace_id: str, in_turn: bool) -> OpenedLetter:
    """Decode a letter, or refuse it: it is unreadable, comes after a gap, or is for another namespace."""
    if not in_turn:
        refusal: LakeMQError = ClientEnded("A letter before this one never came.", found=f"letter {name.number}")
        return OpenedLetter(name, _empty_letter(name), refusal=refusal)
    try:
        letter, rows = decode_letter(body)
    except ValueError as error:
        refusal = InvalidRequest(f"The letter cannot be read: {error}")
        return OpenedLetter(name, _empty_letter(name), refusal=refusal)
    if (letter.client_id, letter.number) != (name.client_id, name.number):
        refusal = InvalidRequest(
            "The letter is not the one its name says.", found=f"{letter.client_id}/{letter.number}"
        )
        return OpenedLetter(name, _empty_letter(name), refusal=refusal)
    if letter.namespace_id not in ("", namespace_id):  # ids of producers and topics begin at 0 in each namespace
        refusal = InconsistentClusterId(found=letter.namespace_id, expected=namespace_id)
        return OpenedLetter(name, _empty_letter(name), refusal=refusal)
    return OpenedLetter(name, letter, rows)


def _memory_bytes(opened: OpenedLetter, size_bytes: int) -> int:
    """Return about the memory that a letter takes in a step: few bytes may stand for many requests, rows or headers."""
    rows_bytes = 0 if opened.rows is None else opened.rows.nbytes
    return max(size_bytes, rows_bytes) + _REQUEST_BYTES * len(opened.letter.requests)


def _empty_letter(name: LetterName) -> Letter:
    return Letter(name.client_id, name.number, [], 0)


# Quarantine: letters that met an unexpected error are refused, logged, and copied for an examination.


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
