"""Redelivery: what happens to messages of a queue group that a member had and did not settle.

They are delivered again or, after their last delivery, become dead letters.
"""

from collections.abc import Iterable, Sequence

from ..values.assignments import Group, TopicIdPartition
from ..values.base import Record
from ..values.deliveries import (
    ABORTED,
    COMMITTED,
    DeathReason,
    DeliveryPolicy,
    DeliveryStatus,
    MessageRanges,
    MessagesSettled,
    SettledMessages,
    Stretch,
    stretches_to_ranges,
)
from ..values.state import State


def give_back(
    group: Group, tp: TopicIdPartition, stretches: Sequence[Stretch], error: str = ""
) -> list[SettledMessages]:
    """Return how these messages are settled if they are given back.

    error: what the member said about them, or "".
    """
    most = DeliveryPolicy.from_group(group).max_deliveries
    dying = [stretch for stretch in stretches if most is not None and stretch.deliveries >= most]
    again = [stretch for stretch in stretches if most is None or stretch.deliveries < most]
    settled = [SettledMessages(*tp, DeliveryStatus.AVAILABLE, stretches_to_ranges(again))] if again else []
    return [*settled, *let_die(tp, dying, DeathReason.GIVEN_UP, error)]


def let_die(
    tp: TopicIdPartition, stretches: Sequence[Stretch], reason: DeathReason, error: str
) -> list[SettledMessages]:
    """Return how these messages are settled if they are never delivered again."""
    if not stretches:
        return []
    return [SettledMessages(*tp, DeliveryStatus.DYING, stretches_to_ranges(stretches), reason=reason, error=error)]


def give_back_partitions(
    state: State, group: Group, topic_partitions: Iterable[TopicIdPartition], reason: str
) -> list[Record]:
    """Return the records that give back what the owners of these partitions had.

    Messages that are pending in a transaction stay pending until it ends.
    """
    deliveries = state.deliveries.get(group.group, {})
    parts = [
        part
        for tp in topic_partitions
        if tp in deliveries
        for part in give_back(group, tp, deliveries[tp].list_acquired_stretches())
    ]
    return [MessagesSettled(group.group, reason, parts)] if parts else []


def settle_pending(state: State, name: str, pending: Iterable[MessageRanges], committed: bool) -> list[Record]:
    """Return the records that settle what a transaction has acknowledged for a group, when it ends."""
    group, parts = state.groups.get(name), list[SettledMessages]()
    for acknowledged in pending:
        deliveries = state.find_deliveries(name, acknowledged.topic_partition)
        if deliveries is None or group is None:
            continue
        stretches = [
            stretch
            for stretch in deliveries.find_stretches(acknowledged.ranges)
            if stretch.status is DeliveryStatus.PENDING
        ]
        if committed and stretches:
            parts.append(
                SettledMessages(
                    *acknowledged.topic_partition, DeliveryStatus.ACKNOWLEDGED, stretches_to_ranges(stretches)
                )
            )
        elif stretches:
            parts += give_back(group, acknowledged.topic_partition, stretches)
    return [MessagesSettled(name, COMMITTED if committed else ABORTED, parts)] if parts else []
