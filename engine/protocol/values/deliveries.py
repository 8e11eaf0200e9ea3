"""Deliveries: members of queue groups acquire messages and settle them.

First stretches and sets of offsets, then requests and records, then the state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from .assignments import Group, InPartition, TopicIdPartition
from .base import Count, GroupRecord, Number, Request, Result, Transitions
from .groups import Assigned
from .producers import TransactionRef

# Stretches: consecutive messages of a partition that are in the same state of delivery.


Range = tuple[int, int]
"""The first offset and the number of offsets."""


class DeliveryStatus(StrEnum):
    """The states of a message in a `queue` group, once it was delivered."""

    AVAILABLE = "available"
    """It was given back: the owner of the partition may acquire it again."""
    ACQUIRED = "acquired"
    """The owner of its partition has it."""
    PENDING = "pending"
    """It is acknowledged in a transaction that is open."""
    WAITING = "waiting"
    """It was given back, and is not delivered again before its time."""
    DYING = "dying"
    """It was rejected, or given back after its last delivery. It is not delivered again, and becomes a dead letter."""
    ACKNOWLEDGED = "acknowledged"
    """It is finished."""


class DeathReason(StrEnum):
    """The reasons for which a message is not delivered again."""

    REJECTED = "rejected"
    """The member that had it rejected it."""
    GIVEN_UP = "given_up"
    """It was delivered as often as the group allows."""
    EXPIRED = "expired"
    """Its time to live ended before a member had seen it."""


class DeliveryEvent(StrEnum):
    """The events that change the state of a message in a `queue` group."""

    ACQUIRE = "acquire"
    ACCEPT = "accept"
    RELEASE = "release"
    """Its owner, or the end of the owner's assignment, gives it back."""
    DELAY = "release for later"
    GIVE_UP = "give up"
    """It is rejected, has expired, or was given back after its last delivery."""
    ADD_TO_TRANSACTION = "accept in a transaction"
    COMMIT = "commit"
    ABORT = "abort"
    DEAD_LETTER = "become a dead letter"


DELIVERY_TRANSITIONS = Transitions(
    "A message in a queue group",
    (DeliveryStatus.ACQUIRED,),
    {
        DeliveryEvent.ACQUIRE: ({DeliveryStatus.AVAILABLE, DeliveryStatus.WAITING}, DeliveryStatus.ACQUIRED),
        DeliveryEvent.ACCEPT: ({DeliveryStatus.ACQUIRED}, DeliveryStatus.ACKNOWLEDGED),
        DeliveryEvent.RELEASE: ({DeliveryStatus.ACQUIRED}, DeliveryStatus.AVAILABLE),
        DeliveryEvent.DELAY: ({DeliveryStatus.ACQUIRED}, DeliveryStatus.WAITING),
        DeliveryEvent.GIVE_UP: ({DeliveryStatus.ACQUIRED, DeliveryStatus.PENDING}, DeliveryStatus.DYING),
        DeliveryEvent.ADD_TO_TRANSACTION: ({DeliveryStatus.ACQUIRED}, DeliveryStatus.PENDING),
        DeliveryEvent.COMMIT: ({DeliveryStatus.PENDING}, DeliveryStatus.ACKNOWLEDGED),
        DeliveryEvent.ABORT: ({DeliveryStatus.PENDING}, DeliveryStatus.AVAILABLE),
        DeliveryEvent.DEAD_LETTER: ({DeliveryStatus.DYING}, DeliveryStatus.ACKNOWLEDGED),
    },
)

HELD = (DeliveryStatus.ACQUIRED, DeliveryStatus.PENDING)
"""The states in which the owner holds a message. It leaves them when the owner settles it, or loses its assignment."""


class Stretch(NamedTuple):
    """Consecutive messages in the same state.

    deliveries: how often each was delivered. not_before_ms: for waiting ones, when they may be delivered again. reason,
    error: for dying ones, why, and what the member said about them.
    """

    first: int
    length: int
    status: DeliveryStatus
    deliveries: int = 1
    not_before_ms: int = 0
    reason: DeathReason | None = None
    error: str = ""

    @property
    def end(self) -> int:
        return self.first + self.length

    @property
    def span(self) -> tuple[int, int]:
        """The first offset, and the offset after the last."""
        return self.first, self.end

    def cut(self, first: int, end: int) -> Stretch:
        """Return the part between two offsets, which lie in the stretch."""
        return self._replace(first=first, length=end - first)

    def cut_out(self, *excluded: Spans) -> list[Stretch]:
        """Return the parts whose offsets are in none of these sets."""
        parts = [self]
        for spans in excluded:
            parts = [part.cut(first, end) for part in parts for first, end in spans.missing(*part.span)]
        return parts


