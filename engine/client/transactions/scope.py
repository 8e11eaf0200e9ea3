"""Transactions of this process, and the ids that it holds.

`with mq.transaction("etl") as txn`: publishes and offsets that become visible together, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from ...namespace.clock import Clock
from ...namespace.process import OwnLock, ProcessBound, end_block
from ...protocol.errors import IllegalState, InvalidConfig, LakeMQError
from ...protocol.values.producers import TransactionRef
from ..arguments import parse_whole_number
from ..requests.requester import Requester
from .manager import Offsets, TransactionManager

P = TypeVar("P")


class Consumed(Protocol):
    """A polled batch, with the offsets at which its group goes on after processing it."""

    @property
    def group(self) -> str: ...

    @property
    def offsets(self) -> Mapping[tuple[str, int], int]: ...


class TransactionScope(ProcessBound, Generic[P]):
    """A transaction as a context manager. Leaving the block commits it; an exception aborts it and propagates.

    Other threads may use it inside the block. Leaving the block waits for their publishes; later ones are refused.

    Attributes:
        replayed: the micro-batch was committed before. Publishes and offsets are skipped, so nothing happens twice.
    """

    def __init__(
        self,
        manager: TransactionManager,
        publish: Callable[[str, Any, TransactionRef, Mapping[str, Any]], P],
        empty_result: P,
        batch_id: int | None = None,
    ) -> None:
        """Create the scope.

        Args:
            publish: takes the topic, the data, the transaction and the columns as in `mq.publish`.
            empty_result: the result of `publish` in a replayed micro-batch.
        """
        self._manager, self._publish, self._nothing, self._batch_id = manager, publish, empty_result, batch_id
        self._ref: TransactionRef | None = None
        self.replayed = batch_id is not None and batch_id <= manager.last_batch_id

    def publish(self, topic: str, data: Any, **columns: Any) -> P:
        """Publish a DataFrame or Arrow table in the transaction: all rows or none. Arguments as in `mq.publish`.

        Raises:
            ProducerFenced: another process has taken the id.
            TransactionAbortable: a part has failed before.
            Errors of `mq.publish`. After these the transaction can only be aborted.
        """
        if self.replayed:
            return self._nothing
        with self._manager.add_part(self._require_ref()) as ref:
            return self._publish(topic, data, ref, columns)

    def send_offsets(self, consumed: Consumed | Offsets, group: str | None = None, metadata: str | None = None) -> None:
        """Commit offsets with the transaction. They are sent now, and pending until it ends.

        An error of this call makes the transaction abort-only, so that it cannot commit without them.

        Args:
            consumed: a polled batch, or (topic, partition) -> next offset together with a group.
            group: the consumer group; by default that of the batch.
            metadata: text that is stored with the offsets.
        """
        offsets: Any = getattr(consumed, "offsets", consumed)
        named = group if group is not None else getattr(consumed, "group", None)
        if not self.replayed:
            self._manager.add_offsets(named, offsets, metadata, self._require_ref())

    def __enter__(self) -> TransactionScope:
        if not self.replayed:
            self._ref = self._manager.begin()
        return self

    def _require_ref(self) -> TransactionRef:
        if self._ref is None:
            raise IllegalState("The transaction was not begun.", expected="with mq.transaction(...) as txn")
        return self._ref

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.replayed:
            return
        if error is None:
            try:
                self._manager.commit(self._batch_id, self._ref)
                return
            except BaseException as failure:
                end_block(type(failure), self._abort_quietly)
                raise
        end_block(kind, self._abort_quietly)

    def _abort_quietly(self) -> None:
        """Abort, but let the first error win. If the abort fails too, the transaction ends by its timeout."""
        try:
            if self._manager.is_open:
                self._manager.abort(self._ref)
        except LakeMQError:
            with suppress(IllegalState):  # a forked process does not hold the id
                self._manager.release_id()


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
            if manager.ref is None:
                manager.initialize()
            return manager


def parse_timeout_ms(transaction_timeout_ms: object) -> int:
    """Return the timeout of a transaction. Raises InvalidConfig."""
    return parse_whole_number("transaction_timeout_ms", transaction_timeout_ms, error=InvalidConfig)
