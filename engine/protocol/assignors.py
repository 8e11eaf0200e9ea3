"""Assignors decide which member of a group gets which partition: the interface, its check, and the built-in ones.

An assignor is a function `(partition_counts, members) -> assignment`. It gets topic -> number of partitions, and member
id -> `Member`, and returns member id -> partitions. The result must not depend on the order of the mappings.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from operator import index
from types import MappingProxyType
from typing import Any, TypeAlias

TopicPartition: TypeAlias = tuple[str, int]

_MAX_NAMED = 5


@dataclass(frozen=True)
class Member:
    """A member of a group, as an assignor sees it.

    topics: its subscriptions, which may include topics that do not exist. owned: the (topic, partition) that it says it
    has; other members may say the same, and the partition may be gone. instance_id: of a static member.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    instance_id: str | None = None


Assignor: TypeAlias = Callable[[Mapping[str, int], Mapping[str, Member]], Mapping[str, Sequence[TopicPartition]]]


def order_members(members: Mapping[str, Member]) -> list[str]:
    """Return member ids in the order in which they are served: static members by instance id, then the others by id."""

    def place(member_id: str) -> tuple[bool, str, str]:
        instance_id = members[member_id].instance_id
        return instance_id is None, instance_id or "", member_id

    return sorted(members, key=place)


def find_subscribers(partition_counts: Mapping[str, int], members: Mapping[str, Member]) -> dict[str, tuple[str, ...]]:
    """Return topics in order, each with its subscribers in order. Topics without subscribers are left out.

    Topics with the same subscribers share one tuple: 10,000 topics of 500 members do not need 5,000,000 entries.
    """
    places = {member_id: place for place, member_id in enumerate(order_members(members))}
    alike: dict[tuple[str, ...], list[str]] = {}
    for member_id in places:
        alike.setdefault(members[member_id].topics, []).append(member_id)
    subscriptions: dict[str, list[int]] = {topic: [] for topic in sorted(partition_counts)}
    for number, topics in enumerate(alike):
        for topic in subscriptions.keys() & topics:
            subscriptions[topic].append(number)
    same = list(alike.values())
    merged: dict[tuple[int, ...], tuple[str, ...]] = {(): ()}
    members_by_topic = {}
    for topic, numbers in subscriptions.items():
        key = tuple(numbers)
        if key not in merged:
            merged[key] = tuple(
                sorted((member_id for number in key for member_id in same[number]), key=places.__getitem__)
            )
        if key:
            members_by_topic[topic] = merged[key]
    return members_by_topic


# -- checking -------------------------------------------------------------------------------------------


def check_assignment(
    assignment: Any, partition_counts: Mapping[str, int], members: Mapping[str, Member]
) -> dict[str, list[TopicPartition]]:
    """Return the assignment with all members, sorted, as plain text and numbers.

    Each partition of a subscribed topic must have one member, which subscribes to the topic. Raises ValueError with the
    reason, and what a foreign object raises when it is read.
    """
    try:
        read = {
            str(member_id): sorted((str(topic), index(number)) for topic, number in entries)
            for member_id, entries in assignment.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"it does not map member ids to pairs of a topic and a partition: {error}") from None
    topic_sets = {topics: frozenset(topics) for topics in {member.topics for member in members.values()}}
    takers: dict[TopicPartition, str] = {}
    for member_id, topic_partitions in read.items():
        if member_id not in members:
            raise ValueError(f"{member_id!r} is no member")
        for topic, number in topic_partitions:
            if not 0 <= number < partition_counts.get(topic, 0):
                raise ValueError(f"there is no partition {topic}-{number}")
            if topic not in topic_sets[members[member_id].topics]:
                raise ValueError(f"{member_id!r} gets {topic}-{number}, and has not subscribed the topic")
            if (taker := takers.setdefault((topic, number), member_id)) != member_id:
                raise ValueError(f"{topic}-{number} goes to {taker!r} and {member_id!r}")
    if sum(map(len, read.values())) > len(takers):
        raise ValueError("a member gets a partition twice")
    subscribed = sorted(frozenset().union(*topic_sets.values()))
    expected = ((topic, number) for topic in subscribed for number in range(partition_counts.get(topic, 0)))
    missing = [f"{topic}-{number}" for topic, number in expected if (topic, number) not in takers]
    if missing:
        named = ", ".join(missing[:_MAX_NAMED])
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        raise ValueError(f"nobody gets {named}{more}, though there are subscribers")
    return {member_id: read.get(member_id, []) for member_id in sorted(members)}


# Range: each subscriber of a topic gets a run of consecutive partitions.


