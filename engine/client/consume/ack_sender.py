"""Send the acknowledgements of a queue consumer to its group, and repeat requests that were not answered."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

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
    Span,
    Spans,
    WantedMessages,
)
from ..offsets import TopicPartition
from .membership import Membership
from .queue_poll import AckTracker

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
