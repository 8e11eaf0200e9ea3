"""How far groups have come in their partitions: what each has committed, what is left, and how fast they consume."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow.compute as pc

from lakemq.tables.specs.groups import CONSUMER_OFFSETS
from lakemq.tables.storage.delta.store import NotATable, Store, TableHandle, select_newest

from ...namespace.progress import LagOrigin, PartitionProgress, find_progress
from ...protocol.errors import GroupIdNotFound
from ...protocol.names import shorten
from ...protocol.values.assignments import TopicIdPartition
from ...protocol.values.deliveries import DeliveryPolicy, DeliveryStatus
from ...protocol.values.state import State
from ..offsets import TopicPartition

GroupProgress = Mapping[TopicPartition, PartitionProgress]


def read_progress(state: State, name: str, topics: Collection[str], isolation: str) -> GroupProgress:
    """Return how far a group has come in all partitions of these topics that its members share."""
    group = state.groups.get(name)
    ids = {state.topic_ids[topic] for topic in topics if topic in state.topic_ids}
    shared = [tp for tp in group.assignments if tp[0] in ids] if group else []
    return {(state.topics[tp[0]].topic, tp[1]): find_progress(state, name, tp, isolation) for tp in shared}


@dataclass(frozen=True)
class PartitionLag:
    """How far a group has come in a partition.

    Attributes:
        committed_offset, committed_at_ms, metadata: what the group has committed; None before its first commit.
        next_offset: the first offset that `lag` counts: where the group reads on, or the start of the log if that is
            further.
        counted_from: where the group reads on. `committed`: at the committed offset. `start`: where the group begins,
            fixed when it first asked for the topic. `log_start`: the group has not begun, and where it will is not
            known; `lag` is then the size of the log, the most that can be left.
        lag: offsets from `next_offset` to the end of the log, without those that a queue group has acknowledged. Those
            from the last stable offset on are there, and an open transaction holds them back.
        deleted: offsets that were deleted before the group was done with them. `lag` does not count them.
        expired: messages that expired before any member of a queue group had them.
        pending: transactional id of the open transaction that holds offsets for the partition.
        unacknowledged: messages that the owner of the partition, in a queue group, has and has not acknowledged.
        owner: the member that has the partition.
    """

    group: str
    topic: str
    partition: int
    committed_offset: int | None
    next_offset: int
    counted_from: LagOrigin
    last_stable_offset: int
    high_watermark: int
    lag: int
    deleted: int
    expired: int
    committed_at_ms: int | None
    metadata: str | None
    pending: str | None
    unacknowledged: int = 0
    owner: str | None = None


def list_partition_lags(state: State, group: str) -> list[PartitionLag]:
    """Return how far a group has come, by topic and partition. Raises GroupIdNotFound: the group does not exist."""
    committed, pending = state.offsets.get(group, {}), state.find_pending_offsets(group)
    if not committed and not pending and group not in state.groups:
        raise GroupIdNotFound(found=shorten(group), expected="a group that was made, or has committed offsets")
    topic_partitions = state.existing_partitions({*state.list_group_partitions(group), *pending})
    lags = [_describe_lag(state, group, tp, pending.get(tp)) for tp in topic_partitions]
    return sorted(lags, key=lambda lag: (lag.topic, lag.partition))


def is_idle(state: State, name: str, now_ms: int) -> bool:
    """Return whether a group has partitions, and nothing to do in them: what is left waits for its time."""
    topic_partitions = state.existing_partitions(set(state.list_group_partitions(name)))
    return bool(topic_partitions) and not any(_has_work(state, name, tp, now_ms) for tp in topic_partitions)


def _has_work(state: State, name: str, tp: TopicIdPartition, now_ms: int) -> bool:
    progress = find_progress(state, name, tp)
    if not progress.count_remaining(progress.end):
        return False
    if progress.deliveries is None:
        return True
    at_rest = (DeliveryStatus.WAITING, DeliveryStatus.ACKNOWLEDGED)
    policy = DeliveryPolicy.from_group(state.groups[name])
    is_held = any(stretch.status not in at_rest for stretch in progress.deliveries.stretches)
    return is_held or bool(progress.deliveries.next_ranges(policy, progress.end, 1, now_ms))


def _describe_lag(state: State, name: str, tp: TopicIdPartition, pending: str | None) -> PartitionLag:
    progress, topic = find_progress(state, name, tp), state.topics[tp[0]]
    committed = state.offsets.get(name, {}).get(tp)
    return PartitionLag(
        group=name,
        topic=topic.topic,
        partition=tp[1],
        committed_offset=committed.offset if committed else None,
        next_offset=progress.next_offset,
        counted_from=progress.counted_from,
        last_stable_offset=int(topic.last_stable_offsets[tp[1]]),
        high_watermark=progress.end,
        lag=progress.count_remaining(progress.end),
        deleted=progress.deleted_count,
        expired=committed.expired_count if committed else 0,
        committed_at_ms=committed.committed_at_ms if committed else None,
        metadata=committed.metadata if committed else None,
        pending=pending,
        unacknowledged=progress.deliveries.held_count if progress.deliveries else 0,
        owner=progress.owner,
    )


# How fast groups consume: compare what each is done with now and a minute ago.
#
# Both are read from the table of committed offsets, in its newest version and in the one of a minute ago. Log entries
# and replaced files of a table stay for minutes, so that the older version can still be loaded.


WINDOW_MS = 60_000

_COLUMNS = ("step", "group", "topic_id", "partition", "committed_offset", "ranges", "removed")

Done = dict[str, dict[TopicIdPartition, int]]
"""Group -> (topic_id, partition) -> number of offsets that the group is done with."""


@dataclass(frozen=True)
class Consumption:
    """The offsets that groups were done with at the beginning and at the end of a window of time."""

    window_ms: int
    before: Done
    after: Done

    def rate(self, group: str, starts: Mapping[TopicIdPartition, int]) -> float:
        """Return the offsets per second that the group got done with.

        A reset backwards counts as nothing.

        Args:
            group: name of the group.
            starts: (topic_id, partition) -> where the group began. It counts if nothing was committed there before.
        """
        before = self.before.get(group, {})
        done = sum(
            max(0, after - before.get(tp, starts.get(tp, after))) for tp, after in self.after.get(group, {}).items()
        )
        return round(1000 * done / self.window_ms, 3) if self.window_ms > 0 else 0.0


def read_consumption(store: Store, now_ms: int, window_ms: int = WINDOW_MS) -> Consumption | None:
    """Return what all groups have done in the window before `now_ms`, by the clock of the store.

    The window is shorter if the table is younger, or if its log does not reach back so far.

    Returns:
        None if the versions of the table were removed while they were read.
    """
    try:
        handle = store.open(CONSUMER_OFFSETS)
        version, since_ms = _find_version(handle, now_ms - window_ms)
        after = _read_done(handle)
        before = after if version == handle.version else _read_done(store.open_version(CONSUMER_OFFSETS, version))
    except (FileNotFoundError, NotATable):
        return None
    return Consumption(now_ms - since_ms, before, after)


def _find_version(handle: TableHandle, at_ms: int) -> tuple[int, int]:
    """Return the version that the table had at this time, and the time; else the first version, and its time."""
    low, high = -1, handle.version + 1
    # Bisect: version `low` was written by then, or was removed from the log since; `high` was written later.
    while high - low > 1:
        middle = (low + high) // 2
        written_ms = handle.log.modified_ms(middle)
        if written_ms is None or written_ms <= at_ms:
            low = middle
        else:
            high = middle
    if low >= 0 and handle.log.modified_ms(low) is not None:
        return low, at_ms
    written_ms = handle.log.modified_ms(high)
    if written_ms is None:
        raise FileNotFoundError(f"{handle.spec.name}: version {high} was removed")
    return high, written_ms


def _read_done(handle: TableHandle) -> Done:
    """Return how many offsets each group is done with: before its committed offset, or acknowledged after it."""
    rows = select_newest(handle.read(_COLUMNS), CONSUMER_OFFSETS.keys)
    rows = rows.filter(pc.invert(rows.column("removed")))
    done: Done = {}
    for row in rows.select(["group", "topic_id", "partition", "committed_offset", "ranges"]).to_pylist():
        acknowledged = sum(
            stretch["record_count"]
            for stretch in row["ranges"] or ()
            if stretch["state"] == DeliveryStatus.ACKNOWLEDGED.value
        )
        group_done = done.setdefault(row["group"], {})
        group_done[row["topic_id"], row["partition"]] = row["committed_offset"] + acknowledged
    return done
