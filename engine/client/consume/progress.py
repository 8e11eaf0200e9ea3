"""Read up to the ends that partitions had when a loop began, whichever members of the group have them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...namespace.clock import Clock
from ...namespace.progress import PartitionProgress
from ...protocol.errors import EndNotReached
from ...protocol.values.topics import Bounds
from ..groups.lag import GroupProgress
from ..offsets import TopicPartition
from .batch import ConsumerBatch

_WAIT_MS = 100
"""How long a poll waits before the loop checks again how much is left."""
_MOST_NAMED = 20
"""Partitions that an error names."""
_MOST_STALLS = 5
"""Sentences about what holds up messages that an error repeats."""

OWN = "this consumer: paused, held back by an open transaction, or not acknowledged"
"""Owner that an error names if the consumer itself has the partition, with the reasons why it cannot read on."""

Ends = Mapping[TopicPartition, tuple[int, int]]
"""(topic, partition) -> id of the topic, and the offset up to which to read."""


@dataclass(frozen=True)
class PartitionRemainder:
    """The part of a partition that is not read yet. count: offsets; owner: the holder of the partition, in words."""

    count: int
    owner: str


Remainder = Mapping[TopicPartition, PartitionRemainder]


def find_remainder_by_positions(
    ends: Ends, bounds: Mapping[TopicPartition, Bounds], positions: Mapping[TopicPartition, int]
) -> Remainder:
    """Return what a consumer has not read of its own partitions, judged by its positions."""
    return {
        tp: PartitionRemainder(end - positions[tp], OWN)
        for tp, (topic_id, end) in ends.items()
        if tp in positions and bounds[tp].topic_id == topic_id and positions[tp] < end
    }


def read_until_end(
    group: str,
    poll: Callable[[int], ConsumerBatch],
    find_remainder: Callable[[], Remainder],
    timeout_ms: int,
    clock: Clock,
    stopped: Callable[[], bool] | None,
) -> Iterator[ConsumerBatch]:
    """Yield batches until nothing is left, or until `stopped` returns true.

    Args:
        group: for the error.
        poll: polls once, and waits for at most this many ms.
        find_remainder: returns what the group has not read before the ends; empty when it is done.
        timeout_ms: how long to go on without progress of this consumer or of another member.
        clock: the steady time that the timeout counts.
        stopped: called before each poll.

    Raises:
        EndNotReached: no consumer has made progress for `timeout_ms`.
    """
    last_counts: dict[TopicPartition, int] = {}
    progress_ms = clock.steady_ms()
    batch: ConsumerBatch | None = None
    while not (stopped and stopped()) and (remainder := find_remainder()):
        counts = {tp: part.count for tp, part in remainder.items()}
        if counts != last_counts:
            last_counts, progress_ms = counts, clock.steady_ms()
        waited_ms = clock.steady_ms() - progress_ms
        if waited_ms > timeout_ms:
            raise _build_error(group, remainder, timeout_ms, () if batch is None else batch.waits_for)
        batch = poll(max(0, min(_WAIT_MS, timeout_ms - waited_ms)))
        if batch:
            yield batch
            progress_ms = clock.steady_ms()  # the time that the caller works on a batch does not count


def _build_error(group: str, remainder: Remainder, timeout_ms: int, stalls: Sequence[str]) -> EndNotReached:
    """Return the error that names the rest. stalls: sentences that say what holds up messages."""
    parts = [
        f"{topic}-{partition} lacks {part.count}, held by {part.owner}"
        for (topic, partition), part in sorted(remainder.items())[:_MOST_NAMED]
    ]
    if len(remainder) > _MOST_NAMED:
        parts.append(f"and {len(remainder) - _MOST_NAMED} partitions more")
    return EndNotReached(
        f"The group {group} has not read to the end, and nothing has come for {timeout_ms} ms: {'; '.join(parts)}."
        + "".join(f" {stall}" for stall in stalls[:_MOST_STALLS]),
        found=f"{sum(part.count for part in remainder.values())} offsets left in {len(remainder)} partitions",
        expected="none. Run it again, or see `lakemq groups describe` and `lakemq groups members`",
    )


# What a group has not read in its partitions, whichever members have them.


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
