"""The intake: which letters a step takes, in whose turn, and what is refused unread.

Invariant: time passes for clients only when every letter that waited was looked at in this step, and none of those that
were decided before is left. A letter that cannot be read, or not be deleted, is its client's trouble alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lakemq.tables.storage.mailbox import LetterName, Mailbox

from ..namespace.clock import Clock
from ..namespace.config import EngineConfig
from ..protocol.codec.few_rows import Rows
from ..protocol.codec.letter import decode_letter
from ..protocol.errors import ClientEnded, InconsistentClusterId, InvalidRequest, LakeMQError
from ..protocol.rules.clients import Turn, turn_of
from ..protocol.values.clients import Letter
from ..protocol.values.state import State

log = logging.getLogger("lakemq.serve")

SHORTEST_PAUSE_MS = 1_000
LONGEST_PAUSE_MS = 60_000
"""Between two tries at a letter that cannot be read or deleted: each pause is twice the one before."""

_REQUEST_BYTES = 1 << 10
"""Of memory, about, that a request takes with what is decided and answered, however short it is."""


@dataclass(frozen=True)
class OpenedLetter:
    """A letter whose turn it is, with the rows that ride in it, or why it is refused unread."""

    name: LetterName
    letter: Letter
    rows: Rows | None = None
    refusal: LakeMQError | None = None


@dataclass
class StepLetters:
    """What one step takes: letters to decide, oldest first; letters that were decided before.

    backlog: there may be letters that were not looked at; undeleted: letters are left that were decided before. While
    there are, no client may be forgotten: its letter would be decided again. gaps: letters wait for one before them.
    """

    taken: list[OpenedLetter] = field(default_factory=list)
    repeated: list[LetterName] = field(default_factory=list)
    backlog: bool = False
    undeleted: bool = False
    gaps: bool = False


@dataclass
class _Held:
    """A letter that goes on waiting: for one before it, since `since_ms`; or, after so many tries, until `again_at_ms`.

    decided: it was, and could not be deleted.
    """

    since_ms: int
    again_at_ms: int = 0
    tries: int = 0
    decided: bool = False

    def put_off(self, now_ms: int) -> None:
        self.again_at_ms = now_ms + min(SHORTEST_PAUSE_MS << min(self.tries, 16), LONGEST_PAUSE_MS)
        self.tries += 1


class Intake:
    """Takes letters, each client's in the order of their numbers, bounded in number and bytes."""

    def __init__(self, mailbox: Mailbox, config: EngineConfig, clock: Clock) -> None:
        self._mailbox, self._config, self._clock = mailbox, config, clock
        self._held: dict[str, _Held] = {}
        """By name; of letters only that were there at the last look at all of them."""

    def take(self, state: State, namespace_id: str, alive: Callable[[], None] = lambda: None) -> StepLetters:
        """The letters of the next step. They go on waiting until they are discarded.

        namespace_id: of whom letters are refused that were meant for another one; alive: called between them.
        """
        visit = _Visit(self._config, self._clock.steady_ms(), namespace_id)
        names: set[str] = set()
        for name in self._mailbox.look_through():
            alive()
            names.add(name.name)
            self._look_at(name, state, visit)
            if visit.is_enough:
                visit.letters.backlog = True
                break
        else:
            self._held = {name: held for name, held in self._held.items() if name in names}
        visit.tell()
        return visit.letters

    def discard(self, letters: Iterable[LetterName]) -> None:
        """These letters were decided. Those that cannot be deleted are tried again later, and never decided again."""
        now_ms = self._clock.steady_ms()
        for name, error in self._mailbox.discard(letters):
            held = self._held.setdefault(name.name, _Held(now_ms))
            if not held.decided:
                log.warning("The letter %s was decided and cannot be deleted: %s", name.name, error)
            held.decided = True
            held.put_off(now_ms)

    def _look_at(self, name: LetterName, state: State, visit: _Visit) -> None:
        held, letters = self._held.get(name.name), visit.letters
        turn = self._turn(state, name, visit, held)
        if turn is Turn.WAIT:
            self._held.setdefault(name.name, _Held(visit.now_ms))
            letters.gaps = True
        elif held is not None and visit.now_ms < held.again_at_ms:
            letters.undeleted |= held.decided
        elif turn is Turn.REPEAT:
            letters.repeated.append(name)
            visit.looked += 1
        else:
            self._open(name, turn, visit)

    def _turn(self, state: State, name: LetterName, visit: _Visit, held: _Held | None) -> Turn:
        if held is not None and held.decided:
            return Turn.REPEAT  # whatever has become of its client since
        planned = visit.planned.get(name.client_id)
        if planned is not None:
            return Turn.DECIDE if name.number == planned + 1 else Turn.WAIT
        waited_ms = 0 if held is None else visit.now_ms - held.since_ms
        return turn_of(state, name.client_id, name.number, waited_ms, self._config.ms("request.gap.ms"))

    def _open(self, name: LetterName, turn: Turn, visit: _Visit) -> None:
        visit.looked += 1
        try:
            body = self._mailbox.take(name)
        except OSError as error:
            if turn is not Turn.REFUSE:
                held = self._held.setdefault(name.name, _Held(visit.now_ms))
                if not held.tries:
                    visit.unreadable.append((name, error))
                held.put_off(visit.now_ms)
                return
            body = b""  # it is refused whatever it says
        if body is None:
            return
        opened = _opened(name, body, visit.namespace_id, in_turn=turn is Turn.DECIDE)
        visit.letters.taken.append(opened)
        if turn is Turn.DECIDE:
            visit.planned[name.client_id] = name.number
        visit.room -= _memory_bytes(opened, len(body))


