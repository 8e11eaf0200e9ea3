"""A consumer of a `queue` group: it gets messages, and gives each an outcome: accept, release or reject.

How a poll works. The group's state says which messages this member has acquired; the consumer reads it from the
journal, like everything else. `poll` shows acquired messages that were not shown before, requests (`Acquire`) the
messages of the next poll, and sends outcomes that were recorded meanwhile. A poll that has messages to show waits for
no answer: the next poll reads the newly acquired messages from the journal. So messages are usually there when the user
polls. A poll without messages waits for the request that is under way, up to a second beyond its timeout.

What it keeps. One `AckTracker` per partition knows which messages were shown, and which outcomes the user has recorded.
The `AckSender` sends these, and repeats them until the group has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from ....namespace.processes.clock import Clock
from ....protocol.errors import IllegalState, InvalidRequest, LakeMQError
from ....protocol.values.consuming.groups import Assigned
from ....protocol.values.queues.deliveries import Acknowledgement, AckOutcome, WantedMessages
from ...arguments import parse_partition_offsets, parse_whole_number
from ...fetch.fetch_result import FetchResult, Message
from ...fetch.planning.plan import Bounds, Isolation
from ...offsets import ConsumedMessages, ConsumedOffsets, TopicPartition
from ...requester import Requester
from ..batch import ConsumerBatch
from ..iteration import Unseen, UnseenDeliveries
from ..listener import RebalanceListener
from ..member.group_consumer import GroupConsumer
from ..member.member_options import log
from ..member.membership import Membership
from ..member.membership_view import MembershipView, OwnedPartition
from ..poll_parts import fetch_parts
from ..positions.positions import check_assignment
from .ack_sender import LONGEST_WAIT_MS, AckSender, flush_acknowledgements
from .ack_tracker import AckTracker
from .message_outcomes import MessageOutcomes, build_acknowledgement, fenced_error, shorten_error
from .queue_batch import Messages, QueueBatch, spans_of_messages
from .queue_poll import QueuePoller

_SEND_EVERY_MS = 50
"""How long acknowledgements of single messages gather before they are sent."""
_SEND_AT_COUNT = 10_000
"""How many of them gather at most, per partition."""
_ANSWER_MS = 1_000
"""How long beyond its timeout a poll without messages waits for an answer under way."""


class QueueConsumer(GroupConsumer):
    """A member of a `queue` group. Thread-safe; close it, or use it with `with`.

    Each partition belongs to one member at a time, and its messages are in order. Messages that `poll` has brought
    belong to the member until it acknowledges (`ack`), gives back (`nack`) or rejects them, until the partition moves
    to another member, or until the member is lost. Messages without an acknowledgement are then delivered again, with
    a higher delivery_count. A partition that the group takes back moves when all messages that the member acquired
    from it have an outcome, or after max.handoff.ms.
    """

    def __init__(
        self,
        requester: Requester,
        membership: Membership,
        fetch: Callable[..., FetchResult],
        clock: Clock,
        group: str,
        isolation: Isolation = "read_committed",
        listener: RebalanceListener | None = None,
        closed: Callable[[GroupConsumer], object] = lambda _: None,
        consumer_timeout_ms: int | None = None,
    ) -> None:
        """Join the group. closed: called when the consumer is closed. Raises what joining is refused with."""
        self._trackers: dict[TopicPartition, AckTracker] = {}
        self._steady_ms = clock.steady_ms  # an attribute, because `ack` calls it for each message
        self._accepts_previous = False
        """A poll has begun, and has not yet acknowledged the messages of the poll before it (ack.mode auto)."""
        self._ack_sender = AckSender(membership, clock, self._trackers)
        self._outcomes = MessageOutcomes(self._trackers, self._ack_sender, lambda: self._read_owned_partitions())
        self._poller = QueuePoller(self._trackers, clock)
        super().__init__(
            requester, membership, fetch, clock, group, "earliest", isolation, listener, closed, consumer_timeout_ms
        )

    # -- the partitions ---------------------------------------------------------------------------------

    def _join(self) -> None:
        super()._join()
        self._ack_sender.note_rejoin()

    def _join_again(self) -> None:
        """Join after the member was lost, and take back the partitions that no other member has yet."""
        bound = [Assigned(tracker.topic_id, tracker.partition, tracker.epoch) for tracker in self._trackers.values()]
        self._membership.join(bound)
        self._ack_sender.note_rejoin()

    def _apply_view(self, view: MembershipView) -> None:
        """Report changes to the listener, in this order: lost, revoked, new partitions.

        Unlike other members, this one does not release revoked partitions: the group moves them when all their
        messages have an outcome.
        """
        if self._ack_sender.is_lost:  # the member has joined, although the answer to that was lost
            self._ack_sender.note_rejoin()
        lost = self._find_lost_partitions(view.owned)
        for place in lost:
            self._forget(place)
        # A partition that was reported as revoked, and whose messages all had an outcome, has moved as announced.
        self._report_loss([place for place in lost if self._drop(place)])
        revoked = [
            place
            for place in sorted(view.owned)
            if view.owned[place].is_paused and place in self._trackers and not self._trackers[place].is_paused
        ]
        for place in revoked:
            self._trackers[place].is_paused = True
        if revoked:
            self._listener.on_revoked(revoked)
        self._check_open()
        # Take a paused partition too: its messages need an outcome. The next poll reports it as revoked.
        new = {place: partition for place, partition in view.owned.items() if place not in self._owned}
        for (topic, number), partition in new.items():
            name = f"{topic}-{number}"
            self._trackers[topic, number] = AckTracker(name, partition.bounds.topic_id, number, partition.epoch)
        if new:
            self._owned.update(new)
            self._listener.on_assigned(sorted(new))
        self._check_open()

    def _drop(self, place: TopicPartition) -> bool:
        """Drop a partition; return True if it was not reported as revoked, or has messages without outcome."""
        tracker = self._trackers.pop(place, None)
        self._poller.forget(place)
        if tracker is None:
            return False
        if not tracker.is_sent:
            self._ack_sender.note_move(place)
        return not tracker.is_paused or tracker.open_count > 0

    def _report_loss(self, places: Sequence[TopicPartition]) -> None:
        """Drop the partitions, then report their loss. To drop one that is dropped already has no effect."""
        for place in places:
            self._drop(place)
        super()._report_loss(places)

    def _read_bounds(self) -> dict[TopicPartition, Bounds]:
        return {place: partition.bounds for place, partition in self._read_owned_partitions().items()}

    def _read_owned_partitions(self) -> dict[TopicPartition, OwnedPartition]:
        """Return the partitions that have a tracker and that the member still has, as of the newest step."""
        view = self._membership.read_view()
        self._poller.note_view(view)
        if view.queue_settings is not None:
            self._isolation = view.queue_settings.isolation
        trackers = self._trackers
        return {p: owned for p, owned in view.owned.items() if p in trackers and trackers[p].epoch == owned.epoch}

    # -- reading ----------------------------------------------------------------------------------------

    def poll(self, max_records: int = 10_000, timeout_ms: int = 0, poll_ms: int = 20) -> QueueBatch:
        """Return the next messages, for the member to acknowledge.

        It also requests the messages of the next poll, so that they are there when that one comes. With ack.mode auto
        it acknowledges all messages of the polls before.

        Args:
            max_records: the most messages that are returned. They come evenly from all partitions.
            timeout_ms: how long to wait for the first message. Messages that are there are returned in any case.
            poll_ms: how long to sleep before looking again.

        Returns:
            A batch, which is empty and says why in `outcome` and `waits_for` if no message came.

        Raises:
            NoOffsetForPartition: the group has committed nothing, and `auto_offset_reset` is `none`.
            IllegalState: during the whole timeout the member had as many unacknowledged messages as it may have.
            InvalidRecordState: an earlier acknowledgement named messages that the member did not have. This is raised
                before the poll takes any message.
        """
        with self._lock.own:
            self._check_open()
            self._ack_sender.collect_single_acks()
            self._ack_sender.refusals.raise_invalid()
        self._accepts_previous = True
        batch = super().poll(max_records, timeout_ms, poll_ms)
        assert isinstance(batch, QueueBatch)
        return batch

    def _mark_unseen(self, batch: ConsumerBatch) -> Unseen:
        assert isinstance(batch, QueueBatch)
        return UnseenDeliveries(
            batch, lambda: self._trackers, lambda: self._paused_by_user, lambda: self._outcomes.returned_count
        )

    def _expects_messages(self, deadline_ms: float) -> bool:
        return self._ack_sender.acquire_request is not None and self._clock.steady_ms() < deadline_ms + _ANSWER_MS

    def _finish_empty(self, batch: ConsumerBatch) -> ConsumerBatch:
        with self._lock.own:
            if self._trackers and self._poller.count_room() <= 0:
                raise IllegalState(
                    "The member has as many unacknowledged messages as it may have. Acknowledge them, or give them back"
                    " with nack.",
                    found=f"{self._poller.count_open()}, the first is {self._poller.name_first_open()}",
                    expected="less than max.delivered.unacked.msgs.per.flow",
                )
            silence = self._ack_sender.explain_silence()
            batch.waits_for = [] if silence is None else [silence]
            batch.waits_for += [str(stall) for stall in self._membership.find_stalls() if stall.kind != "bound"]
        return batch

    def _rest(self, ms: int) -> None:
        """Sleep, or until the messages that were requested are there, if that is sooner."""
        if (request := self._ack_sender.acquire_request) is None:
            self._clock.sleep(ms)
        else:
            wait([request], min(max(ms, 1), LONGEST_WAIT_MS) / 1000)

    def _read_next(self, max_records: int, moves: dict[TopicPartition, Any], read_ahead: int) -> QueueBatch | None:
        """Look once for messages to show, and request those of the next poll; return None to be called again.

        The order of the steps matters. Answers are collected before the state is read: the state then includes what
        they brought, and nothing is requested twice. With ack.mode auto, the messages of the poll before are accepted
        before new ones are selected, because they take room. Messages are marked as shown only once they are fetched.
        The next request comes after that. It asks for `max_records` less what is acquired already and still unshown.
        """
        self._ack_sender.collect_answers()
        owned = self._read_owned_partitions()
        if self._accepts_previous and self._poller.is_auto_ack:
            for tracker in self._trackers.values():
                tracker.record(AckOutcome.ACCEPT, [(*span, None) for span in tracker.open_spans()])
        self._accepts_previous = False
        selection = self._poller.select(owned, max_records, self._paused_by_user)
        topic_ids = {topic: partition.bounds.topic_id for (topic, _), partition in owned.items()}
        parts = fetch_parts(self._try_to_fetch, selection.starts, selection.ends, topic_ids, owned)
        if parts is None:
            return None
        shown, acceptances = self._poller.show(selection, parts, owned, moves)
        next_messages: list[WantedMessages] = []
        if self._ack_sender.acquire_request is None:  # at most one request is under way
            next_messages = self._poller.plan_next(owned, max_records - selection.unshown_count, self._paused_by_user)
        self._ack_sender.send(next_messages)
        offsets = self._build_offsets(selection.ends, topic_ids)
        if self._poller.is_auto_ack:  # the next poll acknowledges, so a transaction that sends these offsets must not
            return QueueBatch(self.group, parts, offsets, shown)
        return QueueBatch(self.group, parts, ConsumedMessages(offsets, acceptances, self._has_open), shown)

    def _has_open(self, acceptances: Sequence[Acknowledgement]) -> bool:
        """Return whether some of these messages have no outcome yet.

        True for a partition that has moved: this consumer does not know any more, and the group decides.
        """
        with self._lock.own:
            self._ack_sender.collect_single_acks()
            for part in acceptances:
                tracker = self._ack_sender.find_tracker(part)
                spans = [(first, first + count, part.deliveries) for first, count in part.ranges]
                if tracker is None or tracker.find_open(spans):
                    return True
            return False

    def _undo_moves(self, moves: Mapping[TopicPartition, Any]) -> None:
        for place, (tracker, stretches) in moves.items():
            if place in self._trackers and self._trackers[place] is tracker:
                tracker.hide(stretches)

    # -- acknowledging ----------------------------------------------------------------------------------

    def ack(self, what: Messages) -> None:
        """Accept a message, a list of messages or a batch, without waiting. To accept a message twice is fine.

        Single messages gather, and travel with a later call: with the next `ack` 50 ms or more after the last request,
        or with `poll`, `nack` and the others. No timer sends them, so call `flush` before you pause. If single messages
        are refused, the next `flush`, `commit` or `poll` raises that once; no other call does.

        Raises:
            FencedMemberEpoch: the partition does not belong to the member any more.
            InvalidRecordState: the member was not given these messages, or has given them back. The error names them;
                all others are accepted.
        """
        # Fast path for a single message: it takes no lock, and reads fields by index, which is faster than by name.
        if type(what) is Message and type(what[2]) is int and 0 <= what[2] < 2**63 and what[7] == 1:
            tracker = self._trackers.get((what[0], what[1]))
            if tracker is None:
                raise fenced_error([(what[0], what[1])])
            tracker.single_acks.append(what[2])
            is_due = self._steady_ms() >= self._ack_sender.sent_at_ms + _SEND_EVERY_MS
            if is_due or len(tracker.single_acks) >= _SEND_AT_COUNT:
                with self._lock.own:
                    self._ack_sender.send()
            return
        self._record(AckOutcome.ACCEPT, what)

    def ack_through(self, what: Message | ConsumerBatch | Mapping[TopicPartition, int]) -> None:
        """Accept all messages that the member was given up to this message or batch, without waiting.

        Args:
            what: a message, which is accepted too; a batch, up to its end; or (topic, partition) -> the offset after
                the last one to accept.

        Raises:
            FencedMemberEpoch: a partition does not belong to the member any more. The others are accepted.
            InvalidRequest: the argument is not valid.
        """
        if isinstance(what, Message):
            ends = {(what.topic, what.partition): parse_whole_number("offset", what.offset, 0) + 1}
        elif isinstance(what, ConsumerBatch):
            ends = dict(what.offsets)
        else:
            ends = {
                place: parse_whole_number("what", end, 0)
                for place, end in parse_partition_offsets("what", what).items()
            }
        with self._lock.own:
            self._outcomes.accept_through(ends, what.offsets if isinstance(what, ConsumerBatch) else None)

    def nack(self, what: Messages, delay_ms: int | None = None, error: str = "") -> None:
        """Give messages back, without waiting: they are delivered again.

        After max.redelivery.count more deliveries they become dead letters instead. With nack.order `partition` no
        later message of their partitions is shown before them. Later ones that were prefetched are returned, and their
        delivery does not count.

        Args:
            what: a message, messages or a batch.
            delay_ms: how long they wait first; left out, as nack.backoff.ms says.
            error: what went wrong, for the dead letters; at most 1000 characters of it.

        Raises:
            FencedMemberEpoch, InvalidRecordState: as `ack` does.
        """
        delay_ms = None if delay_ms is None else parse_whole_number("delay_ms", delay_ms, 0, 2**40)
        self._record(AckOutcome.RELEASE, what, delay_ms, shorten_error(error))

    def reject(self, what: Messages, error: str = "") -> None:
        """Make messages dead letters at once, without waiting: they are never delivered again.

        Args:
            what: a message, messages or a batch.
            error: what went wrong, for the dead letters; at most 1000 characters of it.

        Raises:
            FencedMemberEpoch, InvalidRecordState: as `ack` does.
        """
        self._record(AckOutcome.REJECT, what, error=shorten_error(error))

    def _record(self, outcome: AckOutcome, what: Messages, delay_ms: int | None = None, error: str = "") -> None:
        with self._lock.own:
            self._outcomes.record(outcome, what, delay_ms, error)

    def go_back(self, batch: ConsumerBatch) -> bool:
        """Give back the messages of a batch that have no outcome, as after a transaction that was aborted.

        Returns:
            Whether all partitions of the batch still belong to the consumer.
        """
        with self._lock.own:
            owned = self._read_owned_partitions()
            still_owned = self._find_still_owned_partitions(batch, owned)
            spans = spans_of_messages(batch)
            self._outcomes.release_open({p: spans[p] for p in spans if p in still_owned}, owned)
            return len(still_owned) == len(batch.offsets)

    def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until the group has noted all acknowledgements. They are sent again while no sequencer answers.

        Args:
            timeout_ms: how long to wait; left out, a minute.

        Raises:
            RequestTimedOut: the time is over. The acknowledgements are sent again later.
            UnknownMemberId: the member was lost, and joins again with its next poll.
            FencedMemberEpoch, InvalidRecordState: some acknowledgements were refused; the others are noted. Of several
                such errors, each is the `__cause__` of the one before it.
        """
        limit_ms = self._timeout_ms if timeout_ms is None else parse_whole_number("timeout_ms", timeout_ms, 0)
        deadline_ms = self._clock.steady_ms() + limit_ms
        flush_acknowledgements(self._ack_sender, self._trackers, self._lock, self._clock, deadline_ms)

    def commit(
        self, what: ConsumerBatch | Mapping[TopicPartition, int] | None = None, metadata: str | None = None
    ) -> ConsumedOffsets:
        """Accept all messages through `what`, or all that were brought, and wait until the group has noted that.

        Args:
            what: as with `ack_through`; left out, all messages that were brought.
            metadata: not for queue groups.

        Returns:
            The offsets after the messages that were accepted.

        Raises:
            InvalidRequest: there is metadata.
            LakeMQError: an error of `ack_through` or `flush`.
        """
        if metadata is not None:
            raise InvalidRequest("A queue group notes no metadata.", found="metadata")
        offsets = self._offsets_to_commit(what)
        self.ack_through(what if isinstance(what, ConsumerBatch) else offsets)
        self.flush()
        return offsets

    def _consumed_offsets(self, named: Mapping[TopicPartition, int] | None) -> ConsumedOffsets:
        """Return the offsets that the user named, or the ends of all open messages."""
        if named is not None:
            return self._build_offsets(parse_partition_offsets("what", named), {})
        open_spans = {place: tracker.open_spans() for place, tracker in self._trackers.items()}
        return self._build_offsets({place: spans[-1][1] for place, spans in open_spans.items() if spans}, {})

    # -- where it is ------------------------------------------------------------------------------------

    def seek(self, topic: str, partition: int, offset: int) -> NoReturn:
        """Raise IllegalState: the group decides what it delivers."""
        raise IllegalState("A queue delivers what is next; to have it otherwise, reset the group's offsets.")

    def position(self, topic: str, partition: int) -> int:
        """Return the first offset of the partition that was never delivered."""
        with self._lock.own:
            owned = self._read_owned_partitions()
            check_assignment((topic, partition), owned)
            deliveries = owned[topic, partition].deliveries
            assert deliveries is not None
            return deliveries.next_offset

    def _assigned_places(self) -> Mapping[TopicPartition, AckTracker]:
        return self._trackers

    def lag(self) -> dict[TopicPartition, int]:
        """Return the number of unfinished offsets, up to the end of what this isolation level sees.

        It counts the partitions that this consumer has now, and no others; see `group_lag()`.

        Returns:
            (topic, partition) -> offsets.
        """
        with self._lock.own:
            return {place: partition.left_count for place, partition in self._read_owned_partitions().items()}

    def _is_behind(self) -> bool:
        return any(partition.left_count for partition in self._read_owned_partitions().values())

    def _own_positions(self) -> dict[TopicPartition, int]:
        """Return an empty mapping: a queue consumer has no positions. The group's state says what is done."""
        return {}

    def _drop_partitions(self) -> None:
        """Send all recorded outcomes, and return prefetched messages that the user has not seen."""
        if (request := self._ack_sender.acquire_request) is not None:
            wait([request], _ANSWER_MS / 1000)  # its messages would count as delivered to a member that has gone
        owned = self._read_owned_partitions()
        unseen = [
            build_acknowledgement(tracker, AckOutcome.UNSEEN, stretch, [stretch.span])
            for place, tracker in self._trackers.items()
            if place in owned and (deliveries := owned[place].deliveries) is not None
            for stretch in tracker.find_unshown(deliveries.acquired_stretches())
        ]
        for step in self._ack_sender.collect_answers, partial(self._ack_sender.send, unseen=unseen):
            with suppress(LakeMQError):  # a closing consumer has no more use for the messages
                step()
        self._trackers.clear()
        try:
            self._ack_sender.refusals.raise_all()
        except LakeMQError as error:
            log.warning("Acknowledgements were refused before the consumer closed: %s", error)
        super()._drop_partitions()
