"""What becomes of messages of a `queue` group that somebody had, when nobody says so: they are delivered again, or,
after their last delivery, to nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..values.assignments import Group, Place
from ..values.base import Record
from ..values.deliveries import (
    DeathReason,
    DeliveryStatus,
    MessagesSettled,
    Policy,
    Settled,
    Stretch,
    Taken,
    ranges_of,
)
from ..values.state import State


def given_back(group: Group, place: Place, parts: Sequence[Stretch], error: str = "") -> list[Settled]:
    """Messages that were not done with. error: what is said of them, if anybody says something."""
    most = Policy.of(group).most
    dying = [one for one in parts if most is not None and one.deliveries >= most]
    again = [one for one in parts if most is None or one.deliveries < most]
    settled = [Settled(*place, DeliveryStatus.AVAILABLE, ranges_of(again))] if again else []
    return [*settled, *died(place, dying, DeathReason.GIVEN_UP, error)]


def died(place: Place, parts: Sequence[Stretch], reason: DeathReason, error: str) -> list[Settled]:
    """Messages that nobody is to get any more."""
    if not parts:
        return []
    return [Settled(*place, DeliveryStatus.DYING, ranges_of(parts), reason=reason, error=error)]


def returned(state: State, group: Group, places: Iterable[Place], reason: str) -> list[Record]:
    """What the owners of these partitions had, who have them no more. What is pending is its transaction's to end."""
    known = state.deliveries.get(group.group, {})
    parts = [one for place in places if place in known for one in given_back(group, place, known[place].held())]
    return [MessagesSettled(group.group, reason, parts)] if parts else []


def transaction_ended(state: State, name: str, pending: Iterable[Taken], committed: bool) -> list[Record]:
    """What a transaction has acknowledged for a group, with its end."""
    group, parts = state.groups.get(name), list[Settled]()
    for one in pending:
        known = state.deliveries_of(name, one.place)
        if known is None or group is None:
            continue
        held = [part for part in known.within(one.ranges) if part.status is DeliveryStatus.PENDING]
        if committed and held:
            parts.append(Settled(*one.place, DeliveryStatus.ACKNOWLEDGED, ranges_of(held)))
        elif held:
            parts += given_back(group, one.place, held)
    return [MessagesSettled(name, "committed" if committed else "aborted", parts)] if parts else []
