"""What a poll of a `queue` group brought: messages that are to be acknowledged, and how often each was delivered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from ...protocol.errors import InvalidRequest
from ...protocol.values.deliveries import Stretch
from ..arguments import partition_number, refused, topic_name
from ..fetch.fetched import Fetched, Message
from ..offsets import ConsumedOffsets, TopicPartition
from .batch import ConsumerBatch
from .flow import Meant
from .spans import Spans, spans_of

Messages = Message | ConsumerBatch | Iterable[Message]
"""As a user names them: one, those of a batch, some."""


@dataclass(frozen=True)
class Shown:
    """Of a partition: the assignment under which messages were shown, since when it is, where it began, and which."""

    topic_id: int
    epoch: int
    start_offset: int | None
    stretches: Sequence[Stretch]


class QueueBatch(ConsumerBatch):
    """shown: (topic, partition) -> what of it is in the batch; offsets that hold no message for this reader, too."""

    def __init__(
        self,
        group: str,
        parts: list[Fetched],
        offsets: ConsumedOffsets,
        shown: Mapping[TopicPartition, Shown],
    ) -> None:
        super().__init__(group, parts, offsets)
        self.shown = dict(shown)

    def to_arrow(self) -> pa.Table:
        """All messages as of any batch, and a column delivery_count: 1 for those that were not delivered before."""
        table = super().to_arrow()
        counts = np.ones(len(table), np.int32)
        again = {place: listed for place, shown in self.shown.items() if (listed := _again(shown))}
        if again:
            topics, partitions = table.column("topic").to_numpy(), table.column("partition").to_numpy()
            offsets = table.column("offset").to_numpy()
            for (topic, partition), stretches in again.items():
                mine = (topics == topic) & (partitions == partition)
                for one in stretches:
                    counts[mine & (offsets >= one.first) & (offsets < one.end)] = one.deliveries
        return table.append_column(pa.field("delivery_count", pa.int32()), pa.array(counts))

    def __iter__(self) -> Iterator[Message]:
        again = {
            (*place, at): one.deliveries
            for place, shown in self.shown.items()
            for one in _again(shown)
            for at in range(one.first, one.end)
        }
        messages = super().__iter__()
        return map(partial(_counted, again), messages) if again else messages


def _counted(again: Mapping[tuple[str, int, int], int], message: Message) -> Message:
    count = again.get(message[:3])
    return message if count is None else message._replace(delivery_count=count)


def _again(shown: Shown) -> list[Stretch]:
    return [one for one in shown.stretches if one.deliveries > 1]


def meant_by(what: Messages) -> dict[TopicPartition, list[Meant]]:
    """Raises InvalidRequest: these are no messages."""
    if isinstance(what, ConsumerBatch):
        if not isinstance(what, QueueBatch):
            raise InvalidRequest("The batch is none of a queue group.")
        return {p: [(one.first, one.end, one.deliveries) for one in shown.stretches] for p, shown in what.shown.items()}
    listed = [what] if isinstance(what, Message) else what
    offsets: dict[TopicPartition, dict[int, list[int]]] = {}
    if not isinstance(listed, Iterable):
        raise refused("what", what, "a message, a batch, or messages")
    for one in listed:
        if not isinstance(one, Message):
            raise refused("what", one, "a message, a batch, or messages")
        try:
            of_place = offsets.setdefault((one.topic, one.partition), {})
            of_place.setdefault(one.delivery_count, []).append(one.offset)
        except TypeError:
            raise refused("what", one, "a message of a topic and a partition") from None
    for topic, partition in offsets:
        topic_name("topic", topic)
        partition_number(partition)
    try:
        return {
            place: [(*span, count) for count, found in by_count.items() for span in spans_of(found)]
            for place, by_count in offsets.items()
        }
    except ValueError:
        raise InvalidRequest("Messages are not valid.", expected="offsets that are whole numbers of 64 bits") from None


def cut(stretches: Sequence[Stretch], size: int) -> list[Stretch]:
    """The first ones, that many messages."""
    found = []
    for one in stretches:
        if size <= 0:
            break
        found.append(one.cut(one.first, min(one.end, one.first + size)))
        size -= one.length
    return found


def messages_of(parts: Sequence[Fetched], place: TopicPartition) -> tuple[Spans, Spans]:
    """The offsets that hold messages, and those whose messages have expired."""
    spans, expired = Spans(), Spans()
    for part in parts:
        if part.plan.topic == place[0]:
            segments = part.plan.segments
            columns = (segments.column(name).to_pylist() for name in ("partition", "base_offset", "record_count"))
            for partition, first, count in zip(*columns, strict=True):
                if partition == place[1]:
                    spans.add(first, first + count)
            expired = Spans(spans_of(part.expired.get(place[1], ())))
    for span in expired:
        spans.remove(*span)
    return spans, expired
