"""Record the outcomes that a user gives to messages of a queue group: accept, release or reject."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ....protocol.errors import FencedMemberEpoch, LakeMQError
from ....protocol.values.queues.deliveries import MAX_ERROR_LENGTH, AckOutcome
from ...arguments import invalid_argument
from ...offsets import ConsumedOffsets, TopicPartition
from ..batch import ConsumerBatch
from ..member.membership_view import OwnedPartition
from .ack_sender import AckSender, invalid_error, raise_chain
from .ack_tracker import AckTracker, DeliverySpan
from .queue_batch import Messages, spans_of_messages


class MessageOutcomes:
    """Records and sends outcomes of messages. Its consumer holds the lock for every call."""

    def __init__(
        self,
        trackers: Mapping[TopicPartition, AckTracker],
        sender: AckSender,
        read_owned: Callable[[], Mapping[TopicPartition, OwnedPartition]],
    ) -> None:
        """read_owned: returns the member's partitions that have a tracker, as of the newest step."""
        self._trackers, self._sender, self._read_owned_partitions = trackers, sender, read_owned
        self.given_back_count = 0
        """How often the user has given messages back."""

    def record(self, outcome: AckOutcome, messages: Messages, delay_ms: int | None = None, error: str = "") -> None:
        """Record the outcome of messages, and send it without waiting.

        Args:
            outcome: accept, release or reject.
            messages: a message, a batch or messages. Messages of a batch that have an outcome already are left out.
            delay_ms: how long released messages wait; None: as the group's settings say.
            error: text for the dead letter.

        Raises:
            FencedMemberEpoch: some partitions belong to other members by now.
            InvalidRecordState: the member does not have some of the messages. The outcome of the others is recorded.
            InvalidRequest: these are not messages of a queue group.
        """
        spans, batch = spans_of_messages(messages), messages if isinstance(messages, ConsumerBatch) else None
        trackers, errors = self.find_trackers(spans, batch.offsets if batch else None)
        self.given_back_count += outcome is AckOutcome.RELEASE
        self._sender.collect_single_acks()
        for tp, tracker in trackers.items():
            to_record = spans[tp] if batch is None else tracker.find_open(spans[tp])
            if refused_spans := tracker.record(outcome, to_record, delay_ms, error):
                errors.append(invalid_error(tracker.name, refused_spans))
        self._sender.send()
        raise_chain(errors)

    def accept_through(self, ends: Mapping[TopicPartition, int], read: ConsumedOffsets | None) -> None:
        """Accept all open messages before these offsets, and send that without waiting.

        Args:
            ends: (topic, partition) -> end offset (exclusive).
            read: the offsets of the batch, if the user named one.

        Raises:
            FencedMemberEpoch: some partitions belong to other members by now. The others are recorded.
        """
        trackers, errors = self.find_trackers(ends, read)
        self._sender.collect_single_acks()
        for tp, tracker in trackers.items():
            end = ends[tp]
            spans = [(first, min(until, end), None) for first, until in tracker.list_open_spans() if first < end]
            tracker.record(AckOutcome.ACCEPT, spans)
        self._sender.send()
        raise_chain(errors)

    def release_open(
        self, spans: Mapping[TopicPartition, Iterable[DeliverySpan]], owned: Mapping[TopicPartition, OwnedPartition]
    ) -> None:
        """Give back the open messages of these spans. owned: partitions that the member has."""
        self.given_back_count += 1
        for tp, partition_spans in spans.items():
            if (deliveries := owned[tp].deliveries) is not None:
                tracker = self._trackers[tp]
                tracker.follow(deliveries)  # an aborted transaction has given its messages back already
                tracker.record(AckOutcome.RELEASE, tracker.find_open(partition_spans))
        self._sender.send()

    def find_trackers(
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
            if (tracker := self._trackers.get(tp)) is not None and epochs.get(tp, tracker.epoch) == tracker.epoch
        }
        if any(tracker.is_refused for tracker in trackers.values()):
            for tp, partition in self._read_owned_partitions().items():
                if partition.deliveries is not None:
                    self._trackers[tp].follow(partition.deliveries)
        lost = [tp for tp in topic_partitions if tp not in trackers]
        return trackers, [fenced_error(lost)] if lost else []


def fenced_error(topic_partitions: Iterable[TopicPartition]) -> FencedMemberEpoch:
    """Return the error that names these partitions, which belong to other members."""
    return FencedMemberEpoch(found=[f"{topic}-{partition}" for topic, partition in sorted(topic_partitions)])


def shorten_error(error: object) -> str:
    """Return as much of an error text as a dead letter can have. Characters that cannot be stored are escaped."""
    if not isinstance(error, str):
        raise invalid_argument("error", error, "text")
    return error.encode(errors="backslashreplace").decode()[:MAX_ERROR_LENGTH]
