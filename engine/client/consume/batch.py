"""What a poll returns: messages of some partitions, where the group goes on after them, and the outcome of the poll."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property, partial, reduce
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...namespace.process import ProcessBound
from ...protocol.errors import IllegalState, InvalidRequest
from ...protocol.values.assignments import TopicIdPartition
from ...protocol.values.deliveries import MAX_ERROR_LENGTH, Stretch, group_into_spans
from ...protocol.values.topics import Bounds
from ..arguments import invalid_argument, parse_flag, parse_partition, parse_topic_name
from ..fetch.arrow import FETCHED
from ..fetch.fetch_result import FetchResult, Message, Row, to_message
from ..html_table import SHOWN_MESSAGES, build_message_table
from ..offsets import ConsumedOffsets, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class PollOutcome(StrEnum):
    """The `outcome` of a batch. Compare it with these, or with their texts; `sentence` explains it."""

    MESSAGES = "messages"
    AT_END = "at_end"
    OTHERS_HOLD_THE_REST = "others_hold_the_rest"
    NOT_ASSIGNED = "not_assigned"
    NOT_YET = "not_yet"

    @property
    def sentence(self) -> str:
        """The outcome as a sentence, for logs and people."""
        return _SENTENCES[self]


_SENTENCES = {
    PollOutcome.MESSAGES: "The batch has messages.",
    PollOutcome.AT_END: "Nothing is left: this consumer has all partitions, and has read them to their ends.",
    PollOutcome.OTHERS_HOLD_THE_REST: "This consumer has read its partitions to their ends, if it has any; "
    "other members hold the rest.",
    PollOutcome.NOT_ASSIGNED: "The group is still sharing its partitions: this consumer has just joined, or the group "
    "waits for a member that is lost or has not given up its partitions.",
    PollOutcome.NOT_YET: "More is left in this consumer's partitions, but it cannot be read now: it is paused, "
    "delayed, not acknowledged, after an open transaction, or took longer than the poll waited.",
}


ExplainTransactions = Callable[[Sequence[TopicIdPartition]], Sequence[str]]
"""Returns a sentence for each open transaction at which readers of committed messages of these partitions stand."""


@dataclass(frozen=True)
class Ownership:
    """How long a member has had a partition.

    An earlier owner may have processed messages before `first_offset`, and so a part of the messages of a key.

    Attributes:
        since_ms: when the group assigned the partition, in ms since 1970.
        first_offset: where the member began to read; None: where its `auto_offset_reset` said.
        epoch: the step that assigned the partition. Each new owner has another one.
    """

    since_ms: int
    first_offset: int | None
    epoch: int

    @property
    def since(self) -> datetime:
        """Time at which the group assigned the partition, in UTC."""
        return datetime.fromtimestamp(self.since_ms / 1000, UTC)


class ConsumerBatch(ProcessBound):
    """A fixed range of offsets of some partitions; reading it twice gives the same messages.

    `len(batch)` is the number of its messages, so an empty batch is false. An empty batch does not mean that nothing is
    left: see `outcome`.

    Attributes:
        group: the group of the consumer.
        offsets: (topic, partition) -> the offset to go on from, for every partition that moved, also past offsets that
            hold no message for this reader.
        ownership: (topic, partition) -> since when the member of a group has it, for every partition in `offsets`.
        outcome: `PollOutcome.MESSAGES`, or the reason for an empty batch.

    Example:
        >>> batch = consumer.poll(timeout_ms=1_000)  # doctest: +SKIP
        >>> rows = batch.to_arrow() if batch else None  # doctest: +SKIP
    """

    def __init__(
        self,
        group: str,
        parts: list[FetchResult],
        offsets: ConsumedOffsets,
        ownership: Mapping[TopicPartition, Ownership],
    ) -> None:
        """Make a batch of the parts, one per topic.

        There is at least one part, so that a batch without messages is a DataFrame as well; none if the consumer had no
        partitions.
        """
        self.group, self._parts, self.offsets, self.ownership = group, parts, offsets, ownership
        self.outcome = PollOutcome.MESSAGES
        self._find_reasons: Callable[[], Sequence[str]] = tuple

    def explain(
        self, stalls: Sequence[str], explain_transactions: ExplainTransactions, held_back: Sequence[TopicIdPartition]
    ) -> None:
        """Note why the batch is empty. For the consumer.

        Args:
            stalls: sentences that say what holds the group up.
            explain_transactions: returns such sentences about open transactions.
            held_back: partitions that were read up to an open transaction.
        """
        self._find_reasons = lambda: [*stalls, *(explain_transactions(held_back) if held_back else ())]

    @cached_property
    def waits_for(self) -> Sequence[str]:
        """Of an empty batch, a sentence for each thing that holds up messages; empty if nothing is known to.

        The names of open transactions are read from the tables when you first ask for them.
        """
        return self._find_reasons()

    @property
    def starts(self) -> dict[TopicPartition, int]:
        """(topic, partition) -> the offset at which the batch begins."""
        return {
            (part.plan.topic, range_.partition): range_.start for part in self._parts for range_ in part.plan.ranges
        }

    @property
    def record_count(self) -> int:
        """The number of messages."""
        return sum(part.record_count for part in self._parts)

    def load(self) -> None:
        """Read all messages now, as `FetchResult.load` does."""
        for part in self._parts:
            part.load()

    def to_arrow(self, parse: bool = False) -> pa.Table:
        """Return all messages by topic, partition and offset, with the columns of Spark's Kafka source.

        Args:
            parse: add a column `parsed`, as `mq.fetch` does. The topics of the batch must have the same schema.

        Raises:
            InvalidRequest: with parse, a topic has no schema, or they have several.
            IllegalState: with parse, the consumer had no partitions.
        """
        tables = [part.to_arrow() for part in self._list_parts(parse)]
        return pa.concat_tables(tables if parse else [FETCHED.empty_table(), *tables])

    def to_spark(self, parse: bool = False) -> DataFrame:
        """Return all messages as a DataFrame with the columns of Spark's Kafka source, in no particular order.

        Args:
            parse: as in `to_arrow`.

        Raises:
            IllegalState: no Spark session runs, or the consumer had no partitions.
            InvalidRequest: as in `to_arrow`.
        """
        if not self._parts:
            raise IllegalState("The consumer had no partitions, so its batch cannot be a DataFrame.")
        frames = [part.to_spark() for part in self._list_parts(parse)]
        return reduce(lambda left, right: left.unionAll(right), frames)

    def _list_parts(self, parse: bool) -> list[FetchResult]:
        if not parse_flag("parse", parse):
            return self._parts
        if not self._parts:
            raise IllegalState("The consumer had no partitions, so no schema is known for its batch.")
        find_schema = self._parts[0].find_schema
        assert find_schema is not None
        schema = find_schema(*(part.plan.topic for part in self._parts))
        return [part.with_schema(schema) for part in self._parts]

    def __iter__(self) -> Iterator[Message]:
        return map(to_message, self._rows())

    def _rows(self) -> Iterator[Row]:
        return chain.from_iterable(part._rows() for part in self._parts)

    def __len__(self) -> int:
        return self.record_count

    def __bool__(self) -> bool:
        return self.record_count > 0

    def _repr_html_(self) -> str:
        return build_message_table(Message._fields, islice(self, SHOWN_MESSAGES), self.record_count)


def divide_room(available: Mapping[TopicPartition, int], room: int) -> dict[TopicPartition, int]:
    """Divide the room of a poll evenly among partitions, so that none starves and no room is wasted.

    Room that a partition cannot use goes to the others. A remainder that does not divide goes to those named first.

    Args:
        available: partition -> offsets that it could use.
        room: offsets to divide.

    Returns:
        Partition -> offsets, also for those that get none.
    """
    sizes = dict.fromkeys(available, 0)
    unsatisfied = [partition for partition, count in available.items() if count > 0]
    while room >= len(unsatisfied) > 0:
        share = room // len(unsatisfied)
        for partition in unsatisfied:
            more = min(share, available[partition] - sizes[partition])
            sizes[partition] += more
            room -= more
        unsatisfied = [partition for partition in unsatisfied if sizes[partition] < available[partition]]
    for partition in unsatisfied[:room]:
        sizes[partition] += 1
    return sizes


def find_held_back(
    bounds: Mapping[TopicPartition, Bounds], offsets: Mapping[TopicPartition, int | None]
) -> list[TopicIdPartition]:
    """Return the partitions that are read up to an open transaction. offsets: the next offsets to read."""
    return [
        (bounds[tp].topic_id, tp[1])
        for tp, offset in offsets.items()
        if offset is not None and bounds[tp].end <= offset < bounds[tp].high_watermark
    ]


# The batch of a `queue` group: messages to acknowledge, how often each was delivered, and the outcomes they get.


DeliverySpan = tuple[int, int, int | None]
"""First offset, end offset (exclusive), and the delivery count that is meant; None: the newest delivery."""

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
        ownership: Mapping[TopicPartition, Ownership],
        shown: Mapping[TopicPartition, ShownPartition],
    ) -> None:
        super().__init__(group, parts, offsets, ownership)
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

    def _rows(self) -> Iterator[Row]:
        counts = {
            (*tp, offset): stretch.deliveries
            for tp, shown in self.shown.items()
            for stretch in _find_redeliveries(shown)
            for offset in range(stretch.first, stretch.end)
        }
        rows = super()._rows()
        return map(partial(_set_delivery_count, counts), rows) if counts else rows


def _set_delivery_count(counts: Mapping[tuple[str, int, int], int], row: Row) -> Row:
    count = counts.get(row[:3])
    return row if count is None else (*row[:-1], count)


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


def shorten_error(error: object) -> str:
    """Return as much of an error text as a dead letter can have. Characters that cannot be stored are escaped."""
    if not isinstance(error, str):
        raise invalid_argument("error", error, "text")
    return error.encode(errors="backslashreplace").decode()[:MAX_ERROR_LENGTH]
