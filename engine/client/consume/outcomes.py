"""The outcomes of a queue consumer's messages: which are open, which outcomes are recorded, and which are sent.

A message that was shown is open until the user records an outcome for it: accept, release (give back) or reject.
Recorded outcomes wait here until they are sent to the group, and are sent again if no answer comes. The group may
refuse them; the messages may then be open again.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec.structs import replace

from ...namespace.clock import Clock
from ...protocol.errors import (
    ClientEnded,
    FencedMemberEpoch,
    InvalidRecordState,
    LakeMQError,
    NoOffsetForPartition,
    RequestTimedOut,
    UnknownMemberId,
)
from ...protocol.values.deliveries import (
    MAX_RANGES,
    Acknowledgement,
    AcknowledgementsJudged,
    AckOutcome,
    Deliveries,
    DeliveryStatus,
    Span,
    Spans,
    Stretch,
    WantedMessages,
    clip_stretches,
    group_into_spans,
    stretches_to_ranges,
)
from ..offsets import TopicPartition
from .batch import DeliverySpan
from .membership import Membership, OwnedPartition


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
        """True if all outcomes of the user are sent. The return of unseen messages is not one."""
        return not self.single_acks and all(pending.outcome is AckOutcome.UNSEEN for pending in self._pending)

    @property
    def is_refused(self) -> bool:
        """True if the group refused outcomes since the last `follow`."""
        return bool(self._refused)

    @property
    def brought_end(self) -> int:
        """The offset after the last message that is open or accepted; 0 without such a message."""
        return max((end for spans in (self._open, self._acked) for _, end in spans), default=0)

    def list_open_spans(self) -> list[Span]:
        return list(self._open)

    def find_unshown(self, acquired: Iterable[Stretch]) -> list[Stretch]:
        """Return the parts of the acquired stretches that were not shown since their newest delivery."""
        return [
            part
            for stretch in acquired
            for part in stretch.cut_out(self._shown.get(stretch.deliveries, Spans()), self._returning)
        ]

    def take_showable(self, owned: OwnedPartition, in_order: bool) -> tuple[list[Stretch], OwnedPartition]:
        """Take in the group's state, and return the acquired messages that can be shown now, up to the first gap.

        They end at a gap because one fetch reads one range of offsets.

        Args:
            owned: the partition with the group's state.
            in_order: with `nack.order` `partition`, no message is shown before an earlier one that was given back.
                Later messages that were prefetched are returned unseen, so their delivery does not count. The group
                then delivers all of them again, the lowest offset first.

        Returns:
            The messages, and the partition, in which those that are returned are available again.
        """
        bounds, deliveries = owned.bounds, owned.deliveries
        assert deliveries is not None
        self.follow(deliveries)
        unshown = self.find_unshown(clip_stretches(deliveries.list_acquired_stretches(), bounds.first, bounds.end))
        if in_order and unshown and (given_back := self._find_first_given_back(deliveries)) is not None:
            later = clip_stretches(unshown, given_back, bounds.end)
            for stretch in later:
                self._add_outcome(PendingOutcome(AckOutcome.UNSEEN, stretch.deliveries), *stretch.span)
            deliveries = deliveries.copy()  # later views share the group's state
            deliveries.change(stretches_to_ranges(later), _make_available)
            owned = dataclasses.replace(owned, deliveries=deliveries)
            unshown = clip_stretches(unshown, bounds.first, given_back)
        return take_adjoining(unshown), owned

    def _find_first_given_back(self, deliveries: Deliveries) -> int | None:
        """Return the lowest offset that was given back, whether the group knows of it yet or not."""
        first = deliveries.first_given_back
        offsets = [] if first is None else [first]
        offsets += [returning for returning, _ in self._returning]
        return min(offsets, default=None)

    def note_answer(self, acknowledgement: Acknowledgement) -> None:
        """Note that the group has answered an acknowledgement, or never will.

        From now on the group's state shows whether these messages are still acquired.
        """
        for first, count in acknowledgement.ranges:
            self._returning.remove(first, first + count)

    def show(self, stretches: Iterable[Stretch], messages: Spans, expired: Spans) -> list[Acknowledgement]:
        """Mark the stretches as shown, and open their messages.

        The user never sees offsets that have expired or hold no message, so their outcome is recorded here.

        Args:
            stretches: what the poll hands out.
            messages: offsets that hold a message for this reader.
            expired: offsets whose message has expired.

        Returns:
            The acknowledgements that would accept the messages.
        """
        acknowledgements = []
        self._followed_start = None
        for stretch in stretches:
            span = stretch.span
            for shown in self._shown.values():
                shown.remove(*span)
            self._shown.setdefault(stretch.deliveries, Spans()).add(*span)
            self._acked.remove(*span)
            self._unconfirmed.remove(*span)
            opened = list(messages.within(*span))
            for first, end in opened:
                self._open.add(first, end)
            for gap in messages.missing(*span):
                for first, end in expired.within(*gap):
                    self._add_outcome(PendingOutcome(AckOutcome.EXPIRE, stretch.deliveries), first, end)
                for first, end in expired.missing(*gap):
                    self._add_outcome(PendingOutcome(AckOutcome.ACK, stretch.deliveries), first, end)
            if opened:
                acknowledgements.append(self.build_acknowledgement(AckOutcome.ACK, stretch, opened))
        return acknowledgements

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


def take_adjoining(stretches: list[Stretch]) -> list[Stretch]:
    """Return the stretches up to the first gap."""
    for count, (before, after) in enumerate(pairwise(stretches), 1):
        if before.end != after.first:
            return stretches[:count]
    return stretches


def _make_available(stretch: Stretch) -> Stretch:
    return Stretch(stretch.first, stretch.length, DeliveryStatus.AVAILABLE, stretch.deliveries - 1)


LONGEST_WAIT_MS = 60_000
"""Longest timeout of one call of `wait`: the operating system refuses very large ones."""
SILENCE_MS = 2_000
"""A request that is open for longer is reported. A sequencer answers in milliseconds, a busy one in a second."""
_MOST_SPANS = 10
"""Ranges of offsets that an error names per partition: a reader needs an example, not thousands."""


class Refusals:
    """Acknowledgements that the group refused after the call that made them. Not thread-safe.

    Each is kept until a call can raise the error, and is raised once.
    """

    def __init__(self, explain_missing_topics: Callable[[Sequence[str]], Sequence[str]]) -> None:
        """explain_missing_topics: returns a sentence for each of the topics that is not there."""
        self._explain_missing_topics = explain_missing_topics
        self._fenced: dict[str, None] = {}
        self._invalid: dict[str, Spans] = {}
        self._others: dict[str, LakeMQError] = {}

    def note_fence(self, partitions: Iterable[str]) -> None:
        """Keep that these partitions belonged to another member when the acknowledgements arrived."""
        self._fenced.update(dict.fromkeys(partitions))

    def note_invalid(self, partition: str, spans: Iterable[Span]) -> None:
        """Keep that the member did not have these messages."""
        for span in spans:
            self._invalid.setdefault(partition, Spans()).add(*span)

    def note_error(self, error: LakeMQError) -> None:
        """Keep the error with which a whole request was refused."""
        self._others.setdefault(str(error), error)

    def list_errors(self) -> list[LakeMQError]:
        """Return the errors of all refusals, and keep them."""
        fenced = [
            FencedMemberEpoch(" ".join(self._explain_missing_topics([name.rpartition("-")[0]])), found=[name])
            for name in self._fenced
        ]
        return [*fenced, *self._list_invalid(), *self._others.values()]

    def raise_all(self) -> None:
        """Raise and forget all refusals. Of several errors, each is the `__cause__` of the one before it."""
        errors = self.list_errors()
        self._fenced, self._invalid, self._others = {}, {}, {}
        raise_chain(errors)

    def raise_invalid(self) -> None:
        """Raise and forget the refusals of messages that the member did not have; keep the others."""
        errors = self._list_invalid()
        self._invalid = {}
        raise_chain(errors)

    def _list_invalid(self) -> list[LakeMQError]:
        return [invalid_error(partition, spans) for partition, spans in self._invalid.items()]


@dataclass(frozen=True, eq=False)
class _SentRequest:
    """A request with acknowledgements. joined_count: how often the member had joined again when it was sent."""

    answer: Future[Any]
    acknowledgements: list[Acknowledgement]
    joined_count: int


class AckSender:
    """Sends recorded outcomes without waiting, and collects the answers. Its consumer holds the lock for every call.

    Invariant: an outcome is in a tracker or in an unanswered request until the group has decided on it. An outcome
    may be in both for a moment, and may be sent twice; the group ignores the second one.
    """

    def __init__(self, membership: Membership, clock: Clock, trackers: Mapping[TopicPartition, AckTracker]) -> None:
        """trackers: the consumer's own mapping, which the consumer changes."""
        self._membership, self._clock, self._trackers = membership, clock, trackers
        self.acquire_request: Future[Any] | None = None
        """The request for messages that is under way, until `collect_answers` has seen its answer."""
        self._unanswered: list[_SentRequest] = []
        self.refusals = Refusals(membership.explain_missing_topics)
        """Refused acknowledgements whose call has returned. `flush` and `poll` raise them."""
        self.sent_at_ms = clock.steady_ms()
        self._waiting_since_ms: int | None = None
        """Since when requests have been open, or the last answer. None: no request is open."""
        self._joined_count = 0
        self._is_flushed = True
        """Whether no acknowledgement was sent since the last flush began."""
        self.is_lost = False
        """Whether the group does not know the member any more. Nothing is sent until it has joined again."""

    def note_rejoin(self) -> None:
        """Note that the member has joined again. The next `send` repeats requests without an answer."""
        self._joined_count += 1
        self.is_lost = False

    def collect_single_acks(self) -> None:
        """Record the messages that were accepted one by one; keep refused ones for the next `flush` or `poll`."""
        for tracker in self._trackers.values():
            if tracker.single_acks:
                self.refusals.note_invalid(tracker.name, tracker.collect_single_acks())

    def send(self, wanted: Sequence[WantedMessages] = (), unseen: Sequence[Acknowledgement] = ()) -> None:
        """Send all recorded outcomes, and request messages, without waiting.

        Args:
            wanted: the messages to request.
            unseen: messages to return because the user has not seen them.
        """
        self.collect_single_acks()
        if not self.is_lost:
            self._send_all(wanted, unseen)

    def start_flush(self) -> bool:
        """Send all recorded outcomes. Return whether there is anything that a flush confirms."""
        self.send()
        is_flushed, self._is_flushed = self._is_flushed, True
        return not is_flushed or bool(self._unanswered)

    def _send_all(self, wanted: Sequence[WantedMessages], unseen: Sequence[Acknowledgement]) -> None:
        """Send, and only then mark outcomes as sent: an interrupt or an error in between loses none."""
        unsent = [tracker for tracker in self._trackers.values() if tracker.has_unsent]
        recorded = [part for tracker in unsent for part in tracker.build_acknowledgements()]
        if not recorded and not unseen and not wanted:
            return
        self.sent_at_ms = self._clock.steady_ms()
        if self._waiting_since_ms is None:
            self._waiting_since_ms = self.sent_at_ms
        requests = split_into_requests([*recorded, *unseen])
        futures = self._membership.submit(requests, wanted)
        self._is_flushed &= not recorded
        self._unanswered += [
            _SentRequest(future, acknowledgements, self._joined_count)
            for future, acknowledgements in zip(futures, requests, strict=False)
        ]
        for tracker in unsent:
            tracker.note_sending()
        if wanted:
            self.acquire_request = futures[-1]

    def collect_answers(self) -> bool:
        """Take in the answers that have come. Return whether there were any.

        Raises:
            NoOffsetForPartition: the group has committed nothing, and `auto_offset_reset` is `none`.
        """
        self._note_silence()
        has_answers = False
        for request in list(self._unanswered):
            if not request.answer.done():
                continue
            if (error := request.answer.exception()) is not None:
                # An error of a request from before the last joining says nothing about the member of today.
                self.is_lost |= isinstance(error, UnknownMemberId) and request.joined_count == self._joined_count
                self._handle_failure(request.acknowledgements, error)
            else:
                self._apply_answer(request.answer.result(), request.acknowledgements)
            self._unanswered.remove(request)  # last: an interrupt before would lose the outcomes
            has_answers = True
        if self.acquire_request is not None and self.acquire_request.done():
            request_for_messages, self.acquire_request = self.acquire_request, None
            has_answers = True
            if isinstance(error := request_for_messages.exception(), NoOffsetForPartition):
                raise error
        return has_answers

    def _note_silence(self) -> None:
        """Note since when no request has been answered. A request that timed out was not answered either."""
        open_requests = self.list_open_requests()
        if self.acquire_request is not None:
            open_requests.append(self.acquire_request)
        done = [request for request in open_requests if request.done()]
        if any(not isinstance(request.exception(), RequestTimedOut) for request in done):
            self._waiting_since_ms = self._clock.steady_ms()
        if not open_requests:
            self._waiting_since_ms = None

    def explain_silence(self) -> str | None:
        """Return a sentence if no sequencer has answered this consumer for a while; otherwise None."""
        if self._waiting_since_ms is None:
            return None
        silent_ms = self._clock.steady_ms() - self._waiting_since_ms
        if silent_ms < SILENCE_MS:
            return None
        return (
            f"No sequencer has answered this consumer for {silent_ms / 1000:.0f} s, so no message is delivered or"
            " acknowledged. Start one with `lakemq serve`."
        )

    def list_open_requests(self) -> list[Future[Any]]:
        return [request.answer for request in self._unanswered]

    def note_move(self, tp: TopicPartition) -> None:
        """Note that a partition moved to another member before its outcomes were sent."""
        self.refusals.note_fence([f"{tp[0]}-{tp[1]}"])

    def _handle_failure(self, acknowledgements: Sequence[Acknowledgement], error: BaseException) -> None:
        """Put the outcomes of a failed request back if the group may still accept them; else keep the error."""
        for acknowledgement in acknowledgements:
            tracker = self.find_tracker(acknowledgement)
            if tracker is not None and can_send_again(error):
                tracker.requeue(acknowledgement)
                continue
            if tracker is not None:
                tracker.note_answer(acknowledgement)
            if isinstance(error, LakeMQError):
                self.refusals.note_error(error)
                if tracker is not None:
                    tracker.reopen(acknowledgement)

    def find_tracker(self, acknowledgement: Acknowledgement) -> AckTracker | None:
        """Return the tracker of the partition and assignment that the acknowledgement is about."""
        key = acknowledgement.topic_id, acknowledgement.partition, acknowledgement.epoch
        return next(
            (
                tracker
                for tracker in self._trackers.values()
                if (tracker.topic_id, tracker.partition, tracker.epoch) == key
            ),
            None,
        )

    def _apply_answer(self, answer: AcknowledgementsJudged, acknowledgements: Sequence[Acknowledgement]) -> None:
        for acknowledgement in acknowledgements:
            if (tracker := self.find_tracker(acknowledgement)) is not None:
                tracker.note_answer(acknowledgement)
        for i, ranges in zip(answer.invalid, answer.refused, strict=True):
            refused = replace(acknowledgements[i], ranges=ranges)
            if refused.outcome is AckOutcome.UNSEEN:
                continue  # the consumer returned these by itself: no call of the user has failed
            if (tracker := self.find_tracker(refused)) is not None:
                # If an outcome was sent twice and the second is refused, the first one counted, and the message was
                # delivered again since. So only outcomes that were sent once are reported.
                self.refusals.note_invalid(tracker.name, tracker.find_certain_spans(refused))
                tracker.reopen(refused)
            else:
                self.refusals.note_invalid(self._name_partition(refused), [(first, first + n) for first, n in ranges])
        fenced = (acknowledgements[i] for i in answer.fenced)
        self.refusals.note_fence(self._name_partition(part) for part in fenced if part.outcome is not AckOutcome.UNSEEN)

    def _name_partition(self, acknowledgement: Acknowledgement) -> str:
        topics = {tracker.topic_id: topic for (topic, _), tracker in self._trackers.items()}
        topic_id = acknowledgement.topic_id
        return f"{topics.get(topic_id, f'topic {topic_id}')}-{acknowledgement.partition}"


