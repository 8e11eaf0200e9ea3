"""`with mq.transaction("etl") as txn`: publishes and offsets that are seen together, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol

from ..protocol.errors import InvalidRequest, LakeMQError
from ..protocol.requests import Published, TransactionRef
from .manager import Offsets, TransactionManager


class Consumed(Protocol):
    """What a consumer polled: where its group goes on when it has been dealt with."""

    @property
    def group(self) -> str: ...

    @property
    def offsets(self) -> Mapping[tuple[str, int], int]: ...


class Transaction:
    """One transaction. Leaving the block commits it, an exception aborts it and goes on.

    replayed: its micro-batch was committed before: publishes and offsets are passed over, nothing happens twice.
    """

    def __init__(
        self,
        manager: TransactionManager,
        publish: Callable[[str, Any, TransactionRef, Mapping[str, Any]], Published],
        batch_id: int | None = None,
    ) -> None:
        """publish: topic, data, under which transaction, and the columns as in `mq.publish`."""
        self._manager, self._publish, self._batch_id = manager, publish, batch_id
        self.replayed = batch_id is not None and batch_id <= manager.last_batch_id

    def publish(self, topic: str, data: Any, **columns: Any) -> Published:
        """Publish a DataFrame or Arrow table as a part of the transaction; as `mq.publish`, and all rows or none.

        Raises what refuses it; the transaction can only be aborted then. ProducerFenced, TransactionAbortable.
        """
        if self.replayed:
            return Published([], duplicate=True)
        ref: TransactionRef = self._manager.ref()
        try:
            published = self._publish(topic, data, ref, columns)
        except BaseException as error:
            self._manager.refused(error)
            raise
        self._manager.accepted()
        return published

    def send_offsets(self, consumed: Consumed | Offsets, group: str | None = None, metadata: str | None = None) -> None:
        """What a consumer polled, or (topic, partition) -> next offset with a group: committed with the transaction."""
        offsets = consumed if isinstance(consumed, Mapping) else consumed.offsets
        named = group if isinstance(consumed, Mapping) else group or consumed.group
        if named is None:
            raise InvalidRequest("Offsets without a group.", expected="group=...")
        if not self.replayed:
            self._manager.add_offsets(named, offsets, metadata)

    def __enter__(self) -> Transaction:
        if not self.replayed:
            self._manager.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.replayed:
            return
        if error is None:
            try:
                self._manager.commit(batch_id=self._batch_id)
                return
            except BaseException:
                self._abort_quietly()
                raise
        self._abort_quietly()

    def _abort_quietly(self) -> None:
        """What went wrong matters more than what the abort says; a transaction nobody ends times out."""
        try:
            if self._manager.is_open:
                self._manager.abort()
        except LakeMQError:
            self._manager.let_go()
