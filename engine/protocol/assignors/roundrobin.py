"""Round robin: all partitions of all topics are dealt one by one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from .assignor import Member, TopicPartition, in_order, subscribers


def assign_roundrobin(
    partition_counts: Mapping[str, int], members: Mapping[str, Member]
) -> dict[str, list[TopicPartition]]:
    """In order of topic and partition, to the members in order, in a circle; who has not subscribed is passed over.

    Within one of each other where all subscribe the same. As Kafka's RoundRobinAssignor.
    """
    assignment: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
    places = {member_id: place for place, member_id in enumerate(in_order(members))}
    turn = 0
    for topic, member_ids in subscribers(partition_counts, members).items():
        for partition in range(partition_counts[topic]):
            next_one = bisect_left(member_ids, turn, key=places.__getitem__) % len(member_ids)
            member_id = member_ids[next_one]
            assignment[member_id].append((topic, partition))
            turn = places[member_id] + 1
    return assignment
