"""The polls of a queue consumer: show messages that it has acquired, and plan what it acquires next.

Each poll requests the messages of the next poll, so that they are there when that one is called.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...namespace.clock import Clock
from ...protocol.values.deliveries import Acknowledgement, AckOutcome, WantedMessages
from ...protocol.values.stretches import DeliveryStatus, Stretch, stretches_to_ranges
from ..fetch.fetch_result import FetchResult
from ..offsets import TopicPartition
from .ack_tracker import AckTracker
from .membership_view import MembershipView, OwnedPartition, QueueSettings
from .poll_loop import divide_room
from .queue_batch import ShownPartition, find_message_spans, take_first


@dataclass(frozen=True)
class PollSelection:
    """The messages that a poll shows.

    Attributes:
        stretches: (topic, partition) -> adjoining stretches, at least one.
        unshown_count: acquired messages that stay for the next poll.
    """

    stretches: dict[TopicPartition, list[Stretch]]
    unshown_count: int

    @property
    def starts(self) -> dict[TopicPartition, int]:
        return {tp: stretches[0].first for tp, stretches in self.stretches.items()}

    @property
    def ends(self) -> dict[TopicPartition, int]:
        return {tp: stretches[-1].end for tp, stretches in self.stretches.items()}


FIRST_LIMIT = 100
"""Messages of a poll while the member's pace is not known."""

_HANDOFF_SHARE = 0.4
"""Share of `max.handoff.ms` for the messages of one poll. As many are prefetched, and a fifth is reserve."""


