"""What became of a partition's messages in a `queue` group, past what is done: stretches of offsets, never messages.

A member acquires messages, which counts as their delivery, and says what became of them. (KIP-932 calls it share
groups; here a partition has one owner, so that order per key holds.)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, NamedTuple

import msgspec

from .assignments import Group, InPartition, Place
from .base import Count, Number, Record, Request, Result
from .groups import Assigned
from .producers import TransactionRef
from .transitions import Transitions

MAX_STRETCHES = 1_000
"""Of a partition; with as many, nothing new is acquired."""

MAX_RANGES = 100_000
"""Of one request that acknowledges."""

Range = tuple[int, int]
"""First offset, and how many."""


class DeliveryStatus(str, Enum):
    """The states of a message in a `queue` group, once it was delivered."""

    AVAILABLE = "available"
    """It was given back: whoever has the partition may acquire it again."""
    ACQUIRED = "acquired"
    """Its partition's owner has it."""
    PENDING = "pending"
    """It is acknowledged in a transaction that is open."""
    WAITING = "waiting"
    """It was given back, not to be delivered again before its time."""
    DYING = "dying"
    """It was rejected, or given back after its last delivery: nobody gets it any more, and it becomes a dead letter."""
    ACKNOWLEDGED = "acknowledged"
    """It is done with."""


class DeathReason(str, Enum):
    """Why nobody gets a message any more."""

    REJECTED = "rejected"
    """Who had it said so."""
    GIVEN_UP = "given_up"
    """It was delivered as often as it may be."""
    EXPIRED = "expired"
    """Its time to live was over before anybody had looked at it."""


MAX_ERROR_LENGTH = 1_000
"""Of the text that who gives a message back says of it."""

DELIVERY_TRANSITIONS = Transitions(
    "A message in a queue group",
    {
        DeliveryStatus.AVAILABLE: {DeliveryStatus.ACQUIRED},
        DeliveryStatus.WAITING: {DeliveryStatus.ACQUIRED},
        DeliveryStatus.ACQUIRED: {
            DeliveryStatus.ACKNOWLEDGED,
            DeliveryStatus.PENDING,
            DeliveryStatus.AVAILABLE,
            DeliveryStatus.WAITING,
            DeliveryStatus.DYING,
        },
        DeliveryStatus.PENDING: {DeliveryStatus.ACKNOWLEDGED, DeliveryStatus.AVAILABLE, DeliveryStatus.DYING},
        DeliveryStatus.DYING: {DeliveryStatus.ACKNOWLEDGED},
        DeliveryStatus.ACKNOWLEDGED: set(),
    },
)

HELD = (DeliveryStatus.ACQUIRED, DeliveryStatus.PENDING)
"""Out of the owner's hands these are only by what it says, or with its assignment."""
_DYING = (DeliveryStatus.DYING,)


