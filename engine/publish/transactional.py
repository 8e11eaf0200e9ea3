"""The transactional producer: what it sends is seen with its commit, together with the offsets it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ..clock import Clock
from ..protocol.producers import next_sequence
from ..protocol.requests import TransactionRef
from ..requester import Requester
from ..transactions.manager import TransactionManager
from .arrow import ArrowPublisher, Prepared
from .compose import Sequences, body_of
from .producer import Producer, table_of


class TransactionalProducer(Producer):
    """A producer that sends inside transactions only; the calls are those of confluent-kafka's.

    Opened, it has the transactional id: whoever had it before is fenced, and what that one left open is aborted.
    """

    def __init__(
        self,
        publisher: ArrowPublisher,
        requester: Requester,
        clock: Clock,
        transactions: TransactionManager,
        **options: Any,
    ) -> None:
        """options: those of Producer, but a row that is refused refuses all of its send."""
        self._transactions = transactions
        super().__init__(publisher, requester, clock, **options, on_error="fail")

    def begin_transaction(self) -> None:
        """All that is sent from here on is seen with the commit, or never. Raises IllegalState, ProducerFenced."""
        ref = self._transactions.begin()
        with self._lock:
            self._error = None
            # they begin anew with every epoch
            self._sequences = Sequences(ref.producer_id, ref.producer_epoch, next_sequence)

    def send_offsets_to_transaction(
        self, offsets: Mapping[tuple[str, int], int], group: str, metadata: str | None = None
    ) -> None:
        """(topic, partition) -> next offset to consume, committed for the group together with the transaction."""
        self._transactions.add_offsets(group, offsets, metadata)

    def commit_transaction(self) -> None:
        """All of the transaction, now; what was not sent yet travels with the commit.

        Raises TransactionAbortable: abort it, and begin again; ProducerFenced: another process has the transactional
        id; IllegalState; RequestTimedOut: the outcome is unknown, commit again.
        """
        ref, tables = self._transactions.ref(), self._take_unsent()
        while True:
            try:
                parts = self._prepared(tables, ref)
            except BaseException as error:
                self._transactions.refused(error)
                raise
            stale = self._transactions.commit([(part.request, part.rows) for part in parts])
            if not stale:
                break
            self._publisher.forget_routes()
            tables = {topic: table for i, (topic, table) in enumerate(tables.items()) if i in stale}
        with self._lock:
            self._done.clear()

    def abort_transaction(self) -> None:
        """Nothing of the transaction will be seen. Raises ProducerFenced, IllegalState, RequestTimedOut."""
        with self._lock:
            self._queue.clear()
            self._queued_bytes = 0
            while self._sending_bytes:
                self._lock.wait()
            self._error = None
            self._done.clear()
        self._transactions.abort()

    def close(self) -> None:
        """End; a transaction that is open is aborted."""
        if not self._closed and self._transactions.is_open:
            self.abort_transaction()
        super().close()

    # -- sending ----------------------------------------------------------------------------------------

    def _reserve(self, size: int) -> None:
        self._transactions.ref()  # refuses what is sent outside a transaction
        super()._reserve(size)

    def _publish(self, topic: str, table: pa.Table) -> None:
        body, asked = body_of(table, topic, self._clock.now_ms())
        result = self._publisher.publish(
            topic,
            body,
            asked,
            "fail",
            self._sequences,
            timeout_ms=self._delivery_timeout_ms,
            transaction=self._transactions.ref(),
        )
        self._transactions.accepted()
        with self._lock:
            self._done.append(result)

    def _sending_failed(self, error: BaseException) -> None:
        self._transactions.refused(error)

    def _take_unsent(self) -> dict[str, pa.Table]:
        """Per topic what may travel with the commit; what may not is sent. Raises what the sending failed with."""
        with self._lock:
            unsent = not self._sending_bytes and all(len(given) == 1 for given in self._queue.values())
            queue = self._queue if unsent else {}
            if unsent:
                self._queue, self._queued_bytes = {}, 0
        self.flush()
        return {topic: table_of(given[0]) for topic, given in queue.items()}

    def _prepared(self, tables: Mapping[str, pa.Table], ref: TransactionRef) -> list[Prepared]:
        """The publishes of these tables; sent one after the other where two of them reach the same topic."""
        assert self._sequences is not None
        parts = []
        for topic, table in tables.items():
            body, asked = body_of(table, topic, self._clock.now_ms())
            parts.append(self._publisher.prepare(topic, body, asked, self._sequences, ref))
        reached = [topic.topic_id for part in parts for topic in part.route.topics]
        if len(set(reached)) == len(reached):
            return parts
        for topic, table in tables.items():
            self._publish(topic, table)
        return []
