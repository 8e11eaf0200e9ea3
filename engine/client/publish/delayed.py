"""Delayed messages: one is scheduled, what waits is told, and what shall not come is cancelled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from ...namespace.clock import Clock
from ...namespace.namespace import Namespace
from ...protocol.errors import InvalidRequest
from ...protocol.values.delays import CancelOutcome, DelaysJudged, RescheduleDelays
from ...protocol.values.state import State
from ..arguments import flag, text, texts, topic_name
from ..requester import Requester
from .arrow import ArrowPublisher
from .cancelling import Cancelling, Look
from .delaying import EXACT, DelayRule
from .publication import Publication
from .receipts import Place, columns_of, places_of, receipt_of
from .record import Records, checked_bytes, checked_delay, checked_destination, checked_extras
from .releases import Releases
from .request import checked_due
from .routing import delay_rule_of

_SERIOUS = (
    CancelOutcome.RELEASED,
    CancelOutcome.RESCHEDULED,
    CancelOutcome.NOT_FOUND,
    CancelOutcome.CANCELLED,
    CancelOutcome.WAITING,
)
"""Of a message in several topics the outcome is the first of these that there is."""


def _worst(outcomes: Collection[CancelOutcome]) -> CancelOutcome:
    return next(one for one in _SERIOUS if one in outcomes)


def _column(receipts: Any) -> Any:
    """Of a table its column of receipts; of what is of Arrow the values."""
    if isinstance(receipts, pa.Table) and "receipt" in receipts.column_names:
        receipts = receipts.column("receipt")
    return receipts.to_pylist() if isinstance(receipts, pa.Array | pa.ChunkedArray) else receipts


def _rule(state: State, topic_id: int) -> DelayRule:
    """Of a topic that is gone any: nothing waits for it."""
    topic = state.topics.get(topic_id)
    return EXACT if topic is None else delay_rule_of(topic)


@dataclass(frozen=True)
class Rescheduled:
    """outcome: `rescheduled`, or why not, as `cancel` tells it. receipt, deliver_at_ms: by which it is known from now
    on, and when it comes (of one in several topics, in the first); None: nothing has changed.
    """

    outcome: str
    receipt: str | None = None
    deliver_at_ms: int | None = None


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
        look: Look,
        follow: Callable[[], Callable[[], State]],
        namespace: Namespace,
        clock: Clock,
    ) -> None:
        """state: as of the newest step, with all that waits; follow: one that is as quick again and again."""
        self._publisher, self._requester, self._state, self._clock = publisher, requester, state, clock
        self._look, self._follow, self._namespace = look, follow, namespace
        self._cancelling = Cancelling(namespace, requester, look, clock)

    def schedule(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Any = None,
        *,
        deliver_at: datetime | int | None = None,
        delay_ms: int | None = None,
        ttl_ms: int | None = None,
    ) -> str:
        """Publish one message that comes at a time, or after a delay; returns its receipt.

        ttl_ms: how long it is to be delivered, from then on.
        Raises InvalidTopic, InvalidRecord, InvalidTimestamp, DelayTooLong, DelayQueueFull, UnknownTopicOrPartition,
        RequestTimedOut: it may have been scheduled.
        """
        if deliver_at is None and delay_ms is None:
            raise InvalidRequest("A delayed message has a time of delivery, or a delay.", found="neither")
        destination, records = checked_destination(topic), Records()
        extras, size = checked_extras(headers, None, None, deliver_at, delay_ms, ttl_ms)
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
        """What became of the message: `cancelled`, it will not come; `released`, it is in the log; `rescheduled`, it is
        known by another receipt since; `not_found`, it never waited, does not yet, or that was longer ago than
        delay.history.ms.

        Of one in several topics: `cancelled` only if it is so in all of them. Raises InvalidReceipt, RequestTimedOut.
        """
        return self.cancel_all([text("receipt", receipt)])[0]

    def cancel_all(self, receipts: Sequence[str] | pa.Array | pa.ChunkedArray | pa.Table) -> list[str]:
        """The same for many: texts, a column of such, or a table as `receipts` of a publish gives it."""
        places = places_of(texts("receipts", _column(receipts)), self._requester.namespace_id)
        outcomes = iter(self._cancelling.cancel([place for mine in places for place in mine]))
        return [_worst([next(outcomes) for _ in mine]).value for mine in places]

    def cancel_where(
        self,
        topic: str | None = None,
        key: bytes | str | None = None,
        predicate: str | None = None,
        *,
        dry_run: bool = False,
    ) -> pa.Table:
        """Cancel what waits and is all of this: of the topic, with the key, and the predicate holds for it.

        predicate: SQL, as DuckDB has it, over the columns of the view `pending_delayed_rows` but the last. What is
        published while this runs stays. dry_run: tell of those that it would be, which are `waiting`. Returns topic,
        partition, key, deliver_at, receipt, outcome (as `cancel` tells it) of each, one row per topic that a message
        comes to; of messages in a data file that cannot be read, which a topic alone finds too, key and deliver_at are
        null. Raises InvalidRequest, InvalidTopic, UnknownTopicOrPartition, FileTruncated, RequestTimedOut.
        """
        if topic is None and key is None and predicate is None:
            raise InvalidRequest("Say what is to be cancelled.", expected="a topic, a key or a predicate")
        if topic is not None:
            topic = topic_name("topic", topic)
            self._look(lambda state: state.topic(topic))
        predicate = None if predicate is None else text("predicate", predicate)
        return self._cancelling.cancel_where(topic, checked_bytes("key", key), predicate, flag("dry_run", dry_run))

    def reschedule(
        self, receipt: str, *, deliver_at: datetime | int | None = None, delay_ms: int | None = None
    ) -> Rescheduled:
        """Let a message that waits come at another time, or so long after this call; not before now.

        If it does not wait, or not in all of its topics, nothing changes, and what became of it is told as by `cancel`.
        Raises InvalidReceipt, InvalidTimestamp, DelayTooLong, RequestTimedOut: it may have been rescheduled.
        """
        (places,) = places_of([text("receipt", receipt)], self._requester.namespace_id)
        due_ms = self._due_ms(places, deliver_at, delay_ms)
        judged = self._requester.ask(RescheduleDelays(*columns_of(places), due_ms))
        assert isinstance(judged, DelaysJudged)
        if not judged.due_ms:
            return Rescheduled(_worst(self._cancelling.definite(places, judged.outcomes)).value)
        moved = [
            Place(place.topic_id, place.file_id, place.first_row + place.row, 0, reschedules)
            for place, reschedules in zip(places, judged.reschedules, strict=True)
        ]
        receipt = receipt_of(self._requester.namespace_id, moved)
        return Rescheduled(CancelOutcome.RESCHEDULED.value, receipt, judged.due_ms[0])

    def _due_ms(self, places: Sequence[Place], deliver_at: object, delay_ms: object) -> list[int]:
        """As each topic rounds it. Raises InvalidRequest, InvalidRecord, InvalidTimestamp, DelayTooLong."""
        if deliver_at is None and delay_ms is None:
            raise InvalidRequest("A message is rescheduled to a time, or by a delay.", found="neither")
        at_us, delay = checked_delay(deliver_at, delay_ms)
        now_us = self._clock.now_ms() * 1000
        due_us = now_us + 1000 * (delay or 0) if at_us is None else at_us
        rules: list[DelayRule] = self._look(lambda state: [_rule(state, place.topic_id) for place in places])
        return [checked_due(rule, now_us, due_us) for rule in rules]

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

    def releases(self) -> Releases:
        """What is released from now on, and what is left to be."""
        return Releases(self._namespace, self._follow())

    def pointer_ms(self) -> int:
        """All that was due up to this time is released; 0 before the first release."""
        return self._state().delays.pointer_ms
