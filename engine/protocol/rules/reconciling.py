"""Reconciling: each partition of a group goes, by itself, from who has it to who is to have it (after KIP-848).

It is ready with its owner; paused, when that is not its target any more; free, when the owner has said that it is done
with it, or is gone; ready with its target. Nothing is assigned that is not free, hence nothing has two owners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ..values.assignments import Assignment, Group, PartitionStatus, Place
from ..values.base import Record
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
from .giving_back import returned
from .timers import Time, Timer, Timers

MOST_MOVES = 500
"""Partitions of a group that one decision moves: everybody waits for the end of its step, and the next one goes on. But
a classic group moves as a whole, and while a delay runs little can move.
"""

# -- where a group begins -------------------------------------------------------------------------------


def starts_of(topic: Topic, reset: str) -> list[int | None]:
    """Where a group begins in each partition of a topic that it hears of first."""
    if reset == "none":
        return [None] * topic.consumed_count
    offsets = topic.log_starts if reset == "earliest" else topic.last_stable_offsets
    return [int(at) for at in offsets[: topic.consumed_count]]


def start_of(state: State, group: Group, place: Place, owner: str | None) -> int | None:
    """Where a new owner begins: where the group has come to, else where it was to begin, else as this owner says."""
    committed = state.offsets.get(group.group, {}).get(place)
    if committed is not None:
        return committed.offset
    start = group.assignments[place].start_offset
    if start is None and owner is not None and place[0] in state.topics:
        return starts_of(state.topics[place[0]], group.members[owner].auto_offset_reset)[place[1]]
    return start


# -- what ends an assignment ----------------------------------------------------------------------------


def freed(state: State, group: Group, places: Sequence[Place], status: PartitionStatus, reason: str) -> list[Record]:
    """These partitions are nobody's; what transactions hold of them under their owners can only be aborted.

    What an owner in a queue group had of one that is unbound stays its own while it may be back.
    """
    records: list[Record] = [PartitionsMoved(group.group, reason, [Move(*place, status) for place in places])]
    if group.is_queue and status is PartitionStatus.UNBOUND:
        return records
    return [*records, *ended(state, group, places, reason)]


def ended(state: State, group: Group, places: Sequence[Place], reason: str) -> list[Record]:
    """What follows where assignments end: messages are delivered again, transactions can only be aborted."""
    return [*returned(state, group, places, reason), *fenced_transactions(state, group.group, places)]


def gone(state: State, group: Group, member_id: str, reason: str, status: PartitionStatus) -> list[JournalEntry]:
    """The member is none any more; what it had is in this status."""
    records: list[Record] = [MemberLeft(group.group, member_id, reason)]
    if owned := group.owned(member_id):
        records += freed(state, group, owned, status, reason)
    return list(map(JournalEntry, records))


def fenced_transactions(state: State, group: str, places: Iterable[Place]) -> list[Record]:
    """Open transactions with offsets of the group in these partitions: they were given under an assignment that ends,
    or before anybody had the partition, and the next owner goes on without them.
    """
    over = set(places)
    return [
        TransactionFailed(name, "FENCED_MEMBER_EPOCH", f"the group {group} has given a partition to another member")
        for name in sorted(state.ongoing)
        if state.transactions[name].error is None and not over.isdisjoint(state.transactions[name].places_of(group))
    ]


# -- at the end of a step -------------------------------------------------------------------------------


def decide_topics(state: State, group: Group) -> list[Record]:
    """Partitions and topics that have come or gone since; what comes is read from its start, or where it goes on."""
    counts = group.partition_counts
    named = {
        name: topic_id
        for one in group.members.values()
        for name in one.topics
        if (topic_id := state.topic_ids.get(name))
    }
    wanted = sorted({*named.values(), *counts} & state.topics.keys())
    entries: list[Record] = [
        PartitionsGone(group.group, topic_id, _name(group, topic_id), counts[topic_id])
        for topic_id in sorted(counts.keys() - state.topics.keys())
    ]
    for topic_id in wanted:
        topic, known = state.topics[topic_id], counts.get(topic_id, 0)
        if topic.consumed_count > known:
            added = range(known, topic.consumed_count)
            starts = [state.resumed.get((topic_id, number), int(topic.log_starts[number])) for number in added]
            entries.append(PartitionsAdded(group.group, topic_id, topic.topic, list(starts), known))
        elif topic.consumed_count < known:
            entries.append(PartitionsGone(group.group, topic_id, topic.topic, known, topic.consumed_count))
    return entries


def _name(group: Group, topic_id: int) -> str:
    return next(one.topic for (other, _), one in group.assignments.items() if other == topic_id)


def decide_delay(state: State, group: Group) -> list[Record]:
    """A delay is over when there is nobody who could be preferred, and no longer than the group's setting says now."""
    if not group.not_before_ms:
        return []
    if group.is_queue:  # who is lost may be back; once all that was lost is somebody's, nobody is waited for
        waits = any(one.status is PartitionStatus.UNBOUND for one in group.assignments.values())
    else:
        waits = bool(group.members)
    until_ms = min(group.not_before_ms, state.now_ms + group.rebalance_delay_ms) if waits else 0
    if until_ms == group.not_before_ms:
        return []
    return [RebalanceDelayed(group.group, until_ms if until_ms > state.now_ms else 0)]


