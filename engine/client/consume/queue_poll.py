"""What a queue consumer knows of its messages: which the user has got, what became of each, and what comes next.

A message that was shown is open until the user records an outcome for it: accept, release (give back) or reject.
Recorded outcomes wait here until they are sent to the group. The group may refuse them; the messages may then be open
again. Each poll requests the messages of the next poll, so that they are there when that one is called.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

from ...namespace.clock import Clock
from ...protocol.values.deliveries import (
    Acknowledgement,
    AckOutcome,
    Deliveries,
    DeliveryStatus,
    Span,
    Spans,
    Stretch,
    WantedMessages,
    group_into_spans,
    stretches_to_ranges,
)
from ..fetch.fetch_result import FetchResult
from ..offsets import TopicPartition
from .batch import DeliverySpan, ShownPartition
from .consumer import divide_room
from .membership import MembershipView, OwnedPartition, QueueSettings

# The record of one partition: which messages the user got, and what became of each.


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
        self._followed_start: int | None = None
        """Where the group's state began that `follow` has taken in, unless something has happened here since."""
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
        is_followed = owned.deliveries is not None and owned.deliveries.start == self._followed_start
        return not (is_followed and owned.is_done)

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
        self._followed_start = None
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
        self._followed_start = None
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
        self._refused, self._followed_start = Spans(), deliveries.start


# The polls: show messages that the member has acquired, and plan what it acquires next.


@dataclass(frozen=True)
class PollSelection:
    """The messages that a poll shows.

    Attributes:
        stretches: (topic, partition) -> adjoining stretches, at least one.
        unshown_count: acquired messages that stay for the next poll.
    """

    stretches: dict[TopicPartition, list[Stretch]]
    unshown_count: int

    @property
    def starts(self) -> dict[TopicPartition, int]:
        return {tp: stretches[0].first for tp, stretches in self.stretches.items()}

    @property
    def ends(self) -> dict[TopicPartition, int]:
        return {tp: stretches[-1].end for tp, stretches in self.stretches.items()}


FIRST_LIMIT = 100
"""Messages of a poll while the member's pace is not known."""

_HANDOFF_SHARE = 0.4
"""Share of `max.handoff.ms` for the messages of one poll. As many are prefetched, and a fifth is reserve."""


class ProcessingPace:
    """Limits a poll to the messages that the member finishes within its share of `max.handoff.ms`.

    When a partition moves, messages that its owner has not finished by then are delivered again, and are processed
    twice. The time of a poll is taken as a fixed part, for example a request to a database, and a part for each
    message. Two polls of different sizes tell them apart: a smaller poll would not shorten the fixed part.
    """

    def __init__(self) -> None:
        self._limit = FIRST_LIMIT
        self._open_count = self._done_count = self._last_count = 0
        self._since_ms = self._busy_ms = self._last_ms = 0
        self._fixed_ms = 0.0

    def note(self, open_count: int, now_ms: int) -> None:
        """Note how many messages the user has now: before it gets more, and after. now_ms: a steady time."""
        if self._open_count:
            self._busy_ms += now_ms - self._since_ms
            self._done_count += max(0, self._open_count - open_count)
        self._open_count, self._since_ms = open_count, now_ms

    def find_limit(self, handoff_ms: int, most: int) -> int:
        """Return how many messages a poll may show: at most twice as many as the limit before, and at most `most`."""
        if self._done_count:
            count, total_ms = self._done_count, self._busy_ms
            each_ms = (total_ms - self._fixed_ms) / count
            if abs(count - self._last_count) * 4 > self._last_count > 0:
                each_ms = (total_ms - self._last_ms) / (count - self._last_count)
            each_ms = min(max(each_ms, 0), total_ms / count)
            self._fixed_ms = total_ms - each_ms * count
            share_ms = handoff_ms * _HANDOFF_SHARE
            left_ms = max(share_ms - self._fixed_ms, share_ms / 2)
            fitting_count = left_ms / each_ms if each_ms else most
            self._limit = int(max(1, min(fitting_count, 2 * self._limit, most)))
            self._last_count, self._last_ms = count, total_ms
            self._done_count = self._busy_ms = 0
        return self._limit


