"""A queue consumer's record of one partition: which messages the user got, and what became of each.

A message that was shown is open until the user records an outcome for it: accept, release (give back) or reject.
Recorded outcomes wait here until they are sent to the group. The group may refuse them; the messages may then be open
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...protocol.values.deliveries import Acknowledgement, AckOutcome, Deliveries
from ...protocol.values.stretches import DeliveryStatus, Stretch
from ..offsets import Span, Spans, group_into_spans
from .membership_view import OwnedPartition

DeliverySpan = tuple[int, int, int | None]
"""First offset, end offset (exclusive), and the delivery count that is meant; None: the newest delivery."""


class PendingOutcome(NamedTuple):
    """An outcome that was recorded for messages and is not sent yet.

    Attributes:
        outcome: accept, release, reject, expire or unseen.
        deliveries: delivery count of the messages that it is about.
        delay_ms: how long released messages wait; None: as the group's settings say.
        error: text for the dead letter.
        is_again: it was sent before, without an answer. Such outcomes are sent apart from new ones.
    """

    outcome: AckOutcome
    deliveries: int
    delay_ms: int | None = None
    error: str = ""
    is_again: bool = False


class AckTracker:
    """Tracks open messages and recorded outcomes of one partition, under one assignment.

    `show` opens a message. `record` closes it: its outcome is pending until `note_sending`. Then one of three things
    happens. The group has decided: `note_answer`. The answer is missing: `requeue` makes the outcome pending again, and
    it is unconfirmed, because the group may have it already. The group refuses it: `reopen`, and the next `follow`
    opens the message if the group's state says that the member still has it.

    The consumer holds its lock for every call. Only `single_acks` may be appended to without it.
    """

    def __init__(self, name: str, topic_id: int, partition: int, epoch: int) -> None:
        """name: topic and partition, for error messages; epoch: of the assignment."""
        self.name, self.topic_id, self.partition, self.epoch = name, topic_id, partition, epoch
        self.is_paused = False
        self.single_acks: list[int] = []
        """Offsets accepted one by one on their first delivery, and not recorded yet. Any thread may append."""
        self._followed: Deliveries | None = None
        """The group's state that `follow` has taken in, unless something has happened here since."""
        self._shown: dict[int, Spans] = {}
        """Delivery count -> offsets that were shown with it. Each offset is listed under its newest delivery only."""
        self._open = Spans()
        """Shown, without an outcome."""
        self._acked = Spans()
        self._pending: dict[PendingOutcome, Spans] = {}
        """Outcomes that are not sent yet."""
        self._refused = Spans()
        """The group refused the outcome of these."""
        self._unconfirmed = Spans()
        """The outcome of these was sent and not answered, so it may count or not."""
        self._returning = Spans()
        """Released or returned unseen, without an answer yet. The group's state may still show them as acquired."""

    @property
    def has_open(self) -> bool:
        return not self._open.is_empty

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def has_unsent(self) -> bool:
        """Whether recorded outcomes are not sent yet."""
        return bool(self._pending)

    def has_work(self, owned: OwnedPartition) -> bool:
        """Return whether a poll may find something to do here: in the group's state, or in what it changes here."""
        return owned.deliveries is not self._followed or not owned.is_done

    @property
    def is_sent(self) -> bool:
        """True if all outcomes of the user are sent. Returned unseen messages are no outcome of the user."""
        return not self.single_acks and all(pending.outcome is AckOutcome.UNSEEN for pending in self._pending)

    @property
    def is_refused(self) -> bool:
        """True if the group refused outcomes since the last `follow`."""
        return bool(self._refused)

    @property
    def brought_end(self) -> int:
        """The offset after the last message that is open or accepted; 0 if there is none."""
        return max((end for spans in (self._open, self._acked) for _, end in spans), default=0)

    def list_open_spans(self) -> list[Span]:
        return list(self._open)

    def find_unshown(self, acquired: Iterable[Stretch]) -> list[Stretch]:
        """Return the parts of the acquired stretches that were not shown since their newest delivery."""
        unshown = []
        for stretch in acquired:
            span, shown = stretch.span, self._shown.get(stretch.deliveries)
            gaps = [span] if shown is None else shown.missing(*span)
            unshown += [stretch.cut(first, end) for gap in gaps for first, end in self._returning.missing(*gap)]
        return unshown

    def find_first_given_back(self, deliveries: Deliveries) -> int | None:
        """Return the lowest offset that was given back, whether the group knows of it yet or not."""
        returning = next(iter(self._returning), None)
        candidates = (deliveries.first_given_back, None if returning is None else returning[0])
        return min((offset for offset in candidates if offset is not None), default=None)

    def return_unseen(self, stretches: Iterable[Stretch]) -> None:
        """Give messages that were never shown back to the group. Their delivery does not count."""
        for stretch in stretches:
            self._add_outcome(PendingOutcome(AckOutcome.UNSEEN, stretch.deliveries), stretch.first, stretch.end)

    def note_answer(self, acknowledgement: Acknowledgement) -> None:
        """Note that the group has answered an acknowledgement, or never will.

        From now on the group's state shows whether these messages are still acquired.
        """
        for first, count in acknowledgement.ranges:
            self._returning.remove(first, first + count)

    def show(self, stretches: Iterable[Stretch], messages: Spans, expired: Spans) -> None:
        """Mark the stretches as shown, and open their messages.

        The user never sees offsets that have expired or hold no message, so their outcome is recorded here.

        Args:
            stretches: what the poll hands out.
            messages: offsets that hold a message for this reader.
            expired: offsets whose message has expired.
        """
        self._followed = None
        for stretch in stretches:
            span = stretch.span
            for shown in self._shown.values():
                shown.remove(*span)
            self._shown.setdefault(stretch.deliveries, Spans()).add(*span)
            self._acked.remove(*span)
            self._unconfirmed.remove(*span)
            for first, end in messages.within(*span):
                self._open.add(first, end)
            for gap in messages.missing(*span):
                for first, end in expired.within(*gap):
                    self._add_outcome(PendingOutcome(AckOutcome.EXPIRE, stretch.deliveries), first, end)
                for first, end in expired.missing(*gap):
                    self._add_outcome(PendingOutcome(AckOutcome.ACK, stretch.deliveries), first, end)

    def hide(self, stretches: Iterable[Stretch]) -> None:
        """Undo `show` for messages that the user has not seen."""
        for stretch in stretches:
            span = stretch.span
            self._open.remove(*span)
            if shown := self._shown.get(stretch.deliveries):
                shown.remove(*span)

    def find_open(self, spans: Iterable[DeliverySpan]) -> list[tuple[int, int, int]]:
        """Return the open parts of the spans: first offset, end offset (exclusive), delivery count."""
        return [
            (*part, count)
            for first, end, deliveries in spans
            for open_span in self._open.within(first, end)
            for count, shown in self._shown.items()
            if deliveries in (None, count)
            for part in shown.within(*open_span)
        ]

    def record(
        self, outcome: AckOutcome, spans: Sequence[DeliverySpan], delay_ms: int | None = None, error: str = ""
    ) -> list[Span]:
        """Record the outcome of messages, and return the messages that are refused because the member lacks them.

        Each message is judged by itself. A message that is accepted already may be accepted again.
        """
        open_parts = self.find_open(spans)
        refused: list[Span] = []
        for first, end, deliveries in spans:
            for gap in self._open.missing(first, end):
                refused += self._acked.missing(*gap) if outcome is AckOutcome.ACK else [gap]
            if deliveries is not None:  # the caller may name an earlier delivery than the member has now
                shown = self._shown.get(deliveries, Spans())
                refused += (gap for span in self._open.within(first, end) for gap in shown.missing(*span))
        for first, end, deliveries in open_parts:
            self._add_outcome(PendingOutcome(outcome, deliveries, delay_ms, error), first, end)
        # Close the messages last: an interrupt in between leaves them open, and the user can repeat the call.
        for first, end, _ in open_parts:
            self._open.remove(first, end)
        return sorted(refused)

    def _add_outcome(self, pending: PendingOutcome, first: int, end: int) -> None:
        self._pending.setdefault(pending, Spans()).add(first, end)
        if pending.outcome in (AckOutcome.ACK, AckOutcome.EXPIRE):
            self._acked.add(first, end)
        elif pending.outcome in (AckOutcome.NACK, AckOutcome.UNSEEN):
            self._returning.add(first, end)

    def collect_single_acks(self) -> list[Span]:
        """Record the messages that were accepted one by one, and return those that are refused."""
        count = len(self.single_acks)  # other threads may append meanwhile
        if not count:
            return []
        spans: list[DeliverySpan] = [(*span, 1) for span in group_into_spans(self.single_acks[:count])]
        refused = self.record(AckOutcome.ACK, spans)
        del self.single_acks[:count]  # after they are recorded: an interrupt before would lose them
        return refused

    def build_acknowledgements(self) -> list[Acknowledgement]:
        """Return the outcomes that are not sent yet."""
        return [
            Acknowledgement(
                self.topic_id,
                self.partition,
                self.epoch,
                pending.outcome,
                [(first, end - first) for first, end in spans],
                pending.delay_ms,
                pending.deliveries,
                pending.error,
            )
            for pending, spans in self._pending.items()
        ]

    def build_acknowledgement(self, outcome: AckOutcome, stretch: Stretch, spans: Iterable[Span]) -> Acknowledgement:
        """Return the acknowledgement of the messages of a stretch that lie in `spans`. It is not recorded."""
        ranges = [(first, end - first) for first, end in spans]
        return Acknowledgement(self.topic_id, self.partition, self.epoch, outcome, ranges, None, stretch.deliveries)

    def note_sending(self) -> None:
        """Note that all recorded outcomes are on their way to the group."""
        self._pending = {}

    def requeue(self, acknowledgement: Acknowledgement) -> None:
        """Record outcomes again that were sent and not answered."""
        pending = PendingOutcome(
            acknowledgement.outcome,
            acknowledgement.deliveries or 1,
            acknowledgement.delay_ms,
            acknowledgement.error,
            is_again=True,
        )
        for first, count in acknowledgement.ranges:
            self._add_outcome(pending, first, first + count)
            self._unconfirmed.add(first, first + count)

    def find_certain_spans(self, acknowledgement: Acknowledgement) -> list[Span]:
        """Return the messages whose outcome was sent only once; one that was sent before may have counted then."""
        return [
            gap for first, count in acknowledgement.ranges for gap in self._unconfirmed.missing(first, first + count)
        ]

    def reopen(self, acknowledgement: Acknowledgement) -> None:
        """Note a refusal. Messages that the member still has are open again after the next `follow`."""
        self._followed = None
        for first, count in acknowledgement.ranges:
            self._acked.remove(first, first + count)
            self._refused.add(first, first + count)

    def follow(self, deliveries: Deliveries) -> None:
        """Take in the group's state: close messages that are acknowledged, or that the member does not have now."""
        self._acked.add(0, deliveries.start)
        for shown in self._shown.values():
            shown.remove(0, deliveries.start)
        self._open.remove(0, deliveries.start)
        for stretch in deliveries.stretches:
            if stretch.status is not DeliveryStatus.ACQUIRED:
                self._open.remove(stretch.first, stretch.end)
            if stretch.status is DeliveryStatus.ACKNOWLEDGED:
                self._acked.add(stretch.first, stretch.end)
        for stretch in deliveries.list_acquired_stretches() if self._refused else ():
            shown = self._shown.get(stretch.deliveries, Spans())
            for refused in self._refused.within(stretch.first, stretch.end):
                for span in shown.within(*refused):
                    self._open.add(*span)
        self._refused, self._followed = Spans(), deliveries