def change_stretches(
    stretches: Sequence[Stretch], ranges: Sequence[Range], change: Callable[[Stretch], Stretch]
) -> list[Stretch]:
    """Return the stretches with the parts changed that lie in the ranges, which are sorted and disjoint."""
    result: list[Stretch] = []
    at_range = 0
    for stretch in stretches:
        at = stretch.first
        while at_range < len(ranges) and ranges[at_range][0] < stretch.end:
            first, end = ranges[at_range][0], sum(ranges[at_range])
            if end > at:
                begin, until = max(at, first), min(stretch.end, end)
                if at < begin:
                    append_stretch(result, stretch.cut(at, begin))
                append_stretch(result, change(stretch.cut(begin, until)))
                at = until
            if end > stretch.end:
                break
            at_range += 1
        if at < stretch.end:
            append_stretch(result, stretch.cut(at, stretch.end))
    return result


def append_stretch(stretches: list[Stretch], stretch: Stretch) -> None:
    """Add a stretch after the last one, or make it part of that one if the state is the same."""
    if stretches and stretches[-1][2:] == stretch[2:] and stretches[-1].end == stretch.first:
        stretches[-1] = stretches[-1].cut(stretches[-1].first, stretch.end)
    else:
        stretches.append(stretch)


def clip_stretches(stretches: Iterable[Stretch], first: int, end: int) -> list[Stretch]:
    """Return the parts of the stretches from `first` to `end` (exclusive)."""
    clipped = [stretch.cut(max(first, stretch.first), min(end, stretch.end)) for stretch in stretches]
    return [stretch for stretch in clipped if stretch.length > 0]


def stretches_to_ranges(stretches: Iterable[Stretch]) -> list[Range]:
    """Return the offsets of the stretches as disjoint ranges."""
    ranges: list[Range] = []
    for stretch in stretches:
        if ranges and sum(ranges[-1]) == stretch.first:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + stretch.length)
        else:
            ranges.append((stretch.first, stretch.length))
    return ranges


# Sets of offsets, stored as spans because the offsets mostly follow one another.


Span = tuple[int, int]
"""First offset, and end offset (exclusive)."""


