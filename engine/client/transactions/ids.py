"""The transactional ids that a process holds by `mq.transaction`: one manager each, whoever asks for it."""

from __future__ import annotations

from ...namespace.clock import Clock
from ...namespace.process import OwnLock
from ...protocol.errors import InvalidConfig
from ..requester import Requester
from .manager import TransactionManager

TRANSACTION_TIMEOUT_MS = 60_000
"""transaction.timeout.ms where nothing else is said."""


class TransactionalIds:
    """Thread-safe. Arguments are those that were checked."""

    def __init__(self, requester: Requester, clock: Clock, answer_timeout_ms: int) -> None:
        self._requester, self._clock, self._answer_timeout_ms = requester, clock, answer_timeout_ms
        self._managers: dict[str, TransactionManager] = {}
        self._taking: dict[str, OwnLock] = {}

    def taken_anew(self, transactional_id: str, timeout_ms: int) -> TransactionManager:
        """A manager of its own; whoever had the id is fenced."""
        manager = TransactionManager(
            self._requester, self._clock, transactional_id, timeout_ms, self._answer_timeout_ms
        )
        manager.initialize()
        return manager

    def taken(self, transactional_id: str, timeout_ms: int | None) -> TransactionManager:
        """The one that this process has, else a new one.

        timeout_ms: None is whichever it has. Raises InvalidConfig for another than it was taken with.
        """
        # two threads that take an id at the same time would fence each other; other ids do not wait for them
        with self._taking.setdefault(transactional_id, OwnLock("This connection")).own:
            manager = self._managers.get(transactional_id)
            if manager is None:
                asked_ms = TRANSACTION_TIMEOUT_MS if timeout_ms is None else timeout_ms
                manager = self._managers[transactional_id] = self.taken_anew(transactional_id, asked_ms)
                return manager
            if timeout_ms is not None and timeout_ms != manager.timeout_ms:
                raise InvalidConfig(
                    f"{transactional_id} has another transaction_timeout_ms already.",
                    found=timeout_ms,
                    expected=f"{manager.timeout_ms}, or none",
                )
            if not manager.is_initialized:
                manager.initialize()
            return manager
