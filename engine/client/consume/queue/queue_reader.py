"""Read the messages that a member of a queue group has acquired, and acquire those of the next poll."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import wait
from typing import Any

from ....namespace.processes.clock import Clock
from ....protocol.errors import IllegalState
from ....protocol.values.queues.deliveries import Acknowledgement, AckOutcome, WantedMessages
from ...fetch.step_waiter import Waiter
from ...offsets import ConsumedMessages, TopicPartition
from ..batch import ConsumerBatch
from ..consumer_lock import ConsumerLock
from ..member.member import Member
from ..member.membership_view import MembershipView, OwnedPartition
from ..partition_reader import Moves
from ..poll_parts import fetch_parts
from ..range_fetcher import RangeFetcher
from .ack_sender import LONGEST_WAIT_MS, AckSender
from .ack_tracker import AckTracker
from .queue_batch import QueueBatch
from .queue_partitions import ANSWER_MS, QueuePartitions
from .queue_poll import QueuePoller
from .unseen_deliveries import UnseenDeliveries


class QueueReader:
    """Reads the messages of one consumer, which holds its lock for every call, unless `partition_reader` says not.

    Attributes:
        accepts_previous: a poll has begun, and has not yet acknowledged the messages of the poll before it (ack.mode
            auto).
        returned_count: returns how often the user has given messages back.
    """

    def __init__(
        self,
        group: str,
        lock: ConsumerLock,
        member: Member,
        partitions: QueuePartitions,
        trackers: Mapping[TopicPartition, AckTracker],
        ack_sender: AckSender,
        poller: QueuePoller,
        fetcher: RangeFetcher,
        clock: Clock,
        waiter: Waiter,
        returned_count: Callable[[], int],
    ) -> None:
        """Share the parts of one consumer."""
        self._group, self._lock, self._member, self._partitions = group, lock, member, partitions
        self._trackers, self._ack_sender, self._poller = trackers, ack_sender, poller
        self.fetcher, self._clock, self._waiter = fetcher, clock, waiter
        self._returned_count = returned_count
        self.paused_by_user = partitions.paused_by_user
        self.accepts_previous = False
        self._view: MembershipView | None = None
        """The view with which the poll has begun, until it is used."""

    def list_places(self) -> Container[TopicPartition]:
        return self._trackers

    def begin_poll(self) -> None:
        """Take in answers, and then what the group has decided.

        This order matters: the state then includes what the answers brought, so that nothing is requested twice.
        """
        self._ack_sender.collect_answers()
        self._view = self._member.update(self._partitions)

    def read_next(self, max_records: int, moves: Moves, read_ahead: int) -> QueueBatch | None:
        """Look once for messages to show, and request those of the next poll; return None to be called again.

        The order of the steps matters. With ack.mode auto, the messages of the poll before are accepted before new
        ones are selected, because they take room. Messages are marked as shown only once they are fetched. The next
        request comes after that. It asks for `max_records` less what is acquired already and still unshown.
        """
        owned = self._find_owned()
        if self.accepts_previous and self._poller.is_auto_ack:
            for tracker in self._trackers.values():
                tracker.record(AckOutcome.ACCEPT, [(*span, None) for span in tracker.open_spans()])
        self.accepts_previous = False
        selection = self._poller.select(owned, max_records, self.paused_by_user)
        topic_ids = {topic: partition.bounds.topic_id for (topic, _), partition in owned.items()}
        parts = fetch_parts(self.fetcher.try_to_fetch, selection.starts, selection.ends, topic_ids, owned)
        if parts is None:
            return None
        shown, acceptances = self._poller.show(selection, parts, owned, moves)
        next_messages: list[WantedMessages] = []
        if self._ack_sender.acquire_request is None:  # at most one request is under way
            next_messages = self._poller.plan_next(owned, max_records - selection.unshown_count, self.paused_by_user)
        self._ack_sender.send(next_messages)
        offsets = self._member.build_offsets(selection.ends, topic_ids)
        if not self._poller.is_auto_ack:  # otherwise the next poll acknowledges, and a transaction must not
            offsets = ConsumedMessages(offsets, acceptances, self._has_open)
        batch = QueueBatch(self._group, parts, offsets, shown)
        batch.ownership = self._member.find_ownership(batch.offsets)
        return batch

    def _find_owned(self) -> dict[TopicPartition, OwnedPartition]:
        """Return the member's partitions: as `begin_poll` has just read them, if nothing has happened since."""
        view, self._view = self._view, None
        if view is not None:
            return self._partitions.find_owned(view)
        self._ack_sender.collect_answers()
        return self._partitions.read_owned()

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

    def undo_moves(self, moves: Mapping[TopicPartition, Any]) -> None:
        """Hide the messages again that a poll that failed has marked as shown."""
        for place, (tracker, stretches) in moves.items():
            if place in self._trackers and self._trackers[place] is tracker:
                tracker.hide(stretches)

    def mark_unseen(self, batch: QueueBatch) -> UnseenDeliveries:
        return UnseenDeliveries(batch, lambda: self._trackers, lambda: self.paused_by_user, self._returned_count)

    def explain_empty(self, batch: ConsumerBatch) -> None:
        """Note why the batch is empty. Raises IllegalState: the user has as many messages as it may have."""
        if self._trackers and self._poller.count_room() <= 0:
            raise IllegalState(
                "The member has as many unacknowledged messages as it may have. Acknowledge them, or give them back"
                " with nack.",
                found=f"{self._poller.count_open()}, the first is {self._poller.name_first_open()}",
                expected="less than max.delivered.unacked.msgs.per.flow",
            )
        silence, stalls = self._ack_sender.explain_silence(), self._member.membership.find_stalls()
        batch.waits_for = [] if silence is None else [silence]
        batch.waits_for += [str(stall) for stall in stalls if stall.kind != "bound"]
        batch.outcome = self._member.find_outcome(self._is_behind)

    def _is_behind(self) -> bool:
        return any(partition.left_count for partition in self._partitions.read_owned().values())

    def waits_for_partitions(self) -> bool:
        return self._member.waits_for_partitions()

    def expects_messages(self, deadline_ms: float) -> bool:
        return self._ack_sender.acquire_request is not None and self._clock.steady_ms() < deadline_ms + ANSWER_MS

    def rest(self, poll_ms: int, most_ms: int) -> None:
        """Sleep, or until the messages that were requested are there, if that is sooner."""
        if (request := self._ack_sender.acquire_request) is None:
            self._waiter.wait(poll_ms, most_ms)
        else:
            wait([request], min(max(min(poll_ms, most_ms), 1), LONGEST_WAIT_MS) / 1000)