class Spans:
    """A set of offsets, as sorted spans that do not touch."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in spans:
            self.add(first, end)

    def add(self, first: int, end: int) -> None:
        """Add the offsets from `first` to `end` (exclusive)."""
        low, high = bisect_left(self._ends, first), bisect_right(self._firsts, end)
        if low < high:
            first, end = min(first, self._firsts[low]), max(end, self._ends[high - 1])
        self._firsts[low:high], self._ends[low:high] = [first], [end]

    def remove(self, first: int, end: int) -> None:
        """Remove the offsets from `first` to `end` (exclusive)."""
        low, high = bisect_right(self._ends, first), bisect_left(self._firsts, end)
        if low >= high:
            return
        before = [(self._firsts[low], first)] if self._firsts[low] < first else []
        after = [(end, self._ends[high - 1])] if end < self._ends[high - 1] else []
        rest = [*before, *after]
        self._firsts[low:high] = [span[0] for span in rest]
        self._ends[low:high] = [span[1] for span in rest]

    def within(self, first: int, end: int) -> Iterator[Span]:
        """Yield the spans of offsets from `first` to `end` that are in the set."""
        low, high = bisect_right(self._ends, first), bisect_left(self._firsts, end)
        for i in range(low, high):
            yield max(first, self._firsts[i]), min(end, self._ends[i])

    def missing(self, first: int, end: int) -> Iterator[Span]:
        """Yield the spans of offsets from `first` to `end` that are not in the set."""
        for span_first, span_end in self.within(first, end):
            if first < span_first:
                yield first, span_first
            first = span_end
        if first < end:
            yield first, end

    def __iter__(self) -> Iterator[Span]:
        return iter(list(zip(self._firsts, self._ends, strict=True)))

    @property
    def is_empty(self) -> bool:
        return not self._firsts

    def __len__(self) -> int:
        """Return the number of offsets."""
        return sum(self._ends) - sum(self._firsts)


def group_into_spans(offsets: Iterable[int]) -> list[Span]:
    """Return sorted spans of these offsets, which come in any order. Raises ValueError unless they fit 64 bits."""
    listed = list(offsets)
    if not listed:
        return []
    try:
        array = np.array(listed)
    except (TypeError, OverflowError) as error:
        raise ValueError("not a whole number") from error
    if array.dtype.kind != "i" or array.ndim != 1:
        raise ValueError("not a whole number of 64 bits")
    distinct = np.unique(array)
    cuts = np.flatnonzero(np.diff(distinct) != 1)
    firsts = distinct[np.concatenate([[0], cuts + 1])]
    lasts = distinct[np.concatenate([cuts, [len(distinct) - 1]])]
    return [(first, last + 1) for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]


# Requests, results and records.


MAX_RANGES = 100_000
"""Ranges in one acknowledgement."""

MAX_ERROR_LENGTH = 1_000
"""Characters of the text that a member may add when it gives a message back."""


class AckOutcome(StrEnum):
    """The decision of a member about messages."""

    ACK = "accept"
    """They are finished."""
    NACK = "release"
    """They should be delivered again."""
    REJECT = "reject"
    """They must not be delivered again."""
    UNSEEN = "unseen"
    """The application has not seen them: their delivery does not count."""
    EXPIRE = "expire"
    """They had expired, and the application was not shown them."""


class WantedMessages(Assigned, frozen=True, array_like=True):
    """How many messages of a partition a member wants, at most."""

    count: Count


class Acquire(Request, frozen=True, tag="acquire"):  # Decided by `rules/deliveries.py`.
    """Ask for messages for a member. Messages that were given back come before new ones."""

    group: str
    member_id: str
    wanted: list[WantedMessages]


class Acknowledgement(Assigned, frozen=True, array_like=True):
    """The decision of a member about messages of a partition.

    ranges: first offset and count, sorted and disjoint. delay_ms: for released ones, the wait before redelivery; None:
    the group's setting. deliveries: the number of the delivery that it is about, starting at 1; after another delivery
    it is too late; None: the last one. error: the reason for messages that are not accepted, for their dead letters.
    """

    outcome: AckOutcome
    ranges: list[tuple[Number, Count]]
    delay_ms: Count | None = None
    deliveries: Count | None = None
    error: Annotated[str, msgspec.Meta(max_length=MAX_ERROR_LENGTH)] = ""


class Acknowledge(Request, frozen=True, tag="acknowledge"):  # Decided by `rules/deliveries.py`.
    """Settle messages that a member has. Inside a transaction they can only be accepted, and are so when it commits."""

    group: str
    member_id: str
    parts: list[Acknowledgement]
    transaction: TransactionRef | None = None


class AcknowledgementsJudged(Result, frozen=True, tag="acknowledgements_judged"):
    """All messages that the member has are settled. The others are listed by the index of their part.

    fenced: parts that are refused as a whole, because the member does not own the partition any more, or got it again.
    invalid: parts with messages that the member does not have. refused: these messages, one list per invalid part.
    """

    fenced: list[int]
    invalid: list[int]
    refused: list[list[Range]] = []


# -- records --------------------------------------------------------------------------------------------


class MessageRanges(InPartition, frozen=True, array_like=True):
    """Messages of a partition."""

    ranges: list[Range]


class MessagesAcquired(GroupRecord, frozen=True, tag="messages_acquired"):
    """Messages are delivered to a member. The first ones of a partition set where the group starts in it."""

    member_id: str
    taken: list[MessageRanges]


class SettledMessages(InPartition, frozen=True, array_like=True):
    """Messages of a partition and their new state.

    uncounted: their last delivery does not count. reason, error: why they are dying; for expired ones that become no
    dead letters, why they are finished.
    """

    status: DeliveryStatus
    ranges: list[Range]
    not_before_ms: int = 0
    uncounted: bool = False
    reason: DeathReason | None = None
    error: str = ""


BY_MEMBER, COMMITTED, ABORTED = "member", "committed", "aborted"
"""Reasons for which messages change their state while their partition stays with its owner."""

DEAD_LETTERS, NO_MESSAGES = "dead letters", "no messages"
"""Reasons for which dying messages are finished: they became dead letters, or their offsets hold no messages."""


class MessagesSettled(GroupRecord, frozen=True, tag="messages_settled"):
    """Delivered messages change their state. reason: one of those above, or why the member lost them.

    transactional_id: the transaction in which they are pending.
    """

    reason: str
    parts: list[SettledMessages]
    transactional_id: str | None = None

    def find_event(self, part: SettledMessages) -> DeliveryEvent:
        """Return the event that changes the state of a part's messages."""
        return _EVENTS_BY_REASON.get((self.reason, part.status)) or _EVENTS[part.status]


