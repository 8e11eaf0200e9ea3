"""Patience: how long the leader has itself seen each transaction open. No clock of another process counts.

A change of leader gives every open transaction at most one timeout more; none is ever ended early.
"""

from __future__ import annotations

from .state import State

_Key = tuple[str, int, int]


class Patience:
    """Of one term of leadership."""

    def __init__(self) -> None:
        self._since_ms: dict[_Key, int] = {}
        """(transactional id, producer id, epoch), which names one transaction -> when it was first seen open."""

    def look(self, state: State, steady_ms: int) -> None:
        """What is open now is seen open. steady_ms: the leader's clock that only goes forward."""
        keys = [_key(state, name) for name in state.ongoing]
        self._since_ms = {key: self._since_ms.get(key, steady_ms) for key in keys}

    def overdue(self, state: State, steady_ms: int) -> list[str]:
        """Transactional ids whose transaction was seen open for longer than its timeout, by name."""
        return sorted(
            name
            for name in state.ongoing
            if steady_ms - self._since_ms.get(_key(state, name), steady_ms) > state.transactions[name].timeout_ms
        )


def _key(state: State, name: str) -> _Key:
    transaction = state.transactions[name]
    return name, transaction.producer_id, transaction.producer_epoch
