"""The partitions of a member of a queue group: read the messages it has acquired, acquire those of the next poll."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from typing import Any

from ...protocol.errors import FencedMemberEpoch, IllegalState, LakeMQError, RequestTimedOut
from ...protocol.values.deliveries import Acknowledgement, AckOutcome, DeliveryStatus, Stretch, WantedMessages
from ...protocol.values.groups import Assigned
from ..fetch.fetch_result import Message
from ..offsets import ConsumedMessages, ConsumedOffsets, Spans, TopicPartition
from .ack_sender import LONGEST_WAIT_MS, AckSender, invalid_error, raise_chain
from .batch import ConsumerBatch, DeliverySpan, Messages, QueueBatch, spans_of_messages
from .consumer import ConsumerParts, Moves
from .member import Member, OwnedPartitions
from .membership import Membership
from .membership_view import MembershipView, OwnedPartition
from .options import RebalanceListener
from .position_reader import find_held_back
from .queue_poll import AckTracker, DeliveryPlanner

log = logging.getLogger("lakemq.consumer")

# The messages of a poll that a loop has not got yet, for a member of a queue group.


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
        tp, stretch = (message.topic, message.partition), self._stretch_of(message)
        tracker = self._member.trackers.get(tp)
        if tracker is None or tracker is not self._trackers_at_poll[tp] or tp in self._member.paused_by_user:
            return False
        if self._member.nacked_count != self._nacked_before or not tracker.find_unshown([stretch]):
            return False
        tracker.show([stretch], Spans([stretch.span]), Spans())
        return True

    def end(self) -> None:
        pass

    def _stretch_of(self, message: Message) -> Stretch:
        return self._stretches[message.topic, message.partition, message.offset]


# The member with its partitions, and the reader of the messages it has acquired.


ANSWER_MS = 1_000
"""How long a consumer that closes waits for answers: to its request for messages, then to its acknowledgements."""


class QueueMember(Member):
    """A member that keeps an `AckTracker` for each of its partitions, and records outcomes of messages there.

    Unlike `PositionMember`, it does not release revoked partitions: the group moves a partition when all its messages
    have an outcome. So it also takes a partition that is revoked already, because its messages need an outcome.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        membership: Membership,
        listener: RebalanceListener | None,
        trackers: dict[TopicPartition, AckTracker],
        ack_sender: AckSender,
        planner: DeliveryPlanner,
    ) -> None:
        """Share the parts of one consumer. This changes `trackers`, which the other parts read."""
        super().__init__(parts.lock, membership, listener)
        self.trackers, self._ack_sender, self._planner = trackers, ack_sender, planner
        self._fetcher = parts.fetcher
        self.paused_by_user: set[TopicPartition] = set()
        self.nacked_count = 0
        """How often the user has given messages back."""

    def read_owned(self, newest: bool = True) -> dict[TopicPartition, OwnedPartition]:
        """Return the partitions that have a tracker and that the member still has.

        newest: whether to read newer steps first. False: as of the step that was read last.
        """
        return self.find_owned(self.membership.read_view(newest))

    def find_owned(self, view: MembershipView) -> dict[TopicPartition, OwnedPartition]:
        """Return the partitions that have a tracker and that the member still has, as of the step of this view."""
        self._planner.note_view(view)
        if view.queue_settings is not None:
            self._fetcher.isolation = view.queue_settings.isolation
        trackers = self.trackers
        return {tp: owned for tp, owned in view.owned.items() if tp in trackers and trackers[tp].epoch == owned.epoch}

    # -- the outcomes of messages ---------------------------------------------------------------------------

    def record(self, outcome: AckOutcome, messages: Messages, delay_ms: int | None = None, error: str = "") -> None:
        """Record the outcome of messages, and send it without waiting.

        Args:
            outcome: ack, nack or reject.
            messages: a message, a batch or messages. Messages of a batch that have an outcome already are left out.
            delay_ms: how long messages given back wait; None: as the group's settings say.
            error: text for the dead letter.

        Raises:
            FencedMemberEpoch: some partitions belong to other members by now.
            InvalidRecordState: the member does not have some of the messages. The outcome of the others is recorded.
            InvalidRequest: these are not messages of a queue group.
        """
        spans, batch = spans_of_messages(messages), messages if isinstance(messages, ConsumerBatch) else None
        trackers, errors = self._find_trackers(spans, batch.offsets if batch else None)
        self.nacked_count += outcome is AckOutcome.NACK
        self._ack_sender.collect_single_acks()
        for tp, tracker in trackers.items():
            to_record = spans[tp] if batch is None else tracker.find_open(spans[tp])
            if refused_spans := tracker.record(outcome, to_record, delay_ms, error):
                errors.append(invalid_error(tracker.name, refused_spans))
        self._ack_sender.send()
        raise_chain(errors)

    def ack_through(self, ends: Mapping[TopicPartition, int], read: ConsumedOffsets | None) -> None:
        """Acknowledge all open messages before these offsets, and send that without waiting.

        Args:
            ends: (topic, partition) -> end offset (exclusive).
            read: the offsets of the batch, if the user named one.

        Raises:
            FencedMemberEpoch: some partitions belong to other members by now. The others are recorded.
        """
        trackers, errors = self._find_trackers(ends, read)
        self._ack_sender.collect_single_acks()
        for tp, tracker in trackers.items():
            end = ends[tp]
            spans = [(first, min(until, end), None) for first, until in tracker.list_open_spans() if first < end]
            tracker.record(AckOutcome.ACK, spans)
        self._ack_sender.send()
        raise_chain(errors)

    def nack_open(
        self, spans: Mapping[TopicPartition, Iterable[DeliverySpan]], owned: Mapping[TopicPartition, OwnedPartition]
    ) -> None:
        """Give back the open messages of these spans. owned: partitions that the member has."""
        self.nacked_count += 1
        for tp, partition_spans in spans.items():
            if (deliveries := owned[tp].deliveries) is not None:
                tracker = self.trackers[tp]
                tracker.follow(deliveries)  # an aborted transaction has given its messages back already
                tracker.record(AckOutcome.NACK, tracker.find_open(partition_spans))
        self._ack_sender.send()

    def _find_trackers(
        self, topic_partitions: Iterable[TopicPartition], read: ConsumedOffsets | None = None
    ) -> tuple[dict[TopicPartition, AckTracker], list[LakeMQError]]:
        """Return the trackers of these partitions, and an error that names partitions of other members.

        Args:
            topic_partitions: partitions that the user names.
            read: offsets of a batch. A partition counts only under the assignment under which the batch was read.
        """
        epochs = read.epochs if read is not None else {}
        trackers = {
            tp: tracker
            for tp in topic_partitions
            if (tracker := self.trackers.get(tp)) is not None and epochs.get(tp, tracker.epoch) == tracker.epoch
        }
        if any(tracker.is_refused for tracker in trackers.values()):
            for tp, partition in self.read_owned().items():
                if partition.deliveries is not None:
                    self.trackers[tp].follow(partition.deliveries)
        lost = [tp for tp in topic_partitions if tp not in trackers]
        return trackers, [self.build_fenced_error(lost)] if lost else []

    def build_fenced_error(self, topic_partitions: Sequence[TopicPartition]) -> FencedMemberEpoch:
        """Return the error that names these partitions, which belong to other members or whose topic was deleted."""
        topics = sorted({topic for topic, _ in topic_partitions})
        reasons = self.membership.explain_missing_topics(topics)
        found = [f"{topic}-{partition}" for topic, partition in sorted(topic_partitions)]
        return FencedMemberEpoch(" ".join(reasons), found=found)

    # -- for a worker, whose threads have not begun some messages of its polls -----------------------------------

    @property
    def keeps_order(self) -> bool:
        """Whether a message that was given back comes before the later ones of its partition."""
        return self._planner.settings is not None and self._planner.settings.policy.in_order

    def has_open(self, message: Message) -> bool:
        """Return whether the member still has the message, without an outcome."""
        tracker = self.trackers.get((message.topic, message.partition))
        span = message.offset, message.offset + 1, message.delivery_count
        return tracker is not None and bool(tracker.find_open([span]))

    def hide(self, messages: Iterable[Message]) -> None:
        """Take messages back that the user has not begun: the next poll shows them again, a close returns them."""
        for message in messages:
            if (tracker := self.trackers.get((message.topic, message.partition))) is not None:
                stretch = Stretch(message.offset, 1, DeliveryStatus.ACQUIRED, message.delivery_count)
                tracker.hide([stretch])

    # -- what the group decides ---------------------------------------------------------------------------

    def join(self) -> None:
        """Join the group. A member that was lost takes back the partitions that no other member has yet."""
        reclaimed = [Assigned(tracker.topic_id, tracker.partition, tracker.epoch) for tracker in self.trackers.values()]
        self.membership.join(reclaimed)
        self._ack_sender.note_rejoin()

    def _apply_view(self, view: MembershipView) -> bool:
        if self._ack_sender.is_lost:  # it has joined, although the answer to its request was lost
            self._ack_sender.note_rejoin()
        return super()._apply_view(view)

    def list_lost_with_member(self) -> Sequence[TopicPartition]:
        """Return no partitions: those that other members have by now are found after the member has joined again."""
        return []

    def lose(self, tp: TopicPartition) -> bool:
        """Drop a partition, and return whether the user must be told.

        A partition that was reported as revoked, and whose messages all had an outcome, has moved as announced.
        """
        self.paused_by_user.discard(tp)
        self._planner.forget(tp)
        tracker = self.trackers.pop(tp, None)
        if tracker is None:
            return False
        if not tracker.is_sent:
            self._ack_sender.note_move(tp)
        return not tracker.is_paused or tracker.open_count > 0

    def find_revoked(self, owned: OwnedPartitions) -> list[TopicPartition]:
        """Return the partitions that are paused since the last poll, and mark them as paused."""
        revoked = [
            tp
            for tp in sorted(owned)
            if owned[tp].is_paused and tp in self.trackers and not self.trackers[tp].is_paused
        ]
        for tp in revoked:
            self.trackers[tp].is_paused = True
        return revoked

    def give_up(self, owned: OwnedPartitions, reported: Sequence[TopicPartition]) -> None:
        """Do nothing: the group moves a partition when all its messages have an outcome."""

    def find_new(self, owned: OwnedPartitions) -> dict[TopicPartition, OwnedPartition]:
        return {tp: partition for tp, partition in owned.items() if tp not in self.partitions}

    def take(self, new: OwnedPartitions) -> None:
        for (topic, number), partition in new.items():
            self.trackers[topic, number] = AckTracker(
                f"{topic}-{number}", partition.bounds.topic_id, number, partition.epoch
            )

    def drop_all(self) -> None:
        """Send all recorded outcomes, and return prefetched messages that the user has not seen.

        Wait for the answers, but no longer than ANSWER_MS. Refused and unanswered outcomes are logged.
        """
        if (request := self._ack_sender.acquire_request) is not None:
            wait([request], ANSWER_MS / 1000)  # its messages would count as delivered to a member that has gone
        owned = self.read_owned()
        unseen = [
            tracker.build_acknowledgement(AckOutcome.UNSEEN, stretch, [stretch.span])
            for tp, tracker in self.trackers.items()
            if tp in owned and (deliveries := owned[tp].deliveries) is not None
            for stretch in tracker.find_unshown(deliveries.list_acquired_stretches())
        ]
        for step in self._ack_sender.collect_answers, partial(self._ack_sender.send, unseen=unseen):
            with suppress(LakeMQError):  # a closing consumer has no more use for the messages
                step()
        has_answers = not wait(self._ack_sender.list_open_requests(), ANSWER_MS / 1000).not_done
        with suppress(LakeMQError):
            self._ack_sender.collect_answers()
        dropped = list(self.trackers.values())
        self.trackers.clear()  # from now on `ack` in another thread is refused
        self.paused_by_user.clear()
        refusals = self._ack_sender.refusals
        if not all(tracker.is_sent for tracker in dropped):
            refusals.note_error(RequestTimedOut("The consumer was closed before the group answered acknowledgements."))
        if not has_answers:
            log.warning("The group has not answered the last acknowledgements. It may deliver their messages again.")
        for error in refusals.list_errors():  # a thread that is in `flush` raises them
            log.warning("Acknowledgements of a consumer that is closed have failed: %s", error)