class ProcessingPace:
    """Limits a poll to the messages that the member finishes within its share of `max.handoff.ms`.

    When a partition moves, messages that its owner has not finished by then are delivered again, and are processed
    twice. The time of a poll is taken as a fixed part, for example a request to a database, and a part for each
    message. Two polls of different sizes tell them apart: a smaller poll would not shorten the fixed part.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limit = FIRST_LIMIT
        self._open_count = self._done_count = self._last_count = 0
        self._since_ms = self._busy_ms = self._last_ms = 0
        self._fixed_ms = 0.0

    def note(self, open_count: int) -> None:
        """Note how many messages the user has now: before it gets more, and after."""
        now_ms = self._clock.steady_ms()
        if self._open_count:
            self._busy_ms += now_ms - self._since_ms
            self._done_count += max(0, self._open_count - open_count)
        self._open_count, self._since_ms = open_count, now_ms

    def find_limit(self, handoff_ms: int, most: int) -> int:
        """Return how many messages a poll may show: at most twice as many as the limit before, and at most `most`."""
        if self._done_count:
            count, total_ms = self._done_count, self._busy_ms
            each_ms = (total_ms - self._fixed_ms) / count
            if abs(count - self._last_count) * 4 > self._last_count > 0:
                each_ms = (total_ms - self._last_ms) / (count - self._last_count)
            each_ms = min(max(each_ms, 0), total_ms / count)
            self._fixed_ms = total_ms - each_ms * count
            share_ms = handoff_ms * _HANDOFF_SHARE
            left_ms = max(share_ms - self._fixed_ms, share_ms / 2)
            fitting_count = left_ms / each_ms if each_ms else most
            self._limit = int(max(1, min(fitting_count, 2 * self._limit, most)))
            self._last_count, self._last_ms = count, total_ms
            self._done_count = self._busy_ms = 0
        return self._limit


class DeliveryPlanner:
    """Shows acquired messages, and plans what to acquire for the next poll. Its consumer holds the lock for every call.

    Partitions take turns: a partition that was shown in the last poll comes last in the next. So each gets its share
    even if one poll has no room for all.
    """

    def __init__(self, trackers: Mapping[TopicPartition, AckTracker], clock: Clock) -> None:
        """trackers: the consumer's own mapping, which the consumer changes."""
        self._trackers, self._clock = trackers, clock
        self.settings: QueueSettings | None = None
        """Settings of the group, once a view was read."""
        self._newest_step = (-1, 0, 0)
        """The newest step, its time by the group's clock, and when this consumer saw it by its own."""
        self._pace = ProcessingPace(clock)
        self._shown_last: dict[TopicPartition, None] = {}
        """Partitions by when messages of them were last shown, the earliest first."""

    @property
    def is_auto_ack(self) -> bool:
        """True if a poll acknowledges the messages of the poll before it."""
        return self.settings is not None and self.settings.is_auto_ack

    def note_view(self, view: MembershipView) -> None:
        """Take in the settings and the time of the newest step."""
        if view.step != self._newest_step[0]:
            self._newest_step = view.step, view.now_ms, self._clock.steady_ms()
        if view.queue_settings is not None:
            self.settings = view.queue_settings

    def forget(self, tp: TopicPartition) -> None:
        """Drop a partition that moved."""
        self._shown_last.pop(tp, None)

    def count_open(self) -> int:
        """Return how many shown messages have no outcome yet."""
        shown = (self._trackers.get(tp) for tp in self._shown_last)
        return sum(tracker.open_count for tracker in shown if tracker is not None and tracker.has_open)

    def count_room(self) -> int:
        """Return how many more messages may be shown before some get an outcome."""
        return 0 if self.settings is None else self.settings.max_unacknowledged - self.count_open()

    def limit_poll(self, max_count: int) -> int:
        """Return how many messages the next poll may show: what the member can finish within max.handoff.ms."""
        self._pace.note(self.count_open())
        if self.settings is None or not self.settings.handoff_ms:
            return max_count
        return min(max_count, self._pace.find_limit(self.settings.handoff_ms, self.settings.max_unacknowledged))

    def name_first_open(self) -> str:
        """Return partition and offset of a message without an outcome; there must be one."""
        return next(
            f"{tracker.name}, offset {tracker.list_open_spans()[0][0]}"
            for tracker in self._trackers.values()
            if tracker.open_count
        )

    def select(
        self, owned: dict[TopicPartition, OwnedPartition], max_count: int, paused_by_user: Container[TopicPartition]
    ) -> PollSelection:
        """Select acquired messages that were not shown, evenly from all partitions that may be shown.

        Args:
            owned: the member's partitions that have a tracker, and that may have something to do. Partitions that
                return messages unseen are replaced in it.
            max_count: messages at most; the room of the user is another bound.
            paused_by_user: partitions to leave out.
        """
        delivers_paused = self.settings is not None and self.settings.handoff_ms > 0
        in_order = self.settings is not None and self.settings.policy.in_order
        unshown = {
            tp: take_showable(self._trackers[tp], owned, tp, in_order)
            for tp, partition in self._put_last_shown_at_end(owned).items()
            if tp not in paused_by_user and (delivers_paused or not partition.is_paused)
        }
        counts = {tp: _count(stretches) for tp, stretches in unshown.items()}
        sizes = divide_room(counts, max(0, min(max_count, self.count_room())))
        selected = {tp: take_first(unshown[tp], size) for tp, size in sizes.items() if size}
        return PollSelection(selected, sum(counts.values()) - sum(map(_count, selected.values())))

    def _put_last_shown_at_end(
        self, owned: Mapping[TopicPartition, OwnedPartition]
    ) -> dict[TopicPartition, OwnedPartition]:
        in_turn = {tp: partition for tp, partition in owned.items() if tp not in self._shown_last}
        return in_turn | {tp: owned[tp] for tp in self._shown_last if tp in owned}

    def show(
        self,
        selection: PollSelection,
        parts: Sequence[FetchResult],
        owned: Mapping[TopicPartition, OwnedPartition],
        moves: dict[TopicPartition, Any],
    ) -> tuple[dict[TopicPartition, ShownPartition], list[Acknowledgement]]:
        """Mark the selected messages as shown; return them, and the acknowledgements that would accept them.

        `moves` is extended first, so that an interrupted poll can hide the messages again.
        """
        shown, acks = {}, []
        for tp, stretches in selection.stretches.items():
            tracker = self._trackers[tp]
            moves[tp] = (tracker, [*moves[tp][1], *stretches] if tp in moves else stretches)
            messages, expired = find_message_spans(parts, tp)
            tracker.show(stretches, messages, expired)
            self._shown_last.pop(tp, None)
            self._shown_last[tp] = None
            shown[tp] = ShownPartition(tracker.topic_id, tracker.epoch, owned[tp].start_offset, stretches)
            for stretch in stretches:
                # The tracker itself accepts offsets that hold no message.
                if spans := list(messages.within(*stretch.span)):
                    acks.append(tracker.build_acknowledgement(AckOutcome.ACK, stretch, spans))
        self._pace.note(self.count_open())
        return shown, acks

    def plan_next(
        self, owned: Mapping[TopicPartition, OwnedPartition], max_count: int, paused_by_user: Container[TopicPartition]
    ) -> list[WantedMessages]:
        """Return the request for the messages of the next poll; only for messages that are there.

        A member may hold twice `max.delivered.unacked.msgs.per.flow` messages: once that number with the user, and as
        many prefetched. A message before its last delivery is requested alone, and only by a member that holds nothing:
        if it stops its consumer, no other message loses a delivery by it. The group applies the same rules to the
        request (`decide_acquire`), so this only avoids requests that bring nothing.

        Args:
            owned: the member's partitions.
            max_count: messages to request at most.
            paused_by_user: partitions to leave out.
        """
        if self.settings is None:
            return []
        _, decided_ms, seen_ms = self._newest_step
        # the group's time now: that of the newest step, and what has passed since this consumer saw it
        now_ms = decided_ms + self._clock.steady_ms() - seen_ms
        open_for_more = {
            tp: partition
            for tp, partition in self._put_last_shown_at_end(owned).items()
            if not partition.is_paused and tp not in paused_by_user and partition.deliveries
        }
        held_count = sum(partition.deliveries.held_count for partition in owned.values() if partition.deliveries)
        room = max(0, min(max_count, 2 * self.settings.max_unacknowledged - held_count))
        available, last_deliveries = {}, []
        for tp, partition in open_for_more.items():
            assert partition.deliveries is not None
            if partition.deliveries.is_next_last(self.settings.policy, now_ms):
                last_deliveries.append(tp)
            end = max(partition.bounds.end, partition.bounds.first)
            ranges = partition.deliveries.next_ranges(self.settings.policy, end, room, now_ms)
            available[tp] = sum(count for _, count in ranges)
        if last_deliveries:
            available = {} if held_count else {last_deliveries[0]: 1}
        counts = divide_room(available, room)
        # Messages may have been deleted while the member had them, or while they were dying. Any request for the
        # partition, even for 0 messages, makes the group pass over them.
        with_deleted = [
            tp
            for tp, partition in open_for_more.items()
            if partition.deliveries and partition.deliveries.has_unsettled_before(partition.bounds.first)
        ]
        return [
            WantedMessages(partition.bounds.topic_id, tp[1], partition.epoch, counts.get(tp, 0))
            for tp, partition in open_for_more.items()
            if counts.get(tp) or tp in with_deleted
        ]


