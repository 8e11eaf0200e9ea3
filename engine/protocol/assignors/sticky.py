"""Sticky: as even as the subscriptions allow, and of that, what is near to who has what now.

Topics with the same subscribers are of one kind: for the balance their partitions are alike. So it is found first how
many of each kind a member gets, and then which ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from .assignor import Member, TopicPartition, in_order, subscribers

# Members are numbers below: their places in order. Kinds are, too: the fewer subscribe one, the lower it is.


def assign_sticky(
    partition_counts: Mapping[str, int], members: Mapping[str, Member]
) -> dict[str, list[TopicPartition]]:
    """No chain of moves from member to member would bring the loads of two any closer; who owns something keeps it.

    Among equal subscriptions that is within one, with as few moves as there can be. With different ones moves are few,
    and not always the fewest. Who owns nothing, and gives nothing: dealt as by `roundrobin` where subscriptions are
    equal. Given its own answer as `owned`, it answers the same. Of two who claim a partition the first in order has it.

    It is both `sticky` and `cooperative-sticky`: this is where a cooperative group is to get to. That a partition is
    given up by one before the other has it is the work of who hands over, not of an assignor.
    """
    ids = in_order(members)
    kinds = _kinds(partition_counts, members, ids)
    ideal = _Balance(kinds, len(ids))  # as if nobody had anything
    ideal.fill()
    most = ideal.even_out()

    owned = _owned(partition_counts, members, ids, kinds)
    balance = _Balance(kinds, len(ids))
    for member, mine in enumerate(owned):
        for kind in sorted(mine):  # what many can take is given up first
            balance.give(member, kind, min(len(mine[kind]), most[member] - balance.loads[member]))
    balance.fill()
    balance.even_out()
    return dict(zip(ids, _partitions(kinds, balance, owned), strict=True))


assign_cooperative_sticky = assign_sticky


@dataclass(frozen=True)
class _Kind:
    subscribers: tuple[int, ...]  # ascending
    subscriber_set: frozenset[int]
    topics: frozenset[str]
    partitions: tuple[TopicPartition, ...]  # ascending


_Owned = Sequence[Mapping[int, Sequence[TopicPartition]]]  # of each member: kind -> partitions, ascending


def _kinds(partition_counts: Mapping[str, int], members: Mapping[str, Member], ids: Sequence[str]) -> list[_Kind]:
    places = {member_id: place for place, member_id in enumerate(ids)}
    topics_of: dict[tuple[str, ...], list[str]] = {}
    for topic, member_ids in subscribers(partition_counts, members).items():
        topics_of.setdefault(member_ids, []).append(topic)
    kinds = []
    for member_ids, topics in topics_of.items():
        who = tuple(places[member_id] for member_id in member_ids)
        partitions = tuple((topic, number) for topic in topics for number in range(partition_counts[topic]))
        kinds.append(_Kind(who, frozenset(who), frozenset(topics), partitions))
    return sorted(kinds, key=lambda kind: len(kind.subscribers))


def _owned(
    partition_counts: Mapping[str, int], members: Mapping[str, Member], ids: Sequence[str], kinds: Sequence[_Kind]
) -> _Owned:
    """Of what members say they own, what is still there, and still theirs."""
    kind_of = {topic: number for number, kind in enumerate(kinds) for topic in kind.topics}
    claimed: set[TopicPartition] = set()
    owned: list[dict[int, list[TopicPartition]]] = [{} for _ in ids]
    for member, member_id in enumerate(ids):
        for topic, number in sorted(members[member_id].owned):
            kind = kind_of.get(topic)
            if kind is None or member not in kinds[kind].subscriber_set or (topic, number) in claimed:
                continue
            if 0 <= number < partition_counts[topic]:
                claimed.add((topic, number))
                owned[member].setdefault(kind, []).append((topic, number))
    return owned


class _Balance:
    """How many partitions of which kind each member gets."""

    def __init__(self, kinds: Sequence[_Kind], member_count: int) -> None:
        self._kinds = kinds
        self._free = [len(kind.partitions) for kind in kinds]
        self.held: list[dict[int, int]] = [{} for _ in range(member_count)]  # kind -> how many, if any
        self.loads = [0] * member_count

    def give(self, member: int, kind: int, count: int) -> None:
        """Of the free partitions."""
        if count:
            self.held[member][kind] = self.held[member].get(kind, 0) + count
            self.loads[member] += count
            self._free[kind] -= count

    def fill(self) -> None:
        """Every free partition goes to the subscriber with the fewest, those first that few subscribe."""
        for kind, free in enumerate(self._free):
            if free:
                queue = [(self.loads[member], member) for member in self._kinds[kind].subscribers]
                heapify(queue)
                for _ in range(free):
                    load, member = queue[0]
                    heapreplace(queue, (load + 1, member))
                    self.give(member, kind, 1)

    def even_out(self) -> list[int]:
        """Move one after the other, by the shortest chain, as long as that brings two loads closer.

        Returns of each member the most that it can have in any such balance. For whoever the fullest can reach has at
        most one less in the end, and all of them together have what nobody else can take: they are done with, and so
        each is searched in vain only once.
        """
        most = [0] * len(self.loads)
        active = dict.fromkeys(reversed(range(len(self.loads))))  # of equals the last gives
        while active:
            fullest = max(active, key=self.loads.__getitem__)
            came_by, last = self._chain(fullest, active)
            if last is None:
                for member in came_by:
                    most[member] = self.loads[fullest]
                    del active[member]
                continue
            self.loads[fullest] -= 1
            self.loads[last] += 1
            taker = last
            while taker != fullest:
                giver, kind = came_by[taker]
                self._move(giver, taker, kind)
                taker = giver
        return most

    def _chain(self, fullest: int, active: Mapping[int, None]) -> tuple[dict[int, tuple[int, int]], int | None]:
        """Who can be reached, by whom and of which kind; and the emptiest of the first with two less, or None."""
        came_by = {fullest: (fullest, -1)}
        unseen = set(active) - {fullest}
        kinds_seen: set[int] = set()
        layer = [fullest]
        while layer:
            following: list[int] = []
            for giver in layer:
                reached: set[int] = set()
                for kind in sorted(self.held[giver].keys() - kinds_seen, reverse=True):
                    fresh = unseen & self._kinds[kind].subscriber_set
                    if fresh:
                        unseen -= fresh
                        reached |= fresh
                        came_by.update(dict.fromkeys(fresh, (giver, kind)))
                kinds_seen.update(self.held[giver])
                takers = sorted(reached)
                emptiest = min(takers, key=self.loads.__getitem__, default=fullest)
                if self.loads[emptiest] <= self.loads[fullest] - 2:
                    return came_by, emptiest
                following += takers
            layer = following if unseen else []
        return came_by, None

    def _move(self, giver: int, taker: int, kind: int) -> None:
        left = self.held[giver].pop(kind) - 1
        if left:
            self.held[giver][kind] = left
        self.held[taker][kind] = self.held[taker].get(kind, 0) + 1


def _partitions(kinds: Sequence[_Kind], balance: _Balance, owned: _Owned) -> list[list[TopicPartition]]:
    """Which ones: the first of its own, and of the others the first to who has the fewest so far."""
    got: list[list[TopicPartition]] = [[] for _ in owned]
    lacking: list[dict[int, int]] = [{} for _ in kinds]
    kept: set[TopicPartition] = set()
    for member, held in enumerate(balance.held):
        for kind, count in held.items():
            mine = owned[member].get(kind, ())[:count]
            got[member] += mine
            kept.update(mine)
            if count > len(mine):
                lacking[kind][member] = count - len(mine)
    for kind, lacks in enumerate(lacking):
        queue = [(len(got[member]), member) for member in lacks]
        heapify(queue)
        for partition in kinds[kind].partitions:
            if partition in kept:
                continue
            load, member = queue[0]
            got[member].append(partition)
            lacks[member] -= 1
            if lacks[member]:
                heapreplace(queue, (load + 1, member))
            else:
                heappop(queue)
    return [sorted(mine) for mine in got]