def can_send_again(error: BaseException) -> bool:
    """Return whether the group may still accept the acknowledgements of a request that failed with this error.

    Any error that is not LakeMQ's own says nothing of the group.
    """
    if not isinstance(error, LakeMQError):
        return True
    return error.retriable or isinstance(error, UnknownMemberId | RequestTimedOut | ClientEnded)


def split_into_requests(acknowledgements: Sequence[Acknowledgement]) -> list[list[Acknowledgement]]:
    """Split acknowledgements into requests of at most MAX_RANGES ranges each."""
    requests: list[list[Acknowledgement]] = []
    room = 0
    for acknowledgement in acknowledgements:
        for start in range(0, len(acknowledgement.ranges), MAX_RANGES):
            part = replace(acknowledgement, ranges=acknowledgement.ranges[start : start + MAX_RANGES])
            if len(part.ranges) > room:
                requests.append([])
                room = MAX_RANGES
            requests[-1].append(part)
            room -= len(part.ranges)
    return requests


def invalid_error(partition: str, spans: Iterable[Span]) -> InvalidRecordState:
    """Return the error that names these messages of a partition."""
    sorted_spans = sorted(spans)
    names = ", ".join(f"{first} to {end - 1}" for first, end in sorted_spans[:_MOST_SPANS])
    return InvalidRecordState(found=f"{partition}, offsets {names}{', ...' if len(sorted_spans) > _MOST_SPANS else ''}")


def raise_chain(errors: list[LakeMQError]) -> None:
    """Raise the first error, if there is one; each next one is the cause of the one before it."""
    for error, following in pairwise(errors):
        error.__cause__ = following
    if errors:
        raise errors[0]