def assign_range(partition_counts: Mapping[str, int], members: Mapping[str, Member]) -> dict[str, list[TopicPartition]]:
    """Assign topic by topic. If partitions do not divide evenly, the first members in order get one more.

    Topics with equal partition counts and equal subscribers give partitions of the same number to the same member. The
    first members get one more of every topic. Like Kafka's RangeAssignor without racks.
    """
    assignment: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
    for topic, member_ids in find_subscribers(partition_counts, members).items():
        each, extra = divmod(partition_counts[topic], len(member_ids))
        first = 0
        for place, member_id in enumerate(member_ids[: partition_counts[topic]]):
            end = first + each + (place < extra)
            assignment[member_id] += [(topic, partition) for partition in range(first, end)]
            first = end
    return assignment


# Round robin: all partitions of all topics are dealt one by one.


def assign_roundrobin(
    partition_counts: Mapping[str, int], members: Mapping[str, Member]
) -> dict[str, list[TopicPartition]]:
    """Deal partitions, by topic and number, to the members in a circle. Members without the subscription are skipped.

    If all members have the same subscriptions, their numbers of partitions differ by one at most. Like Kafka's
    RoundRobinAssignor.
    """
    assignment: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
    places = {member_id: place for place, member_id in enumerate(order_members(members))}
    turn = 0
    for topic, member_ids in find_subscribers(partition_counts, members).items():
        for partition in range(partition_counts[topic]):
            next_one = bisect_left(member_ids, turn, key=places.__getitem__) % len(member_ids)
            member_id = member_ids[next_one]
            assignment[member_id].append((topic, partition))
            turn = places[member_id] + 1
    return assignment


# Sticky: as balanced as the subscriptions allow, and among balanced assignments close to the present one.
#
# Topics with the same subscribers are of one kind, and their partitions are alike for the balance. So the number of
# partitions of each kind that a member gets is computed first, and then which ones.


# Members are numbers below: their places in order. Kinds are, too: the fewer subscribe one, the lower it is.


def assign_sticky(
    partition_counts: Mapping[str, int], members: Mapping[str, Member]
) -> dict[str, list[TopicPartition]]:
    """Balance the members' loads until no chain of moves brings two of them closer; members keep what they own.

    With equal subscriptions the loads differ by one at most, and as few partitions move as possible. With different
    ones few move, but not always the fewest. If no member owns anything, equal subscriptions are dealt as by
    `roundrobin`. Its own answer as `owned` gives the same answer. If two members claim a partition, the first in order
    has it.

    This is both `sticky` and `cooperative-sticky`: an assignor computes the target. The group's reconciling makes sure
    that a member gives up a partition before another one gets it.
    """
    ids = order_members(members)
    kinds = _group_topics(partition_counts, members, ids)
    ideal = _Balance(kinds, len(ids))  # as if no member owned anything
    ideal.fill()
    most = ideal.even_out()

    owned = _find_owned_partitions(partition_counts, members, ids, kinds)
    balance = _Balance(kinds, len(ids))
    for member, partitions_by_kind in enumerate(owned):
        for kind in sorted(
            partitions_by_kind
        ):  # keep rare kinds first, so that kinds with many subscribers are given up
            balance.give(member, kind, min(len(partitions_by_kind[kind]), most[member] - balance.loads[member]))
    balance.fill()
    balance.even_out()
    return dict(zip(ids, _choose_partitions(kinds, balance, owned), strict=True))


assign_cooperative_sticky = assign_sticky


@dataclass(frozen=True)
class _TopicKind:
    subscribers: tuple[int, ...]  # ascending
    subscriber_set: frozenset[int]
    topics: frozenset[str]
    partitions: tuple[TopicPartition, ...]  # ascending


_OwnedPartitions = Sequence[Mapping[int, Sequence[TopicPartition]]]  # of each member: kind -> partitions, ascending


def _group_topics(
    partition_counts: Mapping[str, int], members: Mapping[str, Member], ids: Sequence[str]
) -> list[_TopicKind]:
    places = {member_id: place for place, member_id in enumerate(ids)}
    topics_of: dict[tuple[str, ...], list[str]] = {}
    for topic, member_ids in find_subscribers(partition_counts, members).items():
        topics_of.setdefault(member_ids, []).append(topic)
    kinds = []
    for member_ids, topics in topics_of.items():
        subscribers = tuple(places[member_id] for member_id in member_ids)
        partitions = tuple((topic, number) for topic in topics for number in range(partition_counts[topic]))
        kinds.append(_TopicKind(subscribers, frozenset(subscribers), frozenset(topics), partitions))
    return sorted(kinds, key=lambda kind: len(kind.subscribers))


