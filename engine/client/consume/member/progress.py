"""How far a group has come in its partitions, whichever members have them, as of the newest step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ....protocol.values.consuming.assignments import Group, TopicIdPartition
from ....protocol.values.queues.partition_deliveries import Deliveries
from ....protocol.values.state import State
from ...fetch.planning.plan import Isolation, read_bounds
from ...offsets import TopicPartition
from ..until_end import OWN, Ends, PartitionRemainder


@dataclass(frozen=True)
class PartitionProgress:
    """The progress of a group in a partition.

    Attributes:
        next_offset: the first offset that the group is not done with.
        readable_end: end of what the group's isolation sees.
        end: end of the log.
        owner: the member that has the partition.
        deliveries: in a queue group, what became of the messages from `next_offset` on.
    """

    topic_id: int
    next_offset: int
    readable_end: int
    end: int
    owner: str | None
    deliveries: Deliveries | None = None

    def count_remaining(self, end: int) -> int:
        """Return how many offsets before `end` the group is not done with."""
        return max(0, end - self.next_offset) if self.deliveries is None else self.deliveries.count_remaining(end)


GroupProgress = Mapping[TopicPartition, PartitionProgress]


def read_progress(state: State, name: str, topics: Collection[str], isolation: Isolation) -> GroupProgress:
    """Return the progress of a group in all its partitions of these topics."""
    group = state.groups.get(name)
    if group is None:
        return {}
    if group.is_queue:
        isolation = group.setting("isolation.level")
    ids = {state.topic_ids[topic] for topic in topics if topic in state.topic_ids}
    topic_partitions = [tp for tp in group.assignments if tp[0] in ids]
    return {(state.topics[tp[0]].topic, tp[1]): _read_partition(state, group, tp, isolation) for tp in topic_partitions}


def _read_partition(state: State, group: Group, tp: TopicIdPartition, isolation: Isolation) -> PartitionProgress:
    (bounds,) = read_bounds(state.topics[tp[0]], isolation, [tp[1]])
    assignment, committed = group.assignments[tp], state.offsets.get(group.group, {}).get(tp)
    next_offset = assignment.start_offset if committed is None else committed.offset
    deliveries = state.find_deliveries(group.group, tp) if group.is_queue else None
    return PartitionProgress(
        bounds.topic_id,
        max(next_offset or 0, bounds.first),  # deleted offsets are passed over
        bounds.end,
        bounds.high_watermark,
        assignment.owner,
        None if deliveries is None else deliveries.copy(),  # later steps change the state
    )


def find_remainder_by_group(
    ends: Ends, progress: GroupProgress, own_positions: Mapping[TopicPartition, int], member_id: str
) -> dict[TopicPartition, PartitionRemainder]:
    """Return what the group has not read before these ends.

    Args:
        ends: where to read to.
        progress: of the group.
        own_positions: of the member. Its own partitions are judged by these, because it may not have committed yet.
        member_id: of the member.
    """
    remainder = {
        tp: PartitionRemainder(count, _name_owner(partition, member_id))
        for tp, partition in progress.items()
        if partition.topic_id == ends[tp][0] and (count := partition.count_remaining(ends[tp][1]))
    }
    for tp in remainder.keys() & own_positions.keys():
        count = ends[tp][1] - own_positions[tp]
        if count > 0:
            remainder[tp] = PartitionRemainder(count, OWN)
        else:
            del remainder[tp]
    return remainder


def _name_owner(partition: PartitionProgress, member_id: str) -> str:
    if partition.owner == member_id:
        return OWN
    owner = "no member yet" if partition.owner is None else f"member {partition.owner}"
    is_held_back = partition.count_remaining(partition.readable_end) == 0
    return f"{owner}, which an open transaction holds back" if is_held_back else owner
