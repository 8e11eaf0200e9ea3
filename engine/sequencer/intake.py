"""The intake: which letters a step takes, in whose turn, and what is refused unread."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from lakemq.tables.mailbox import LetterName, Mailbox

from ..clock import Clock
from ..config import EngineConfig
from ..protocol.clients import Turn, turn_of
from ..protocol.codec import decode_letter
from ..protocol.errors import ClientEnded, InvalidRequest, LakeMQError
from ..protocol.requests import Letter
from ..protocol.state import State

_FORGET_MS = 600_000
"""A letter that waits for one before it is remembered for this long beyond its time: it may have been withdrawn."""


@dataclass(frozen=True)
class Taken:
    """A letter whose turn it is, with the rows that ride in it, or why it is refused unread."""

    name: LetterName
    letter: Letter
    rows: pa.Table | None = None
    refusal: LakeMQError | None = None


@dataclass
class Intake:
    """What one step takes: letters to decide, oldest first; letters that were decided before; whether more wait."""

    taken: list[Taken] = field(default_factory=list)
    repeated: list[LetterName] = field(default_factory=list)
    backlog: bool = False


class Reception:
    """Takes letters, each client's in the order of their numbers, bounded in number and bytes."""

    def __init__(self, mailbox: Mailbox, config: EngineConfig, clock: Clock) -> None:
        self._mailbox, self._config, self._clock = mailbox, config, clock
        self._waiting_since: dict[tuple[str, int], int] = {}

    def take(self, state: State) -> Intake:
        """The letters of the next step. They go on waiting until they are discarded."""
        most, room = self._config.number("step.max.letters"), self._config.number("step.max.bytes")
        intake, planned = Intake(), dict[str, int]()
        for name in self._mailbox.waiting(most):
            turn = self._turn(state, name, planned)
            if turn is Turn.REPEAT:
                intake.repeated.append(name)
            if turn in (Turn.WAIT, Turn.REPEAT) or (body := self._mailbox.take(name)) is None:
                continue
            intake.taken.append(_opened(name, body, in_turn=turn is Turn.DECIDE))
            if turn is Turn.DECIDE:
                planned[name.client_id] = name.number
            room -= len(body)
            if room <= 0:
                break
        intake.backlog = room <= 0 or len(intake.taken) >= most
        return intake

    def _turn(self, state: State, name: LetterName, planned: dict[str, int]) -> Turn:
        if planned.get(name.client_id) == name.number - 1:
            return Turn.DECIDE
        if name.number <= planned.get(name.client_id, 0):
            return Turn.WAIT
        key, now_ms = (name.client_id, name.number), self._clock.steady_ms()
        since_ms, gap_ms = self._waiting_since.get(key, now_ms), self._config.ms("request.gap.ms")
        turn = turn_of(state, *key, now_ms - since_ms, gap_ms)
        if turn is not Turn.WAIT:
            self._waiting_since.pop(key, None)
        elif key not in self._waiting_since:
            self._waiting_since[key] = now_ms
            self._forget_before(now_ms - gap_ms - _FORGET_MS)
        return turn

    def _forget_before(self, horizon_ms: int) -> None:
        while self._waiting_since:
            oldest = next(iter(self._waiting_since))
            if self._waiting_since[oldest] > horizon_ms:
                return
            del self._waiting_since[oldest]


def _opened(name: LetterName, body: bytes, in_turn: bool) -> Taken:
    """The letter of an object, or the refusal of one that cannot be read or comes after a gap."""
    if not in_turn:
        gap = ClientEnded("A letter before this one never came.", found=f"letter {name.number}")
        return Taken(name, _nothing(name), refusal=gap)
    try:
        letter, rows = decode_letter(body)
    except ValueError as error:
        unreadable = InvalidRequest(f"The letter cannot be read: {error}")
        return Taken(name, _nothing(name), refusal=unreadable)
    if (letter.client_id, letter.number) != (name.client_id, name.number):
        alien = InvalidRequest("The letter is not the one its name says.", found=f"{letter.client_id}/{letter.number}")
        return Taken(name, _nothing(name), refusal=alien)
    return Taken(name, letter, rows)


def _nothing(name: LetterName) -> Letter:
    return Letter(name.client_id, name.number, [], 0)
