"""Select the acquired messages that a queue consumer can show, and plan what it acquires next.

Each poll requests the messages of the next poll, so that they are there when that one is called.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from ....protocol.values.queues.deliveries import WantedMessages
from ....protocol.values.queues.stretches import DeliveryStatus, Stretch, stretches_to_ranges
from ...offsets import TopicPartition
from ..member.membership_view import OwnedPartition, QueueSettings
from ..poll_sizes import poll_sizes
from .ack_tracker import AckTracker


def find_unshown(tracker: AckTracker, owned: OwnedPartition, in_order: bool) -> list[Stretch]:
    """Return the acquired messages of a partition that were not shown, up to the first gap.

    They end at a gap because one fetch reads one range of offsets.

    Args:
        tracker: what the user was shown.
        owned: the group's state of the partition.
        in_order: with `nack.order` `partition`, no message is shown before an earlier one that was given back. Later
            messages that were prefetched are returned unseen, and `owned` is changed accordingly. The group then
            delivers all of them again, the lowest offset first.
    """
    assert owned.deliveries is not None
    tracker.follow(owned.deliveries)
    first, end = owned.bounds.first, owned.bounds.end
    acquired = [part.cut(max(first, part.first), min(end, part.end)) for part in owned.deliveries.acquired_stretches()]
    unshown = tracker.find_unshown(part for part in acquired if part.length > 0)
    if in_order and unshown and (given_back := tracker.find_first_given_back(owned.deliveries)) is not None:
        later = [part.cut(max(part.first, given_back), part.end) for part in unshown if part.end > given_back]
        tracker.return_unseen(later)
        owned.deliveries.change(stretches_to_ranges(later), _make_available)
        unshown = [part.cut(part.first, min(part.end, given_back)) for part in unshown if part.first < given_back]
    contiguous: list[Stretch] = []
    for part in unshown:
        if contiguous and contiguous[-1].end != part.first:
            break
        contiguous.append(part)
    return contiguous


def _make_available(part: Stretch) -> Stretch:
    return Stretch(part.first, part.length, DeliveryStatus.AVAILABLE, part.deliveries - 1)


def plan_acquisitions(
    owned: Mapping[TopicPartition, OwnedPartition],
    halted: Container[TopicPartition],
    settings: QueueSettings,
    max_count: int,
    now_ms: int,
) -> list[WantedMessages]:
    """Return the requests for the messages of the next poll; only for messages that are there.

    A member may hold twice `max.delivered.unacked.msgs.per.flow` messages: once that number with the user, and as many
    prefetched. A message before its last delivery is requested alone, and only by a member that holds nothing: if it
    stops its consumer, no other message loses a delivery by it. The group applies the same rules to the request
    (`decide_acquire`), so this only avoids requests that bring nothing.

    Args:
        owned: the member's partitions. Those named first get what cannot be divided evenly.
        halted: partitions that the user has paused.
        settings: of the queue group.
        max_count: messages to request at most.
        now_ms: the group's time.
    """
    open_for_more = {
        place: partition
        for place, partition in owned.items()
        if not partition.is_paused and place not in halted and partition.deliveries
    }
    acquired_count = sum(partition.deliveries.held_count for partition in owned.values() if partition.deliveries)
    room = max(0, min(max_count, 2 * settings.max_unacknowledged - acquired_count))
    available, last_deliveries = {}, []
    for place, partition in open_for_more.items():
        assert partition.deliveries is not None
        if partition.deliveries.is_next_last(settings.policy, now_ms):
            last_deliveries.append(place)
        end = max(partition.bounds.end, partition.bounds.first)
        ranges = partition.deliveries.next_ranges(settings.policy, end, room, now_ms)
        available[place] = sum(count for _, count in ranges)
    if last_deliveries:
        available = {} if acquired_count else {last_deliveries[0]: 1}
    counts = poll_sizes(available, room)
    # Messages may have been deleted while the member had them, or while they were dying. Any request for the
    # partition, even for 0 messages, makes the group pass over them.
    with_deleted = [
        place
        for place, partition in open_for_more.items()
        if partition.deliveries and partition.deliveries.has_unsettled_before(partition.bounds.first)
    ]
    return [
        WantedMessages(partition.bounds.topic_id, place[1], partition.epoch, counts.get(place, 0))
        for place, partition in open_for_more.items()
        if counts.get(place) or place in with_deleted
    ]
