"""Find what holds up the deliveries of a queue group: which member, since when, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...protocol.values.consuming.assignments import Group, GroupMember, PartitionStatus, TopicIdPartition
from ...protocol.values.queues.partition_deliveries import MAX_STRETCHES, Deliveries, DeliveryPolicy
from ...protocol.values.queues.stretches import DeliveryStatus
from ...protocol.values.state import State
from ..arguments import format_time
from .stall import Stall, StallKind

_OVERDUE_MS = 60_000
"""Shorter stalls come and go while a group works; `max_poll_interval_ms` of the member, if that is less."""


@dataclass(frozen=True)
class _QueuePartition:
    """A partition of a member with messages that were delivered and are not finished, and what became of them."""

    topic_partition: TopicIdPartition
    name: str
    topic: str
    status: PartitionStatus
    deliveries: Deliveries


def find_queue_stalls(state: State, group: Group, member_id: str | None = None) -> list[Stall]:
    """Return what holds up deliveries to the members of a queue group, or to one member; empty for other groups."""
    if not group.is_queue:
        return []
    members = [member for member in group.members.values() if member_id in (None, member.member_id)]
    return [
        stall
        for member in sorted(members, key=lambda member: member.number)
        for stall in _find_member_stalls(state, group, member)
    ]


def _find_member_stalls(state: State, group: Group, member: GroupMember) -> Iterator[Stall]:
    all_deliveries = state.deliveries.get(group.group, {})
    own = group.partitions_by_owner.get(member.member_id, ())
    partitions = [
        _QueuePartition(tp, f"{assignment.topic}-{tp[1]}", assignment.topic, assignment.status, all_deliveries[tp])
        for tp in sorted(tp for tp in own if tp in all_deliveries and all_deliveries[tp].stretches)
        for assignment in (group.assignments[tp],)
    ]
    unfinished = [partition for partition in partitions if partition.deliveries.held_count]
    yield from _find_last_deliveries(group, member, partitions, unfinished)
    yield from _find_bound(group, member, unfinished)
    yield from _find_silent(state, group, member, unfinished)
    for partition in partitions:
        if partition.status is PartitionStatus.READY:
            yield from _find_waiting(state, group, member, partition)
            yield from _find_too_many_ranges(member, partition)


def _find_last_deliveries(
    group: Group, member: GroupMember, partitions: list[_QueuePartition], unfinished: list[_QueuePartition]
) -> Iterator[Stall]:
    """Yield messages that wait for their last delivery, while the member has other messages."""
    policy = DeliveryPolicy.from_group(group)
    if not unfinished:
        return
    oldest = min(unfinished, key=lambda partition: partition.deliveries.silent_since_ms)
    count = sum(partition.deliveries.held_count for partition in unfinished)
    for partition in partitions:
        given_back = (DeliveryStatus.AVAILABLE, DeliveryStatus.WAITING)
        stretch = next((part for part in partition.deliveries.stretches if part.status in given_back), None)
        if partition.status is not PartitionStatus.READY or stretch is None or not policy.is_last(stretch):
            continue
        sentence = (
            f"{partition.name}, offset {stretch.first} waits for its last delivery, which comes alone, and no partition"
            f" of member {member.member_id} gets anything more: the member has {_count_messages(count)} that it has not"
            f" acknowledged, the first is {oldest.name}, offset {oldest.deliveries.first_held}."
        )
        yield _build_stall("last delivery", member, oldest, sentence, "Acknowledge them, or give them back with nack.")


def _find_bound(group: Group, member: GroupMember, unfinished: list[_QueuePartition]) -> Iterator[Stall]:
    """Yield a stall if the member has as many messages as it may."""
    bound = int(group.setting("max.delivered.unacked.msgs.per.flow"))
    count = sum(partition.deliveries.held_count for partition in unfinished)
    if count < bound:
        return
    oldest = min(unfinished, key=lambda partition: partition.deliveries.silent_since_ms)
    sentence = (
        f"Member {member.member_id} has {_count_messages(count)} that it has not acknowledged, and"
        f" max.delivered.unacked.msgs.per.flow is {bound}: the first is {oldest.name}, offset"
        f" {oldest.deliveries.first_held}."
    )
    advice = "Acknowledge them, give them back with nack, or raise max.delivered.unacked.msgs.per.flow."
    yield _build_stall("bound", member, oldest, sentence, advice)


def _find_silent(state: State, group: Group, member: GroupMember, unfinished: list[_QueuePartition]) -> Iterator[Stall]:
    """Yield partitions whose messages the member does not acknowledge. It polls, so the group does not find it lost."""
    for partition in unfinished:
        since_ms = partition.deliveries.silent_since_ms
        if since_ms and state.now_ms - since_ms > member.max_poll_interval_ms:
            count = _count_messages(partition.deliveries.held_count)
            sentence = (
                f"Member {member.member_id} polls, and has acknowledged nothing of {partition.name} since"
                f" {format_time(since_ms)}: it has {count} of it, the first is offset"
                f" {partition.deliveries.first_held}."
            )
            remove = f"lakemq groups remove-members {group.group} --member {member.member_id}"
            advice = f"Acknowledge them or give them back, or restart its process, or remove the member: `{remove}`."
            yield _build_stall("silent", member, partition, sentence, advice)


def _find_waiting(state: State, group: Group, member: GroupMember, partition: _QueuePartition) -> Iterator[Stall]:
    """Yield a message that waits for its time while nothing later of the partition may be delivered."""
    waiting = (part for part in partition.deliveries.stretches if part.status is DeliveryStatus.WAITING)
    stretch = next(waiting, None)
    if stretch is None or stretch.not_before_ms <= state.now_ms or not DeliveryPolicy.from_group(group).in_order:
        return
    sentence = (
        f"{partition.name}, offset {stretch.first} was given back and comes again at"
        f" {format_time(stretch.not_before_ms)}; until then nothing later of {partition.name} is delivered"
        f" (nack.order is partition)."
    )
    yield Stall(
        "waiting",
        member.member_id,
        partition.topic,
        partition.topic_partition[1],
        stretch.first,
        sentence,
        "Wait, give back with a shorter delay, or set nack.order to none.",
        stretch.not_before_ms,
        None,
    )


def _find_too_many_ranges(member: GroupMember, partition: _QueuePartition) -> Iterator[Stall]:
    count = len(partition.deliveries.stretches)
    if count < MAX_STRETCHES or not partition.deliveries.held_count:
        return
    sentence = (
        f"{partition.name} has {count} ranges of messages in different states, and gets nothing new: member"
        f" {member.member_id} has not acknowledged offset {partition.deliveries.first_held}."
    )
    yield _build_stall("ranges", member, partition, sentence, "Acknowledge the oldest messages first.")


def _build_stall(kind: StallKind, member: GroupMember, partition: _QueuePartition, found: str, advice: str) -> Stall:
    """Return a stall that ends when the member acknowledges messages of this partition."""
    patience_ms = member.max_poll_interval_ms if kind == "silent" else min(_OVERDUE_MS, member.max_poll_interval_ms)
    return Stall(
        kind,
        member.member_id,
        partition.topic,
        partition.topic_partition[1],
        partition.deliveries.first_held or 0,
        found,
        advice,
        partition.deliveries.silent_since_ms,
        patience_ms,
    )


def _count_messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"
