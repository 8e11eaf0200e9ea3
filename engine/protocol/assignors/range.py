"""Range: each subscriber of a topic gets a run of consecutive partitions."""

from __future__ import annotations

from collections.abc import Mapping

from .assignor import Member, TopicPartition, find_subscribers


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
