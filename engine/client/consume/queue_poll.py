"""How a queue consumer polls: it shows messages that the member has acquired, and requests those of the next poll.

So the next messages are there when the next poll is called. The outcomes that they get are in `outcomes.py`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ...protocol.errors import IllegalState
from ...protocol.values.assignments import Group
from ...protocol.values.deliveries import (
    Acknowledgement,
    AckOutcome,
    Spans,
    Stretch,
    WantedMessages,
    clip_stretches,
    group_into_spans,
)
from ..fetch.fetch_result import FetchResult, Message
from ..offsets import ConsumedMessages, TopicPartition
from .batch import ConsumerBatch, QueueBatch, ShownPartition, divide_room, find_held_back
from .member import ANSWER_MS, QueueMember
from .membership import MembershipView, OwnedPartition, QueueSettings
from .outcomes import LONGEST_WAIT_MS, AckSender
from .parts import ConsumerParts, Moves

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

    def __init__(self) -> None:
        self._limit = FIRST_LIMIT
        self._open_count = self._done_count = self._last_count = 0
        self._since_ms = self._busy_ms = self._last_ms = 0
        self._fixed_ms = 0.0

    def note(self, open_count: int, now_ms: int) -> None:
        """Note how many messages the user has now: before it gets more, and after. now_ms: a steady time."""
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


@dataclass(frozen=True)
class PollSelection:
    """The messages that a poll shows.

    Attributes:
        starts: (topic, partition) -> the first offset.
        ends: (topic, partition) -> the end offset (exclusive).
        stretches: (topic, partition) -> the adjoining stretches from start to end.
        open_count: messages that the user has from polls before, without an outcome.
        next_count: messages at most to request for the next poll.
    """

    starts: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    stretches: dict[TopicPartition, list[Stretch]]
    open_count: int
    next_count: int


class QueueReader:
    """Reads the messages of one consumer, which holds its lock for every call, unless a method needs none.

    Partitions take turns: a partition that was shown in the last poll comes last in the next. So each gets its share
    even if one poll has no room for all.
    """

    def __init__(self, parts: ConsumerParts, member: QueueMember, ack_sender: AckSender) -> None:
        """Share the parts of one consumer."""
        self._parts, self._member, self._ack_sender = parts, member, ack_sender
        self._trackers, self.paused_by_user = member.trackers, member.paused_by_user
        self._acks_previous = False
        """A poll has begun, and has not yet acknowledged the messages of the poll before it (ack.mode auto)."""
        self._view: MembershipView | None = None
        """The view with which the poll has begun, until it is used."""
        self._settings = QueueSettings.of(Group(parts.group))
        """Settings of the group, as of the last view; before the first one, the defaults."""
        self._newest_step = (-1, 0, 0)
        """The newest step, its time by the group's clock, and when this consumer saw it by its own."""
        self._now_ms = 0
        """When this consumer looked at the group's state last, by its own clock."""
        self._pace = ProcessingPace()
        self._shown_last: dict[TopicPartition, None] = {}
        """Partitions by when messages of them were last shown, the earliest first. Some may have moved since."""

    def list_partitions(self) -> Container[TopicPartition]:
        return self._trackers

    # -- a poll -----------------------------------------------------------------------------------------

    def begin_poll(self, newest: bool, is_first: bool = False) -> None:
        """Take in answers, and then what the group has decided.

        This order matters: the state then includes what the answers brought, so that nothing is requested twice.
        The first look of a poll raises refusals of the calls before it, before it takes any message.

        Args:
            newest: whether to look for newer steps. False: none was decided since the last look.
            is_first: whether this is the first look of a poll.
        """
        if is_first:
            self._member.check_open()
            self._ack_sender.collect_single_acks()
            self._ack_sender.refusals.raise_invalid()
            self._acks_previous = True
        has_answers = self._ack_sender.collect_answers()
        self._view = self._member.update(newest or has_answers)

    def read_next(self, max_records: int, moves: Moves, read_ahead: int) -> QueueBatch | None:
        """Look once for messages to show, and request those of the next poll; return None to be called again.

        The order of the steps matters. With ack.mode auto, the messages of the poll before are accepted before new
        ones are selected, because they take room. Messages are marked as shown only once their fetch is planned; their
        bytes are read when the user asks. The next request comes after that. It asks for as many messages, less those
        that are acquired already and still unshown.
        """
        owned = self._member.find_owned(self._take_view())
        is_auto_ack = self._settings.is_auto_ack
        if self._acks_previous and is_auto_ack:
            for tracker in self._trackers.values():
                if tracker.has_open:
                    tracker.record(AckOutcome.ACK, [(*span, None) for span in tracker.list_open_spans()])
        self._acks_previous = False
        working = {tp: partition for tp, partition in owned.items() if self._trackers[tp].has_work(partition)}
        selection = self._select(working, max_records)
        topic_ids = {topic: partition.bounds.topic_id for (topic, _), partition in owned.items()}
        parts = self._parts.fetcher.fetch_topics(selection.starts, selection.ends, topic_ids, owned)
        if parts is None:
            return None
        shown, acks = self._show(selection, parts, working, moves)
        next_messages: list[WantedMessages] = []
        if self._ack_sender.acquire_request is None:  # at most one request is under way
            next_messages = self.plan_next(working, selection.next_count)
        self._ack_sender.send(next_messages)
        ownership = self._member.find_ownership(selection.ends)
        offsets = self._member.build_offsets(selection.ends, topic_ids)
        if not is_auto_ack:  # otherwise the next poll acknowledges, and a transaction must not
            offsets = ConsumedMessages(offsets, acks, self._has_open)
        return QueueBatch(self._parts.group, parts, offsets, ownership, shown)

    def _take_view(self) -> MembershipView:
        """Take the view of `begin_poll`, or a new one if that was taken, and note its settings and time."""
        view, self._view = self._view, None
        if view is None:
            self._ack_sender.collect_answers()
            view = self._member.membership.read_view()
        self._now_ms = self._parts.clock.steady_ms()
        if view.step != self._newest_step[0]:
            self._newest_step = view.step, view.now_ms, self._now_ms
        if view.queue_settings is not None:
            self._settings, self._parts.fetcher.isolation = view.queue_settings, view.queue_settings.isolation
        return view

    def count_open(self) -> int:
        """Return how many shown messages have no outcome yet."""
        shown = (self._trackers.get(tp) for tp in self._shown_last)
        return sum(tracker.open_count for tracker in shown if tracker is not None)

    def _select(self, owned: dict[TopicPartition, OwnedPartition], max_count: int) -> PollSelection:
        """Select acquired messages that were not shown, evenly from all partitions that may be shown.

        Args:
            owned: the member's partitions that have a tracker, and that may have something to do. Partitions that
                return messages unseen are replaced in it.
            max_count: messages at most. Other bounds are the room of the user, and what the member can finish within
                max.handoff.ms.
        """
        settings, showable = self._settings, dict[TopicPartition, list[Stretch]]()
        for tp, partition in self._put_last_shown_at_end(owned).items():
            if tp not in self.paused_by_user and (settings.handoff_ms or not partition.is_paused):
                showable[tp], owned[tp] = self._trackers[tp].take_showable(partition, settings.policy.in_order)
        # after the group's state is taken in: a transaction may have settled open messages
        open_count = self.count_open()
        self._pace.note(open_count, self._now_ms)
        if settings.handoff_ms:
            max_count = min(max_count, self._pace.find_limit(settings.handoff_ms, settings.max_unacknowledged))
        counts = {tp: sum(stretch.length for stretch in stretches) for tp, stretches in showable.items()}
        sizes = divide_room(counts, max(0, min(max_count, settings.max_unacknowledged - open_count)))
        starts = {tp: showable[tp][0].first for tp, size in sizes.items() if size}
        ends = {tp: start + sizes[tp] for tp, start in starts.items()}
        stretches = {tp: clip_stretches(showable[tp], start, ends[tp]) for tp, start in starts.items()}
        unshown_count = sum(counts.values()) - sum(sizes.values())
        return PollSelection(starts, ends, stretches, open_count, max_count - unshown_count)

    def _put_last_shown_at_end(
        self, owned: Mapping[TopicPartition, OwnedPartition]
    ) -> dict[TopicPartition, OwnedPartition]:
        in_turn = {tp: partition for tp, partition in owned.items() if tp not in self._shown_last}
        return in_turn | {tp: owned[tp] for tp in self._shown_last if tp in owned}

    def _show(
        self,
        selection: PollSelection,
        parts: Sequence[FetchResult],
        owned: Mapping[TopicPartition, OwnedPartition],
        moves: dict[TopicPartition, Any],
    ) -> tuple[dict[TopicPartition, ShownPartition], list[Acknowledgement]]:
        """Mark the selected messages as shown; return them, and the acknowledgements that would accept them.

        `moves` is extended first, so that an interrupted poll can hide the messages again.
        """
        shown, acks, by_topic = {}, list[Acknowledgement](), {part.plan.topic: part for part in parts}
        for tp, stretches in selection.stretches.items():
            tracker = self._trackers[tp]
            moves[tp] = (tracker, [*moves[tp][1], *stretches] if tp in moves else stretches)
            acks += tracker.show(stretches, *find_message_spans(by_topic[tp[0]], tp[1]))
            self._shown_last.pop(tp, None)
            self._shown_last[tp] = None
            shown[tp] = ShownPartition(tracker.topic_id, tracker.epoch, owned[tp].start_offset, stretches)
        shown_count = sum(count for part in acks for _, count in part.ranges)
        self._pace.note(selection.open_count + shown_count, self._parts.clock.steady_ms())
        return shown, acks

    def plan_next(self, owned: Mapping[TopicPartition, OwnedPartition], max_count: int) -> list[WantedMessages]:
        """Return the request for the messages of the next poll; only for messages that are there.

        A member may hold twice `max.delivered.unacked.msgs.per.flow` messages: once that number with the user, and as
        many prefetched. A message before its last delivery is requested alone, and only by a member that holds nothing:
        if it stops its consumer, no other message loses a delivery by it. The group applies the same rules to the
        request (`decide_acquire`), so this only avoids requests that bring nothing.

        Args:
            owned: the member's partitions.
            max_count: messages to request at most.
        """
        _, decided_ms, seen_ms = self._newest_step
        # the group's time now: that of the newest step, and what has passed since this consumer saw it
        now_ms = decided_ms + self._now_ms - seen_ms
        open_for_more = {
            tp: partition
            for tp, partition in self._put_last_shown_at_end(owned).items()
            if not partition.is_paused and tp not in self.paused_by_user and partition.deliveries
        }
        held_count = sum(partition.deliveries.held_count for partition in owned.values() if partition.deliveries)
        room = max(0, min(max_count, 2 * self._settings.max_unacknowledged - held_count))
        available, last_deliveries, with_deleted = {}, [], []
        for tp, partition in open_for_more.items():
            bounds, deliveries = partition.bounds, partition.deliveries
            assert deliveries is not None
            # Messages may have been deleted while the member had them, or while they were dying. Any request for the
            # partition, even for 0 messages, makes the group pass over them.
            if deliveries.has_unsettled_before(bounds.first):
                with_deleted.append(tp)
            if deliveries.is_next_last(self._settings.policy, now_ms):
                last_deliveries.append(tp)
            ranges = deliveries.next_ranges(self._settings.policy, max(bounds.end, bounds.first), room, now_ms)
            available[tp] = sum(count for _, count in ranges)
        if last_deliveries:
            available = {} if held_count else {last_deliveries[0]: 1}
        counts = divide_room(available, room)
        return [
            WantedMessages(partition.bounds.topic_id, tp[1], partition.epoch, counts.get(tp, 0))
            for tp, partition in open_for_more.items()
            if counts.get(tp) or tp in with_deleted
        ]

    def _has_open(self, acks: Sequence[Acknowledgement]) -> bool:
        """Return whether some of these messages have no outcome yet.

        True for a partition that has moved: this consumer does not know any more, and the group decides.
        """
        with self._parts.lock.own:
            self._ack_sender.collect_single_acks()
            for part in acks:
                tracker = self._ack_sender.find_tracker(part)
                spans = [(first, first + count, part.deliveries) for first, count in part.ranges]
                if tracker is None or tracker.find_open(spans):
                    return True
            return False

    # -- what others ask ----------------------------------------------------------------------------------

    def undo_moves(self, moves: Mapping[TopicPartition, Any]) -> None:
        """Hide the messages again that a poll has marked as shown before it failed."""
        for tp, (tracker, stretches) in moves.items():
            if tp in self._trackers and self._trackers[tp] is tracker:
                tracker.hide(stretches)

    def mark_unseen(self, batch: ConsumerBatch) -> UnseenDeliveries:
        """Take the messages of a batch back, so that they can be handed out one by one."""
        assert isinstance(batch, QueueBatch)
        return UnseenDeliveries(batch, self._member)

    def explain_empty(self, batch: ConsumerBatch) -> None:
        """Note why the batch is empty. Raises IllegalState: the user has as many messages as it may have."""
        if self._trackers and self.count_open() >= self._settings.max_unacknowledged:
            raise IllegalState(
                "The member has as many unacknowledged messages as it may have. Acknowledge them, or give them back"
                " with nack.",
                found=f"{self.count_open()}, the first is {self._name_first_open()}",
                expected="less than max.delivered.unacked.msgs.per.flow",
            )
        silence, stalls = self._ack_sender.explain_silence(), self._member.membership.find_stalls()
        reasons = [] if silence is None else [silence]
        reasons += [str(stall) for stall in stalls if stall.kind != "bound"]
        all_owned = self._member.read_owned(newest=False)
        owned = {tp: partition for tp, partition in all_owned.items() if not partition.is_done}
        batch.outcome = self._member.find_outcome(lambda: any(partition.left_count for partition in owned.values()))
        reasons += self._member.explain_outcome(batch.outcome)
        bounds = {tp: partition.bounds for tp, partition in owned.items()}
        offsets = {tp: partition.deliveries.next_offset for tp, partition in owned.items() if partition.deliveries}
        batch.explain(reasons, self._parts.explain_transactions, find_held_back(bounds, offsets))

    def _name_first_open(self) -> str:
        """Return partition and offset of a message without an outcome; there must be one."""
        return next(
            f"{tracker.name}, offset {tracker.list_open_spans()[0][0]}"
            for tracker in self._trackers.values()
            if tracker.open_count
        )

    def expects_messages(self, deadline_ms: float) -> bool:
        """Return whether messages are on their way, so that the poll waits a moment longer. Needs no lock."""
        is_waiting = self._ack_sender.acquire_request is not None
        return is_waiting and self._parts.clock.steady_ms() < deadline_ms + ANSWER_MS

    def rest(self, poll_ms: int, most_ms: int) -> None:
        """Sleep until polling again is worthwhile: at the latest when the requested messages are there.

        The lock must not be held.
        """
        if (request := self._ack_sender.acquire_request) is None:
            self._parts.waiter.wait(poll_ms, most_ms)
        else:
            wait([request], min(max(min(poll_ms, most_ms), 1), LONGEST_WAIT_MS) / 1000)


