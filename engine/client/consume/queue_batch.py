"""The batch of a `queue` group: messages to acknowledge, how often each was delivered, and the outcomes they get."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from ...protocol.errors import FencedMemberEpoch, InvalidRequest, LakeMQError
from ...protocol.values.deliveries import MAX_ERROR_LENGTH, AckOutcome
from ...protocol.values.stretches import Stretch
from ..arguments import invalid_argument, parse_partition, parse_topic_name
from ..fetch.fetch_result import FetchResult, Message
from ..offsets import ConsumedOffsets, Spans, TopicPartition, group_into_spans
from .ack_sender import AckSender, invalid_error, raise_chain
from .ack_tracker import AckTracker, DeliverySpan
from .batch import ConsumerBatch
from .membership_view import OwnedPartition

Messages = Message | ConsumerBatch | Iterable[Message]
"""Messages as a user names them: one, those of a batch, or several."""


@dataclass(frozen=True)
class ShownPartition:
    """The part of a partition that a poll has shown.

    Attributes:
        epoch: of the assignment under which it was shown.
        start_offset: where the member began to read under that assignment.
        stretches: offsets that were shown, with their delivery counts; some may hold no message for this reader.
    """

    topic_id: int
    epoch: int
    start_offset: int | None
    stretches: Sequence[Stretch]


class QueueBatch(ConsumerBatch):
    """The messages of a poll of a queue group. shown: (topic, partition) -> the part of it that is in the batch."""

    def __init__(
        self,
        group: str,
        parts: list[FetchResult],
        offsets: ConsumedOffsets,
        shown: Mapping[TopicPartition, ShownPartition],
    ) -> None:
        super().__init__(group, parts, offsets)
        self.shown = dict(shown)

    def to_arrow(self, parse: bool = False) -> pa.Table:
        """Return all messages as any batch does, and a column `delivery_count` (int32), which is 1 for new messages."""
        table = super().to_arrow(parse)
        counts = np.ones(len(table), np.int32)
        redelivered = {tp: stretches for tp, shown in self.shown.items() if (stretches := _find_redeliveries(shown))}
        if redelivered:
            topics, partitions = table.column("topic").to_numpy(), table.column("partition").to_numpy()
            offsets = table.column("offset").to_numpy()
            for (topic, partition), stretches in redelivered.items():
                is_of_partition = (topics == topic) & (partitions == partition)
                for stretch in stretches:
                    counts[is_of_partition & (offsets >= stretch.first) & (offsets < stretch.end)] = stretch.deliveries
        return table.append_column(pa.field("delivery_count", pa.int32()), pa.array(counts))

    def __iter__(self) -> Iterator[Message]:
        counts = {
            (*tp, offset): stretch.deliveries
            for tp, shown in self.shown.items()
            for stretch in _find_redeliveries(shown)
            for offset in range(stretch.first, stretch.end)
        }
        messages = super().__iter__()
        return map(partial(_set_delivery_count, counts), messages) if counts else messages


def _set_delivery_count(counts: Mapping[tuple[str, int, int], int], message: Message) -> Message:
    count = counts.get(message[:3])
    return message if count is None else message._replace(delivery_count=count)


def _find_redeliveries(shown: ShownPartition) -> list[Stretch]:
    return [stretch for stretch in shown.stretches if stretch.deliveries > 1]


def spans_of_messages(messages: Messages) -> dict[TopicPartition, list[DeliverySpan]]:
    """Return where the messages are: (topic, partition) -> spans of offsets with their delivery counts.

    Raises:
        InvalidRequest: these are not messages of a queue group.
    """
    if isinstance(messages, ConsumerBatch):
        if not isinstance(messages, QueueBatch):
            raise InvalidRequest("The batch does not come from a queue group.")
        return {
            tp: [(stretch.first, stretch.end, stretch.deliveries) for stretch in shown.stretches]
            for tp, shown in messages.shown.items()
        }
    listed = [messages] if isinstance(messages, Message) else messages
    offsets: dict[TopicPartition, dict[int, list[int]]] = {}
    if not isinstance(listed, Iterable):
        raise invalid_argument("what", messages, "a message, a batch, or messages")
    for message in listed:
        if not isinstance(message, Message):
            raise invalid_argument("what", message, "a message, a batch, or messages")
        try:
            by_count = offsets.setdefault((message.topic, message.partition), {})
            by_count.setdefault(message.delivery_count, []).append(message.offset)
        except TypeError:
            raise invalid_argument("what", message, "a message of a topic and a partition") from None
    for topic, partition in offsets:
        parse_topic_name("topic", topic)
        parse_partition(partition)
    try:
        return {
            tp: [(*span, count) for count, listed in by_count.items() for span in group_into_spans(listed)]
            for tp, by_count in offsets.items()
        }
    except ValueError:
        raise InvalidRequest("Messages are not valid.", expected="offsets that are whole numbers of 64 bits") from None


def take_first(stretches: Sequence[Stretch], count: int) -> list[Stretch]:
    """Return the first `count` messages of the stretches."""
    first_stretches = []
    for stretch in stretches:
        if count <= 0:
            break
        first_stretches.append(stretch.cut(stretch.first, min(stretch.end, stretch.first + count)))
        count -= stretch.length
    return first_stretches


def find_message_spans(parts: Sequence[FetchResult], tp: TopicPartition) -> tuple[Spans, Spans]:
    """Return the offsets of a partition that hold messages, and those whose messages have expired."""
    spans, expired = Spans(), Spans()
    for part in parts:
        if part.plan.topic == tp[0]:
            segments = part.plan.segments
            columns = (segments.column(name).to_pylist() for name in ("partition", "base_offset", "record_count"))
            for partition, first, count in zip(*columns, strict=True):
                if partition == tp[1]:
                    spans.add(first, first + count)
            expired = Spans(group_into_spans(part.expired.get(tp[1], ())))
    for span in expired:
        spans.remove(*span)
    return spans, expired


# Record the outcomes that a user gives to messages of a queue group: accept, release or reject.


class MessageOutcomes:
    """Records and sends outcomes of messages. Its consumer holds the lock for every call."""

    def __init__(
        self,
        trackers: Mapping[TopicPartition, AckTracker],
        sender: AckSender,
        read_owned: Callable[[], Mapping[TopicPartition, OwnedPartition]],
        describe_missing_topics: Callable[[Sequence[str]], Sequence[str]],
    ) -> None:
        """Record outcomes in these trackers.

        read_owned: returns the member's partitions that have a tracker, as of the newest step. describe_missing_topics:
        returns a sentence for each of the topics that is not there.
        """
        self._trackers, self._sender, self._read_owned_partitions = trackers, sender, read_owned
        self._describe_missing_topics = describe_missing_topics
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
        return trackers, [self.build_fenced_error(lost)] if lost else []

    def build_fenced_error(self, topic_partitions: Sequence[TopicPartition]) -> FencedMemberEpoch:
        """Return the error that names these partitions, which belong to other members or whose topic was deleted."""
        reasons = self._describe_missing_topics(sorted({topic for topic, _ in topic_partitions}))
        found = [f"{topic}-{partition}" for topic, partition in sorted(topic_partitions)]
        return FencedMemberEpoch(" ".join(reasons), found=found)


def shorten_error(error: object) -> str:
    """Return as much of an error text as a dead letter can have. Characters that cannot be stored are escaped."""
    if not isinstance(error, str):
        raise invalid_argument("error", error, "text")
    return error.encode(errors="backslashreplace").decode()[:MAX_ERROR_LENGTH]