def _count(stretches: Sequence[Stretch]) -> int:
    return sum(stretch.length for stretch in stretches)


def take_showable(
    tracker: AckTracker, owned: dict[TopicPartition, OwnedPartition], tp: TopicPartition, in_order: bool
) -> list[Stretch]:
    """Return the acquired messages of a partition that were not shown, up to the first gap.

    They end at a gap because one fetch reads one range of offsets.

    Args:
        tracker: what the user was shown.
        owned: the group's state of the member's partitions.
        tp: the partition.
        in_order: with `nack.order` `partition`, no message is shown before an earlier one that was given back. Later
            messages that were prefetched are returned unseen, and the partition is replaced in `owned` accordingly. The
            group then delivers all of them again, the lowest offset first.
    """
    bounds, deliveries = owned[tp].bounds, owned[tp].deliveries
    assert deliveries is not None
    tracker.follow(deliveries)
    first, end = bounds.first, bounds.end
    stretches = deliveries.list_acquired_stretches()
    acquired = [part.cut(max(first, part.first), min(end, part.end)) for part in stretches]
    unshown = tracker.find_unshown(part for part in acquired if part.length > 0)
    if in_order and unshown and (given_back := tracker.find_first_given_back(deliveries)) is not None:
        later = [part.cut(max(part.first, given_back), part.end) for part in unshown if part.end > given_back]
        tracker.return_unseen(later)
        deliveries = deliveries.copy()  # later views share the group's state
        deliveries.change(stretches_to_ranges(later), _make_available)
        owned[tp] = replace(owned[tp], deliveries=deliveries)
        unshown = [part.cut(part.first, min(part.end, given_back)) for part in unshown if part.first < given_back]
    contiguous: list[Stretch] = []
    for part in unshown:
        if contiguous and contiguous[-1].end != part.first:
            break
        contiguous.append(part)
    return contiguous


def _make_available(part: Stretch) -> Stretch:
    return Stretch(part.first, part.length, DeliveryStatus.AVAILABLE, part.deliveries - 1)