def find_message_spans(part: FetchResult, partition: int) -> tuple[Spans, Spans]:
    """Return the offsets of a partition whose messages are shown, and those whose messages have expired."""
    segments, (expired_offsets, superseded_offsets) = part.plan.segments, part.hidden
    columns = [segments.column(name).to_pylist() for name in ("partition", "base_offset", "record_count")]
    rows = [(first, first + count) for number, first, count in zip(*columns, strict=True) if number == partition]
    messages, expired = Spans(rows), group_into_spans(expired_offsets.get(partition, ()))
    for span in chain(expired, group_into_spans(superseded_offsets.get(partition, ()))):
        messages.remove(*span)
    return messages, Spans(expired)


class UnseenDeliveries:
    """Unseen messages of a queue group's member. Each counts as shown when it is handed out.

    Until then the member has acquired it, and the user has not seen it. The rest is left to the next poll when a
    partition moves, when another poll shows one of the messages, or when the member gives a message back.
    """

    def __init__(self, batch: QueueBatch, member: QueueMember) -> None:
        """Hide the messages of this poll from the trackers."""
        self._member, self._nacked_before = member, member.nacked_count
        self._trackers_at_poll = {tp: member.trackers[tp] for tp in batch.shown}
        try:
            self.messages = list(batch)
        except BaseException:  # the store failed, or an interrupt came: the loop gets none of the messages
            for tp, shown in batch.shown.items():
                self._trackers_at_poll[tp].hide(shown.stretches)
            raise
        self._stretches = {
            (*tp, offset): stretch.cut(offset, offset + 1)
            for tp, shown in batch.shown.items()
            for stretch in shown.stretches
            for offset in range(stretch.first, stretch.end)
        }
        for message in self.messages:
            self._trackers_at_poll[message.topic, message.partition].hide([self._stretch_of(message)])

    def show(self, message: Message) -> bool:
        """Note that the message is handed out. False: the consumer has it no longer, or it will come again."""
        tp, stretch = (message.topic, message.partition), self._stretch_of(message)
        tracker = self._member.trackers.get(tp)
        if tracker is None or tracker is not self._trackers_at_poll[tp] or tp in self._member.paused_by_user:
            return False
        if self._member.nacked_count != self._nacked_before or not tracker.find_unshown([stretch]):
            return False
        tracker.show([stretch], Spans([stretch.span]), Spans())
        return True

    def end(self) -> None:
        """Do nothing: the group's state says what was delivered."""

    def _stretch_of(self, message: Message) -> Stretch:
        return self._stretches[message.topic, message.partition, message.offset]
