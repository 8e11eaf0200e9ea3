"""The transactional producer: what it sends is seen with its commit, together with the offsets it was made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from ..clock import Clock
from ..protocol.errors import IllegalState, LakeMQError
from ..protocol.producers import next_sequence
from ..protocol.requests import TransactionRef
from ..requester import Requester
from ..transactions.manager import TransactionManager
from .arrow import ArrowPublisher, Prepared
from .compose import Sequences, body_of
from .producer import Producer, table_of

Travelling = tuple[str, pa.Table, Prepared]
"""Destination and rows of a publish that travels with a commit, and its request."""


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
        self._travelling: list[Travelling] | None = None
        super().__init__(publisher, requester, clock, **options, on_error="fail")

    def begin_transaction(self) -> None:
        """All that is sent from here on is seen with the commit, or never. Raises IllegalState, ProducerFenced."""
        ref = self._transactions.begin()
        with self._lock:
            self._error, self._travelling = None, None
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
        ref = self._transactions.ref()
        if self._travelling is None:  # else an earlier call was not answered: the very same is sent again
            self._travelling = self._refusing(lambda: self._prepared(self._take_unsent(), ref))
        while True:
            parts = self._travelling
            stale = self._transactions.commit([(part.request, part.rows) for _, _, part in parts])
            if not stale:
                break
            self._publisher.forget_routes()
            self._travelling = self._refusing(lambda: self._remade(parts, stale, ref))  # noqa: B023
        self._travelling = None
        with self._lock:
            self._done.clear()

    def abort_transaction(self) -> None:
        """Nothing of the transaction will be seen.

        Raises ProducerFenced, IllegalState, RequestTimedOut; InvalidTxnState: a commit that was not answered has
        committed it.
        """
        with self._lock:
            self._queue.clear()
            self._queued_bytes = 0
            while self._sending_bytes:
                self._lock.wait()
            self._error = None
            self._done.clear()
        self._transactions.abort()
        self._travelling = None

    def close(self) -> None:
        """End; a transaction that is open is aborted, if not by us then by who comes next, or by its timeout."""
        try:
            if not self._closed and self._transactions.is_open:
                with suppress(LakeMQError):
                    self.abort_transaction()
        finally:
            super().close()

    # -- sending ----------------------------------------------------------------------------------------

    def _reserve(self, size: int) -> None:
        self._transactions.ref()  # refuses what is sent outside a transaction
        if self._travelling is not None:
            raise IllegalState("A commit was not answered.", expected="commit again, or abort")
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
        tables = {topic: table_of(given[0]) for topic, given in queue.items()}
        return {topic: table for topic, table in tables.items() if table.num_rows}

    def _refusing(self, prepare: Callable[[], list[Travelling]]) -> list[Travelling]:
        """What does not get as far as the commit leaves a transaction that can only be aborted."""
        try:
            return prepare()
        except BaseException as error:
            self._transactions.refused(error)
            if isinstance(error, Exception):
                self._transactions.ref()  # says so
            raise

    def _prepared(self, tables: Mapping[str, pa.Table], ref: TransactionRef) -> list[Travelling]:
        """The publishes of these tables; sent one after the other where two of them reach the same topic."""
        assert self._sequences is not None
        parts = []
        for topic, table in tables.items():
            body, asked = body_of(table, topic, self._clock.now_ms())
            parts.append((topic, table, self._publisher.prepare(topic, body, asked, self._sequences, ref)))
        reached = [topic.topic_id for _, _, part in parts for topic in part.route.topics]
        if len(set(reached)) == len(reached):
            return parts
        for topic, table in tables.items():
            self._publish(topic, table)
        return []

    def _remade(self, parts: list[Travelling], stale: list[int], ref: TransactionRef) -> list[Travelling]:
        """Those that were refused because their topics have changed; the others have been accepted."""
        assert self._sequences is not None
        for i, (_, _, part) in enumerate(parts):
            if i not in stale:
                self._sequences.advance(part.route, part.request.ranges)
        return self._prepared({topic: table for i, (topic, table, _) in enumerate(parts) if i in stale}, ref)
