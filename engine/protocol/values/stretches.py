"""Stretches: consecutive messages of a partition that are in the same state of delivery."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from .base import Transitions

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


def stretches_to_ranges(stretches: Iterable[Stretch]) -> list[Range]:
    """Return the offsets of the stretches as disjoint ranges."""
    ranges: list[Range] = []
    for stretch in stretches:
        if ranges and sum(ranges[-1]) == stretch.first:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + stretch.length)
        else:
            ranges.append((stretch.first, stretch.length))
    return ranges