_EVENTS_BY_REASON = {
    (COMMITTED, DeliveryStatus.ACKNOWLEDGED): DeliveryEvent.COMMIT,
    (ABORTED, DeliveryStatus.AVAILABLE): DeliveryEvent.ABORT,
    (DEAD_LETTERS, DeliveryStatus.ACKNOWLEDGED): DeliveryEvent.DEAD_LETTER,
    (NO_MESSAGES, DeliveryStatus.ACKNOWLEDGED): DeliveryEvent.DEAD_LETTER,
}
_EVENTS = {
    DeliveryStatus.ACQUIRED: DeliveryEvent.ACQUIRE,
    DeliveryStatus.ACKNOWLEDGED: DeliveryEvent.ACCEPT,
    DeliveryStatus.AVAILABLE: DeliveryEvent.RELEASE,
    DeliveryStatus.WAITING: DeliveryEvent.DELAY,
    DeliveryStatus.DYING: DeliveryEvent.GIVE_UP,
    DeliveryStatus.PENDING: DeliveryEvent.ADD_TO_TRANSACTION,
}
"""The events for all other reasons."""


class MessagesPassed(GroupRecord, frozen=True, tag="messages_passed"):
    """Messages before this offset are deleted, and the group skips them."""

    topic_id: int
    partition: int
    offset: int

    @property
    def topic_partition(self) -> TopicIdPartition:
        return self.topic_id, self.partition


REQUESTS = (Acquire, Acknowledge)
RESULTS = (AcknowledgementsJudged,)
RECORDS = (MessagesAcquired, MessagesSettled, MessagesPassed)


# Deliveries: the state of a partition's messages in a `queue` group.
#
# The messages past the committed offset are stretches of offsets; all messages of a stretch are in the same state. A
# member acquires messages, which counts as a delivery, and then settles them. KIP-932 calls this share groups. Here
# each partition has a single owner, so that the order per key holds.


MAX_STRETCHES = 1_000
"""Stretches of a partition. With as many, no new messages are acquired."""

_DYING = (DeliveryStatus.DYING,)


class DeliveryPolicy(NamedTuple):
    """How a group delivers its messages.

    max_deliveries: deliveries of each message; None: unlimited. in_order: a message that waits holds up those after it.
    """

    max_deliveries: int | None
    in_order: bool

    @classmethod
    def from_group(cls, group: Group) -> DeliveryPolicy:
        redelivered = int(group.setting("max.redelivery.count"))
        return cls(None if redelivered < 0 else 1 + redelivered, group.setting("nack.order") == "partition")

    def is_last(self, stretch: Stretch) -> bool:
        """Return whether the next delivery of these messages is the last one.

        Such a message is delivered alone: if it stops its consumer, no other message loses a delivery by it.
        """
        return self.max_deliveries is not None and stretch.deliveries + 1 >= self.max_deliveries > 1

    def limit_batch(self, stretch: Stretch, limit: int) -> int:
        """Return how many of these messages to deliver together.

        After half of the deliveries the number is halved each time, so that a bad message is separated from good ones.
        """
        count = min(stretch.length, limit)
        half = 0 if self.max_deliveries is None else self.max_deliveries // 2
        if self.max_deliveries is None or stretch.deliveries < half:
            return count
        return max(1, count >> (stretch.deliveries - half + 1))


