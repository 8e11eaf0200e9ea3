"""A member of a group: what the group decides about its partitions is reported to the user, and carried out."""

import logging
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from functools import partial

from ...namespace.process import close_after
from ...protocol.errors import FencedMemberEpoch, IllegalState, LakeMQError, RequestTimedOut
from ...protocol.values.deliveries import AckOutcome, DeliveryStatus, Stretch
from ...protocol.values.groups import Assigned
from ...protocol.values.offsets import OffsetCommit
from ..fetch.fetch_result import Message
from ..offsets import ConsumedOffsets, TopicPartition
from .batch import ConsumerBatch, DeliverySpan, Messages, Ownership, PollOutcome, spans_of_messages
from .membership import Membership, MembershipView, OwnedPartition
from .options import Pattern, RebalanceListener
from .outcomes import AckSender, AckTracker, invalid_error, raise_chain
from .parts import ConsumerLock

log = logging.getLogger("lakemq.consumer")

OwnedPartitions = Mapping[TopicPartition, OwnedPartition]


class Member(ABC):
    """A consumer as a member of its group. The consumer holds its lock for every call.

    The user is told of changes in this order: lost, revoked, new partitions. What a member keeps of its partitions is
    for its two kinds: `PositionMember` and, in a queue group, `QueueMember`.
    """

    def __init__(
        self,
        lock: ConsumerLock,
        membership: Membership,
        listener: RebalanceListener | None,
    ) -> None:
        """listener: the consumer keeps it. It may refer to the consumer, which could not become garbage if this did."""
        self.membership, self._lock = membership, lock
        self._find_listener = (lambda: None) if listener is None else weakref.ref(listener)
        self.partitions: dict[TopicPartition, OwnedPartition] = {}
        """Partitions that the listener knows of, as they were assigned. A revoked one leaves after `on_revoked`."""
        self.is_rebalancing = True
        """Whether the group was moving partitions at the last poll. This member may then get some soon."""
        self.generation: int | None = None
        """Generation of a classic group in which the partitions were assigned."""
        self.is_subscribed = True
        self._pid = os.getpid()

    @property
    def _listener(self) -> RebalanceListener:
        return self._find_listener() or RebalanceListener()

    @property
    def member_id(self) -> str:
        return self.membership.member_id

    @property
    def is_in_group(self) -> bool:
        """Whether the consumer is open, and has not unsubscribed. Needs no lock."""
        return self.is_subscribed and not self._lock.is_closed

    def check_open(self) -> None:
        """Raise IllegalState if the consumer is closed, or has unsubscribed."""
        if self._lock.is_closed:
            self._lock.check_open()
        if not self.is_subscribed:
            raise IllegalState("The consumer is subscribed to nothing.", expected="subscribe(topics) before it polls")

    def silence(self) -> None:
        """Tell the listener of nothing more. It belongs to the threads of the user, and this one does not."""
        self._find_listener = lambda: None

    # -- the subscription -------------------------------------------------------------------------------

    def list_topics(self) -> list[str]:
        """Return the topics that the member asks for; of a pattern, those that match as of now."""
        if self.is_in_group:
            self.membership.read_view()
        return self.membership.topics if self.is_subscribed else []

    def subscribe(self, names: Sequence[str], pattern: Pattern | None) -> None:
        """Ask for these topics, and join again if the consumer has unsubscribed."""
        self._lock.check_open()
        self.membership.subscribe(names, pattern)
        if not self.is_subscribed:
            self.join()
            self.is_subscribed = True

    def unsubscribe(self) -> None:
        """Give up all partitions, and leave the group."""
        self._lock.check_open()
        if not self.is_subscribed:
            return
        self.is_subscribed = False
        self._leave(for_good=True)

    def close(self, leave: bool | None) -> None:
        """Give up all partitions, and leave the group. In a forked process do nothing. leave: as `close` says."""
        if os.getpid() != self._pid:
            return
        with self._lock.own:
            if self._lock.is_closed:
                return
            self._lock.is_closed = True
            if not self.is_subscribed:
                return  # it has left the group already
            self._leave(self.membership.options.instance_id is None if leave is None else leave)

    def _leave(self, for_good: bool) -> None:
        """Give up all partitions, and leave the group, also if the listener fails; after Ctrl-C without an answer."""
        with close_after(lambda: self.membership.leave(for_good)):
            try:
                self._report_all_revoked()
            finally:
                self.drop_all()
                self.partitions.clear()
                if not for_good:
                    self._release_partitions()

    def _report_all_revoked(self) -> None:
        if self.partitions:
            self._listener.on_revoked(sorted(self.partitions))

    # -- the partitions ---------------------------------------------------------------------------------

    def update(self, newest: bool) -> MembershipView | None:
        """Take in what the group has decided since the last poll: joining again, lost, revoked and new partitions.

        Args:
            newest: whether to look for newer steps. False: none was decided since the last look.

        Returns:
            The view that was taken in; None if the user was told of changes, because a listener may do anything.
        """
        self.check_open()
        self.membership.note_poll()
        view = self.membership.read_view(newest)
        if view.is_replaced:
            self._lock.is_closed = True
            self.membership.leave(for_good=False)
            self._report_loss(list(self.partitions))
            raise self.membership.fenced_error()
        if not view.is_member:
            self._report_loss(self.list_lost_with_member())
            self.check_open()  # the listener may have closed the consumer
            self.join()
            view = self.membership.read_view()
        self.is_rebalancing = not view.is_stable
        return None if self._apply_view(view) else view

    def _apply_view(self, view: MembershipView) -> bool:
        """Report changes to the listener, in this order: lost, revoked, new partitions; return whether there are any.

        What follows a revocation is done after the listener has returned, even if it raises.
        """
        lost = self._find_lost(view.owned)
        self._report_loss(lost)
        revoked = self.find_revoked(view.owned)
        try:
            if revoked:
                self._listener.on_revoked(sorted(revoked))
        finally:
            self.give_up(view.owned, revoked)
        self.check_open()
        new = self.find_new(view.owned)
        if new:
            self.partitions.update(new)
            self.generation = view.generation
            self.take(new)
            self._listener.on_assigned(sorted(new))
            self.check_open()
        return bool(lost or revoked or new)

    def _find_lost(self, owned: OwnedPartitions) -> list[TopicPartition]:
        """Return reported partitions that the member has no longer, or has under a later assignment."""
        return [
            tp for tp, partition in self.partitions.items() if tp not in owned or owned[tp].epoch != partition.epoch
        ]

    def _report_loss(self, topic_partitions: Sequence[TopicPartition]) -> None:
        news: list[TopicPartition] = []
        for tp in topic_partitions:
            self.partitions.pop(tp, None)
            if self.lose(tp):
                news.append(tp)
        if news:
            self._listener.on_lost(sorted(news))

    def _release_partitions(self) -> None:
        """Release revoked partitions of a static member that closes, so that the group need not wait for its return.

        A queue group keeps them for the member, because it may still have messages of them.
        """
        with suppress(LakeMQError):
            owned = self.membership.read_view().owned
            revoked = {
                tp: partition for tp, partition in owned.items() if partition.is_paused and partition.deliveries is None
            }
            if revoked:
                self.membership.release(revoked)

    # -- what it keeps of its partitions ----------------------------------------------------------------

    def join(self) -> None:
        """Join the group: at first, after the member was lost, or after the consumer has unsubscribed."""
        self.membership.join()

    @abstractmethod
    def list_lost_with_member(self) -> Sequence[TopicPartition]:
        """Return the partitions that are lost when the group has lost the member, before it joins again."""

    @abstractmethod
    def lose(self, tp: TopicPartition) -> bool:
        """Drop a partition that the member has no longer, and return whether the user must be told."""

    @abstractmethod
    def find_revoked(self, owned: OwnedPartitions) -> Sequence[TopicPartition]:
        """Return the partitions that the group wants back, and that are not reported to the user yet."""

    @abstractmethod
    def give_up(self, owned: OwnedPartitions, reported: Sequence[TopicPartition]) -> None:
        """Give up partitions that the group wants back, after the user was told. reported: those just reported."""

    @abstractmethod
    def find_new(self, owned: OwnedPartitions) -> dict[TopicPartition, OwnedPartition]:
        """Return the partitions to report to the user as new."""

    @abstractmethod
    def take(self, new: OwnedPartitions) -> None:
        """Begin to keep these partitions. The user is told of them afterwards."""

    @abstractmethod
    def drop_all(self) -> None:
        """Drop all partitions, because the consumer closes or unsubscribes."""

    # -- what others ask ----------------------------------------------------------------------------------

    def find_ownership(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Ownership]:
        """Return since when the member has these partitions."""
        return {
            tp: Ownership(partition.since_ms, partition.start_offset, partition.epoch)
            for tp in topic_partitions
            if (partition := self.partitions.get(tp)) is not None
        }

    def build_offsets(self, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, int]) -> ConsumedOffsets:
        """Return offsets that can be committed, with the assignments under which they were read."""
        epochs = {tp: self.partitions[tp].epoch for tp in offsets if tp in self.partitions}
        return ConsumedOffsets(offsets, topic_ids, self.membership.member_id, epochs, self.generation)

    def find_still_owned(self, batch: ConsumerBatch) -> list[TopicPartition]:
        """Return the partitions of the batch that the member has under the assignment under which it was read."""
        owned = self.membership.read_view().owned
        return [tp for tp in batch.offsets if tp in owned and owned[tp].epoch == batch.offsets.epochs.get(tp)]

    def read_committed(self) -> dict[TopicPartition, OffsetCommit]:
        """Return what the group has committed of the partitions that the user knows of."""
        return {
            tp: OffsetCommit(*tp, commit.offset, commit.metadata, partition.bounds.topic_id)
            for tp, partition in self.membership.read_view().owned.items()
            if (commit := partition.committed) is not None and tp in self.partitions
        }

    def find_outcome(self, is_behind: Callable[[], bool]) -> PollOutcome:
        """Return why a poll brought nothing. is_behind: whether something is left in the member's partitions."""
        view = self.membership.read_view(newest=False)
        if not view.is_member or not view.is_stable:
            return PollOutcome.NOT_ASSIGNED
        if is_behind():
            return PollOutcome.NOT_YET
        has_all = len(view.owned) == view.partition_count
        return PollOutcome.AT_END if has_all else PollOutcome.OTHERS_HOLD_THE_REST

    def explain_outcome(self, outcome: PollOutcome) -> list[str]:
        """Return sentences that say why a poll brought nothing: missing topics, and consumers of this process."""
        is_elsewhere = outcome in (PollOutcome.NOT_ASSIGNED, PollOutcome.OTHERS_HOLD_THE_REST)
        holders = self.membership.describe_holders() if is_elsewhere else []
        return [*self.membership.describe_missing_topics(), *holders]


