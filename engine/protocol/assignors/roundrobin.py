"""Round robin: all partitions of all topics are dealt one by one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from .assignor import Member, TopicPartition, find_subscribers, order_members


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
