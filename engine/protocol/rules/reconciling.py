"""Reconciling: each partition of a group moves on its own from its owner to its target member (after KIP-848).

It is ready with its owner, then paused when its target is another member, then free when the owner releases it or is
gone, then ready with the target. Only free partitions are assigned, so no partition has two owners.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ..values.assignments import Assignment, Group, PartitionStatus, TopicIdPartition
from ..values.base import Record
from ..values.deliveries import DeliveryStatus, stretches_to_ranges
from ..values.groups import (
    MemberLeft,
    MemberMissed,
    Move,
    PartitionsAdded,
    PartitionsGone,
    PartitionsMoved,
    RebalanceCompleted,
    RebalanceDelayed,
    TargetSet,
)
from ..values.journal import JournalEntry
from ..values.state import State
from ..values.topics import Topic
from ..values.transactions import TransactionFailed
from .redelivery import give_back_partitions
from .timers import Time, Timer, Timers

MAX_MOVES = 500
"""Partitions of a group that one decision moves. Everybody waits for the end of a step, so the next step continues. But
a classic group moves as a whole, and during a delay few partitions can move.
"""

# -- where a group begins -------------------------------------------------------------------------------


def find_start_offsets(topic: Topic, reset: str) -> list[int | None]:
    """Return where a group starts to read each partition of a topic that is new to it."""
    if reset == "none":
        return [None] * topic.consumed_count
    offsets = topic.log_starts if reset == "earliest" else topic.last_stable_offsets
    return [int(at) for at in offsets[: topic.consumed_count]]


def find_start_offset(state: State, group: Group, tp: TopicIdPartition, owner: str | None) -> int | None:
    """Return where a new owner starts: the committed offset, else the group's start, else by its reset setting."""
    committed = state.offsets.get(group.group, {}).get(tp)
    if committed is not None:
        return committed.offset
    start = group.assignments[tp].start_offset
    if start is None and owner is not None and tp[0] in state.topics:
        return find_start_offsets(state.topics[tp[0]], group.members[owner].auto_offset_reset)[tp[1]]
    return start


# -- what ends an assignment ----------------------------------------------------------------------------


def decide_freed_partitions(
    state: State, group: Group, topic_partitions: Sequence[TopicIdPartition], status: PartitionStatus, reason: str
) -> list[Record]:
    """Return the records that take partitions from their owners. Transactions that hold offsets of them can only abort.

    A queue group's messages in an unbound partition stay with the lost owner, because it may return.
    """
    records: list[Record] = [PartitionsMoved(group.group, reason, [Move(*tp, status) for tp in topic_partitions])]
    if group.is_queue and status is PartitionStatus.UNBOUND:
        return records
    return [*records, *decide_ended_assignments(state, group, topic_partitions, reason)]


def decide_ended_assignments(
    state: State, group: Group, topic_partitions: Sequence[TopicIdPartition], reason: str
) -> list[Record]:
    """Return what follows if assignments end: messages are delivered again, and transactions can only be aborted."""
    return [
        *give_back_partitions(state, group, topic_partitions, reason),
        *decide_failed_transactions(state, group.group, topic_partitions),
    ]


def decide_dropped_member(
    state: State, group: Group, member_id: str, reason: str, status: PartitionStatus
) -> list[JournalEntry]:
    """Return the entries that remove a member and set its partitions to this status."""
    records: list[Record] = [MemberLeft(group.group, member_id, reason)]
    if owned := group.list_partitions_of(member_id):
        records += decide_freed_partitions(state, group, owned, status, reason)
    return list(map(JournalEntry, records))


def decide_failed_transactions(state: State, group: str, topic_partitions: Iterable[TopicIdPartition]) -> list[Record]:
    """Return records that mark open transactions with offsets of these partitions as abortable only.

    The offsets belong to an assignment that ends, or were sent before the partition had an owner. The next owner
    starts without them.
    """
    ended = set(topic_partitions)
    return [
        TransactionFailed(name, "FENCED_MEMBER_EPOCH", f"the group {group} has given a partition to another member")
        for name in sorted(state.ongoing)
        if state.transactions[name].error is None
        and not ended.isdisjoint(state.transactions[name].list_partitions(group))
    ]


# -- at the end of a step -------------------------------------------------------------------------------


def decide_topics(state: State, group: Group) -> list[Record]:
    """Add partitions and topics that have appeared, and remove those that are gone.

    New ones are read from their start. A partition that is used again is read from where it continues.
    """
    counts = group.partition_counts
    named = {
        name: topic_id
        for member in group.members.values()
        for name in member.topics
        if (topic_id := state.topic_ids.get(name))
    }
    topic_ids = sorted({*named.values(), *counts} & state.topics.keys())
    entries: list[Record] = [
        PartitionsGone(group.group, topic_id, _find_topic_name(group, topic_id), counts[topic_id])
        for topic_id in sorted(counts.keys() - state.topics.keys())
    ]
    for topic_id in topic_ids:
        topic, known_count = state.topics[topic_id], counts.get(topic_id, 0)
        if topic.consumed_count > known_count:
            added = range(known_count, topic.consumed_count)
            starts = [state.resumed.get((topic_id, number), int(topic.log_starts[number])) for number in added]
            entries.append(PartitionsAdded(group.group, topic_id, topic.topic, list(starts), known_count))
        elif topic.consumed_count < known_count:
            entries.append(PartitionsGone(group.group, topic_id, topic.topic, known_count, topic.consumed_count))
    return entries