def decide_nobody(state: State, group: Group) -> list[Record]:
    """Without members the target needs no assignor; and there is nobody to wait for."""
    if group.members or group.target_epoch == group.group_epoch:
        return []
    return [target_set(group, group.assignor, {})]


def target_set(group: Group, assignor: str, owners: Mapping[Place, str], problem: str | None = None) -> TargetSet:
    """What becomes another one by this target. owners: who is to have what; others nobody is to."""
    changed: dict[str, list[Place]] = {}
    dropped: list[Place] = []
    for place in sorted(place for place, one in group.assignments.items() if owners.get(place) != one.target):
        owner = owners.get(place)
        if owner is None:
            dropped.append(place)
        else:
            changed.setdefault(owner, []).append(place)
    return TargetSet(group.group, group.group_epoch, assignor, changed, dropped, problem)


def decide_barrier(state: State, group: Group) -> list[Record]:
    """In a classic group all is to be given up before anybody gets anything: only then a target is asked for."""
    if not group.is_classic or group.target_epoch == group.group_epoch:
        return []
    ready = [(p, group.assignments[p].owner) for places in group.held.values() for p in places if p not in group.paused]
    moves = [Move(*place, PartitionStatus.PAUSED, owner) for place, owner in sorted(ready)]
    return [PartitionsMoved(group.group, "rebalance", moves)] if moves else []


def decide_moves(state: State, group: Group) -> list[Record]:
    """What may move now. While a delay runs, only what nobody has lost."""
    if group.target_epoch != group.group_epoch:
        return []
    # what is paused waits for its owner: of a large group that may be nearly all, while many steps go by
    places = sorted(group.moving - group.paused)
    if not (group.is_classic or group.not_before_ms):
        places = places[:MOST_MOVES]
    moving = [(p, _move(state, group, p, group.assignments[p])) for p in places]
    moves = [move for _, move in moving if move is not None]
    if not moves:
        return []
    over = [place for place, move in moving if move is not None and move.status is not PartitionStatus.PAUSED]
    return [PartitionsMoved(group.group, "balance", moves), *ended(state, group, over, "lost")]


def decide_handed_over(state: State, group: Group) -> list[Record]:
    """In a queue group a partition that is to move is free when what its owner has of it is acknowledged."""
    if not group.is_queue:
        return []
    known = state.deliveries.get(group.group, {})
    done = [p for p in sorted(group.paused) if p not in known or not known[p].held_count]
    return freed(state, group, done, PartitionStatus.UNASSIGNED, "handed over") if done else []


def _move(state: State, group: Group, place: Place, one: Assignment) -> Move | None:
    waits = group.not_before_ms > 0
    if one.is_free:
        if waits and one.status is PartitionStatus.UNBOUND:
            return None
        if one.target is not None:
            return Move(*place, PartitionStatus.READY, one.target, start_of(state, group, place, one.target))
        return Move(*place, PartitionStatus.UNASSIGNED) if one.status is PartitionStatus.UNBOUND else None
    if one.status is PartitionStatus.READY and one.owner != one.target and not waits:
        return Move(*place, PartitionStatus.PAUSED, one.owner)
    return None


