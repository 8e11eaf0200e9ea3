"""The API for delayed messages: `mq.delayed`."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..namespace.clock import Clock
from ..namespace.load import read_watermark
from ..namespace.namespace import Namespace
from ..namespace.process import ProcessBound
from ..namespace.step_reader import find_projection_target
from ..namespace.store_errors import report_damage, store_errors
from ..protocol.errors import InvalidRequest, InvalidTimestamp, Refusal, RequestTimedOut, error_from_refusal
from ..protocol.values.delays import CancelDelays, CancelOutcome, DelaysJudged, RescheduleDelays, WaitingRange
from ..protocol.values.state import State
from .arguments import parse_flag, parse_text, parse_texts, parse_topic_name
from .delayed_rows import PLACE, SHOWN, Releases, read_ended_ranges, read_pending_rows
from .predicate import Predicate
from .publish.arrow import ArrowPublisher
from .requests.requester import Requester
from .rows.delay_rule import EXACT, DelayRule, RequestedDelays
from .rows.few_rows import Records
from .rows.placing import REJECTIONS, reject_bad_delays
from .rows.publication import Publication
from .rows.receipts import MessagePlace, format_receipt, parse_receipts, place_columns
from .rows.record import parse_bytes, parse_delay, parse_destination, parse_extras
from .rows.routing import build_delay_rule
from .topics import QueryNewestState
from .tracing import add_trace_to_record, open_span

MOST_ROWS = 100_000
"""Most rows of one request: the step that decides it takes about half a second."""

_POLL_MS = 20

_SERIOUS = (
    CancelOutcome.RELEASED,
    CancelOutcome.RESCHEDULED,
    CancelOutcome.NOT_FOUND,
    CancelOutcome.CANCELLED,
    CancelOutcome.WAITING,
)
"""Order of outcomes: a message in several topics has the first of these that occurs."""


def _combine_outcomes(outcomes: Collection[CancelOutcome]) -> CancelOutcome:
    return next(outcome for outcome in _SERIOUS if outcome in outcomes)


def _filter_rows(rows: pa.Table, key: bytes | None, predicate: Predicate | None) -> pa.Table:
    if key is not None:
        rows = rows.filter(pc.equal(rows.column("key"), pa.scalar(key, pa.binary())))
    return rows if predicate is None or not rows.num_rows else predicate.select_rows(rows)


def _receipt_list(receipts: Any) -> Any:
    """Return the receipts of a table or an Arrow column as a list; anything else as it is."""
    if isinstance(receipts, pa.Table) and "receipt" in receipts.column_names:
        receipts = receipts.column("receipt")
    return receipts.to_pylist() if isinstance(receipts, pa.Array | pa.ChunkedArray) else receipts


def _find_delay_rule(state: State, topic_id: int) -> DelayRule:
    """Return the delay rule of a topic. For a deleted topic any rule does: nothing waits for it."""
    topic = state.topics.get(topic_id)
    return EXACT if topic is None else build_delay_rule(topic)


@dataclass(frozen=True)
class RescheduleResult:
    """The result of `reschedule`.

    Attributes:
        outcome: `rescheduled`, or the reason why not, as `cancel` returns it.
        receipt: the new receipt; None if nothing has changed.
        deliver_at_ms: the new delivery time, in the first topic; None if nothing has changed.
    """

    outcome: str
    receipt: str | None = None
    deliver_at_ms: int | None = None


@dataclass(frozen=True)
class DelayedInfo:
    """The waiting messages of a topic. open: those whose transaction has not ended."""

    topic: str
    messages: int
    open: int
    ranges: int
    first_due_ms: int
    last_due_ms: int


class DelayedMessages(ProcessBound):
    """Delayed messages. A receipt, which `schedule` and `send` return, identifies a message while it waits."""

    def __init__(
        self,
        publisher: Callable[[], ArrowPublisher],
        requester: Requester,
        state: Callable[[], State],
        look: QueryNewestState,
        follow: Callable[[], Callable[[], State]],
        namespace: Namespace,
        clock: Clock,
    ) -> None:
        """state: returns the newest state with all waiting ranges; follow: returns such a function for many calls."""
        self._publisher, self._requester, self._state, self._clock = publisher, requester, state, clock
        self._look, self._follow, self._namespace = look, follow, namespace

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
        """Publish one message that is delivered at a time or after a delay, and return its receipt.

        ttl_ms: how long it is delivered, from then on.
        Raises InvalidTopic, InvalidRecord, InvalidTimestamp, DelayTooLong, DelayQueueFull, UnknownTopicOrPartition,
        RequestTimedOut: it may have been scheduled.
        """
        if deliver_at is None and delay_ms is None:
            raise InvalidRequest("A delayed message needs deliver_at or delay_ms.", found="neither")
        destination, records = parse_destination(topic), Records()
        attributes = {"destination.name": destination, "batch.message_count": 1}
        with open_span("publish", "send", destination, attributes, "PRODUCER"):
            extras, size = parse_extras(add_trace_to_record(headers), None, None, deliver_at, delay_ms, ttl_ms)
            records.add(parse_bytes("key", key), parse_bytes("value", value), extras)
            body, requested = records.build_body(destination, size, self._clock.now_ms())
            publisher = self._publisher()
            prepared, published = publisher.send(Publication(destination, "fail"), body, requested)
        receipts = publisher.receipts(prepared, published)
        assert receipts is not None
        receipt = receipts.of(0)
        assert receipt is not None
        return receipt

    def cancel(self, receipt: str) -> str:
        """Cancel a delayed message, and return the outcome.

        Args:
            receipt: the receipt of the message.

        Returns:
            `cancelled`: it will not be delivered, in none of its topics. `released`: it is in the log already.
            `rescheduled`: it has another receipt since. `not_found`: it never waited, its transaction is not decided,
            or it ended longer ago than delay.history.ms.

        Raises:
            InvalidReceipt: the text is not a receipt of this namespace.
            RequestTimedOut: it may be cancelled.
        """
        return self.cancel_all([parse_text("receipt", receipt)])[0]

    def cancel_all(self, receipts: Sequence[str] | pa.Array | pa.ChunkedArray | pa.Table) -> list[str]:
        """Cancel many messages. receipts: texts, an Arrow column, or the table of a publish's `receipts()`."""
        places = parse_receipts(parse_texts("receipts", _receipt_list(receipts)), self._requester.namespace_id)
        outcomes = iter(self._cancel([place for message_places in places for place in message_places]))
        return [_combine_outcomes([next(outcomes) for _ in message_places]).value for message_places in places]

    def cancel_where(
        self,
        topic: str | None = None,
        key: bytes | str | None = None,
        predicate: str | None = None,
        *,
        dry_run: bool = False,
    ) -> pa.Table:
        """Cancel the waiting messages that match the topic, the key and the predicate.

        predicate: SQL, as DuckDB has it, over the columns of the view `pending_delayed_rows` but the last. Messages
        published meanwhile stay. dry_run: only list the messages, with the outcome `waiting`. Returns topic,
        partition, key, deliver_at, receipt, outcome (as `cancel` tells it) of each, one row per topic that a message
        comes to; of messages in a data file that cannot be read, which a topic alone finds too, key and deliver_at are
        null. Raises InvalidRequest, InvalidTopic, UnknownTopicOrPartition, FileTruncated, RequestTimedOut.
        """
        if topic is None and key is None and predicate is None:
            raise InvalidRequest("cancel_where needs a condition.", expected="a topic, a key or a predicate")
        named_topic = None if topic is None else parse_topic_name("topic", topic)
        # This also refuses a connection that is closed.
        self._look(lambda state: None if named_topic is None else state.topic(named_topic))
        condition = None if predicate is None else Predicate(parse_text("predicate", predicate), SHOWN)
        is_dry_run, wanted_key = parse_flag("dry_run", dry_run), parse_bytes("key", key)
        rows = self._find_waiting_rows(named_topic, wanted_key, condition)
        columns = (rows.column(name).to_pylist() for name in PLACE)
        places = [MessagePlace(*row) for row in zip(*columns, strict=True)]
        outcomes = [CancelOutcome.WAITING] * len(places) if is_dry_run else self._cancel(places)
        receipts = [format_receipt(self._requester.namespace_id, [place]) for place in places]
        result = rows.select(["topic", "partition", "key", "deliver_at"])
        result = result.append_column("receipt", pa.array(receipts, pa.string()))
        return result.append_column("outcome", pa.array([outcome.value for outcome in outcomes], pa.string()))

    def _cancel(self, places: Sequence[MessagePlace]) -> list[CancelOutcome]:
        """Cancel messages, and return the outcome of each. Raises RequestTimedOut: some may be cancelled."""
        outcomes: list[CancelOutcome] = []
        for first in range(0, len(places), MOST_ROWS):
            judged = self._requester.ask(CancelDelays(*place_columns(places[first : first + MOST_ROWS])))
            assert isinstance(judged, DelaysJudged)
            outcomes += judged.outcomes
        return self._resolve_not_found(places, outcomes)

    def _resolve_not_found(
        self, places: Sequence[MessagePlace], outcomes: Sequence[CancelOutcome]
    ) -> list[CancelOutcome]:
        """Replace NOT_FOUND by the outcome of rows whose range has ended as a whole."""
        missing = {p.range for p, outcome in zip(places, outcomes, strict=True) if outcome is CancelOutcome.NOT_FOUND}
        ended_ranges = read_ended_ranges(self._namespace.store, self._clock, missing) if missing else {}
        return [
            ended_ranges[place.range].find_outcome(place.row)
            if outcome is CancelOutcome.NOT_FOUND and place.range in ended_ranges
            else outcome
            for place, outcome in zip(places, outcomes, strict=True)
        ]

    def _find_waiting_rows(self, topic: str | None, key: bytes | None, predicate: Predicate | None) -> pa.Table:
        """Return the waiting rows that match, with columns of SHOWN and PLACE."""
        with store_errors(), report_damage(self._namespace.store):
            self._wait_for_tables()
            pending = read_pending_rows(self._namespace.store, topic, unread=key is None and predicate is None)
            parts = [_filter_rows(rows, key, predicate) for rows in pending]
        names = [*SHOWN, *(pa.field(name, pa.int64()) for name in PLACE)]
        return pa.concat_tables([pa.schema(names).empty_table(), *parts], promote_options="permissive")

    def _wait_for_tables(self) -> None:
        """Wait until the tables hold all that is decided so far."""
        step = find_projection_target(self._namespace.store)
        timeout_ms = self._namespace.config.ms("request.timeout.ms")
        deadline_ms = self._clock.steady_ms() + timeout_ms
        while (table_step := read_watermark(self._namespace.store).step) < step:
            if self._clock.steady_ms() > deadline_ms:
                raise RequestTimedOut(
                    f"Nothing was cancelled: no sequencer brought the tables up to date within {timeout_ms} ms.",
                    found=f"step {table_step}",
                    expected=f"step {step}, by a sequencer that leads",
                )
            self._clock.sleep(_POLL_MS)

    def reschedule(
        self, receipt: str, *, deliver_at: datetime | int | None = None, delay_ms: int | None = None
    ) -> RescheduleResult:
        """Change the delivery time of a waiting message, to a delay after this call or to a time that is not past.

        If it does not wait in all of its topics, nothing changes, and the outcome says why, as in `cancel`.
        Raises InvalidReceipt, InvalidTimestamp, DelayTooLong, RequestTimedOut: it may have been rescheduled.
        """
        (places,) = parse_receipts([parse_text("receipt", receipt)], self._requester.namespace_id)
        due_ms = self._due_ms(places, deliver_at, delay_ms)
        judged = self._requester.ask(RescheduleDelays(*place_columns(places), due_ms))
        assert isinstance(judged, DelaysJudged)
        if not judged.due_ms:
            return RescheduleResult(_combine_outcomes(self._resolve_not_found(places, judged.outcomes)).value)
        moved = [
            MessagePlace(place.topic_id, place.file_id, place.first_row + place.row, 0, reschedules)
            for place, reschedules in zip(places, judged.reschedules, strict=True)
        ]
        receipt = format_receipt(self._requester.namespace_id, moved)
        return RescheduleResult(CancelOutcome.RESCHEDULED.value, receipt, judged.due_ms[0])

    def _due_ms(self, places: Sequence[MessagePlace], deliver_at: object, delay_ms: object) -> list[int]:
        """Return the new due time per place, as each topic rounds it. Raises errors of the arguments."""
        if deliver_at is None and delay_ms is None:
            raise InvalidRequest("Rescheduling needs deliver_at or delay_ms.", found="neither")
        at_us, delay = parse_delay(deliver_at, delay_ms)
        now_ms = self._clock.now_ms()
        due_us = 1000 * (now_ms + (delay or 0)) if at_us is None else at_us
        rules: list[DelayRule] = self._look(lambda state: [_find_delay_rule(state, place.topic_id) for place in places])
        return [_round_due_ms(rule, now_ms, due_us) for rule in rules]

    def all(self, topic: str | None = None) -> list[DelayedInfo]:
        """Return the waiting messages per topic, sorted by name; with `topic`, of this topic only."""
        only_topic = None if topic is None else self._state().topic(parse_topic_name("topic", topic)).topic
        ranges_by_topic: dict[str, list[WaitingRange]] = {}
        for range_ in self._state().delays.ranges:
            if only_topic in (None, range_.published.topic):
                ranges_by_topic.setdefault(range_.published.topic, []).append(range_)
        return [
            DelayedInfo(
                name,
                sum(range_.waiting_count for range_ in ranges),
                sum(range_.waiting_count for range_ in ranges if range_.is_open),
                len(ranges),
                min(range_.published.first_due_ms for range_ in ranges),
                max(range_.published.last_due_ms for range_ in ranges),
            )
            for name, ranges in sorted(ranges_by_topic.items())
        ]

    def releases(self) -> Releases:
        """Follow releases from now on, and count the messages not released yet."""
        refresh = self._follow()
        return Releases(self._namespace, self._clock, lambda read: read(refresh()))

    def pointer_ms(self) -> int:
        """Return the time up to which all due messages are released; 0 before the first release."""
        return self._state().delays.pointer_ms


def _round_due_ms(rule: DelayRule, now_ms: int, due_us: int) -> int:
    """Return the due time of a row in milliseconds, rounded by the rule. Raises InvalidTimestamp, DelayTooLong."""
    requested = RequestedDelays(1000 * now_ms, np.array([due_us], np.int64))
    partition, due = reject_bad_delays(requested, rule, np.zeros(1, np.int32), by_slot=True)
    if partition[0] < 0:
        raise error_from_refusal(Refusal(*REJECTIONS[-1 - int(partition[0])]))
    due_ms = int(due.ms[0])
    # A time of the present slot is now: it was read from a clock before this call.
    if due_ms < now_ms // rule.slot_ms * rule.slot_ms:
        raise InvalidTimestamp(
            "The new time of delivery is past.", found=due_ms, expected="a later time, or delay_ms=0 for now"
        )
    return due_ms
