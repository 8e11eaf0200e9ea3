"""`with mq.transaction("etl") as txn`: publishes and offsets that are seen together, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from ...protocol.errors import IllegalState, InvalidRequest, LakeMQError
from ...protocol.values.producers import TransactionRef
from .manager import Offsets, TransactionManager

P = TypeVar("P")


class Consumed(Protocol):
    """What a consumer polled: where its group goes on when it has been dealt with."""

    @property
    def group(self) -> str: ...

    @property
    def offsets(self) -> Mapping[tuple[str, int], int]: ...


class TransactionScope(Generic[P]):
    """One transaction. Leaving the block commits it, an exception aborts it and goes on.

    Thread-safe inside the block: leaving it waits for what other threads are publishing; what comes later is refused.
    replayed: its micro-batch was committed before: publishes and offsets are passed over, nothing happens twice.
    """

    def __init__(
        self,
        manager: TransactionManager,
        publish: Callable[[str, Any, TransactionRef, Mapping[str, Any]], P],
        nothing: P,
        batch_id: int | None = None,
    ) -> None:
        """publish: topic, data, under which transaction, and the columns as in `mq.publish`; nothing: its result where
        nothing is to be published again.
        """
        self._manager, self._publish, self._nothing, self._batch_id = manager, publish, nothing, batch_id
        self._ref: TransactionRef | None = None
        self.replayed = batch_id is not None and batch_id <= manager.last_batch_id

    def publish(self, topic: str, data: Any, **columns: Any) -> P:
        """Publish a DataFrame or Arrow table as a part of the transaction; as `mq.publish`, and all rows or none.

        Raises what refuses it; the transaction can only be aborted then. ProducerFenced, TransactionAbortable.
        """
        if self.replayed:
            return self._nothing
        with self._manager.part(self._entered()) as ref:
            return self._publish(topic, data, ref, columns)

    def send_offsets(self, consumed: Consumed | Offsets, group: str | None = None, metadata: str | None = None) -> None:
        """What a consumer polled, or (topic, partition) -> next offset with a group: committed with the transaction."""
        offsets: Any = getattr(consumed, "offsets", consumed)
        named = group if group is not None else getattr(consumed, "group", None)
        if named is None:
            raise InvalidRequest("Offsets without a group.", expected="group=...")
        if not self.replayed:
            self._manager.add_offsets(named, offsets, metadata, self._entered())

    def __enter__(self) -> TransactionScope:
        if not self.replayed:
            self._ref = self._manager.begin()
        return self

    def _entered(self) -> TransactionRef:
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
            except BaseException:
                self._abort_quietly()
                raise
        self._abort_quietly()

    def _abort_quietly(self) -> None:
        """What went wrong matters more than what the abort says; a transaction nobody ends times out."""
        try:
            if self._manager.is_open:
                self._manager.abort(self._ref)
        except LakeMQError:
            with suppress(IllegalState):  # a forked process lets nothing go
                self._manager.let_go()