class _Visit:
    """One look at the mailbox. planned: the last number per client that this step decides."""

    def __init__(self, config: EngineConfig, now_ms: int, namespace_id: str) -> None:
        self.now_ms, self.namespace_id = now_ms, namespace_id
        self._most, self.room = config.number("step.max.letters"), config.number("step.max.bytes")
        self.letters, self.planned, self.looked = StepLetters(), dict[str, int](), 0
        self.unreadable: list[tuple[LetterName, OSError]] = []

    @property
    def is_enough(self) -> bool:
        return self.looked >= self._most or self.room <= 0

    def tell(self) -> None:
        if self.unreadable:
            name, error = self.unreadable[0]
            text = "Letters that cannot be read: %d, such as %s (%s). They are tried again later; see lakemq doctor"
            log.warning(text, len(self.unreadable), name.name, error.strerror or error)


def _opened(name: LetterName, body: bytes, namespace_id: str, in_turn: bool) -> OpenedLetter:
    """The letter of an object, or the refusal of one that cannot be read, comes after a gap, or is for another."""
    if not in_turn:
        gap = ClientEnded("A letter before this one never came.", found=f"letter {name.number}")
        return OpenedLetter(name, _nothing(name), refusal=gap)
    try:
        letter, rows = decode_letter(body)
    except ValueError as error:
        unreadable = InvalidRequest(f"The letter cannot be read: {error}")
        return OpenedLetter(name, _nothing(name), refusal=unreadable)
    if (letter.client_id, letter.number) != (name.client_id, name.number):
        alien = InvalidRequest("The letter is not the one its name says.", found=f"{letter.client_id}/{letter.number}")
        return OpenedLetter(name, _nothing(name), refusal=alien)
    if letter.namespace_id not in ("", namespace_id):  # ids of producers and topics begin anew in each
        other = InconsistentClusterId(found=letter.namespace_id, expected=namespace_id)
        return OpenedLetter(name, _nothing(name), refusal=other)
    return OpenedLetter(name, letter, rows)


def _memory_bytes(opened: OpenedLetter, size_bytes: int) -> int:
    """About what a letter takes while it is decided: a few bytes may stand for many requests, rows or headers."""
    rows_bytes = 0 if opened.rows is None else opened.rows.nbytes
    return max(size_bytes, rows_bytes) + _REQUEST_BYTES * len(opened.letter.requests)


def _nothing(name: LetterName) -> Letter:
    return Letter(name.client_id, name.number, [], 0)
