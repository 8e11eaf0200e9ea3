"""Clients: each numbers its letters from 1; each letter is decided once, in that order, whatever a listing shows."""

from __future__ import annotations

from enum import Enum

from .records import Answered, ClientRemoved, Decided
from .state import Client, State


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


def decide_expiry(state: State, expiration_ms: int, now_ms: int) -> list[Decided]:
    """Clients that were silent for `client.expiration.ms` are forgotten."""
    return [
        Decided(ClientRemoved(client_id, "expired"))
        for client_id, client in state.clients.items()
        if now_ms - client.seen_at_ms > expiration_ms
    ]


def evolve_answered(state: State, record: Answered) -> None:
    state.clients[record.client_id] = Client(record.number, record.results, state.now_ms)


def evolve_removed(state: State, record: ClientRemoved) -> None:
    state.clients.pop(record.client_id, None)