class QueueReader:
    """Reads the messages of one consumer, which holds its lock for every call, unless `partition_reader` says not.

    Attributes:
        acks_previous: a poll has begun, and has not yet acknowledged the messages of the poll before it (ack.mode
            auto).
    """

    def __init__(
        self,
        parts: ConsumerParts,
        member: QueueMember,
        ack_sender: AckSender,
        planner: DeliveryPlanner,
    ) -> None:
        """Share the parts of one consumer."""
        self._parts, self._member = parts, member
        self._trackers, self._ack_sender, self._planner = member.trackers, ack_sender, planner
        self.paused_by_user = member.paused_by_user
        self.acks_previous = False
        self._view: MembershipView | None = None
        """The view with which the poll has begun, until it is used."""

    def list_partitions(self) -> Container[TopicPartition]:
        return self._trackers

    def begin_poll(self, newest: bool) -> None:
        """Take in answers, and then what the group has decided.

        This order matters: the state then includes what the answers brought, so that nothing is requested twice.
        """
        has_answers = self._ack_sender.collect_answers()
        self._view = self._member.update(newest or has_answers)

    def read_next(self, max_records: int, moves: Moves, read_ahead: int) -> QueueBatch | None:
        """Look once for messages to show, and request those of the next poll; return None to be called again.

        The order of the steps matters. With ack.mode auto, the messages of the poll before are accepted before new
        ones are selected, because they take room. Messages are marked as shown only once their fetch is planned; their
        bytes are read when the user asks. The next request comes after that. It asks for as many messages less what is
        acquired already and still unshown.
        """
        owned = self._find_owned()
        if self.acks_previous and self._planner.is_auto_ack:
            for tracker in self._trackers.values():
                if tracker.has_open:
                    tracker.record(AckOutcome.ACK, [(*span, None) for span in tracker.list_open_spans()])
        self.acks_previous = False
        max_records = self._planner.limit_poll(max_records)
        working = {tp: partition for tp, partition in owned.items() if self._trackers[tp].has_work(partition)}
        selection = self._planner.select(working, max_records, self.paused_by_user)
        topic_ids = {topic: partition.bounds.topic_id for (topic, _), partition in owned.items()}
        parts = self._parts.fetcher.fetch_topics(selection.starts, selection.ends, topic_ids, owned)
        if parts is None:
            return None
        shown, acks = self._planner.show(selection, parts, working, moves)
        next_messages: list[WantedMessages] = []
        if self._ack_sender.acquire_request is None:  # at most one request is under way
            next_messages = self._planner.plan_next(working, max_records - selection.unshown_count, self.paused_by_user)
        self._ack_sender.send(next_messages)
        offsets = self._member.build_offsets(selection.ends, topic_ids)
        if not self._planner.is_auto_ack:  # otherwise the next poll acknowledges, and a transaction must not
            offsets = ConsumedMessages(offsets, acks, self._has_open)
        batch = QueueBatch(self._parts.group, parts, offsets, shown)
        batch.ownership = self._member.find_ownership(batch.offsets)
        return batch

    def _find_owned(self) -> dict[TopicPartition, OwnedPartition]:
        """Return the member's partitions: as `begin_poll` has just read them, if nothing has happened since."""
        view, self._view = self._view, None
        if view is not None:
            return self._member.find_owned(view)
        self._ack_sender.collect_answers()
        return self._member.read_owned()

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

    def undo_moves(self, moves: Mapping[TopicPartition, Any]) -> None:
        """Hide the messages again that a poll has marked as shown before it failed."""
        for tp, (tracker, stretches) in moves.items():
            if tp in self._trackers and self._trackers[tp] is tracker:
                tracker.hide(stretches)

    def mark_unseen(self, batch: QueueBatch) -> UnseenDeliveries:
        return UnseenDeliveries(batch, self._member)

    def explain_empty(self, batch: ConsumerBatch) -> None:
        """Note why the batch is empty. Raises IllegalState: the user has as many messages as it may have."""
        if self._trackers and self._planner.count_room() <= 0:
            raise IllegalState(
                "The member has as many unacknowledged messages as it may have. Acknowledge them, or give them back"
                " with nack.",
                found=f"{self._planner.count_open()}, the first is {self._planner.name_first_open()}",
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

    def waits_for_partitions(self) -> bool:
        return self._member.waits_for_partitions()

    def expects_messages(self, deadline_ms: float) -> bool:
        is_waiting = self._ack_sender.acquire_request is not None
        return is_waiting and self._parts.clock.steady_ms() < deadline_ms + ANSWER_MS

    def rest(self, poll_ms: int, most_ms: int) -> None:
        """Sleep until polling again is worthwhile: at the latest when the requested messages are there."""
        if (request := self._ack_sender.acquire_request) is None:
            self._parts.waiter.wait(poll_ms, most_ms)
        else:
            wait([request], min(max(min(poll_ms, most_ms), 1), LONGEST_WAIT_MS) / 1000)