def _find_topic_name(group: Group, topic_id: int) -> str:
    return next(assignment.topic for (other, _), assignment in group.assignments.items() if other == topic_id)


def decide_rebalance_delay(state: State, group: Group) -> list[Record]:
    """End the delay if there is no member left to wait for, and shorten it if the group's setting is shorter now."""
    if not group.not_before_ms:
        return []
    if group.is_queue:  # wait for a lost member only while some of its partitions have no new owner
        waits = any(assignment.status is PartitionStatus.UNBOUND for assignment in group.assignments.values())
    else:
        waits = bool(group.members)
    until_ms = min(group.not_before_ms, state.now_ms + group.rebalance_delay_ms) if waits else 0
    if until_ms == group.not_before_ms:
        return []
    return [RebalanceDelayed(group.group, until_ms if until_ms > state.now_ms else 0)]


def decide_empty_target(state: State, group: Group) -> list[Record]:
    """Set an empty target if the group has no members. That needs no assignor."""
    if group.members or group.target_epoch == group.group_epoch:
        return []
    return [build_target(group, group.assignor, {})]


def build_target(
    group: Group, assignor: str, owners: Mapping[TopicIdPartition, str], problem: str | None = None
) -> TargetSet:
    """Return the record of a new target, which names only what changes. owners: the target of each partition."""
    changed: dict[str, list[TopicIdPartition]] = {}
    dropped: list[TopicIdPartition] = []
    for tp in sorted(tp for tp, assignment in group.assignments.items() if owners.get(tp) != assignment.target):
        owner = owners.get(tp)
        if owner is None:
            dropped.append(tp)
        else:
            changed.setdefault(owner, []).append(tp)
    return TargetSet(group.group, group.group_epoch, assignor, changed, dropped, problem)


def decide_classic_pause(state: State, group: Group) -> list[Record]:
    """In a classic group, pause all partitions before a new target is computed: members give up everything first."""
    if not group.is_classic or group.target_epoch == group.group_epoch:
        return []
    ready = [
        (tp, group.assignments[tp].owner)
        for topic_partitions in group.partitions_by_owner.values()
        for tp in topic_partitions
        if tp not in group.paused
    ]
    moves = [Move(*tp, PartitionStatus.PAUSED, owner) for tp, owner in sorted(ready)]
    return [PartitionsMoved(group.group, "rebalance", moves)] if moves else []


def decide_moves(state: State, group: Group) -> list[Record]:
    """Move the partitions that can move now. During a delay, lost partitions stay."""
    if group.target_epoch != group.group_epoch:
        return []
    # paused partitions wait for their owners, in a large group for many steps: do not look at them in each step
    topic_partitions = sorted(group.moving - group.paused)
    if not (group.is_classic or group.not_before_ms):
        topic_partitions = topic_partitions[:MAX_MOVES]
    moving = [(tp, _plan_move(state, group, tp, group.assignments[tp])) for tp in topic_partitions]
    moves = [move for _, move in moving if move is not None]
    if not moves:
        return []
    ended = [tp for tp, move in moving if move is not None and move.status is not PartitionStatus.PAUSED]
    return [PartitionsMoved(group.group, "balance", moves), *decide_ended_assignments(state, group, ended, "lost")]


def decide_handovers(state: State, group: Group) -> list[Record]:
    """In a queue group, free paused partitions whose owner has acknowledged all its messages."""
    if not group.is_queue:
        return []
    deliveries = state.deliveries.get(group.group, {})
    finished = [tp for tp in sorted(group.paused) if tp not in deliveries or not deliveries[tp].held_count]
    return (
        decide_freed_partitions(state, group, finished, PartitionStatus.UNASSIGNED, "handed over") if finished else []
    )


def _plan_move(state: State, group: Group, tp: TopicIdPartition, assignment: Assignment) -> Move | None:
    waits = group.not_before_ms > 0
    if assignment.is_free:
        if waits and assignment.status is PartitionStatus.UNBOUND:
            return None
        if assignment.target is not None:
            return build_move_to_owner(
                state, group, tp, assignment.target, find_start_offset(state, group, tp, assignment.target)
            )
        return Move(*tp, PartitionStatus.UNASSIGNED) if assignment.status is PartitionStatus.UNBOUND else None
    if assignment.status is PartitionStatus.READY and assignment.owner != assignment.target and not waits:
        return Move(*tp, PartitionStatus.PAUSED, assignment.owner)
    return None


