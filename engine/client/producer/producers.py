"""Create the producers of one connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...namespace.processes.clock import Clock
from ..arguments import parse_text
from ..publish.arrow import ArrowPublisher
from ..requests.requester import Requester
from ..transactions.ids import TransactionalIds, parse_timeout_ms
from .open_producers import OpenProducers
from .options import parse_producer_options
from .producer import Producer
from .record_producer import RecordProducer
from .transactional import TransactionalProducer


class ProducerFactory:
    """Checks the arguments of `mq.producer`, and creates the producer. Thread-safe."""

    def __init__(
        self,
        requester: Requester,
        clock: Clock,
        arrow_publisher: Callable[[], ArrowPublisher],
        ids: TransactionalIds,
        open_producers: OpenProducers,
    ) -> None:
        """arrow_publisher: returns a new publisher; open_producers: from which closed producers are removed."""
        self._requester, self._clock, self._arrow_publisher = requester, clock, arrow_publisher
        self._ids, self._open_producers = ids, open_producers

    def create(self, transactional_id: Any, timeout_ms: Any, options: Mapping[str, Any]) -> RecordProducer:
        """Return a producer, which the caller registers. Raises what `mq.producer` raises."""
        chosen = parse_producer_options(options, transactional_id is not None)
        publisher, closed = self._arrow_publisher(), self._open_producers.discard
        if transactional_id is None:
            return Producer(publisher, self._requester, self._clock, chosen, closed)
        transactional_id = parse_text("transactional_id", transactional_id)
        manager = self._ids.acquire_new(transactional_id, parse_timeout_ms(timeout_ms))
        return TransactionalProducer(publisher, self._clock, chosen, manager, closed)