def decide_completed(state: State, group: Group) -> list[Record]:
    """A rebalance is completed when each partition is where it is to be, and no delay runs."""
    if not group.members or group.not_before_ms or group.settled_epoch == group.group_epoch or not group.is_settled():
        return []
    return [RebalanceCompleted(group.group, group.generation + 1, group.group_epoch)]


SETTLING: tuple[Callable[[State, Group], list[Record]], ...] = (
    decide_topics,
    decide_delay,
    decide_nobody,
    decide_barrier,
    decide_moves,
    decide_handed_over,
    decide_moves,
    decide_completed,
)
"""What a touched group comes to before its step ends; each sees what the one before it has decided."""


def _waiting(state: State) -> list[Group]:
    return [state.groups[name] for name in sorted(state.waiting_groups)]


def wanting_target(state: State) -> list[Group]:
    """Groups that wait for an assignor."""
    return [one for one in _waiting(state) if one.wants_target]


# -- what time brings -----------------------------------------------------------------------------------


def _delayed(state: State) -> list[str]:
    return [one.group for one in _waiting(state) if one.not_before_ms]


def _delay_is_over(state: State, name: str, time: Time) -> bool:
    group = state.groups.get(name)
    return group is not None and 0 < group.not_before_ms <= time.now_ms


def decide_delay_over(state: State, name: str) -> list[JournalEntry]:
    return [JournalEntry(RebalanceDelayed(name, 0))]


_Waiting = tuple[str, str, int]
"""Group, owner, and since when it is to give up some of its partitions."""


def _to_give_up(state: State) -> list[_Waiting]:
    return [(group.group, *pause) for group in _waiting(state) if not group.is_queue for pause in sorted(group.pauses)]


def _gives_no_word(state: State, key: _Waiting, time: Time) -> bool:
    name, member_id, since_ms = key
    group = state.groups.get(name)
    if group is None or (member_id, since_ms) not in group.pauses or member_id not in group.members:
        return False
    patience = group.members.values() if group.is_classic else (group.members[member_id],)
    # not by stored times: while nobody leads, nobody can be told that one is done
    return time.waited_ms(key) > max(one.max_poll_interval_ms for one in patience)


def decide_no_word(state: State, key: _Waiting) -> list[JournalEntry]:
    """An owner that does not give up what it is to: it is out, for it does not poll.

    In a classic group a static member is a member still, for as long as its session: what it had is taken from it.
    """
    name, member_id, _ = key
    group = state.groups[name]
    if group.is_classic and group.members[member_id].instance_id is not None:
        missed = MemberMissed(name, member_id)
        taken = freed(state, group, group.owned(member_id), PartitionStatus.UNASSIGNED, "missed")
        return list(map(JournalEntry, [missed, *taken]))
    return gone(state, group, member_id, "poll", PartitionStatus.UNASSIGNED)


def _handing_over(state: State) -> list[_Waiting]:
    return [(group.group, *pause) for group in _waiting(state) if group.is_queue for pause in sorted(group.pauses)]


def _handoff_is_over(state: State, key: _Waiting, time: Time) -> bool:
    name, member_id, since_ms = key
    group = state.groups.get(name)
    if group is None or (member_id, since_ms) not in group.pauses:
        return False
    return bool(time.now_ms - since_ms >= group.setting("max.handoff.ms"))


def decide_handoff_over(state: State, key: _Waiting) -> list[JournalEntry]:
    """The owner has had its time: what it has not acknowledged is delivered again, to the next one."""
    name, member_id, since_ms = key
    group = state.groups[name]
    over = [place for place in sorted(group.paused) if group.is_pause_of(place, member_id, since_ms)]
    return list(map(JournalEntry, freed(state, group, over, PartitionStatus.UNASSIGNED, "handoff")))


TIMERS: Timers = (
    Timer(_handing_over, _handoff_is_over, decide_handoff_over),
    Timer(_delayed, _delay_is_over, decide_delay_over),
    Timer(_to_give_up, _gives_no_word, decide_no_word, watched=True),
)
