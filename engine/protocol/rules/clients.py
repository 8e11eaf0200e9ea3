"""Clients: each numbers its letters from 1, and each letter is decided once, in this order.

A listing of the mailbox may show letters late or out of order; the numbers put them right.
"""

from __future__ import annotations

from enum import Enum

from ..values.clients import Answered, Client, ClientRemoved, Unreadable
from ..values.decision import Decision, DecisionInputs
from ..values.journal import JournalEntry
from ..values.segments import Segments
from ..values.state import State
from .registries import Folds, Rules
from .timers import Time, Timer, Timers


class Turn(Enum):
    """The ways to treat a letter."""

    DECIDE = "it is the client's next one"
    REPEAT = "it was decided before: answer again, decide nothing"
    WAIT = "an earlier one has not been seen yet"
    REFUSE = "the gap before it has lasted too long: the client is at an end"


def find_turn(state: State, client_id: str, number: int, waited_ms: int, gap_ms: int) -> Turn:
    """Return what to do with a letter. waited_ms: how long the sequencer has seen it wait for an earlier one."""
    client = state.clients.get(client_id)
    last = client.number if client else 0
    if number <= last:
        return Turn.REPEAT
    if number == last + 1:
        return Turn.DECIDE
    return Turn.WAIT if waited_ms <= gap_ms else Turn.REFUSE


def decide_unreadable(state: State, request: Unreadable, inputs: DecisionInputs) -> Decision:
    """Refuse a request that cannot be read. The other requests of its letter are decided."""
    return Decision(request.refusal)


def _is_silent(state: State, client_id: str, time: Time) -> bool:
    client = state.clients.get(client_id)
    return client is not None and time.is_over(client.seen_at_ms, time.limits.client_expiration_ms)


def decide_expiry(state: State, client_id: str) -> list[JournalEntry]:
    """Forget a client that was silent for `client.expiration.ms`."""
    return [JournalEntry(ClientRemoved(client_id, "expired"))]


def keep_answer(state: State, record: Answered, segments: Segments) -> None:
    state.set_client(record.client_id, Client(record.number, record.results, state.now_ms))


def remove_client(state: State, record: ClientRemoved, segments: Segments) -> None:
    state.remove_client(record.client_id)


DECIDE: Rules = {Unreadable: decide_unreadable}
EVOLVE: Folds = {Answered: keep_answer, ClientRemoved: remove_client}
TIMERS: Timers = (Timer(lambda state: list(state.clients), _is_silent, decide_expiry, is_expiry=True),)