def _find_owned_partitions(
    partition_counts: Mapping[str, int], members: Mapping[str, Member], ids: Sequence[str], kinds: Sequence[_TopicKind]
) -> _OwnedPartitions:
    """Return what each member really owns: existing partitions of subscribed topics that no earlier member claims."""
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
    """How many partitions of each kind each member gets."""

    def __init__(self, kinds: Sequence[_TopicKind], member_count: int) -> None:
        self._kinds = kinds
        self._free = [len(kind.partitions) for kind in kinds]
        self.counts: list[dict[int, int]] = [{} for _ in range(member_count)]  # kind -> how many, if any
        self.loads = [0] * member_count

    def give(self, member: int, kind: int, count: int) -> None:
        """Give free partitions to a member."""
        if count:
            self.counts[member][kind] = self.counts[member].get(kind, 0) + count
            self.loads[member] += count
            self._free[kind] -= count

    def fill(self) -> None:
        """Give each free partition to the subscriber with the lowest load, starting with kinds of few subscribers."""
        for kind, free in enumerate(self._free):
            if free:
                queue = [(self.loads[member], member) for member in self._kinds[kind].subscribers]
                heapify(queue)
                for _ in range(free):
                    load, member = queue[0]
                    heapreplace(queue, (load + 1, member))
                    self.give(member, kind, 1)

    def even_out(self) -> list[int]:
        """Move partitions along the shortest chain of members, as long as that brings two loads closer.

        The fullest member may have no partition that the emptiest one can take. Then each member of a chain gives a
        partition to the next one, and only the loads of the first and the last member change.

        Returns the most partitions that each member can have in any balanced assignment. If the fullest member finds no
        chain, all members that it can reach end with at most one partition less, and together hold partitions that no
        other member can take. They are finished, so no member is searched in vain twice.
        """
        most = [0] * len(self.loads)
        active = dict.fromkeys(reversed(range(len(self.loads))))  # among equals the last one gives
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
        """Return how each reachable member is reached (giver, kind), and the nearest one with a much lower load.

        Much lower means at least two lower. The second value is None if there is no such member.
        """
        came_by = {fullest: (fullest, -1)}
        unseen = set(active) - {fullest}
        kinds_seen: set[int] = set()
        layer = [fullest]
        while layer:
            following: list[int] = []
            for giver in layer:
                reached: set[int] = set()
                for kind in sorted(self.counts[giver].keys() - kinds_seen, reverse=True):
                    fresh = unseen & self._kinds[kind].subscriber_set
                    if fresh:
                        unseen -= fresh
                        reached |= fresh
                        came_by.update(dict.fromkeys(fresh, (giver, kind)))
                kinds_seen.update(self.counts[giver])
                takers = sorted(reached)
                emptiest = min(takers, key=self.loads.__getitem__, default=fullest)
                if self.loads[emptiest] <= self.loads[fullest] - 2:
                    return came_by, emptiest
                following += takers
            layer = following if unseen else []
        return came_by, None

    def _move(self, giver: int, taker: int, kind: int) -> None:
        remaining = self.counts[giver].pop(kind) - 1
        if remaining:
            self.counts[giver][kind] = remaining
        self.counts[taker][kind] = self.counts[taker].get(kind, 0) + 1


def _choose_partitions(
    kinds: Sequence[_TopicKind], balance: _Balance, owned: _OwnedPartitions
) -> list[list[TopicPartition]]:
    """Choose the partitions: first those that the member owns, then the others to the member with the fewest so far."""
    chosen: list[list[TopicPartition]] = [[] for _ in owned]
    lacking: list[dict[int, int]] = [{} for _ in kinds]
    assigned: set[TopicPartition] = set()
    for member, counts in enumerate(balance.counts):
        for kind, count in counts.items():
            own = owned[member].get(kind, ())[:count]
            chosen[member] += own
            assigned.update(own)
            if count > len(own):
                lacking[kind][member] = count - len(own)
    for kind, lacks in enumerate(lacking):
        queue = [(len(chosen[member]), member) for member in lacks]
        heapify(queue)
        for partition in kinds[kind].partitions:
            if partition in assigned:
                continue
            load, member = queue[0]
            chosen[member].append(partition)
            lacks[member] -= 1
            if lacks[member]:
                heapreplace(queue, (load + 1, member))
            else:
                heappop(queue)
    return [sorted(partitions) for partitions in chosen]


# The built-in assignors, by the names that Kafka users know.


BUILT_IN: Mapping[str, Assignor] = MappingProxyType(
    {
        "range": assign_range,
        "roundrobin": assign_roundrobin,
        "sticky": assign_sticky,
        "cooperative-sticky": assign_cooperative_sticky,
    }
)