class Stretch(NamedTuple):
    """Messages that follow one another and have the same state. deliveries: how often each was delivered;
    not_before_ms: of those that wait; reason, error: of those that are dying, why, and what was said of it.
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
        """Its first offset, and the one after the last."""
        return self.first, self.end

    def cut(self, first: int, end: int) -> Stretch:
        """The part from one offset to another, which it has."""
        return self._replace(first=first, length=end - first)


class Policy(NamedTuple):
    """How a group has its messages delivered. most: deliveries of each, None: without end; in_order: one that waits
    for its time holds up those after it.
    """

    most: int | None
    in_order: bool

    @classmethod
    def of(cls, group: Group) -> Policy:
        redelivered = int(group.setting("max.redelivery.count"))
        return cls(None if redelivered < 0 else 1 + redelivered, group.setting("nack.order") == "partition")

    def is_last(self, one: Stretch) -> bool:
        """Whether their next delivery is their last, and comes alone: a message that stops its consumer is not to take
        others with it.
        """
        return self.most is not None and one.deliveries + 1 >= self.most > 1

    def together(self, one: Stretch, wanted: int) -> int:
        """How many of them come together: from half of the deliveries on ever fewer, to find the one that is bad."""
        count = min(one.length, wanted)
        half = 0 if self.most is None else self.most // 2
        if self.most is None or one.deliveries < half:
            return count
        return max(1, count >> (one.deliveries - half + 1))


@dataclass
class Deliveries:
    """Of a partition. start: before it all is done; stretches: from there on, without a gap, to what is new;
    held_count, dying_count: messages in stretches that an owner holds, and in those that are dying.
    """

    start: int
    stretches: list[Stretch] = field(default_factory=list)
    held_count: int = 0
    dying_count: int = 0

    @classmethod
    def of(cls, start: int, stretches: Sequence[Stretch]) -> Deliveries:
        """Of stretches that follow one another from there on."""
        new = cls(start)
        new._set(list(stretches))
        return new

    @property
    def next_offset(self) -> int:
        """The first one that was never delivered."""
        return self.stretches[-1].end if self.stretches else self.start

    def left_count(self, end: int) -> int:
        """Offsets before `end` that are not done with."""
        done = (one for one in self.stretches if one.status is DeliveryStatus.ACKNOWLEDGED)
        return max(0, end - self.start) - sum(max(0, min(one.end, end) - one.first) for one in done)

    def held(self) -> list[Stretch]:
        """What its owner has and has said nothing of."""
        if not self.held_count:
            return []
        return [one for one in self.stretches if one.status is DeliveryStatus.ACQUIRED]

    def dying(self) -> list[Stretch]:
        """What is to become dead letters."""
        if not self.dying_count:
            return []
        return [one for one in self.stretches if one.status is DeliveryStatus.DYING]

    def has_before(self, offset: int) -> bool:
        """Whether messages before it are held, or dying: what else is not done with is delivered again."""
        if not self.held_count + self.dying_count:
            return False
        return any(one.first < offset for one in self.stretches if one.status in (*HELD, *_DYING))

    def copy(self) -> Deliveries:
        return Deliveries(self.start, list(self.stretches), self.held_count, self.dying_count)

    def next_is_last(self, policy: Policy, now_ms: int) -> bool:
        first = next(self._given_back(policy, now_ms), None)
        return first is not None and policy.is_last(first)

    def next_ranges(self, policy: Policy, end: int, wanted: int, now_ms: int) -> list[Range]:
        """What its owner gets next, lowest offset first: at most so many, of messages before `end`."""
        found: list[Range] = []
        for one in self._given_back(policy, now_ms):
            if one is None or wanted <= 0:
                return found
            if policy.is_last(one):
                return found or [(one.first, 1)]
            count = policy.together(one, wanted)
            found.append((one.first, count))
            wanted -= count
            if count < one.length:
                return found
        first = self.next_offset
        count = min(wanted, end - first)
        if count > 0 and len(self.stretches) < MAX_STRETCHES:
            found.append((first, count))
        return found

    def _given_back(self, policy: Policy, now_ms: int) -> Iterator[Stretch | None]:
        """What may be delivered again; None: what comes after it is held up by what waits for its time."""
        for one in self.stretches:
            if one.status is DeliveryStatus.WAITING and one.not_before_ms > now_ms:
                if policy.in_order:
                    yield None
            elif one.status in (DeliveryStatus.AVAILABLE, DeliveryStatus.WAITING):
                yield one

    def within(self, ranges: Sequence[Range]) -> list[Stretch]:
        """The stretches of these offsets, cut to them; offsets of which nothing is known are left out.

        ranges: sorted and apart.
        """
        found: list[Stretch] = []
        at, high = self._touched(ranges)
        for first, count in ranges:
            end = first + count
            while at < high and self.stretches[at].end <= first:
                at += 1
            while at < high and (one := self.stretches[at]).first < end:
                is_whole = first <= one.first and one.end <= end
                found.append(one if is_whole else one.cut(max(first, one.first), min(end, one.end)))
                if one.end > end:
                    break  # the next range may begin in it
                at += 1
        return found

    def change(self, ranges: Sequence[Range], change: Callable[[Stretch], Stretch]) -> None:
        """Change what is known of these offsets; what is done at the start needs no stretch any more."""
        low, high = self._touched(ranges)
        low, high = max(low - 1, 0), high + 1  # with their neighbours, which they may be like now
        before = self.stretches[low:high]
        after = changed(before, ranges, change)
        self.stretches[low:high] = after
        self.held_count += _count(after, HELD) - _count(before, HELD)
        self.dying_count += _count(after, _DYING) - _count(before, _DYING)
        self._pass_done()

    def _touched(self, ranges: Sequence[Range]) -> tuple[int, int]:
        """Between which indexes the stretches of these offsets are: a change of a few does not go through all."""
        if not ranges:
            return 0, 0
        low = bisect_right(self.stretches, ranges[0][0], key=lambda one: one.end)
        return low, bisect_left(self.stretches, sum(ranges[-1]), lo=low, key=lambda one: one.first)

    def acquire(self, ranges: Sequence[Range]) -> None:
        """These are delivered; those that are new follow what is there."""
        known = self.next_offset
        again = [(first, min(first + count, known) - first) for first, count in ranges if first < known]
        self.change(again, lambda part: Stretch(part.first, part.length, DeliveryStatus.ACQUIRED, part.deliveries + 1))
        stretches, at = self.stretches, self.next_offset
        for first, count in ranges:
            if first + count > at:
                if first > at:  # cannot be; folding is total
                    _add(stretches, Stretch(at, first - at, DeliveryStatus.ACKNOWLEDGED))
                _add(stretches, Stretch(max(first, at), first + count - max(first, at), DeliveryStatus.ACQUIRED))
                at = first + count
        self._set(stretches)

    def cover(self, end: int) -> None:
        """Offsets before the end that are new are known from now on, and nothing became of them yet."""
        first = max(self.next_offset, self.start)
        if first < end:
            self._set([*self.stretches, Stretch(first, end - first, DeliveryStatus.AVAILABLE, 0)])

    def cut_off(self, offset: int) -> None:
        """All before it is done."""
        if offset > self.start:
            self.start = offset
            cut = (one.cut(max(one.first, offset), one.end) for one in self.stretches if one.end > offset)
            self._set(list(cut))

    def _set(self, stretches: list[Stretch]) -> None:
        self.stretches = stretches
        self.held_count, self.dying_count = _count(stretches, HELD), _count(stretches, _DYING)
        self._pass_done()

    def _pass_done(self) -> None:
        done = 0
        for one in self.stretches:
            if one.status is not DeliveryStatus.ACKNOWLEDGED:
                break
            self.start, done = one.end, done + 1
        del self.stretches[:done]


def _count(stretches: Iterable[Stretch], among: Sequence[DeliveryStatus]) -> int:
    return sum(one.length for one in stretches if one.status in among)


def changed(
    stretches: Sequence[Stretch], ranges: Sequence[Range], change: Callable[[Stretch], Stretch]
) -> list[Stretch]:
    """The stretches, with those parts changed that lie in the ranges, which are sorted and apart."""
    result: list[Stretch] = []
    at_range = 0
    for one in stretches:
        at = one.first
        while at_range < len(ranges) and ranges[at_range][0] < one.end:
            first, end = ranges[at_range][0], sum(ranges[at_range])
            if end > at:
                begin, until = max(at, first), min(one.end, end)
                if at < begin:
                    _add(result, one.cut(at, begin))
                _add(result, change(one.cut(begin, until)))
                at = until
            if end > one.end:
                break
            at_range += 1
        if at < one.end:
            _add(result, one.cut(at, one.end))
    return result


def _add(stretches: list[Stretch], one: Stretch) -> None:
    if stretches and stretches[-1][2:] == one[2:] and stretches[-1].end == one.first:
        stretches[-1] = stretches[-1].cut(stretches[-1].first, one.end)
    else:
        stretches.append(one)


def ranges_of(stretches: Iterable[Stretch]) -> list[Range]:
    """Their offsets, as ranges that are apart."""
    found: list[Range] = []
    for one in stretches:
        if found and sum(found[-1]) == one.first:
            found[-1] = (found[-1][0], found[-1][1] + one.length)
        else:
            found.append((one.first, one.length))
    return found


# -- what is asked --------------------------------------------------------------------------------------


class Outcome(str, Enum):
    """What became of messages that a member had."""

    ACCEPT = "accept"
    """They are done with."""
    RELEASE = "release"
    """They are to be delivered again."""
    REJECT = "reject"
    """They are not to be delivered again."""
    UNSEEN = "unseen"
    """Nobody has looked at them: their delivery does not count."""
    EXPIRE = "expire"
    """They had expired: nobody was shown them, nor is."""


class Wanted(Assigned, frozen=True, array_like=True):
    """At most so many messages of a partition."""

    count: Count


class Acquire(Request, frozen=True, tag="acquire"):
    """Messages for a member: those that were given back before those that are new. It has what the journal says."""

    group: str
    member_id: str
    wanted: list[Wanted]


class Acknowledgement(Assigned, frozen=True, array_like=True):
    """What became of messages of a partition.

    ranges: first offset and count, sorted and apart; delay_ms: of those that are released, None: as the group says;
    deliveries: which delivery of them it is about, the first being 1: after another one it comes too late. None: the
    last; error: what is said of those that are not accepted, for their dead letters.
    """

    outcome: Outcome
    ranges: list[tuple[Number, Count]]
    delay_ms: Count | None = None
    deliveries: Count | None = None
    error: Annotated[str, msgspec.Meta(max_length=MAX_ERROR_LENGTH)] = ""


class Acknowledge(Request, frozen=True, tag="acknowledge"):
    """What became of messages that a member had; inside a transaction, which accepts only, once that commits."""

    group: str
    member_id: str
    parts: list[Acknowledgement]
    transaction: TransactionRef | None = None


class AcknowledgementsJudged(Result, frozen=True, tag="acknowledgements_judged"):
    """It is noted, but for these parts, by index. fenced: the partition is not the member's any more, or was given to
    it anew; invalid: it does not have all of these messages.
    """

    fenced: list[int]
    invalid: list[int]


# -- what is decided ------------------------------------------------------------------------------------


class Taken(InPartition, frozen=True, array_like=True):
    """Messages of a partition."""

    ranges: list[Range]


class MessagesAcquired(Record, frozen=True, tag="messages_acquired"):
    """Messages are delivered to a member; the first ones of a partition are where the group begins in it."""

    group: str
    member_id: str
    taken: list[Taken]

    @property
    def subject(self) -> str:
        return self.group


class Settled(InPartition, frozen=True, array_like=True):
    """Messages of a partition and what they are from now on. uncounted: their last delivery was none; reason, error:
    why they are dying, or, of those that have expired and become no dead letters, why they are done with.
    """

    status: DeliveryStatus
    ranges: list[Range]
    not_before_ms: int = 0
    uncounted: bool = False
    reason: DeathReason | None = None
    error: str = ""


class MessagesSettled(Record, frozen=True, tag="messages_settled"):
    """What became of messages that were delivered. reason: who says so: the member, or why it has them no more.

    transactional_id: of the transaction that they are pending in.
    """

    group: str
    reason: str
    parts: list[Settled]
    transactional_id: str | None = None

    @property
    def subject(self) -> str:
        return self.group


class MessagesPassed(Record, frozen=True, tag="messages_passed"):
    """What lay before this offset is deleted: the group passes it."""

    group: str
    topic_id: int
    partition: int
    offset: int

    @property
    def subject(self) -> str:
        return self.group

    @property
    def place(self) -> Place:
        return self.topic_id, self.partition


REQUESTS = (Acquire, Acknowledge)
RESULTS = (AcknowledgementsJudged,)
RECORDS = (MessagesAcquired, MessagesSettled, MessagesPassed)
