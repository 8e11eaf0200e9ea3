"""What a member of a `queue` group has not shown yet, and what it asks for next: so much, that the next poll has it."""

from __future__ import annotations

from collections.abc import Container, Mapping

from ...protocol.values.deliveries import Stretch, Wanted
from ..offsets import TopicPartition
from .flow import Flow
from .membership import Held, QueueTerms
from .poll_sizes import poll_sizes


def fresh_of(flow: Flow, one: Held) -> list[Stretch]:
    """What it has of a partition and was not shown, up to the first gap: those that are fetched at once."""
    assert one.deliveries is not None
    flow.follow(one.deliveries)
    first, end = one.bounds.first, one.bounds.end
    held = [part.cut(max(first, part.first), min(end, part.end)) for part in one.deliveries.held()]
    found: list[Stretch] = []
    for part in flow.fresh(part for part in held if part.length > 0):
        if found and found[-1].end != part.first:
            break
        found.append(part)
    return found


def wanted_of(
    known: Mapping[TopicPartition, Held],
    halted: Container[TopicPartition],
    terms: QueueTerms,
    most: int,
    now_ms: int,
) -> list[Wanted]:
    """What to ask for of the partitions it has, at most so many messages; nothing that is not there.

    halted: those of which the user wants nothing now; now_ms: the group's time.
    """
    mine = {p: one for p, one in known.items() if not one.is_paused and p not in halted and one.deliveries}
    has = sum(one.deliveries.held_count for one in known.values() if one.deliveries)
    room = min(most, 2 * terms.bound - has)
    there, lasts = {}, []
    for place, one in mine.items():
        assert one.deliveries is not None
        if one.deliveries.next_is_last(terms.policy, now_ms):
            lasts.append(place)
        end = max(one.bounds.end, one.bounds.first)
        ranges = one.deliveries.next_ranges(terms.policy, end, max(room, 0), now_ms)
        there[place] = sum(count for _, count in ranges)
    if lasts:  # it comes alone
        there = {} if has else {lasts[0]: 1}
    counts = poll_sizes(there, max(room, 0))
    # what was deleted while the member had it, or while it was dying, is passed by who asks, even for nothing
    passed = [p for p, one in mine.items() if one.deliveries and one.deliveries.has_before(one.bounds.first)]
    return [
        Wanted(known[place].bounds.topic_id, place[1], known[place].epoch, counts.get(place, 0))
        for place in mine
        if counts.get(place) or place in passed
    ]