@dataclass
class Deliveries:
    """The deliveries of a partition.

    start: all before it is finished. stretches: from start on without a gap, up to the messages that were never
    delivered. held_count, dying_count: messages that the owner holds, and that are dying. silent_since_ms: when the
    owner last settled something or began to hold messages, in decided time; 0 if it holds none.
    """

    start: int
    stretches: list[Stretch] = field(default_factory=list)
    held_count: int = 0
    dying_count: int = 0
    silent_since_ms: int = 0

    @classmethod
    def from_stretches(cls, start: int, stretches: Sequence[Stretch], silent_since_ms: int = 0) -> Deliveries:
        """Return deliveries with these stretches, which follow one another from the start on."""
        new = cls(start, silent_since_ms=silent_since_ms)
        new._set(list(stretches))
        return new

    @property
    def next_offset(self) -> int:
        """The first offset that was never delivered."""
        return self.stretches[-1].end if self.stretches else self.start

    def count_remaining(self, end: int, log_start: int) -> int:
        """Return how many offsets before `end` are neither finished nor deleted."""
        first = max(self.start, log_start)
        done = (stretch for stretch in self.stretches if stretch.status is DeliveryStatus.ACKNOWLEDGED)
        return max(0, end - first) - sum(max(0, min(stretch.end, end) - max(stretch.first, first)) for stretch in done)

    def list_acquired_stretches(self) -> list[Stretch]:
        """Return the stretches that the owner has acquired and not settled."""
        if not self.held_count:
            return []
        return [stretch for stretch in self.stretches if stretch.status is DeliveryStatus.ACQUIRED]

    def list_dying_stretches(self) -> list[Stretch]:
        """Return the stretches that become dead letters."""
        if not self.dying_count:
            return []
        return [stretch for stretch in self.stretches if stretch.status is DeliveryStatus.DYING]

    @property
    def first_given_back(self) -> int | None:
        """The lowest offset that is delivered again, now or later."""
        again = (DeliveryStatus.AVAILABLE, DeliveryStatus.WAITING)
        return next((stretch.first for stretch in self.stretches if stretch.status in again), None)

    @property
    def first_held(self) -> int | None:
        """The lowest offset that the owner holds."""
        return next((stretch.first for stretch in self.stretches if stretch.status in HELD), None)

    def has_unsettled_before(self, offset: int) -> bool:
        """Return whether messages before the offset are held or dying. Other unfinished ones are delivered again."""
        if not self.held_count + self.dying_count:
            return False
        return any(stretch.first < offset for stretch in self.stretches if stretch.status in (*HELD, *_DYING))

    def copy(self) -> Deliveries:
        return replace(self, stretches=list(self.stretches))

    def is_next_last(self, policy: DeliveryPolicy, now_ms: int) -> bool:
        first = next(self._iterate_deliverable(policy, now_ms), None)
        return first is not None and policy.is_last(first)

    def next_ranges(self, policy: DeliveryPolicy, end: int, limit: int, now_ms: int) -> list[Range]:
        """Return what the owner gets next, lowest offset first: at most `limit` messages before `end`."""
        ranges: list[Range] = []
        for stretch in self._iterate_deliverable(policy, now_ms):
            if stretch is None or limit <= 0:
                return ranges
            if policy.is_last(stretch):
                return ranges or [(stretch.first, 1)]
            count = policy.limit_batch(stretch, limit)
            ranges.append((stretch.first, count))
            limit -= count
            if count < stretch.length:
                return ranges
        first = self.next_offset
        count = min(limit, end - first)
        if count > 0 and len(self.stretches) < MAX_STRETCHES:
            ranges.append((first, count))
        return ranges

    def _iterate_deliverable(self, policy: DeliveryPolicy, now_ms: int) -> Iterator[Stretch | None]:
        """Yield what may be delivered again; None where a waiting message holds up everything after it."""
        for stretch in self.stretches:
            if stretch.status is DeliveryStatus.WAITING and stretch.not_before_ms > now_ms:
                if policy.in_order:
                    yield None
            elif stretch.status in (DeliveryStatus.AVAILABLE, DeliveryStatus.WAITING):
                yield stretch

    def find_stretches(self, ranges: Sequence[Range]) -> list[Stretch]:
        """Return the stretches of these offsets, cut to them. Offsets without a stretch are left out.

        ranges: sorted and disjoint.
        """
        stretches: list[Stretch] = []
        at, high = self._find_bounds(ranges)
        for first, count in ranges:
            end = first + count
            while at < high and self.stretches[at].end <= first:
                at += 1
            while at < high and (stretch := self.stretches[at]).first < end:
                is_whole = first <= stretch.first and stretch.end <= end
                stretches.append(stretch if is_whole else stretch.cut(max(first, stretch.first), min(end, stretch.end)))
                if stretch.end > end:
                    break  # the next range may begin in it
                at += 1
        return stretches

    def change(self, ranges: Sequence[Range], change: Callable[[Stretch], Stretch]) -> None:
        """Change the state of these offsets. Finished messages at the start then lose their stretches."""
        low, high = self._find_bounds(ranges)
        low, high = max(low - 1, 0), high + 1  # with the neighbours, as changed stretches may now join them
        before = self.stretches[low:high]
        after = change_stretches(before, ranges, change)
        self.stretches[low:high] = after
        self.held_count += _count_messages(after, HELD) - _count_messages(before, HELD)
        self.dying_count += _count_messages(after, _DYING) - _count_messages(before, _DYING)
        self._pass_done()

    def _find_bounds(self, ranges: Sequence[Range]) -> tuple[int, int]:
        """Return the indexes of the stretches between which these offsets lie.

        So a small change does not walk through all stretches.
        """
        if not ranges:
            return 0, 0
        low = bisect_right(self.stretches, ranges[0][0], key=lambda stretch: stretch.end)
        return low, bisect_left(self.stretches, sum(ranges[-1]), lo=low, key=lambda stretch: stretch.first)

    def acquire(self, ranges: Sequence[Range]) -> None:
        """Mark messages as delivered. New ones follow the known stretches."""
        next_offset = self.next_offset
        again = [(first, min(first + count, next_offset) - first) for first, count in ranges if first < next_offset]
        self.change(again, _acquire_again)
        stretches, at = self.stretches, self.next_offset
        for first, count in ranges:
            if first + count > at:
                if first > at:  # cannot happen, but folding must not fail
                    append_stretch(stretches, Stretch(at, first - at, DeliveryStatus.ACKNOWLEDGED))
                append_stretch(
                    stretches, Stretch(max(first, at), first + count - max(first, at), DeliveryStatus.ACQUIRED)
                )
                at = first + count
        self._set(stretches)

    def settle(self, settled: SettledMessages, event: DeliveryEvent) -> None:
        """Change the state of messages by a record. event: the one that leads to the state."""
        self.change(settled.ranges, partial(_settle_stretch, settled, event))

    def extend_to(self, end: int) -> None:
        """Add new offsets before `end` as available, without a delivery."""
        first = max(self.next_offset, self.start)
        if first < end:
            self._set([*self.stretches, Stretch(first, end - first, DeliveryStatus.AVAILABLE, 0)])

    def advance_start(self, offset: int) -> None:
        """Finish everything before the offset."""
        if offset > self.start:
            next_offset, self.start = self.next_offset, offset
            self._set(clip_stretches(self.stretches, offset, next_offset))

    def _set(self, stretches: list[Stretch]) -> None:
        self.stretches = stretches
        self.held_count, self.dying_count = _count_messages(stretches, HELD), _count_messages(stretches, _DYING)
        self._pass_done()

    def _pass_done(self) -> None:
        done = 0
        for stretch in self.stretches:
            if stretch.status is not DeliveryStatus.ACKNOWLEDGED:
                break
            self.start, done = stretch.end, done + 1
        del self.stretches[:done]


def _acquire_again(stretch: Stretch) -> Stretch:
    status = DELIVERY_TRANSITIONS.move(stretch.status, DeliveryEvent.ACQUIRE)
    return Stretch(stretch.first, stretch.length, status, stretch.deliveries + 1)


def _settle_stretch(settled: SettledMessages, event: DeliveryEvent, stretch: Stretch) -> Stretch:
    status = DELIVERY_TRANSITIONS.move(stretch.status, event)
    if status is DeliveryStatus.ACKNOWLEDGED:  # without details, so that neighbours become one stretch
        return Stretch(stretch.first, stretch.length, status)
    deliveries = stretch.deliveries - settled.uncounted
    return Stretch(
        stretch.first, stretch.length, status, deliveries, settled.not_before_ms, settled.reason, settled.error
    )


def _count_messages(stretches: Iterable[Stretch], statuses: Sequence[DeliveryStatus]) -> int:
    return sum(stretch.length for stretch in stretches if stretch.status in statuses)