ANSWER_MS = 1_000
"""How long a consumer that closes waits for answers: to its request for messages, then to its acknowledgements."""


class QueueMember(Member):
    """A member that keeps an `AckTracker` for each of its partitions, and records outcomes of messages there.

    Unlike `PositionMember`, it does not release revoked partitions: the group moves a partition when all its messages
    have an outcome. So it also takes a partition that is revoked already, because its messages need an outcome.
    """

    def __init__(
        self,
        lock: ConsumerLock,
        membership: Membership,
        listener: RebalanceListener | None,
        trackers: dict[TopicPartition, AckTracker],
        ack_sender: AckSender,
    ) -> None:
        """Share the parts of one consumer. This changes `trackers`, which the other parts read."""
        super().__init__(lock, membership, listener)
        self.trackers, self._ack_sender = trackers, ack_sender
        self.paused_by_user: set[TopicPartition] = set()
        self.keeps_order = False
        """Whether a message that was given back comes before the later ones of its partition."""
        self.nacked_count = 0
        """How often the user has given messages back."""

    def read_owned(self, newest: bool = True) -> dict[TopicPartition, OwnedPartition]:
        """Return the partitions that have a tracker and that the member still has.

        newest: whether to read newer steps first. False: as of the step that was read last.
        """
        return self.find_owned(self.membership.read_view(newest))

    def find_owned(self, view: MembershipView) -> dict[TopicPartition, OwnedPartition]:
        """Return the partitions that have a tracker and that the member still has, as of the step of this view."""
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
        if view.queue_settings is not None:
            self.keeps_order = view.queue_settings.policy.in_order
        return super()._apply_view(view)

    def list_lost_with_member(self) -> Sequence[TopicPartition]:
        """Return no partitions: those that other members have by now are found after the member has joined again."""
        return []

    def lose(self, tp: TopicPartition) -> bool:
        """Drop a partition, and return whether the user must be told.

        A partition that was reported as revoked, and whose messages all had an outcome, has moved as announced.
        """
        self.paused_by_user.discard(tp)
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
