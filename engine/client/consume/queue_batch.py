"""The batch of a `queue` group: messages to acknowledge, how often each was delivered, and the outcomes they get."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from ...protocol.errors import InvalidRequest
from ...protocol.values.deliveries import MAX_ERROR_LENGTH
from ...protocol.values.stretches import Stretch
from ..arguments import invalid_argument, parse_partition, parse_topic_name
from ..fetch.fetch_result import FetchResult, Message
from ..offsets import ConsumedOffsets, Spans, TopicPartition, group_into_spans
from .ack_tracker import DeliverySpan
from .batch import ConsumerBatch

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


def shorten_error(error: object) -> str:
    """Return as much of an error text as a dead letter can have. Characters that cannot be stored are escaped."""
    if not isinstance(error, str):
        raise invalid_argument("error", error, "text")
    return error.encode(errors="backslashreplace").decode()[:MAX_ERROR_LENGTH]
