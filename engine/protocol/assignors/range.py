"""Range: of each topic, every member that subscribes it gets a run of partitions."""

from __future__ import annotations

from collections.abc import Mapping

from .assignor import Member, TopicPartition, subscribers


def assign_range(partition_counts: Mapping[str, int], members: Mapping[str, Member]) -> dict[str, list[TopicPartition]]:
    """Topic by topic; where a topic's partitions do not divide evenly, the first members in order get one more.

    Partitions of one number go to one member where topics have as many partitions and the same subscribers, and the
    first members get one more of every topic. As Kafka's RangeAssignor without racks.
    """
    assignment: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
    for topic, member_ids in subscribers(partition_counts, members).items():
        each, extra = divmod(partition_counts[topic], len(member_ids))
        first = 0
        for place, member_id in enumerate(member_ids[: partition_counts[topic]]):
            end = first + each + (place < extra)
            assignment[member_id] += [(topic, partition) for partition in range(first, end)]
            first = end
    return assignment
