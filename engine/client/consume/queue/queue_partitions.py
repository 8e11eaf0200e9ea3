"""The partitions of a member of a queue group, and what the user knows of their messages."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import suppress
from functools import partial

from ....protocol.errors import LakeMQError
from ....protocol.values.consuming.groups import Assigned
from ....protocol.values.queues.deliveries import AckOutcome
from ...fetch.planning.plan import Bounds
from ...offsets import TopicPartition
from ..member.member import Member, OwnedPartitions
from ..member.member_options import log
from ..member.membership_view import MembershipView, OwnedPartition
from ..range_fetcher import RangeFetcher
from .ack_sender import AckSender
from .ack_tracker import AckTracker
from .message_outcomes import build_acknowledgement
from .queue_poll import QueuePoller

ANSWER_MS = 1_000
"""How long to wait for the answer to a request for messages that is under way."""


class QueuePartitions:
    """Keeps a tracker for each partition of a member. The consumer holds its lock for every call.

    Unlike other members, this one does not release revoked partitions: the group moves them when all their messages
    have an outcome. So it also takes a partition that is paused already, because its messages need an outcome.
    """

    def __init__(
        self,
        member: Member,
        trackers: dict[TopicPartition, AckTracker],
        ack_sender: AckSender,
        poller: QueuePoller,
        fetcher: RangeFetcher,
    ) -> None:
        """Share the parts of one consumer. This changes `trackers`, which the other parts read."""
        self._member, self._trackers, self._ack_sender = member, trackers, ack_sender
        self._poller, self._fetcher = poller, fetcher
        self.paused_by_user: set[TopicPartition] = set()

    def read_owned(self) -> dict[TopicPartition, OwnedPartition]:
        """Return the partitions that have a tracker and that the member still has, as of the newest step."""
        return self.find_owned(self._member.membership.read_view())

    def find_owned(self, view: MembershipView) -> dict[TopicPartition, OwnedPartition]:
        """Return the same as of the step of this view."""
        self._poller.note_view(view)
        if view.queue_settings is not None:
            self._fetcher.isolation = view.queue_settings.isolation
        trackers = self._trackers
        return {p: owned for p, owned in view.owned.items() if p in trackers and trackers[p].epoch == owned.epoch}

    def read_bounds(self) -> dict[TopicPartition, Bounds]:
        """Return the bounds of these partitions."""
        return {place: partition.bounds for place, partition in self.read_owned().items()}

    # -- what the group decides ---------------------------------------------------------------------------

    def join(self) -> None:
        """Join the group. A member that was lost takes back the partitions that no other member has yet."""
        bound = [Assigned(tracker.topic_id, tracker.partition, tracker.epoch) for tracker in self._trackers.values()]
        self._member.membership.join(bound)
        self._ack_sender.note_rejoin()

    def note_joined(self) -> None:
        if self._ack_sender.is_lost:
            self._ack_sender.note_rejoin()

    def list_lost_with_member(self) -> Sequence[TopicPartition]:
        """Return no partitions: those that other members have by now are found after the member has joined again."""
        return []

    def lose(self, place: TopicPartition) -> bool:
        """Drop a partition; return True if it was not reported as revoked, or has messages without outcome.

        A partition that was reported as revoked, and whose messages all had an outcome, has moved as announced.
        """
        self.paused_by_user.discard(place)
        self._poller.forget(place)
        tracker = self._trackers.pop(place, None)
        if tracker is None:
            return False
        if not tracker.is_sent:
            self._ack_sender.note_move(place)
        return not tracker.is_paused or tracker.open_count > 0

    def find_revoked(self, owned: OwnedPartitions) -> list[TopicPartition]:
        """Return the partitions that are paused since the last poll, and mark them as paused."""
        revoked = [
            place
            for place in sorted(owned)
            if owned[place].is_paused and place in self._trackers and not self._trackers[place].is_paused
        ]
        for place in revoked:
            self._trackers[place].is_paused = True
        return revoked

    def give_up(self, owned: OwnedPartitions, reported: Sequence[TopicPartition]) -> None:
        pass

    def find_new(self, owned: OwnedPartitions) -> dict[TopicPartition, OwnedPartition]:
        return {place: partition for place, partition in owned.items() if place not in self._member.partitions}

    def take(self, new: OwnedPartitions) -> None:
        for (topic, number), partition in new.items():
            self._trackers[topic, number] = AckTracker(
                f"{topic}-{number}", partition.bounds.topic_id, number, partition.epoch
            )

    def drop_all(self) -> None:
        """Send all recorded outcomes, and return prefetched messages that the user has not seen."""
        if (request := self._ack_sender.acquire_request) is not None:
            wait([request], ANSWER_MS / 1000)  # its messages would count as delivered to a member that has gone
        owned = self.read_owned()
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
        self.paused_by_user.clear()
        try:
            self._ack_sender.refusals.raise_all()
        except LakeMQError as error:
            log.warning("Acknowledgements were refused before the consumer closed: %s", error)