def build_move_to_owner(state: State, group: Group, tp: TopicIdPartition, owner: str, start_offset: int | None) -> Move:
    """Return the move that gives a free partition to its next owner, with the ranges that are acknowledged already."""
    deliveries = state.find_deliveries(group.group, tp) if group.is_queue else None
    acknowledged = (
        [stretch for stretch in deliveries.stretches if stretch.status is DeliveryStatus.ACKNOWLEDGED]
        if deliveries
        else []
    )
    return Move(*tp, PartitionStatus.READY, owner, start_offset, acknowledged=stretches_to_ranges(acknowledged))


def decide_completion(state: State, group: Group) -> list[Record]:
    """Complete the rebalance if each partition is with its target and no delay runs."""
    if not group.members or group.not_before_ms or group.settled_epoch == group.group_epoch or not group.is_settled:
        return []
    return [RebalanceCompleted(group.group, group.generation + 1, group.group_epoch)]


SETTLING: tuple[Callable[[State, Group], list[Record]], ...] = (
    decide_topics,
    decide_rebalance_delay,
    decide_empty_target,
    decide_classic_pause,
    decide_moves,
    decide_handovers,
    decide_moves,  # again: a partition that was just handed over gets its next owner in the same step
    decide_completion,
)
"""The decisions about a touched group at the end of a step. Each sees what the one before it has decided."""


def _list_waiting_groups(state: State) -> list[Group]:
    return [state.groups[name] for name in sorted(state.waiting_groups)]


def find_groups_without_target(state: State) -> list[Group]:
    """Return the groups that wait for an assignor."""
    return [group for group in _list_waiting_groups(state) if group.wants_target]


# -- what time brings -----------------------------------------------------------------------------------


def _find_delays(state: State) -> list[str]:
    return [group.group for group in _list_waiting_groups(state) if group.not_before_ms]


def _is_delay_over(state: State, name: str, time: Time) -> bool:
    group = state.groups.get(name)
    return group is not None and 0 < group.not_before_ms <= time.now_ms


def decide_delay_end(state: State, name: str) -> list[JournalEntry]:
    return [JournalEntry(RebalanceDelayed(name, 0))]


_PauseKey = tuple[str, str, int]
"""Group, owner, and since when the owner has been asked to give up partitions."""


def _find_pauses(state: State) -> list[_PauseKey]:
    return [
        (group.group, *pause)
        for group in _list_waiting_groups(state)
        if not group.is_queue
        for pause in sorted(group.pauses)
    ]


def _is_release_overdue(state: State, key: _PauseKey, time: Time) -> bool:
    name, member_id, since_ms = key
    group = state.groups.get(name)
    if group is None or (member_id, since_ms) not in group.pauses or member_id not in group.members:
        return False
    awaited = group.members.values() if group.is_classic else (group.members[member_id],)
    # By the leader's own observation, not by stored times: while no sequencer leads, an owner cannot release anything.
    return time.waited_ms(key) > max(member.max_poll_interval_ms for member in awaited)


def decide_release_timeout(state: State, key: _PauseKey) -> list[JournalEntry]:
    """Remove an owner that does not give up its partitions in time, because it does not poll.

    In a classic group a static member stays a member for its session, and only loses its partitions.
    """
    name, member_id, _ = key
    group = state.groups[name]
    if group.is_classic and group.members[member_id].instance_id is not None:
        missed = MemberMissed(name, member_id)
        freed = decide_freed_partitions(
            state, group, group.list_partitions_of(member_id), PartitionStatus.UNASSIGNED, "missed"
        )
        return list(map(JournalEntry, [missed, *freed]))
    return decide_dropped_member(state, group, member_id, "poll", PartitionStatus.UNASSIGNED)


def _find_handoffs(state: State) -> list[_PauseKey]:
    return [
        (group.group, *pause)
        for group in _list_waiting_groups(state)
        if group.is_queue
        for pause in sorted(group.pauses)
    ]


def _is_handoff_over(state: State, key: _PauseKey, time: Time) -> bool:
    name, member_id, since_ms = key
    group = state.groups.get(name)
    if group is None or (member_id, since_ms) not in group.pauses:
        return False
    return bool(time.now_ms - since_ms >= group.setting("max.handoff.ms"))


def decide_handoff_timeout(state: State, key: _PauseKey) -> list[JournalEntry]:
    """Free partitions whose owner did not finish within max.handoff.ms.

    The messages that it has not acknowledged are delivered again.
    """
    name, member_id, since_ms = key
    group = state.groups[name]
    over = [tp for tp in sorted(group.paused) if group.is_pause_of(tp, member_id, since_ms)]
    return list(map(JournalEntry, decide_freed_partitions(state, group, over, PartitionStatus.UNASSIGNED, "handoff")))


TIMERS: Timers = (
    Timer(_find_handoffs, _is_handoff_over, decide_handoff_timeout),
    Timer(_find_delays, _is_delay_over, decide_delay_end),
    Timer(_find_pauses, _is_release_overdue, decide_release_timeout, watched=True),
)