class DeliveryPlanner:
    """Shows acquired messages, and plans what to acquire for the next poll. Its consumer holds the lock for every call.

    Partitions take turns: a partition that was shown in the last poll comes last in the next. So each gets its share
    even if one poll has no room for all.
    """

    def __init__(self, trackers: Mapping[TopicPartition, AckTracker], clock: Clock) -> None:
        """trackers: the consumer's own mapping, which the consumer changes."""
        self._trackers, self._clock = trackers, clock
        self.settings: QueueSettings | None = None
        """Settings of the group, once a view was read."""
        self._newest_step = (-1, 0, 0)
        """The newest step, its time by the group's clock, and when this consumer saw it by its own."""
        self._now_ms = 0
        """When this consumer looked at the group's state last, by its own clock."""
        self._pace = ProcessingPace()
        self._shown_last: dict[TopicPartition, None] = {}
        """Partitions by when messages of them were last shown, the earliest first."""

    @property
    def is_auto_ack(self) -> bool:
        """True if a poll acknowledges the messages of the poll before it."""
        return self.settings is not None and self.settings.is_auto_ack

    def note_view(self, view: MembershipView) -> None:
        """Take in the settings and the time of the newest step."""
        self._now_ms = self._clock.steady_ms()
        if view.step != self._newest_step[0]:
            self._newest_step = view.step, view.now_ms, self._now_ms
        if view.queue_settings is not None:
            self.settings = view.queue_settings

    def forget(self, tp: TopicPartition) -> None:
        """Drop a partition that moved."""
        self._shown_last.pop(tp, None)

    def count_open(self) -> int:
        """Return how many shown messages have no outcome yet."""
        shown = (self._trackers.get(tp) for tp in self._shown_last)
        return sum(tracker.open_count for tracker in shown if tracker is not None)

    def count_room(self) -> int:
        """Return how many more messages may be shown before some get an outcome."""
        return 0 if self.settings is None else self.settings.max_unacknowledged - self.count_open()

    def limit_poll(self, max_count: int) -> int:
        """Return how many messages the next poll may show: what the member can finish within max.handoff.ms."""
        self._pace.note(self.count_open(), self._now_ms)
        if self.settings is None or not self.settings.handoff_ms:
            return max_count
        return min(max_count, self._pace.find_limit(self.settings.handoff_ms, self.settings.max_unacknowledged))

    def name_first_open(self) -> str:
        """Return partition and offset of a message without an outcome; there must be one."""
        return next(
            f"{tracker.name}, offset {tracker.list_open_spans()[0][0]}"
            for tracker in self._trackers.values()
            if tracker.open_count
        )

    def select(
        self, owned: dict[TopicPartition, OwnedPartition], max_count: int, paused_by_user: Container[TopicPartition]
    ) -> PollSelection:
        """Select acquired messages that were not shown, evenly from all partitions that may be shown.

        Args:
            owned: the member's partitions that have a tracker, and that may have something to do. Partitions that
                return messages unseen are replaced in it.
            max_count: messages at most; the room of the user is another bound.
            paused_by_user: partitions to leave out.
        """
        delivers_paused = self.settings is not None and self.settings.handoff_ms > 0
        in_order = self.settings is not None and self.settings.policy.in_order
        unshown = {
            tp: take_showable(self._trackers[tp], owned, tp, in_order)
            for tp, partition in self._put_last_shown_at_end(owned).items()
            if tp not in paused_by_user and (delivers_paused or not partition.is_paused)
        }
        counts = {tp: _count(stretches) for tp, stretches in unshown.items()}
        # after the group's state is taken in: a transaction may have settled open messages
        sizes = divide_room(counts, max(0, min(max_count, self.count_room())))
        selected = {tp: take_first(unshown[tp], size) for tp, size in sizes.items() if size}
        return PollSelection(selected, sum(counts.values()) - sum(map(_count, selected.values())))

    def _put_last_shown_at_end(
        self, owned: Mapping[TopicPartition, OwnedPartition]
    ) -> dict[TopicPartition, OwnedPartition]:
        in_turn = {tp: partition for tp, partition in owned.items() if tp not in self._shown_last}
        return in_turn | {tp: owned[tp] for tp in self._shown_last if tp in owned}

    def show(
        self,
        selection: PollSelection,
        parts: Sequence[FetchResult],
        owned: Mapping[TopicPartition, OwnedPartition],
        moves: dict[TopicPartition, Any],
    ) -> tuple[dict[TopicPartition, ShownPartition], list[Acknowledgement]]:
        """Mark the selected messages as shown; return them, and the acknowledgements that would accept them.

        `moves` is extended first, so that an interrupted poll can hide the messages again.
        """
        shown, acks = {}, []
        for tp, stretches in selection.stretches.items():
            tracker = self._trackers[tp]
            moves[tp] = (tracker, [*moves[tp][1], *stretches] if tp in moves else stretches)
            messages, expired = find_message_spans(parts, tp)
            tracker.show(stretches, messages, expired)
            self._shown_last.pop(tp, None)
            self._shown_last[tp] = None
            shown[tp] = ShownPartition(tracker.topic_id, tracker.epoch, owned[tp].start_offset, stretches)
            for stretch in stretches:
                # The tracker itself accepts offsets that hold no message.
                if spans := list(messages.within(*stretch.span)):
                    acks.append(tracker.build_acknowledgement(AckOutcome.ACK, stretch, spans))
        self._pace.note(self.count_open(), self._clock.steady_ms())
        return shown, acks

    def plan_next(
        self, owned: Mapping[TopicPartition, OwnedPartition], max_count: int, paused_by_user: Container[TopicPartition]
    ) -> list[WantedMessages]:
        """Return the request for the messages of the next poll; only for messages that are there.

        A member may hold twice `max.delivered.unacked.msgs.per.flow` messages: once that number with the user, and as
        many prefetched. A message before its last delivery is requested alone, and only by a member that holds nothing:
        if it stops its consumer, no other message loses a delivery by it. The group applies the same rules to the
        request (`decide_acquire`), so this only avoids requests that bring nothing.

        Args:
            owned: the member's partitions.
            max_count: messages to request at most.
            paused_by_user: partitions to leave out.
        """
        if self.settings is None:
            return []
        _, decided_ms, seen_ms = self._newest_step
        # the group's time now: that of the newest step, and what has passed since this consumer saw it
        now_ms = decided_ms + self._now_ms - seen_ms
        open_for_more = {
            tp: partition
            for tp, partition in self._put_last_shown_at_end(owned).items()
            if not partition.is_paused and tp not in paused_by_user and partition.deliveries
        }
        held_count = sum(partition.deliveries.held_count for partition in owned.values() if partition.deliveries)
        room = max(0, min(max_count, 2 * self.settings.max_unacknowledged - held_count))
        available, last_deliveries = {}, []
        for tp, partition in open_for_more.items():
            assert partition.deliveries is not None
            if partition.deliveries.is_next_last(self.settings.policy, now_ms):
                last_deliveries.append(tp)
            end = max(partition.bounds.end, partition.bounds.first)
            ranges = partition.deliveries.next_ranges(self.settings.policy, end, room, now_ms)
            available[tp] = sum(count for _, count in ranges)
        if last_deliveries:
            available = {} if held_count else {last_deliveries[0]: 1}
        counts = divide_room(available, room)
        # Messages may have been deleted while the member had them, or while they were dying. Any request for the
        # partition, even for 0 messages, makes the group pass over them.
        with_deleted = [
            tp
            for tp, partition in open_for_more.items()
            if partition.deliveries and partition.deliveries.has_unsettled_before(partition.bounds.first)
        ]
        return [
            WantedMessages(partition.bounds.topic_id, tp[1], partition.epoch, counts.get(tp, 0))
            for tp, partition in open_for_more.items()
            if counts.get(tp) or tp in with_deleted
        ]


