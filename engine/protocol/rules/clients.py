"""Clients: each numbers its letters from 1; each letter is decided once, in that order, whatever a listing shows."""

from __future__ import annotations

from enum import Enum

from ..values.clients import Answered, Client, ClientRemoved, Unreadable
from ..values.deciding import Decision, Given
from ..values.journal import JournalEntry
from ..values.segments import Segments
from ..values.state import State
from .registries import Folds, Rules
from .timers import Time, Timer, Timers


class Turn(Enum):
    """What to do with a letter."""

    DECIDE = "it is the client's next one"
    REPEAT = "it was decided before: answer again, decide nothing"
    WAIT = "an earlier one has not been seen yet"
    REFUSE = "the gap before it has lasted too long: the client is at an end"


def turn_of(state: State, client_id: str, number: int, waited_ms: int, gap_ms: int) -> Turn:
    """Whose turn it is. `waited_ms`: how long the sequencer has seen this letter wait for an earlier one."""
    client = state.clients.get(client_id)
    last = client.number if client else 0
    if number <= last:
        return Turn.REPEAT
    if number == last + 1:
        return Turn.DECIDE
    return Turn.WAIT if waited_ms <= gap_ms else Turn.REFUSE


def decide_unreadable(state: State, request: Unreadable, given: Given) -> Decision:
    """Refused, and not those beside it."""
    return Decision(request.refusal)


def _is_silent(state: State, client_id: str, time: Time) -> bool:
    known = state.clients.get(client_id)
    return known is not None and time.is_over(known.seen_at_ms, time.limits.client_expiration_ms)


def decide_expiry(state: State, client_id: str) -> list[JournalEntry]:
    """Clients that were silent for `client.expiration.ms` are forgotten."""
    return [JournalEntry(ClientRemoved(client_id, "expired"))]


def evolve_answered(state: State, record: Answered, segments: Segments) -> None:
    state.clients[record.client_id] = Client(record.number, record.results, state.now_ms)


def evolve_removed(state: State, record: ClientRemoved, segments: Segments) -> None:
    state.clients.pop(record.client_id, None)


DECIDE: Rules = {Unreadable: decide_unreadable}
EVOLVE: Folds = {Answered: evolve_answered, ClientRemoved: evolve_removed}
TIMERS: Timers = (Timer(lambda state: list(state.clients), _is_silent, decide_expiry, forgets=True),)
