"""Delayed messages: one is scheduled, what waits is told, and what shall not come is cancelled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...namespace.clock import Clock
from ...protocol.errors import InvalidRequest
from ...protocol.values.delays import CancelOutcome, DelaysJudged
from ...protocol.values.state import State
from ..arguments import text, texts, topic_name
from ..requester import Requester
from .arrow import ArrowPublisher
from .publication import Publication
from .receipts import cancel_request
from .record import Records, checked_bytes, checked_destination, checked_extras

_SERIOUS = (CancelOutcome.RELEASED, CancelOutcome.NOT_FOUND)
"""Of a message in several topics the outcome is the first of these that there is."""


@dataclass(frozen=True)
class DelayedInfo:
    """Messages of a topic that wait. open: those of them whose transaction has not ended."""

    topic: str
    messages: int
    open: int
    ranges: int
    first_due_ms: int
    last_due_ms: int


class DelayedMessages:
    """What waits. Text that `schedule` and `send` give, the receipt, names one message for as long as it waits."""

    def __init__(
        self,
        publisher: Callable[[], ArrowPublisher],
        requester: Requester,
        state: Callable[[], State],
        clock: Clock,
    ) -> None:
        """state: as of the newest step, with all that waits."""
        self._publisher, self._requester, self._state, self._clock = publisher, requester, state, clock

    def schedule(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Any = None,
        *,
        deliver_at: datetime | int | None = None,
        delay_ms: int | None = None,
    ) -> str:
        """Publish one message that comes at a time, or after a delay; returns its receipt.

        Raises InvalidTopic, InvalidRecord, InvalidTimestamp, DelayTooLong, DelayQueueFull, UnknownTopicOrPartition,
        RequestTimedOut: it may have been scheduled.
        """
        if deliver_at is None and delay_ms is None:
            raise InvalidRequest("A delayed message has a time of delivery, or a delay.", found="neither")
        destination, records = checked_destination(topic), Records()
        extras, size = checked_extras(headers, None, None, deliver_at, delay_ms)
        records.add(checked_bytes("key", key), checked_bytes("value", value), extras)
        body, asked = records.body(destination, size, self._clock.now_ms())
        publisher = self._publisher()
        prepared, published = publisher.send(Publication(destination, "fail"), body, asked)
        receipts = publisher.receipts(prepared, published)
        assert receipts is not None
        receipt = receipts.of(0)
        assert receipt is not None
        return receipt

    def cancel(self, receipt: str) -> str:
        """What became of the message: `cancelled`, it will not come; `released`, it is in the log; `not_found`, it does
        not wait (any more), as when it was released or cancelled before.

        Of one in several topics: `cancelled` only if it is so in all of them. Raises InvalidReceipt, RequestTimedOut.
        """
        return self.cancel_all([text("receipt", receipt)])[0]

    def cancel_all(self, receipts: Sequence[str]) -> list[str]:
        """The same for many, in one request."""
        listed = texts("receipts", receipts)
        if not listed:
            return []
        request, counts = cancel_request(listed, self._requester.namespace_id)
        judged = self._requester.ask(request)
        assert isinstance(judged, DelaysJudged)
        outcomes, told = iter(judged.outcomes), []
        for count in counts:
            mine = [next(outcomes) for _ in range(count)]
            told.append(next((one for one in _SERIOUS if one in mine), CancelOutcome.CANCELLED).value)
        return told

    def all(self, topic: str | None = None) -> list[DelayedInfo]:
        """Per topic, by name, what waits; of this topic alone, if it is named."""
        wanted = None if topic is None else self._state().topic(topic_name("topic", topic)).topic
        found: dict[str, list[Any]] = {}
        for one in self._state().delays.ranges.values():
            if wanted in (None, one.told.topic):
                found.setdefault(one.told.topic, []).append(one)
        return [
            DelayedInfo(
                name,
                sum(one.left_count for one in ranges),
                sum(one.left_count for one in ranges if one.is_open),
                len(ranges),
                min(one.told.first_due_ms for one in ranges),
                max(one.told.last_due_ms for one in ranges),
            )
            for name, ranges in sorted(found.items())
        ]

    def pointer_ms(self) -> int:
        """All that was due up to this time is released; 0 before the first release."""
        return self._state().delays.pointer_ms