def _count(stretches: Sequence[Stretch]) -> int:
    return sum(stretch.length for stretch in stretches)


def take_showable(
    tracker: AckTracker, owned: dict[TopicPartition, OwnedPartition], tp: TopicPartition, in_order: bool
) -> list[Stretch]:
    """Return the acquired messages of a partition that were not shown, up to the first gap.

    They end at a gap because one fetch reads one range of offsets.

    Args:
        tracker: what the user was shown.
        owned: the group's state of the member's partitions.
        tp: the partition.
        in_order: with `nack.order` `partition`, no message is shown before an earlier one that was given back. Later
            messages that were prefetched are returned unseen, and the partition is replaced in `owned` accordingly. The
            group then delivers all of them again, the lowest offset first.
    """
    bounds, deliveries = owned[tp].bounds, owned[tp].deliveries
    assert deliveries is not None
    tracker.follow(deliveries)
    first, end = bounds.first, bounds.end
    stretches = deliveries.list_acquired_stretches()
    acquired = [part.cut(max(first, part.first), min(end, part.end)) for part in stretches]
    unshown = tracker.find_unshown(part for part in acquired if part.length > 0)
    if in_order and unshown and (given_back := tracker.find_first_given_back(deliveries)) is not None:
        later = [part.cut(max(part.first, given_back), part.end) for part in unshown if part.end > given_back]
        tracker.return_unseen(later)
        deliveries = deliveries.copy()  # later views share the group's state
        deliveries.change(stretches_to_ranges(later), _make_available)
        owned[tp] = replace(owned[tp], deliveries=deliveries)
        unshown = [part.cut(part.first, min(part.end, given_back)) for part in unshown if part.first < given_back]
    contiguous: list[Stretch] = []
    for part in unshown:
        if contiguous and contiguous[-1].end != part.first:
            break
        contiguous.append(part)
    return contiguous


def _make_available(part: Stretch) -> Stretch:
    return Stretch(part.first, part.length, DeliveryStatus.AVAILABLE, part.deliveries - 1)


def take_first(stretches: Sequence[Stretch], count: int) -> list[Stretch]:
    """Return the first `count` messages of the stretches."""
    first_stretches = []
    for stretch in stretches:
        if count <= 0:
            break
        first_stretches.append(stretch.cut(stretch.first, min(stretch.end, stretch.first + count)))
        count -= stretch.length
    return first_stretches


def find_message_spans(parts: Sequence[FetchResult], tp: TopicPartition) -> tuple[Spans, Spans]:
    """Return the offsets of a partition whose messages are shown, and those whose messages have expired."""
    spans, expired, superseded = Spans(), Spans(), Spans()
    for part in parts:
        if part.plan.topic == tp[0]:
            segments = part.plan.segments
            columns = (segments.column(name).to_pylist() for name in ("partition", "base_offset", "record_count"))
            for partition, first, count in zip(*columns, strict=True):
                if partition == tp[1]:
                    spans.add(first, first + count)
            if any(part.hidden):
                expired, superseded = (Spans(group_into_spans(offsets.get(tp[1], ()))) for offsets in part.hidden)
    for span in chain(expired, superseded):
        spans.remove(*span)
    return spans, expired
