"""The transactional ids that this process holds by `mq.transaction`: one manager per id, for all callers."""

from __future__ import annotations

from ...namespace.processes.clock import Clock
from ...namespace.processes.process import OwnLock
from ...protocol.errors import InvalidConfig
from ..arguments import parse_whole_number
from ..requests.requester import Requester
from .manager import TransactionManager

TRANSACTION_TIMEOUT_MS = 60_000
"""The default of transaction.timeout.ms."""


class TransactionalIds:
    """Thread-safe. Arguments are already checked."""

    def __init__(self, requester: Requester, clock: Clock, answer_timeout_ms: int) -> None:
        """answer_timeout_ms: as of `TransactionManager`."""
        self._requester, self._clock, self._answer_timeout_ms = requester, clock, answer_timeout_ms
        self._managers: dict[str, TransactionManager] = {}
        self._taking: dict[str, OwnLock] = {}

    def acquire_new(self, transactional_id: str, timeout_ms: int) -> TransactionManager:
        """Return a new manager. The holder of the id before is fenced."""
        manager = TransactionManager(
            self._requester, self._clock, transactional_id, timeout_ms, self._answer_timeout_ms
        )
        manager.initialize()
        return manager

    def acquire(self, transactional_id: str, timeout_ms: int | None) -> TransactionManager:
        """Return the manager that this process has for the id, else a new one.

        Args:
            timeout_ms: None: as it was acquired.

        Raises:
            InvalidConfig: the id was acquired with another timeout.
        """
        # two threads that acquire one id at the same time would fence each other. Other ids need not wait for them
        with self._taking.setdefault(transactional_id, OwnLock("This connection")).own:
            manager = self._managers.get(transactional_id)
            if manager is None:
                asked_ms = TRANSACTION_TIMEOUT_MS if timeout_ms is None else timeout_ms
                manager = self._managers[transactional_id] = self.acquire_new(transactional_id, asked_ms)
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


def parse_timeout_ms(transaction_timeout_ms: object) -> int:
    """Return the timeout of a transaction. Raises InvalidConfig."""
    return parse_whole_number("transaction_timeout_ms", transaction_timeout_ms, error=InvalidConfig)
